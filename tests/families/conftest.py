"""Small random FluxPipeline folders in the real file formats, and what tests of tuning share."""

import json
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from chunk_grpo.errors import DataError
from chunk_grpo.families.base import Conditioning, LoadOptions, TuningOptions, VelocityModel
from chunk_grpo.families.models.flux import FluxFamily
from tests.families.parity import save_checkpoints
from tests.families.small_parts import TINY


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Path]]:
    """The random checkpoints of a family, `sharded` and `bf16`, written when a test first asks for them."""
    return cache(lambda name: save_checkpoints(name, tmp_path_factory.mktemp(name)))


@pytest.fixture
def sharded_checkpoint(checkpoints: Callable[[str], dict[str, Path]]) -> Path:
    """FLUX with its transformer split over several files."""
    folder = checkpoints("flux")["sharded"]
    assert len(list((folder / "transformer").glob("*.safetensors"))) > 1
    return folder


@pytest.fixture
def bf16_checkpoint(checkpoints: Callable[[str], dict[str, Path]]) -> Path:
    """FLUX stored in bfloat16."""
    return checkpoints("flux")["bf16"]


@cache
def read_flux(folder: Path, dtype: torch.dtype) -> FluxFamily:
    return FluxFamily.load(LoadOptions(str(folder), height=32, width=32, dtype=dtype), ("transformer",))


def as_loaded(folder: Path, dtype: torch.dtype) -> Callable[[], FluxFamily]:
    """A function that gives a model as it is loaded: its files are read once, its network is copied."""
    return lambda: read_flux(folder, dtype).frozen_copy()


@pytest.fixture(params=["float32", "bfloat16"])
def load(request: pytest.FixtureRequest, bf16_checkpoint: Path) -> Callable[[], FluxFamily]:
    """A function that loads a model anew: tiny-flux in float32, and the random one stored and used in bfloat16."""
    found = {"float32": (TINY, torch.float32), "bfloat16": (bf16_checkpoint, torch.bfloat16)}
    return as_loaded(*found[request.param])


@pytest.fixture
def tiny() -> Callable[[], FluxFamily]:
    """A function that loads tiny-flux anew, in float32."""
    return as_loaded(TINY, torch.float32)


@pytest.fixture
def bf16(bf16_checkpoint: Path) -> Callable[[], FluxFamily]:
    """A function that loads the random model anew, stored and used in bfloat16."""
    return as_loaded(bf16_checkpoint, torch.bfloat16)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of tiny-flux to change."""
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def load_flux(folder: Path | str, device: str = "cpu") -> FluxFamily:
    return FluxFamily.load(LoadOptions(str(folder), height=32, width=32, max_sequence_length=8, device=device))


def refused(folder: Path | str, device: str = "cpu") -> str:
    """The message with which a checkpoint is refused."""
    with pytest.raises(DataError) as caught:
        load_flux(folder, device)
    return str(caught.value)


def velocity(model: VelocityModel, like: FluxFamily | None = None) -> Tensor:
    """At three states that are the same in every test; `like` tells the shape."""
    stream = torch.Generator().manual_seed(5)
    text, pooled = torch.randn(3, 8, 64, generator=stream), torch.randn(3, 64, generator=stream)
    conditioning = Conditioning({"prompt_embeds": text, "pooled": pooled})
    shape = (like or model).latent_shape
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(6))
    return model.velocity(x, torch.tensor([0.97, 0.5, 0.1]), conditioning)


def options(
    rank: int | None = None,
    targets: tuple[str, ...] = ("to_q", "to_out.0", "proj_out"),
    checkpointing: bool = False,
    autocast: torch.dtype | None = None,
    **more: Any,
) -> TuningOptions:
    """Everything is trained, as today, unless told otherwise."""
    return TuningOptions(rank, 6.0, targets, checkpointing, autocast, **more)


def prepared(load: Callable[[], FluxFamily], rank: int | None = None, **settings: Any) -> FluxFamily:
    """A family that was loaded anew, ready for training."""
    family = load()
    family.prepare_training(options(rank, **settings), seed=0)
    return family


class Wrapper(nn.Module):
    """A module around a network, as that of distributed training; remembers whether each call had a gradient."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.with_gradient = module, []

    def forward(self, **inputs: Any) -> Any:
        self.with_gradient.append(torch.is_grad_enabled())
        return self.module(**inputs)


def edit_json(path: Path, values: Mapping[str, Any]) -> None:
    """Set values of a JSON object in a file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def disturb(family: FluxFamily) -> None:
    """Move everything that is trained by seeded noise, as training would."""
    stream = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for weight in family.trainable_parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=stream))


@pytest.fixture
def adapted(tiny: Callable[[], FluxFamily], tmp_path: Path) -> FluxFamily:
    """A policy saved in tmp_path/adapter, of rank 3, whose adapter does something; alpha doubles it."""
    family = prepared(tiny, rank=3)
    disturb(family)
    family.save_transformer(family.policy_state(), tmp_path / "adapter")
    return family


def of_peft(family: FluxFamily, folder: Path, **settings: object) -> Tensor:
    """Save an adapter by peft itself; return its velocities there."""
    config = LoraConfig(**{"r": 3, "lora_alpha": 7, "target_modules": ["to_q", "proj_out"]} | settings)
    torch.manual_seed(0)
    model = get_peft_model(family.transformer, config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.add_(0.1 * torch.randn(weight.shape))
    model.save_pretrained(folder)
    return velocity(family.using(model.eval().get_base_model())).detach()
