"""The script for a GPU, on a small network; and what it says where there is none."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.flux_gpu import (
    FLUX_DEV,
    FORWARD,
    NO_DEVICE,
    SMALL,
    WORKS,
    main,
    make_family,
    measure,
    one_pass,
)
from benchmarks.throughput import flop_count
from chunk_grpo.families.models.flux import FluxFamily

CPU, META = torch.device("cpu"), torch.device("meta")


def test_a_small_network_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = tmp_path / "flux.json"
    assert main(["--small", "--batch-sizes", "1", "2", "--min-run-time", "0.001", "--json", str(path)]) == 0
    cells = json.loads(path.read_text())["cells"]
    assert [(cell["work"], cell["batch_size"]) for cell in cells] == [(w, n) for w in WORKS for n in (1, 2)]
    assert all(cell["seconds"] > 0 and cell["peak_bytes"] is None for cell in cells)
    assert capsys.readouterr().out.count("| LoRA  ") == 2
    assert main([]) == NO_DEVICE
    assert "no CUDA device" in capsys.readouterr().out


@pytest.mark.parametrize("work", WORKS)
def test_trained_parameters_match_row_label(work: str) -> None:
    family = make_family(SMALL, work, torch.bfloat16, CPU)
    names = [name for name, weight in family.transformer.named_parameters() if weight.requires_grad]
    assert family.transformer.is_gradient_checkpointing == work.endswith("checkpointing")
    if work.startswith("LoRA"):
        assert names and all("lora" in name for name in names)
    else:
        assert len(names) == (len(list(family.transformer.parameters())) if work.startswith("full") else 0)


@pytest.mark.parametrize("work", WORKS)
def test_operations_are_proportional_to_the_images(work: str) -> None:
    family = make_family(SMALL, work, torch.bfloat16, CPU)
    one, three = (flop_count(one_pass(family, SMALL, work, images, CPU)) for images in (1, 3))
    assert three == 3 * one


def test_a_batch_that_does_not_fit_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = FluxFamily.velocity

    def small_device(family, x, t, conditioning):  # type: ignore[no-untyped-def]
        if len(x) > 1:
            raise torch.OutOfMemoryError("does not fit")
        return shipped(family, x, t, conditioning)

    monkeypatch.setattr(FluxFamily, "velocity", small_device)
    fits, too_large = measure(SMALL, FORWARD, [1, 2], 0.001, torch.float32, CPU)
    assert fits.seconds is not None
    assert too_large.line() == [FORWARD, "2", "-", "out of memory", "-", "-", "-"]


def test_the_large_network_is_flux_dev() -> None:
    """12 billion weights and 37.3 TFLOP a forward pass; without memory for them, on the meta device."""
    family = make_family(FLUX_DEV, FORWARD, torch.bfloat16, META)
    assert sum(weight.numel() for weight in family.transformer.parameters()) == pytest.approx(
        11.9e9, rel=0.01
    )
    with sdpa_kernel(SDPBackend.MATH):
        counted = flop_count(one_pass(family, FLUX_DEV, FORWARD, 1, META))
    assert counted / 1e12 == pytest.approx(37.3, abs=0.05)
