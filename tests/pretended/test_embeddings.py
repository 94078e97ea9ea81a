"""Embeddings on the pretended accelerator while a training runs, beside those that `make plan` counts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import finalize

import pytest
from torch import Tensor

from chunk_grpo.families.base import Conditioning
from chunk_grpo.families.prompts import NegativePrompt, PromptSet, StoredConditioning
from chunk_grpo.planning.memory import embeddings_of_pass
from chunk_grpo.training.run import RunPaths, TrainingData
from chunk_grpo.training.trainer import Trainer
from chunk_grpo.training.update import Update
from tests.pretended.device import PretendedTensor
from tests.shapes_scorers import shapes_reward
from tests.training.conftest import CHUNK_WS, method_of, small_params
from tests.training.conftest import prompts as prompts  # a fixture
from tests.training.worker import Job, loaded

pytestmark = pytest.mark.usefixtures("waits")

BATCH, MICRO, GROUP = 4, 2, 8
STEPS: dict[str, Any] = {"objective": "step", "plan": "step"}
TRAIN: dict[str, Any] = {
    "iterations": 1,
    "group_size": GROUP,
    "rollout_batch_size": BATCH,
    "micro_batch_size": MICRO,
    "heldout": {"num_prompts": 2, "images_per_prompt": 1},
}


class Held:
    """Bytes of embeddings alive on the device, and the most of them in each phase."""

    def __init__(self) -> None:
        self.now, self.most, self.phase = 0, dict[str, int](), "rollout"
        self._seen = set[int]()

    def see(self, tensor: Tensor) -> None:
        if isinstance(tensor, PretendedTensor):
            storage = tensor.held.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key not in self._seen:
                self._seen.add(key)
                self.now += size
                finalize(storage, self._gone, key, size)
            self.most[self.phase] = max(self.most.get(self.phase, 0), self.now)

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


class Files:
    """The rows of encoded prompts, as the stages read them from files."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def read(self, rows: Sequence[int]) -> Mapping[str, Tensor]:
        return {name: tensor[list(rows)] for name, tensor in self._tensors.items()}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "plain": (CHUNK_WS, {}, 1.0),
    "guided": (CHUNK_WS, {}, 2.0),
    "one start": (CHUNK_WS, {"same_noise_in_group": True, "kl_coef": 0.1, "old_log_probs": "training"}, 1.0),
    "checkpointing": (CHUNK_WS, {"gradient_checkpointing": True, "kl_coef": 0.1}, 1.0),
    "branches": (STEPS | {"branching": {"points": 2, "children": 2}, "fraction": 1.0}, {}, 1.0),
    "matching": (STEPS | {"likelihood": "matching"}, {"kl_coef": 0.1}, 1.0),
}
"""Settings of the variant and of training, and the strength of guidance."""


@pytest.mark.parametrize(
    "case", [c if c in ("guided", "one start") else pytest.param(c, marks=pytest.mark.slow) for c in CASES]
)
def test_embedding_count_matches_plan(
    case: str, prompts: PromptSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant, changes, cfg_scale = CASES[case]
    held, make = Held(), Conditioning.__init__
    update = Update.accumulate_gradient

    def made(self: Conditioning, tensors: Mapping[str, Tensor], negative: Any = None) -> None:
        make(self, tensors, negative)
        for tensor in (*tensors.values(), *(negative or {}).values()):
            held.see(tensor)

    def updated(self: Update, *arguments: Any, **options: Any) -> Any:
        held.phase = "update"
        try:
            return update(self, *arguments, **options)
        finally:
            held.phase = "rollout"  # and what else runs without gradients

    params = small_params(variant, **TRAIN, **changes)
    family = loaded(Job(variant, device="pretend", cfg_scale=cfg_scale), prompts)[0]
    tensors = prompts.conditioning.to("cpu").tensors
    negative = None if cfg_scale == 1 else NegativePrompt({name: t[:1] for name, t in tensors.items()})
    stored = replace(prompts, conditioning=StoredConditioning(Files(tensors), range(len(prompts)), negative))
    reward = shapes_reward({"shapes-graded": 1.0, "shapes-vivid": 0.6})
    data = TrainingData(stored.rows(range(5)), stored.rows([5, 6]), reward, shapes_reward({"shapes-exact": 1.0}))
    monkeypatch.setattr(Conditioning, "__init__", made)
    monkeypatch.setattr(Update, "accumulate_gradient", updated)
    paths = RunPaths(tmp_path, "test", tmp_path / "logs", "it", ())
    Trainer(family, data, method_of(params), params.train, 0, paths).run(lambda: False)

    row = sum(tensor[0].nbytes for tensor in tensors.values())
    settings: Any = SimpleNamespace(network=SimpleNamespace(text_bytes=row), guided=1 if cfg_scale == 1 else 2)
    for phase, images in (("rollout", BATCH), ("update", MICRO)):
        planned = embeddings_of_pass(settings, images, backward=phase == "update")
        assert images * row <= held.most[phase] <= planned <= 2 * held.most[phase]
