"""The check on real weights, run on small random ones, whose scores are others than the published."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.reference_scores import DIFFERS, HPSV3, IMAGEREWARD, main
from chunk_grpo.errors import ConfigError, DataError
from tests.fake_python import fake_python, python_with_folder
from tests.scorers.checkpoints_hpsv3 import make_hpsv3
from tests.scorers.checkpoints_imagereward import make_imagereward
from tests.scorers.hpsv3_cases import pictures

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both checkpoints, and images of several sizes with the README's names."""
    home = tmp_path_factory.mktemp("published")
    make_imagereward(home / "imagereward")
    make_hpsv3(home / "hpsv3")
    (home / "images").mkdir()
    for number, name in enumerate([*IMAGEREWARD, *HPSV3]):
        image = Image.fromarray(pictures(1, 64, 40 + 8 * number, seed=number)[0])
        image.save(home / "images" / name, lossless=True)
    return home


def imagereward(folder: Path, images: str = "images") -> list[str]:
    model = folder / "imagereward"
    options = ["--model", str(model), "--tokenizer", str(model / "bert-base-uncased"), "--device", "cpu"]
    return ["imagereward", *options, "--images", str(folder / images)]


def hpsv3(folder: Path, *options: str) -> list[str]:
    home = folder / "hpsv3"
    places = ["--model", str(home / "model"), "--backbone", str(home / "backbone"), "--device", "cpu"]
    return ["hpsv3", *places, "--images", str(folder / "images"), "--dtype", "float32", *options]


def table(printed: str) -> dict[str, list[str]]:
    """Cells by image."""
    lines = [line.strip("|").split("|") for line in printed.splitlines() if line.startswith("|")]
    return {name.strip(): [cell.strip() for cell in cells] for name, *cells in lines[2:]}


@pytest.mark.slow
def test_imagereward_stands_beside_its_published_values(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random weights do not give them. As if they were these weights': up to 0.01 is no difference, more is one."""
    assert main(imagereward(folder)) == DIFFERS
    printed = capsys.readouterr().out
    found = table(printed)
    assert {name: float(cells[0]) for name, cells in found.items()} == IMAGEREWARD
    ours = {name: float(cells[1]) for name, cells in found.items()}
    assert "ImageReward differs: " in printed
    for shift, code in ((0.0, 0), (0.009, 0), (-0.012, DIFFERS), (0.012, DIFFERS)):
        published = ours | {"3.webp": ours["3.webp"] - shift}
        monkeypatch.setattr("benchmarks.reference_scores.IMAGEREWARD", published)
        assert main(imagereward(folder)) == code
        printed = capsys.readouterr().out
        assert float(table(printed)["3.webp"][2]) == pytest.approx(shift, abs=2e-4)
    assert "ImageReward differs: 3.webp is 0.012" in printed


def package(folder: Path, values: list[float]) -> Path:
    """An interpreter with a package hpsv3 that gives these values to example1.png and example2.png, by their widths."""
    (folder / "hpsv3" / "config").mkdir(parents=True)
    (folder / "torchvision.py").touch()
    (folder / "hpsv3" / "__init__.py").touch()
    (folder / "hpsv3" / "config" / "HPSv3_7B.yaml").write_text("output_dim: 2\nbf16: true\n")
    (folder / "hpsv3" / "inference.py").write_text(
        "import torch\n"
        "class HPSv3RewardInferencer:\n"
        "    def __init__(self, **options):\n        pass\n"
        "    def reward(self, image_paths, prompts):\n"
        f"        return torch.tensor([[{dict(zip((72, 80), values, strict=True))}[image_paths[0].width], 0.0]])\n"
    )
    return python_with_folder(folder / "python", folder)


@pytest.mark.slow
def test_hpsv3_stands_beside_its_package(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(hpsv3(folder)) == 0
    printed = capsys.readouterr().out
    assert "HPSv3 has no published values" in printed
    ours = np.array([float(table(printed)[name][0]) for name in HPSV3])
    for shift, code in ((0.009, 0), (0.02, DIFFERS)):
        python = package(tmp_path / str(shift), (ours - [0, shift]).tolist())
        assert main(hpsv3(folder, "--hpsv3-python", str(python))) == code
        printed = capsys.readouterr().out
        assert float(table(printed)["example2.png"][2]) == pytest.approx(shift, abs=2e-4)
    assert "HPSv3 differs: example2.png" in printed


def test_missing_input_is_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "images").mkdir()
    assert main([*imagereward(folder)[:-1], str(tmp_path / "images")]) == DataError.exit_code
    assert "no 1.webp, 2.webp, 3.webp, 4.webp" in (printed := capsys.readouterr().err)
    assert "assets/images of github.com/THUDM/ImageReward" in printed
    for name in IMAGEREWARD:
        (tmp_path / "images" / name).write_bytes(b"RIFF")
    assert main([*imagereward(folder)[:-1], str(tmp_path / "images")]) == DataError.exit_code
    assert "1.webp: must be a PNG" in capsys.readouterr().err
    options = hpsv3(folder)
    options[2] = str(tmp_path)
    assert main(options) == DataError.exit_code
    assert "no file HPSv3.safetensors" in capsys.readouterr().err
    assert main(hpsv3(folder, "--hpsv3-python", str(tmp_path / "python"))) == ConfigError.exit_code
    assert "must be a Python interpreter" in capsys.readouterr().err
    failing = fake_python(tmp_path / "failing", "import sys\nsys.exit('no such device')")
    assert main(hpsv3(folder, "--hpsv3-python", str(failing))) == ConfigError.exit_code
    assert "no such device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("hub_id", "files"),
    [
        ("MizzenAI/HPSv3", {"HPSv3.safetensors"}),
        (
            "Qwen/Qwen2-VL-7B-Instruct",
            {"chat_template.json", "config.json", "preprocessor_config.json", "tokenizer.json"},
        ),
    ],
)
def test_the_documented_downloads_have_what_the_package_reads(hub_id: str, files: set[str]) -> None:
    page = (ROOT / "docs" / "scorers.md").read_text(encoding="utf-8")
    (line,) = (line for line in page.splitlines() if f"hf download {hub_id} " in line)
    assert files <= set(line.split())
