"""A policy of two blocks with the toy's VAE, a few encoded prompts, and a training of half a second."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from diffusers import FluxTransformer2DModel
from torch import nn

from chunk_grpo.config import Params, load_params, parse_params
from chunk_grpo.core.chunk_sampling import chunk_weights
from chunk_grpo.core.flow import time_grid
from chunk_grpo.errors import TransientError
from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.shapes.prompts import all_prompts
from chunk_grpo.training.journal import Heading
from chunk_grpo.training.method import Method, method_from
from chunk_grpo.training.metrics import MetricRow
from chunk_grpo.training.plans import build_plan
from chunk_grpo.training.run import RunPaths, TrainingData
from chunk_grpo.training.sinks import MetricSink, open_sinks
from chunk_grpo.training.trainer import Trainer
from tests.shapes_scorers import shapes_reward

ROOT = Path(__file__).parents[2]
OPTIONS = LoadOptions(str(ROOT / "assets" / "tiny-flux"), height=32, width=32, max_sequence_length=8)
PROFILE = (0.9, 0.3, 0.2, 0.1)
"""A relative L1 curve of four noisy steps."""
PLANS: dict[str, dict[str, Any]] = {
    "step": {"kind": "step"},
    "listed": {"kind": "listed", "sizes": (1, 3)},
    "single": {"kind": "single"},
    "guided": {"kind": "guided", "num_chunks": 2},
    "adaptive": {"kind": "adaptive", "max_size": 2},
}
LORA: dict[str, Any] = {"lora": {"rank": 2, "alpha": 4.0, "targets": ("to_q", "to_v")}}
CHUNK_WS: dict[str, Any] = {"objective": "chunk", "plan": "listed", "selection": "weighted"}
SMALL: dict[str, Any] = {
    "iterations": 3,
    "prompts_per_iteration": 2,
    "group_size": 3,
    "updates_per_iteration": 2,
    "rollout_batch_size": 4,
    "micro_batch_size": 4,
    "checkpoint_every": 1,
    "kl_coef": 0.05,
}


def two_blocks(options: LoadOptions = OPTIONS) -> FluxFamily:
    """The toy checkpoint with a random network of one block of each kind, which costs a quarter of the toy's."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = FluxTransformer2DModel(
            in_channels=32, num_layers=1, num_single_layers=1, attention_head_dim=32, num_attention_heads=1,
            joint_attention_dim=64, pooled_projection_dim=64, guidance_embeds=True, axes_dims_rope=(8, 12, 12),
        )  # fmt: skip
    nn.Module.to(network, options.device, options.dtype)  # diffusers' own warns of the type
    return FluxFamily.load(options, ("vae",)).using(network.requires_grad_(False).eval())


@dataclass(frozen=True)
class Outcome:
    """Result of a training run."""

    rows: list[MetricRow]
    """Its metrics."""
    weights: dict[str, torch.Tensor]
    """The policy's state dict."""

    def without_times(self) -> list[MetricRow]:
        """The metrics but for those that a clock gave."""
        return [row for row in self.rows if not row[1].startswith(("seconds_", "rate_"))]

    def has_weights_of(self, other: "Outcome") -> bool:
        """Whether all weights are the same bits."""
        return all(torch.equal(self.weights[name], value) for name, value in other.weights.items())

    def equals(self, other: "Outcome") -> bool:
        """Whether weights and metrics are the same bits. Metrics of time do not count."""
        return self.without_times() == other.without_times() and self.has_weights_of(other)


@pytest.fixture
def graphs() -> Iterator[None]:
    """No graphs but the test's own are kept."""
    limits = {"recompile_limit": 8, "accumulated_recompile_limit": 256, "fail_on_recompile_limit_hit": False}
    with torch._dynamo.config.patch(limits):
        yield
    torch.compiler.reset()


@pytest.fixture(scope="session")
def policy() -> Callable[[], FluxFamily]:
    """A function that makes the base policy anew."""
    return two_blocks


@pytest.fixture(scope="module")
def family() -> FluxFamily:
    """The base policy, which a module's tests share."""
    return two_blocks()


@pytest.fixture(scope="session")
def prompts() -> PromptSet:
    """Eight encoded prompts of several categories."""
    specs = all_prompts()[:: len(all_prompts()) // 8][:8]
    encoded = FluxFamily.load(OPTIONS, ("text",)).encode([spec.prompt for spec in specs])
    names = [f"p{number}" for number in range(8)]
    return PromptSet(names, [s.prompt for s in specs], [s.metadata() for s in specs], encoded)


@pytest.fixture(scope="session")
def data(prompts: PromptSet) -> TrainingData:
    """Five prompts to train on and two to watch."""
    reward = shapes_reward({"shapes-graded": 1.0, "shapes-vivid": 0.6})
    unseen = shapes_reward({"shapes-exact": 1.0})
    return TrainingData(prompts.rows(range(5)), prompts.rows([5, 6]), reward, unseen)


def small_params(variant: dict[str, Any], cfg_scale: float = 1.0, **changes: Any) -> Params:
    """params.yaml made small: five sampling steps, the plans above, the variant "it" alone."""
    raw = load_params(ROOT / "params.yaml").model_dump()
    small = {"every": 1, "num_prompts": 2, "images_per_prompt": 2, **changes.pop("heldout", {})}
    heldout = {**raw["train"]["heldout"], "scorers": ("shapes-exact",), **small}
    raw["train"] = {**raw["train"], **SMALL, "heldout": heldout, **changes}
    raw["rewards"] = {"shapes-graded": 1.0, "shapes-vivid": 0.6}
    raw["sampling"].update(num_steps=len(PROFILE) + 1, cfg_scale=cfg_scale)
    raw["chunks"] = {"plans": PLANS}
    raw["variants"] = {"it": variant}
    return parse_params(raw)


TRACKED = {"train": {"learning_rate": 1e-5, "plan": [2, 3]}, "seed": 0}
"""Configuration of the run of `open_in`."""


def open_in(
    folder: Path,
    *trackers: Any,
    rows: Iterable[MetricRow] = (),
    first: int = 0,
    is_main: bool = True,
    config: dict[str, Any] = TRACKED,
) -> list[MetricSink]:
    """Open the sinks of a run in a folder, at iteration 0 or later."""
    paths = RunPaths(folder / "unused", "abc", folder, "chunk/seed-0", trackers, config)
    heading = Heading("abc", seed=0, iterations=9, done=0)
    return open_sinks(paths, heading, list(rows), first, is_main=is_main)


def method_of(params: Params) -> Method:
    """The method of the only variant, with its plan made from the profile above."""
    plan = build_plan(params.chunks.plans[params.variants["it"].plan], PROFILE)
    times = time_grid(params.sampling.num_steps, params.sampling.shift or 1.0)
    return method_from(params, "it", plan, chunk_weights(PROFILE, plan), times)


@pytest.fixture(scope="session")
def train(policy: Callable[[], FluxFamily], data: TrainingData) -> Callable[..., Outcome]:
    """Run training to its end, or until its `stop_at`-th look at the stop request, and return what it made."""

    def run(
        folder: Path,
        seed: int = 0,
        stop_at: int | None = None,
        variant: dict[str, Any] = CHUNK_WS,
        on: TrainingData | None = None,
        trackers: tuple[Literal["tensorboard"], ...] = (),
        save: bool = False,
        start: Path | None = None,
        copies: str | None = None,
        **changes: Any,
    ) -> Outcome:
        family, params = policy(), small_params(variant, **changes)
        paths = RunPaths(folder, "test", folder / "logs", "it", trackers, start=start, copies=copies)
        trainer = Trainer(family, on or data, method_of(params), params.train, seed, paths)
        asked = itertools.count(1)
        rows = trainer.run(lambda: next(asked) == stop_at)
        weights = {name: value.clone() for name, value in family.transformer.state_dict().items()}
        if save:
            trainer.save_policies(folder / "saved")
        return Outcome(rows, weights)

    return run


@pytest.fixture(scope="session")
def resumed(train: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Stop training at its `stop_at`-th look, and return what it made when it was run again."""

    def run(folder: Path, stop_at: int, **settings: Any) -> Outcome:
        with pytest.raises(TransientError, match="training resumes from there"):
            train(folder, stop_at=stop_at, **settings)
        return train(folder, **settings)

    return run
