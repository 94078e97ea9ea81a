"""Offloaded parts on the pretended accelerator: where they are while a training decodes, scores and updates."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.scorers.running.configured import MODELS
from chunk_grpo.scorers.shapes import ShapesGraded
from chunk_grpo.training.update import Update
from tests.pretended.device import DEVICE, PretendedTensor
from tests.training.conftest import CHUNK_WS
from tests.training.conftest import prompts as prompts  # a fixture
from tests.training.worker import Job, do

pytestmark = pytest.mark.usefixtures("waits")
RUN: dict[str, Any] = {"iterations": 1, "kl_coef": 0.0, "rollout_batch_size": 2, "micro_batch_size": 4}


@pytest.mark.parametrize(
    ("parts", "background"),
    [
        pytest.param(("vae",), True, marks=pytest.mark.slow),
        (("scorers",), True),
        pytest.param(("vae", "scorers"), False, marks=pytest.mark.slow),
    ],
)
def test_offloaded_parts_are_on_expected_device(
    parts: tuple[str, ...], background: bool, prompts: PromptSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scorer with a model, which here changes no score, and one with the rules of the shapes world."""
    job = Job(CHUNK_WS, {**RUN, "reward_in_background": background, "offload": parts}, device="pretend")
    plain = do(replace(job, train={**job.train, "offload": ()}, folder="plain"), prompts, tmp_path)
    network = torch.nn.Linear(2, 2).to(DEVICE)
    MODELS.take("test", lambda: network)
    places: dict[str, set[tuple[bool, bool]]] = {}
    decoders: list[torch.nn.Module] = []

    def watched(what: str, function: Any) -> Any:
        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(self, FluxFamily):
                decoders.append(self._pipeline.vae)
            on_device = [isinstance(next(part.parameters()), PretendedTensor) for part in (decoders[0], network)]
            places.setdefault(what, set()).add((on_device[0], on_device[1]))
            return function(self, *arguments, **options)

        return call

    monkeypatch.setattr(FluxFamily, "decode", watched("decode", FluxFamily.decode))
    monkeypatch.setattr(ShapesGraded, "score_rows", watched("score", ShapesGraded.score_rows))
    monkeypatch.setattr(Update, "accumulate_gradient", watched("update", Update.accumulate_gradient))
    try:
        seen = do(job, prompts, tmp_path)
    finally:
        MODELS.bring_back()
        MODELS.give_back("test")
    assert seen.error == plain.error == ""
    assert places["decode"] == places["score"] == {(True, True)}
    assert places["update"] == {("vae" not in parts, "scorers" not in parts)}
    rows = [[row for row in s.rows if not row[1].startswith(("seconds_", "rate_"))] for s in (seen, plain)]
    assert rows[0] == rows[1]
    assert all(torch.equal(seen.weights[name], value) for name, value in plain.weights.items())
