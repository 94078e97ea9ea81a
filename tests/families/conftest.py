"""Small random FluxPipeline folders in the real file formats, and what tests of tuning share."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from torch import Tensor
from transformers import CLIPTextModel, CLIPTokenizer, T5EncoderModel, T5TokenizerFast

from chunk_grpo.families.base import Conditioning, LoadOptions, TuningOptions, VelocityModel
from chunk_grpo.families.models.flux import FluxFamily

TINY = Path(__file__).parents[2] / "assets" / "tiny-flux"


def random_pipeline() -> FluxPipeline:
    """A FluxPipeline with random weights of visible size (also in the modulations), another shape than tiny-flux."""
    torch.manual_seed(0)
    transformer = FluxTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=64, pooled_projection_dim=64, guidance_embeds=True, axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    vae = AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 3, up_block_types=["UpDecoderBlock2D"] * 3,
        block_out_channels=[8, 8, 16], layers_per_block=1, latent_channels=4, norm_num_groups=4,
        use_quant_conv=False, use_post_quant_conv=False, scaling_factor=0.3611, shift_factor=0.1159,
    )  # fmt: skip
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae,
        text_encoder=CLIPTextModel.from_pretrained(TINY / "text_encoder", dtype=torch.float32),
        text_encoder_2=T5EncoderModel.from_pretrained(TINY / "text_encoder_2", dtype=torch.float32),
        tokenizer=CLIPTokenizer.from_pretrained(TINY / "tokenizer"),
        tokenizer_2=T5TokenizerFast.from_pretrained(TINY / "tokenizer_2"),
        transformer=transformer,
    )


@pytest.fixture(scope="session")
def sharded_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The random pipeline with its transformer split over several files."""
    folder = tmp_path_factory.mktemp("sharded")
    random_pipeline().save_pretrained(folder, max_shard_size="60KB")
    assert len(list((folder / "transformer").glob("*.safetensors"))) > 1
    return folder


@pytest.fixture(scope="session")
def bf16_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The random pipeline stored in bfloat16."""
    folder = tmp_path_factory.mktemp("bf16")
    random_pipeline().to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(params=["float32", "bfloat16"])
def load(request: pytest.FixtureRequest, bf16_checkpoint: Path) -> Callable[[], FluxFamily]:
    """A function that loads a model anew: tiny-flux in float32, and the random one stored and used in bfloat16."""
    found = {"float32": (TINY, torch.float32), "bfloat16": (bf16_checkpoint, torch.bfloat16)}
    folder, dtype = found[request.param]
    options = LoadOptions(str(folder), height=32, width=32, dtype=dtype)
    return lambda: FluxFamily.load(options, ("transformer",))


@pytest.fixture
def tiny() -> Callable[[], FluxFamily]:
    """A function that loads tiny-flux anew, in float32."""
    return lambda: FluxFamily.load(LoadOptions(str(TINY), height=32, width=32), ("transformer",))


@pytest.fixture
def bf16(bf16_checkpoint: Path) -> Callable[[], FluxFamily]:
    """A function that loads the random model anew, stored and used in bfloat16."""
    options = LoadOptions(str(bf16_checkpoint), height=32, width=32, dtype=torch.bfloat16)
    return lambda: FluxFamily.load(options, ("transformer",))


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
) -> TuningOptions:
    """Everything is trained, as today, unless told otherwise."""
    return TuningOptions(rank, 6.0, targets, checkpointing, autocast)


def disturb(family: FluxFamily) -> None:
    """Move everything that is trained by seeded noise, as training would."""
    stream = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for weight in family.trainable_parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=stream))
