"""Training that starts from a saved policy: its first measurement is the saved policy's last one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.errors import DataError
from tests.training.conftest import Outcome

LORA: dict[str, Any] = {"lora": {"rank": 2, "alpha": 4.0, "targets": ("to_q", "to_v")}, "learning_rate": 0.01}
ALL: dict[str, Any] = {"learning_rate": 1e-4}

Train = Callable[..., Outcome]


def value(outcome: Outcome, metric: str, iteration: int) -> float:
    return next(v for i, name, v in outcome.rows if (i, name) == (iteration, metric))


@pytest.mark.parametrize("settings", [LORA, pytest.param(ALL, marks=pytest.mark.slow)])
def test_training_goes_on_from_a_policy(settings: dict[str, Any], train: Train, tmp_path: Path) -> None:
    first = train(tmp_path / "first", save=True, **settings)
    base = value(first, "heldout_reward", 0)
    last = value(first, "heldout_reward", 3)
    second = train(tmp_path / "second", start=tmp_path / "first" / "saved", iterations=1, **settings)
    assert value(second, "heldout_reward", 0) == pytest.approx(last, abs=1e-6) != base
    # The reference is the base model: the divergence begins where the policy is, not at 0.
    assert value(first, "kl", 1) < 1e-2 * value(second, "kl", 1)


def test_a_stopped_training_ends_with_the_same_bits(train: Train, resumed: Train, tmp_path: Path) -> None:
    train(tmp_path / "first", save=True, iterations=1, **LORA)
    settings = LORA | {"start": tmp_path / "first" / "saved", "ema_decay": 0.5}
    assert resumed(tmp_path / "parts", 20, **settings).equals(train(tmp_path / "whole", **settings))


def test_an_adapter_of_another_rank(train: Train, tmp_path: Path) -> None:
    train(tmp_path / "first", save=True, iterations=1, **LORA)
    other = {"lora": {**LORA["lora"], "rank": 3}}
    with pytest.raises(DataError, match=r"train\.start_from: .* rank and the targets of train\.lora\. .*lora_A"):
        train(tmp_path / "second", start=tmp_path / "first" / "saved", **other)
