"""`python -m infra.geneval_folders`: images of the pipeline as GenEval's evaluator reads them, and its answer."""

import json
from pathlib import Path

import numpy as np
import pytest

from chunk_grpo.artifacts import table_from_rows, write_table
from chunk_grpo.image_files import encode_png
from chunk_grpo.scorers.geneval.records import TAGS
from infra.geneval_folders import main

RECORDS = [{"tag": tag, "include": [{"class": "dog", "count": 1}], "exclude": []} for tag in TAGS]
WHO = {"policy": "chunk", "mode": "tuned", "train_seed": 3}


def picture(prompt: int, sample: int) -> bytes:
    return encode_png(np.full((4, 4, 3), 10 * prompt + sample, np.uint8))


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    """Six prompts, one of each tag, with two images each; another split and another mode beside them."""
    names = [f"things-{n:05d}" for n in range(6)]
    prompts = [
        {"prompt_id": name, "split": "things", "prompt": f"prompt {n}", "category": RECORDS[n]["tag"]}
        | {"metadata": json.dumps(RECORDS[n])}
        for n, name in enumerate(names)
    ]
    other = {"prompt_id": "eval-00000", "split": "eval", "prompt": "x", "category": "", "metadata": "{}"}
    write_table(table_from_rows([other, *prompts], "prompts"), tmp_path / "prompts.parquet", "prompts")
    keys = [(n, name, sample) for n, name in enumerate(names) for sample in (1, 0)]
    images = [
        {
            **WHO,
            "prompt_id": name,
            "sample": sample,
            "seed": 0,
            "image": {"bytes": picture(n, sample), "path": "a.png"},
        }
        for n, name, sample in keys
    ]
    hybrid = {**images[0], "mode": "hybrid", "image": {"bytes": picture(20, 0), "path": "b.png"}}
    write_table(table_from_rows([hybrid, *images], "images"), tmp_path / "images.parquet", "images")
    scores = [
        {
            **WHO,
            "prompt_id": name,
            "sample": sample,
            "scorer": "geneval",
            "metric": metric,
            "value": float(sample),
        }
        for _, name, sample in keys
        for metric in ("score", "objects")
    ]
    write_table(table_from_rows(scores, "scores"), tmp_path / "scores.parquet", "scores")
    return tmp_path


def run(artifacts: Path, *command: str) -> int:
    chosen = ("--prompts", str(artifacts / "prompts.parquet"), "--split", "things", "--mode", "tuned")
    return main([*command, *chosen, "--train-seed", "3"])


def test_each_prompt_has_a_folder_with_its_pictures_in_order(artifacts: Path) -> None:
    assert run(artifacts, "write", str(artifacts / "images.parquet"), str(artifacts / "out")) == 0
    assert sorted(path.name for path in (artifacts / "out").iterdir()) == [f"{n:05}" for n in range(6)]
    record = json.loads((artifacts / "out" / "00002" / "metadata.jsonl").read_text())
    assert record == {**RECORDS[2], "prompt": "prompt 2"}
    for sample in (0, 1):
        assert (artifacts / "out" / "00002" / "samples" / f"000{sample}.png").read_bytes() == picture(
            2, sample
        )


def test_its_results_stand_beside_ours(artifacts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The original says right of both images of the first tag and of no other; ours of every second image."""
    lines = [
        {"filename": f"out/{n:05}/samples/{sample:04}.png", "tag": RECORDS[n]["tag"], "prompt": f"prompt {n}"}
        | {"correct": n == 0, "reason": "", "metadata": json.dumps(RECORDS[n])}
        for n in range(6)
        for sample in (0, 1)
    ]
    results = artifacts / "results.jsonl"
    results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run(artifacts, "read", str(results), "--scores", str(artifacts / "scores.parquet")) == 0
    said = capsys.readouterr().out
    rows = {
        line.split("│")[1].strip(): [c.strip() for c in line.split("│")[2:5]]
        for line in said.splitlines()
        if "│" in line
    }
    assert rows["single_object"] == ["2", "1.000", "0.500"]
    assert rows["counting"] == ["2", "0.000", "0.500"]
    assert rows["Overall"] == ["12", "0.167", "0.500"]
    assert "6 of 12 images are judged alike" in said  # one of two of each tag


@pytest.mark.parametrize(("option", "value"), [("--mode", "hybrid"), ("--split", "nothing")])
def test_what_is_missing_is_named(
    option: str, value: str, artifacts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["write", str(artifacts / "images.parquet"), str(artifacts / "out"), "--train-seed", "3"]
    command += ["--prompts", str(artifacts / "prompts.parquet"), "--split", "things", option, value]
    assert main(command) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert value in said
    assert not (artifacts / "out").exists()
