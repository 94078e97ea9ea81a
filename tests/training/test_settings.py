"""Settings of speed and memory: the training of the default within a bound, and ratios of 1 on policy."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from chunk_grpo.families.prompts import PromptSet
from tests.training.conftest import CHUNK_WS
from tests.training.worker import Job, Seen, do

LORA = {"lora": {"rank": 2, "alpha": 4.0, "targets": ("to_q", "to_v")}}
TUNING: dict[str, dict[str, Any]] = {
    "full": {},
    "LoRA, checkpointing": {**LORA, "gradient_checkpointing": True},
}
RUN: dict[str, Any] = {"iterations": 2, "kl_coef": 0.0, "old_log_probs": "training"}


@pytest.fixture(scope="module", params=TUNING)
def tuning(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What is trained."""
    return {**RUN, **TUNING[request.param]}


@pytest.fixture(scope="module")
def default(tuning: dict[str, Any], prompts: PromptSet, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Two iterations with the settings of the preset tiny."""
    return trained(Job(CHUNK_WS, tuning), prompts, tmp_path_factory.mktemp("default"))


def trained(job: Job, prompts: PromptSet, folder: Path) -> Seen:
    seen = do(job, prompts, folder)
    assert seen.error == ""
    assert max(seen.metric("fidelity_p99")) < 1e-4
    return seen


def is_close(seen: Seen, default: Seen, gradient: float, weights: float) -> bool:
    """Whether the first gradient (relative norm) and the last weights (largest difference) stay within bounds."""
    assert seen.gradient is not None
    assert default.gradient is not None
    first = float((seen.gradient - default.gradient).norm() / default.gradient.norm())
    last = max(float((seen.weights[name] - value).abs().max()) for name, value in default.weights.items())
    return first <= gradient and last <= weights


def is_same(seen: Seen, default: Seen) -> bool:
    """Whether all metrics but those of a clock, and all weights, are the same bits."""
    rows = [[row for row in s.rows if not row[1].startswith(("seconds_", "rate_"))] for s in (seen, default)]
    return rows[0] == rows[1] and all(torch.equal(seen.weights[n], w) for n, w in default.weights.items())


RATE = 1.5e-4
"""Learning rate: AdamW moves a weight by about as much an update, whatever the size of its gradient."""


@pytest.mark.parametrize("backend", ["native", "_native_math", "_native_flash"])
def test_attention_backends(
    backend: str, tuning: dict[str, Any], default: Seen, prompts: PromptSet, tmp_path: Path
) -> None:
    seen = trained(Job(CHUNK_WS, tuning, attention_backend=backend), prompts, tmp_path)
    assert is_close(seen, default, 1e-4, 2 * RATE)
    assert backend != "native" or is_same(seen, default)


@pytest.fixture
def uncompiled() -> Iterator[None]:
    """Torch compiles nothing: the 8-bit step would take seconds for each shape of a weight."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("name", ["adamw-fused", "adamw-8bit"])
def test_optimizers(
    name: str, tuning: dict[str, Any], default: Seen, prompts: PromptSet, tmp_path: Path
) -> None:
    """The gradient is the same. Weights with 8-bit moments differ by the steps of 4 updates at most."""
    seen = trained(Job(CHUNK_WS, {**tuning, "optimizer": name}), prompts, tmp_path)
    assert is_close(seen, default, 0.0, 1e-6 if name == "adamw-fused" else 4 * RATE)
