"""Benchmark workloads: the shipped checkpoint at the toy preset's sizes, and a compute-bound model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from diffusers import FluxTransformer2DModel
from diffusers.utils import logging as diffusers_logging
from torch import Tensor
from transformers.utils import logging as transformers_logging

from chunk_grpo.config import Params, parse_params
from chunk_grpo.core.chunk_sampling import chunk_weights
from chunk_grpo.core.chunking import listed_plan
from chunk_grpo.core.flow import time_grid
from chunk_grpo.families.base import Conditioning, LoadOptions
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.orchestration.presets import composed
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.scorers.running.registry import make_scorer
from chunk_grpo.shapes.prompts import all_prompts
from chunk_grpo.training.method import Method, method_from
from chunk_grpo.training.run import TrainingData

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "assets" / "tiny-flux"
TEXT_TOKENS = 8
SHIFT = 3.0
VARIANT = "chunk-ws"
# fmt: off
PROFILE = (
    0.749, 0.772, 0.538, 0.455, 0.408, 0.373, 0.36, 0.344, 0.346, 0.343, 0.345, 0.355, 0.363, 0.369, 0.378, 0.383,
)
# fmt: on
"""Relative L1 distances of the shipped checkpoint's 16 noisy steps, for the weights of Eq. (16)."""


@dataclass(frozen=True)
class Workload:
    """Model and sizes of one benchmark."""

    name: str
    """Name in the tables."""
    checkpoint: Path
    """Folder of a FluxPipeline."""
    side: int
    """Image side in pixels."""
    prompts: int
    """P, prompts of an iteration."""
    group: int
    """G, images of a prompt."""
    micro_batch: int
    """Trajectories or items in one pass of our trainer."""
    repetitions: int
    """Number of measurements of each row."""
    sizes: tuple[int, ...] = (2, 3, 4, 7)
    """Chunk sizes of the plan."""

    def __str__(self) -> str:
        """Description for the title of a table."""
        return (
            f"{self.prompts} prompts x {self.group} images of {self.side} x {self.side} pixels, "
            f"{self.num_sde_steps + 1} steps, chunks {list(self.sizes)}, micro-batches of {self.micro_batch}, "
            f"{self.repetitions} repetitions"
        )

    @property
    def num_sde_steps(self) -> int:
        """N, number of steps of the plan."""
        return sum(self.sizes)

    @property
    def images(self) -> int:
        """B, images of an iteration."""
        return self.prompts * self.group

    def family(self) -> FluxFamily:
        """A newly loaded policy."""
        return FluxFamily.load(self._options(), ("transformer", "vae"))

    def params(self) -> Params:
        """The preset `tiny` with this workload's sizes, and two rewards."""
        raw: dict[str, Any] = composed(ROOT, "tiny")
        raw["sampling"]["num_steps"] = self.num_sde_steps + 1
        raw["rewards"] = {"shapes-graded": 1.0, "shapes-vivid": 0.6}
        raw["chunks"] = {"plans": {"listed": {"kind": "listed", "sizes": self.sizes}}}
        raw["variants"] = {VARIANT: {"objective": "chunk", "plan": "listed", "selection": "weighted"}}
        raw["train"] |= {
            "prompts_per_iteration": self.prompts,
            "group_size": self.group,
            "updates_per_iteration": 2,
            "rollout_batch_size": self.micro_batch,
            "micro_batch_size": self.micro_batch,
            "clip_range": 1e-4,
            "learning_rate": 1.5e-4,
        }
        raw["train"]["heldout"]["scorers"] = []
        return parse_params(raw)

    def method(self) -> Method:
        """The method, with the listed plan and its Eq. (16) weights."""
        plan = listed_plan(self.sizes, self.num_sde_steps)
        weights = chunk_weights(PROFILE[: self.num_sde_steps], plan)
        params = self.params()
        times = time_grid(params.sampling.num_steps, SHIFT)
        return method_from(params, VARIANT, plan, weights, times)

    def data(self) -> TrainingData:
        """The prompts of one iteration, spread over the categories, and the toy reward."""
        specs = all_prompts()[:: len(all_prompts()) // self.prompts][: self.prompts]
        encoded = FluxFamily.load(self._options(), ("text",)).encode([spec.prompt for spec in specs])
        prompts = PromptSet(
            [f"p{number}" for number in range(len(specs))],
            [spec.prompt for spec in specs],
            [spec.metadata() for spec in specs],
            encoded,
        )
        params = self.params()
        scorers = {key: make_scorer(key, settings) for key, settings in params.scorers.items()}
        return TrainingData(prompts, prompts, Reward(scorers, params.rewards), None)

    def quick(self) -> Workload:
        """A smaller workload with the same model and one repetition, for a quick check."""
        return replace(self, side=min(self.side, 64), prompts=2, group=2, sizes=(1, 3), repetitions=1)

    def _options(self) -> LoadOptions:
        return LoadOptions(
            str(self.checkpoint), height=self.side, width=self.side, max_sequence_length=TEXT_TOKENS
        )


def random_inputs(
    family: FluxFamily, count: int, text_tokens: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor, Conditioning]:
    """Random arguments of the family's velocity for `count` states at noise level 0.5."""
    stream, config = torch.Generator().manual_seed(0), family.transformer.config
    x = torch.randn(count, *family.latent_shape, generator=stream).to(device)
    text = torch.randn(count, text_tokens, config.joint_attention_dim, generator=stream)
    pooled = torch.randn(count, config.pooled_projection_dim, generator=stream)
    conditioning = Conditioning({"prompt_embeds": text, "pooled": pooled})
    return x, torch.full((count,), 0.5, device=device), conditioning.to(device)


def quiet() -> None:
    """Disable the libraries' progress bars, which would disturb the benchmark's own."""
    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()


@contextmanager
def workloads() -> Iterator[dict[str, Workload]]:
    """The two workloads by name; the second one's checkpoint exists only inside the context."""
    with TemporaryDirectory(prefix="compute-bound-") as scratch:
        yield {
            "shipped": Workload("shipped", TINY, 32, 8, 8, 64, 5),
            "compute-bound": Workload(
                "compute-bound", _wide_checkpoint(Path(scratch) / "flux"), 128, 2, 4, 8, 3
            ),
        }


NETWORK: Mapping[str, Any] = {"in_channels": 32, "num_layers": 1, "guidance_embeds": True}
"""Arguments of a network that fits the shipped checkpoint's VAE."""


def toy_with(folder: Path, modules: Mapping[str, Any]) -> Path:
    """Copy the shipped checkpoint, with its modules of these names replaced."""
    shutil.copytree(TINY, folder)
    for name, module in modules.items():
        shutil.rmtree(folder / name)
        module.save_pretrained(folder / name)
    return folder


def _wide_checkpoint(folder: Path) -> Path:
    """The shipped checkpoint with a random velocity network of width 512; 128 x 128 pixels are 256 tokens."""
    torch.manual_seed(0)
    heads = {"attention_head_dim": 64, "num_attention_heads": 8, "axes_dims_rope": (16, 24, 24)}
    widths = {"joint_attention_dim": 64, "pooled_projection_dim": 64}
    return toy_with(
        folder, {"transformer": FluxTransformer2DModel(**NETWORK, num_single_layers=1, **heads, **widths)}
    )
