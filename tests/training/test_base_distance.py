"""The distance from the base by hand, and a base model whose use leaves no trace."""

from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from chunk_grpo.core.sde import CPS
from chunk_grpo.families.base import Conditioning
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.training.base_distance import BaseModel, distance_from_base
from chunk_grpo.training.learner import prepared
from chunk_grpo.training.method import StepGrid
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.stopping import never
from tests.training.conftest import LORA, method_of, small_params
from tests.training.test_watching import series


class Constant:
    """A model whose velocity is its only weight times the prompt's number."""

    latent_shape, device = (3, 2), torch.device("cpu")

    def __init__(self, weight: float) -> None:
        self.weight = nn.Parameter(torch.tensor([weight]))

    def velocity(self, x: Tensor, t: Tensor, conditioning: Conditioning) -> Tensor:
        return self.weight.detach() * conditioning["number"].view(-1, 1, 1) * torch.ones_like(x)

    def trainable_parameters(self) -> Any:
        return iter([self.weight])

    def reference(self) -> "Constant":
        return Constant(self.weight.item())


def numbers(*values: float) -> PromptSet:
    names = [f"p{value}" for value in values]
    return PromptSet(
        names, names, [{}] * len(names), Conditioning({"number": torch.tensor(values, dtype=torch.float32)})
    )


TIMES = torch.tensor([1.0, 0.75, 0.5, 0.0], dtype=torch.float64)
NOISE = torch.tensor([1.0, 1.0], dtype=torch.float64)


def distance_of(grid: StepGrid, prompts: PromptSet, *, has_reference: bool = False) -> float | None:
    """Of a policy whose weight is 5 from the base, whose weight is 3."""
    family: Any = Constant(3.0)
    base = BaseModel(family, has_reference=has_reference, adapts=False)
    with torch.no_grad():
        family.weight.fill_(5.0)
    found = distance_from_base(base, grid, prompts, 2, 0, Processes(), never)
    assert family.weight.item() == 5.0
    return found


@pytest.mark.parametrize("has_reference", [False, True])
def test_two_noisy_steps_by_hand(has_reference: bool) -> None:
    """A velocity that is v larger moves the mean by v (dt - var (1 - t) / 2 t); half its square over var is the KL.

    Step 0: var 1/4, v (-1/4 - 0), KL v^2 / 8. Step 1: var 1/4, v (-1/4 - (1/4 / 1.5) / 4) = -7/24 v, KL 49/288 v^2.
    The last step has no noise.
    """
    grid, per_square = StepGrid(TIMES, NOISE), 1 / 8 + 49 / 288
    one = distance_of(grid, numbers(1.0), has_reference=has_reference)
    assert one == pytest.approx(4 * per_square, rel=1e-5)
    three = distance_of(grid, numbers(1.0, 2.0, 3.0), has_reference=has_reference)  # two batches
    assert three == pytest.approx(4 * per_square * (1 + 4 + 9) / 3, rel=1e-5)


def test_steps_without_noise_have_no_distance() -> None:
    first = StepGrid(TIMES, torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert distance_of(first, numbers(1.0)) == pytest.approx(4 / 8, rel=1e-5)
    assert distance_of(StepGrid(TIMES, 0 * NOISE), numbers(1.0)) is None


def test_another_sampler_by_hand() -> None:
    """CPS with eta 1: the mean is (1 - t_next) (x - t v), its deviation t_next, so half of (t v (1 / t_next - 1))^2."""
    expected = 4 / 2 * ((1.0 * 0.25 / 0.75) ** 2 + (0.75 * 0.5 / 0.5) ** 2)
    assert distance_of(StepGrid(TIMES, NOISE, CPS), numbers(1.0)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("settings", [{}, LORA], ids=["all weights", "adapter"])
def test_the_base_is_the_loaded_model_and_the_policy_comes_back(settings, policy, prompts):
    params = small_params({"objective": "step", "plan": "step"}, **settings)
    grid, family, untouched = method_of(params).grid, policy(), policy()
    base = prepared(family, params.train, 0, None, None, has_reference=False)
    x = torch.randn(2, *family.latent_shape, generator=torch.Generator().manual_seed(0))
    given = (x, torch.full((2,), 0.5), prompts.rows([0, 1]).conditioning)
    expected = untouched.velocity(*given)

    def distance() -> float | None:
        return distance_from_base(base, grid, prompts.rows([0, 1, 2]), 2, 0, Processes(), never)

    assert distance() == 0
    with torch.no_grad():
        for weight in family.trainable_parameters():
            weight += 0.02
    moved = {name: value.clone() for name, value in family.trainable_state().items()}
    assert (distance() or 0) > 0
    with base.in_use() as model:
        assert torch.equal(model.velocity(*given), expected)
    assert not torch.equal(family.velocity(*given), expected)
    assert all(torch.equal(value, moved[name]) for name, value in family.trainable_state().items())


def test_sharded_weights_are_exchanged_in_place() -> None:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        family: Any = Constant(0.0)
        family.weight = nn.Parameter(distribute_tensor(torch.tensor([1.0, 2.0]), mesh, [Shard(0)]))
        base = BaseModel(family, has_reference=False, adapts=False)
        with torch.no_grad():
            family.weight += 0.5
        with base.in_use():
            assert family.weight.full_tensor().tolist() == [1.0, 2.0]
        assert family.weight.full_tensor().tolist() == [1.5, 2.5]
    finally:
        distributed.destroy_process_group()


def test_a_training_ends_with_its_distance_and_clipping_by_step(train: Any, tmp_path: Any) -> None:
    """Five steps, of which four have noise; the second of two updates has ratios. A longer training starts over."""
    settings: dict[str, Any] = {"kl_coef": 0.0, "clip_range": 1e-9, "keep_state": True, "heldout": {"every": 10}}
    settings["variant"] = {"objective": "chunk", "plan": "listed", "fraction": 1.0}
    made = train(tmp_path / "a", iterations=2, **settings)
    ((last, distance),) = series(made, "distance_from_base").items()
    assert last == 2 and distance > 0
    steps = {name: value for _, name, value in made.rows if name.startswith("step_")}
    assert steps.keys() == {f"step_{name}/1/{s}" for name in ("clip_fraction", "log_ratio") for s in range(4)}
    assert 0 < steps["step_clip_fraction/1/0"] <= 1
    assert len({steps[f"step_clip_fraction/1/{step}"] for step in (1, 2, 3)}) == 1  # of one chunk
    longer = train(tmp_path / "a", iterations=3, **settings)
    whole = train(tmp_path / "b", iterations=3, **settings)
    assert longer.without_times() == whole.without_times()
    assert list(series(longer, "distance_from_base")) == [3]
