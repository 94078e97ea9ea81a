"""The script for a GPU, on a small network; and what it says where there is none."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import flux_gpu
from benchmarks.flux_gpu import FLUX_DEV, NO_DEVICE, SMALL, WORKS, main, make_family, measure
from chunk_grpo.families.flux import FluxFamily

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_small_network_is_measured(
    dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = tmp_path / "flux.json"
    options = ["--small", "--batch-sizes", "1", "2", "--repeats", "1", "--dtype", dtype, "--json", str(path)]
    assert main([*options, "--markdown"]) == 0
    found = json.loads(path.read_text())
    assert [(cell["work"], cell["batch_size"]) for cell in found["cells"]] == [
        (w, n) for w in WORKS for n in (1, 2)
    ]
    assert all(cell["seconds"] > 0 and cell["peak_bytes"] is None for cell in found["cells"])
    printed = capsys.readouterr().out
    assert "There is no CUDA device here." in printed
    assert printed.count("| LoRA |") == 2


def test_without_a_gpu_the_large_network_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == NO_DEVICE
    printed = capsys.readouterr().out
    assert "no CUDA device" in printed and "--small" in printed


def test_what_is_trained_is_what_the_row_says() -> None:
    for work in WORKS:
        family = make_family(SMALL, work, torch.bfloat16, CPU)
        names = [name for name, weight in family.transformer.named_parameters() if weight.requires_grad]
        everything = len(list(family.transformer.parameters()))
        assert family.transformer.is_gradient_checkpointing == work.endswith("checkpointing")
        if work.startswith("LoRA"):
            assert names and all("lora" in name for name in names)
        else:
            assert len(names) == (everything if work.startswith("full") else 0)


def test_a_batch_that_does_not_fit_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = FluxFamily.velocity

    def small_device(family, x, t, conditioning):  # type: ignore[no-untyped-def]
        if len(x) > 1:
            raise torch.OutOfMemoryError("does not fit")
        return shipped(family, x, t, conditioning)

    monkeypatch.setattr(FluxFamily, "velocity", small_device)
    cells = list(measure(SMALL, "forward", [1, 2], 1, torch.float32, CPU))
    assert cells[0].seconds is not None and cells[1].seconds is None
    about = {"device": "CPU", "dtype": "float32", "torch": "2"}
    assert flux_gpu.table(SMALL, cells, about).rows[1][3] == "out of memory"


def test_the_large_network_is_flux_dev() -> None:
    """12 billion weights; without memory for them, on the meta device."""
    with torch.device("meta"):
        from diffusers import FluxTransformer2DModel

        network = FluxTransformer2DModel(guidance_embeds=True)  # diffusers' defaults are FLUX.1's sizes
    config = network.config
    assert (config.num_layers, config.num_single_layers) == (FLUX_DEV.double_blocks, FLUX_DEV.single_blocks)
    assert (config.num_attention_heads, config.attention_head_dim) == (FLUX_DEV.heads, FLUX_DEV.head_width)
    assert (config.in_channels, config.joint_attention_dim) == (FLUX_DEV.channels, FLUX_DEV.text_width)
    assert config.pooled_projection_dim == FLUX_DEV.pooled_width
    assert tuple(config.axes_dims_rope) == flux_gpu.AXES[FLUX_DEV.head_width]
    assert sum(weight.numel() for weight in network.parameters()) == pytest.approx(11.9e9, rel=0.01)
