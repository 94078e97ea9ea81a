"""The smallest pipeline whose scorer, prompts and checkpoint are files of the user."""

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.real_checkout import ROOT, make_checkout

SCORER = '''\
"""A user's scorer."""

import numpy as np

from own_tables import SCALE


def brightness(images, prompts, metadata, **options):
    """Mean of the pixels."""
    power = 2.0 if options["squared"] is True else float(options["power"])
    return (np.asarray(images, dtype=np.float64).mean(axis=(1, 2, 3)) / SCALE) ** power
'''
USER_FILES = {
    "own_rewards.py": SCORER,
    "own_tables.py": "SCALE = 255.0\n",
    "own_weights.txt": "1\n",
    "prompts.txt": "".join(f"a red circle and {number} blue squares\n" for number in range(40)),
    "more.txt": "a green cross\na yellow triangle\n",
}
"""Files of the user, referred to by the parameters of `small`."""


def small(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a preset, changed to the user's files and the cheapest valid settings."""
    result = copy.deepcopy(dict(params))
    file = dict.fromkeys(("hub_file", "revision", "prompt_field", "category_field", "limit"))
    result["model"]["checkpoint"] = "model"
    result["prompts"] |= {"source": "file", "train_file": file | {"path": "prompts.txt"}, "eval_file": None}
    result["prompts"] |= {"train_count": 6, "eval_count": 2, "wise_count": 0}
    result["prompts"]["benchmarks"] = {
        "things": {"kind": "coco", "count": 2, "seed": 0},
        "more": {"kind": "file", "file": file | {"path": "more.txt"}, "count": None},
    }
    splits = {"splits": ["eval", "more"], "batch_size": 8}
    options = {"power": 1, "squared": 0}
    own = {"kind": "external", "source": "own_rewards:brightness", "version": 1, "options": options}
    result["scorers"] = {
        "vivid": splits | {"kind": "shapes-vivid"},
        "own": splits | own | {"files": ["own_weights.txt"]},
    }
    result["rewards"] = {"vivid": 1.0, "own": 0.5}
    result["profile"] |= {"num_prompts": 1, "num_seeds": 1}
    result["sampling"]["num_steps"] = 5
    result["chunks"]["plans"] = {
        "step": {"kind": "step"},
        "listed": {"kind": "listed", "sizes": [1, 3]},
        "equal": {"kind": "equal", "chunk_size": 2},
        "guided": {"kind": "guided", "num_chunks": 2},
    }
    window = {"num_steps": 2, "stride": 1, "every": 1}
    result["variants"] = {
        "chunk": {"objective": "chunk", "plan": "equal"},
        "mix": {"objective": "step", "plan": "step", "window": window, "fraction": 1.0},
    }
    result["train"] |= {"seeds": [0], "iterations": 1, "prompts_per_iteration": 2, "group_size": 2}
    result["train"]["heldout"] |= {"num_prompts": 1, "images_per_prompt": 1, "scorers": []}
    result["generate"] |= {"num_steps": 3, "base_steps": 1, "images_per_prompt": 1}
    result["report"] |= {"grid_prompts": 1}
    result["trackers"] = []
    return result


def own_checkout(folder: Path) -> Path:
    """A checkout with the user's files, and the toy checkpoint as the model."""
    make_checkout(folder)
    shutil.copytree(ROOT / "assets" / "tiny-flux", folder / "model")
    for name, text in USER_FILES.items():
        (folder / name).write_text(text)
    return folder
