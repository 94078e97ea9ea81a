"""The drill of host memory: its workspace is valid, and a peak is what a process held."""

from pathlib import Path

import pytest

from benchmarks import host_memory
from benchmarks.host_memory import PICTURES, STAGES, enlarge, peak, prepare
from chunk_grpo.artifacts import read_table, write_rows
from chunk_grpo.config import load_params
from chunk_grpo.image_files import decode_image


def test_every_stage_has_a_command_and_the_schedule_draws_the_used_prompts(tmp_path: Path) -> None:
    workspace = prepare(tmp_path, 20, 300)
    assert all(workspace.options(stage)[0].startswith("stages.") for stage in STAGES)
    params = load_params(tmp_path / "params.yaml")
    assert params.train.iterations * params.train.prompts_per_iteration == params.prompts.eval_count == 20
    assert params.prompts.train_count == 300
    assert len((tmp_path / "prompts.txt").read_text().splitlines()) == 320
    assert {path.name for path in (tmp_path / "model").iterdir()} >= {"text_encoder_2", "transformer", "vae"}


def test_a_peak_is_that_of_the_stages_own_process(tmp_path: Path) -> None:
    module, options = prepare(tmp_path, 20, 300).options("inputs")
    assert 100 < peak(tmp_path, module, options) < 5000  # MiB
    (tmp_path / "params.yaml").unlink()
    with pytest.raises(RuntimeError, match=r"stages.inputs ended with exit code [23]:\n"):
        peak(tmp_path, module, options)


def test_pictures_are_replaced_by_large_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "SIDE", 24)
    path = tmp_path / "images.parquet"
    about = {"policy": "base", "mode": "base", "train_seed": -1, "sample": 0, "seed": 1}
    image = {"bytes": b"small", "path": "a.png"}
    write_rows(({**about, "prompt_id": f"p{n}", "image": image} for n in range(PICTURES + 1)), path, "images")
    enlarge(path)
    rows = read_table(path, "images").to_pylist()
    assert [row["prompt_id"] for row in rows] == [f"p{n}" for n in range(PICTURES + 1)]
    assert all(decode_image(row["image"]["bytes"], "a.png").shape == (24, 24, 3) for row in rows)
    assert rows[0]["image"] == rows[PICTURES]["image"] != rows[1]["image"]
