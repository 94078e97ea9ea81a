"""`python -m infra.geneval_folders`: images of the pipeline as GenEval's evaluator reads them, and its answer."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from chunk_grpo.artifacts import read_table, table_from_rows, write_table
from chunk_grpo.image_files import encode_png
from chunk_grpo.scorers.geneval.records import TAGS
from infra import geneval_folders
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


def results(path: Path) -> Path:
    """The original says right of both images of the first tag and of no other; ours of every second image."""
    lines = [
        {"filename": f"out/{n:05}/samples/{sample:04}.png", "tag": RECORDS[n]["tag"], "prompt": f"prompt {n}"}
        | {"correct": n == 0, "reason": "", "metadata": json.dumps(RECORDS[n])}
        for n in range(6)
        for sample in (0, 1)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_its_results_stand_beside_ours(artifacts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = results(artifacts / "results.jsonl")
    assert run(artifacts, "read", str(answer), "--scores", str(artifacts / "scores.parquet")) == 0
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


def as_written(command: str) -> list[str]:
    """The options of the module's docstring that begin with this command."""
    lines = (geneval_folders.__doc__ or "").replace("\\\n", " ").splitlines()
    (line,) = [line for line in lines if f"infra.geneval_folders {command}" in line]
    return shlex.split(line)[3:]


def test_the_commands_of_the_docstring_work(
    artifacts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On tables where the pipeline puts them, with the seed that the commands name."""
    monkeypatch.chdir(artifacts)
    prompts = ["--prompts", str(artifacts / "prompts.parquet"), "--split", "things"]
    for name, folder, kind in (
        ("images", "images/chunk/images", "images"),
        ("scores", "scores/chunk/geneval", "scores"),
    ):
        rows = read_table(str(artifacts / f"{name}.parquet"), kind).to_pylist()
        path = artifacts / "artifacts" / f"{folder}.parquet"
        path.parent.mkdir(parents=True)
        write_table(table_from_rows([row | {"train_seed": 0} for row in rows], kind), path, kind)
    results(artifacts / "results.jsonl")
    assert main([*as_written("write"), *prompts]) == 0
    assert len(list((artifacts / "FOLDER").iterdir())) == 6
    assert main([*as_written("read"), *prompts]) == 0
    assert "6 of 12 images are judged alike" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["write", "read"])
def test_a_mode_with_several_seeds_needs_one(
    command: str, artifacts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {
        "write": [str(artifacts / "images.parquet"), str(artifacts / "out")],
        "read": [str(results(artifacts / "results.jsonl")), "--scores", str(artifacts / "scores.parquet")],
    }[command]
    options += ["--prompts", str(artifacts / "prompts.parquet"), "--split", "things", "--mode", "tuned"]
    assert main([command, *options]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--train-seed: required with --mode tuned" in said and "has the seeds 3 in this mode" in said
    assert main([command, *options, "--train-seed", "4"]) == 3
    assert "in mode tuned the seeds 3" in " ".join(capsys.readouterr().err.split())


def test_the_base_has_one_seed(artifacts: Path) -> None:
    images = artifacts / "images.parquet"
    rows = [
        row | {"policy": "base", "mode": "base", "train_seed": -1}
        for row in read_table(str(images), "images").to_pylist()
        if row["mode"] == "tuned"
    ]
    write_table(table_from_rows(rows, "images"), images, "images")
    chosen = ["--prompts", str(artifacts / "prompts.parquet"), "--split", "things"]
    assert main(["write", str(images), str(artifacts / "out"), *chosen]) == 0


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
