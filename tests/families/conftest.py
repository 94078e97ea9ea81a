"""Small random FluxPipeline folders in the real file formats."""

from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextModel, CLIPTokenizer, T5EncoderModel, T5TokenizerFast

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
