"""The report for a GPU: its pieces on small networks, going on after a cut, its table, and its checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CLIPTokenizer

from benchmarks import gpu_report
from benchmarks.flux_gpu import FORWARD
from benchmarks.gpu_report import MORE, NO_DEVICE, UPDATE, Bench, main, markdown
from benchmarks.random_flux import TOY, makers_of_parts
from chunk_grpo.planning.models import known_file

SMALL = ["--small", "--batch-sizes", "1", "2", "--min-run-time", "0.001"]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def bench() -> Bench:
    return Bench(True, torch.device("cpu"), (1, 2), 0.001)


def test_reports_missing_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", str(tmp_path / "report.json")]) == NO_DEVICE
    assert "no CUDA device" in capsys.readouterr().out


def test_interrupted_report_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def pieces(self: Bench) -> list[tuple[str, gpu_report.Piece]]:
        def piece(name: str) -> dict[str, Any]:
            ran.append(name)
            if ran == ["rate", "ways/native"]:
                raise KeyboardInterrupt
            if name == "scorer":
                raise torch.OutOfMemoryError("too large")
            return {"tflops": 2.0} if name == "rate" else {"batch_size": 4, FORWARD: {"error": "none"}}

        return [(name, lambda name=name: piece(name)) for name in ("rate", "ways/native", "scorer")]  # type: ignore[misc]

    monkeypatch.setattr(Bench, "pieces", pieces)
    where = [*SMALL, "--json", str(tmp_path / "report.json")]
    with pytest.raises(KeyboardInterrupt):
        main(where)
    assert list(json.loads((tmp_path / "report.json").read_text())["pieces"]) == ["rate"]
    assert main([*where, "--minutes", "-1"]) == MORE
    assert "run again to go on from ways/native" in capsys.readouterr().out
    assert main(where) == 0
    assert ran == ["rate", "ways/native", "ways/native", "scorer"]
    table = (tmp_path / "report.md").read_text()
    assert f"| ways/native | {FORWARD}, 4 images | none |" in table
    assert "| scorer | not measured | out of memory |" in table
    (tmp_path / "report.json").unlink()
    assert main([*where, "--only", "ways"]) == 0
    assert ran[4:] == ["ways/native"]


def test_passes_ways_and_scorer_are_measured() -> None:
    small = bench()
    found = {"rate": small.rate(), f"passes/{UPDATE}": small.passes(UPDATE), "scorer": small.scorer()}
    found["ways/native"], found["ways/flash"] = small.way("native"), small.way("flash")
    assert found["ways/native"][FORWARD]["seconds"] > 0
    assert "flash" in found["ways/flash"][FORWARD]["error"]  # is not installed, which is a row
    assert found["scorer"]["images_per_second"] > 0
    about = {"device": "CPU", "small": True, "commit": "c", "torch": "t"}
    table = markdown({"machine": about, "pieces": found})
    assert table.count("TFLOP/s") == 4
    assert len(table.splitlines()) == 4 + 1 + 2 + 1 + 4


def test_the_checkpoint_has_the_configurations_and_weights_of_the_real_one() -> None:
    makers = makers_of_parts(CLIPTokenizer.from_pretrained(TOY / "tokenizer"))
    with torch.device("meta"):
        parts: dict[str, Any] = {name: make() for name, make in makers.items()}
    file = json.loads(known_file("black-forest-labs/FLUX.1-dev").read_text("utf-8"))
    for name, part in parts.items():
        config = part.config
        known = {k: value for k, value in file[name].items() if k not in ("_class_name", "architectures")}
        found = {
            key: config[key] if isinstance(config, dict) else getattr(config, key, config.to_dict().get(key))
            for key in known
        }
        assert json.loads(json.dumps(found)) == json.loads(json.dumps(known)), name
    assert {name: sum(w.numel() for w in part.parameters()) for name, part in parts.items()} == {
        "vae": 83_819_683,
        "text_encoder": 123_060_480,
        "text_encoder_2": 4_762_310_656,
        "transformer": 11_901_408_320,
    }
