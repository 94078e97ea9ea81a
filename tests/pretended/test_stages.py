"""Every stage and every method on the pretended accelerator: no tensor of the wrong device, and few waits.

A wait is a value or a tensor that the CPU reads from the device (`WAITS.read`), or a copy to it (`WAITS.sent`). The
bounds are those of an iteration of one rollout batch and two updates of one micro-batch each, measured and rounded up.
"""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from ruamel.yaml import YAML

from chunk_grpo.config.models import BasePrecision
from tests.conftest import ORDER, ROOT, Workspace, new_workspace
from tests.families.checkpoint_flux import random_pipeline

METHODS: dict[str, dict[str, Any]] = YAML(typ="safe").load(ROOT / "conf" / "variants" / "methods.yaml")["variants"]
PLANS: dict[str, dict[str, Any]] = {
    "step": {"kind": "step"},
    "listed": {"kind": "listed", "sizes": [1, 1, 2, 2]},
    "single": {"kind": "single"},
    "guided-3": {"kind": "guided", "num_chunks": 3},
    "equal-2": {"kind": "equal", "chunk_size": 2},
    "equal-4": {"kind": "equal", "chunk_size": 3},
    "equal-8": {"kind": "equal", "chunk_size": 3},
    "adaptive": {"kind": "adaptive", "max_size": 2},
}
OWN_WAY = {
    "flow-grpo",
    "chunk-adaptive",
    "chunk-ws-own",
    "chunk-rewards",
    "tempflow",
    "nft",
    "elbo-grpo",
    "chunk-gains",
}
"""Methods with tensors of their own on a device; the others differ in numbers on the CPU."""

LORA = {"rank": 2, "alpha": 4.0, "targets": ["to_q", "to_v"]}
SETTINGS: dict[str, dict[str, Any]] = {
    "lora": {"lora": LORA, "kl_coef": 0.1, "ema_decay": 0.5, "old_log_probs": "training"},
    "checkpointing": {"gradient_checkpointing": True, "micro_batch_size": 4},
    "full": {"kl_coef": 0.1, "ema_decay": 0.5, "old_log_probs": "training", "same_noise_in_group": True},
    "bfloat16": {"gradient_checkpointing": True},
    "bfloat16-lora": {"lora": LORA},
    "bfloat16-int8": {"lora": LORA, "gradient_checkpointing": True},
    "bfloat16-float8": {"lora": LORA, "gradient_checkpointing": True},
    "bfloat16-nf4": {"lora": LORA, "gradient_checkpointing": True},
}
RARE = ("checkpointing", "bfloat16", "bfloat16-lora", "bfloat16-float8", "bfloat16-nf4")
READS, SENDS = 12 + 1, 60 + 12
"""The second of each: the pass by which the first iteration measures the fidelity of its second update."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, waits: object) -> Workspace:
    """All stages before training ran, with a small random model and seven sampling steps."""
    root = tmp_path_factory.mktemp("pretended")
    random_pipeline().save_pretrained(root / "model")
    made = new_workspace(root)
    made.edit(lambda raw: shrink(raw, root))
    for stage in ORDER[: ORDER.index("chunk_boundaries")]:
        assert made.run(stage) == 0, stage
    return made


def shrink(raw: dict[str, Any], root: Path) -> None:
    """Make params.yaml the smallest run with every method."""
    raw["model"]["checkpoint"] = str(root / "model")
    raw["sampling"]["num_steps"] = 7
    raw["generate"] |= {"num_steps": 4, "base_steps": 2}
    drawn = {"flow-grpo-fast": {**METHODS["flow-grpo-fast"], "window": {"num_steps": 2, "starts": [0, 1]}}}
    raw["chunks"]["plans"], raw["variants"] = PLANS, METHODS | drawn
    raw["train"]["iterations"] = 1
    raw["train"]["heldout"]["num_prompts"] = 1
    raw["report"]["grid_prompts"] = 1
    raw["prompts"] |= {"train_count": 4, "eval_count": 4, "wise_count": 1}


def few(waits: dict[str, Counter[str]], passes_of_update: int = 1, predicted: int = 0) -> bool:
    """Whether the last iteration stayed within the bounds; they grow with the passes of an update, and reads with the
    images that a rollout predicts, which are read to be scored."""
    more = 2 * (passes_of_update - 1)
    reads = READS + more + predicted
    return waits["read"].total() <= reads and waits["sent"].total() <= SENDS + 12 * more


def test_stages(prepared: Workspace, waits: dict[str, Counter[str]]) -> None:
    """Training and what comes after it; the stages before ran for `prepared`."""
    for stage in ORDER[ORDER.index("chunk_boundaries") :]:
        assert prepared.run(stage) == 0, stage
    assert few(waits), waits


@pytest.mark.parametrize("name", [n if n in OWN_WAY else pytest.param(n, marks=pytest.mark.slow) for n in METHODS])
def test_methods(name: str, prepared: Workspace, waits: dict[str, Counter[str]]) -> None:
    trained = replace(prepared, variant=name)
    for stage in ("chunk_boundaries", "train"):
        assert trained.run_as_recorded(stage) == 0
    evaluates_old = "likelihood" in METHODS[name]  # like `old_log_probs: training`
    predicted = len(PLANS["listed"]["sizes"]) if name == "chunk-gains" else 6 if name == "step-gains" else 0
    assert few(waits, 2 if evaluates_old else 1, predicted), waits


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in RARE else n for n in SETTINGS])
def test_settings(name: str, prepared: Workspace, waits: dict[str, Counter[str]], tmp_path: Path) -> None:
    shutil.copytree(prepared.root, tmp_path / "copy")
    trained = Workspace(tmp_path / "copy", variant="chunk")
    # The other variants have rules of their own: images without step noise need a start each.
    trained.edit(lambda raw: raw.update(variants={"chunk": raw["variants"]["chunk"]}))
    trained.edit(lambda raw: raw["train"].update(SETTINGS[name]))
    if name.startswith("bfloat16"):
        trained.edit(lambda raw: raw["model"].update(dtype="bfloat16"))
    if (precision := name.rpartition("-")[2]) in get_args(BasePrecision):
        trained.edit(lambda raw: raw["model"].update(base_precision=precision))
    assert trained.run("chunk_boundaries") == 0
    for stage in ("train", "generate"):
        assert trained.run(stage) == 0, stage
    assert few(waits, passes_of_update=4), waits
