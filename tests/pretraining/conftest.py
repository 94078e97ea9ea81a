"""The recipe with a few steps."""

from dataclasses import replace
from pathlib import Path

import pytest

from pretraining import transformer
from pretraining.toys import Toy, load_toy


@pytest.fixture(autouse=True)
def few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "DATASET_BATCH", 20)


def small(name: str, phase: str, steps: int, folder: Path) -> Toy:
    """A toy whose network has one phase, of a few steps."""
    toy = load_toy(name)
    text = toy.params["text"] | {"steps": 2, "batch_size": 8}
    settings = toy.params["transformer"]
    settings = settings | {"phases": {phase: settings["phases"][phase] | {"steps": steps}}, "pictures": 20}
    settings |= {"batch_size": 4, "warmup_steps": 2, "evaluate_every": 2, "watch_prompts": 1, "empty_captions": 0.5}
    evaluate = toy.params["evaluate"] | {"num_steps": 2}
    params = toy.params | {"text": text, "transformer": settings, "evaluate": evaluate, "device": "cpu"}
    return replace(toy, folder=folder, params=params)
