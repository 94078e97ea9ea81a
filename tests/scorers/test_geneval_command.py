"""`python -m infra.geneval_folders`: images of the pipeline as GenEval's evaluator reads them, and its answer."""

import json
import shlex

import numpy as np
import pytest

from chunk_grpo.artifacts import read_table, table_from_rows, write_table
from chunk_grpo.image_files import encode_png
from chunk_grpo.scorers.geneval.records import TAGS
from infra import geneval_folders
from infra.geneval_folders import main

RECORDS = [{"tag": tag, "include": [{"class": "dog", "count": 1}], "exclude": []} for tag in TAGS]
NAMES = [f"things-{n:05d}" for n in range(6)]
WHO = {"policy": "chunk", "mode": "tuned", "train_seed": 0}
IMAGES = "artifacts/images/chunk/seed-0/images.parquet"
PROMPTS = ["--prompts", "prompts.parquet", "--split", "things"]


def picture(prompt, sample):
    return encode_png(np.full((4, 4, 3), 10 * prompt + sample, np.uint8))


@pytest.fixture(autouse=True)
def artifacts(tmp_path, monkeypatch):
    """Where the docstring's commands look: six prompts, one of each tag, with two images each; another split and mode.

    The original says right of both images of the first tag and of no other; ours of every second image.
    """
    monkeypatch.chdir(tmp_path)
    prompts = [
        {"prompt_id": name, "split": "things", "prompt": f"prompt {n}", "category": RECORDS[n]["tag"]}
        | {"metadata": json.dumps(RECORDS[n])}
        for n, name in enumerate(NAMES)
    ]
    other = {"prompt_id": "eval-00000", "split": "eval", "prompt": "x", "category": "", "metadata": "{}"}
    keys = [{**WHO, "prompt_id": name, "sample": sample} for name in NAMES for sample in (1, 0)]
    images = [
        {**key, "seed": 0, "image": {"bytes": picture(NAMES.index(key["prompt_id"]), key["sample"]), "path": "a"}}
        for key in keys
    ]
    hybrid = {**images[0], "mode": "hybrid", "image": {"bytes": picture(20, 0), "path": "b"}}
    scores = [
        {**key, "scorer": "geneval", "metric": metric, "value": float(key["sample"])}
        for key in keys
        for metric in ("score", "objects")
    ]
    tables = [("prompts.parquet", "prompts", [other, *prompts]), (IMAGES, "images", [hybrid, *images])]
    for name, kind, rows in [*tables, ("artifacts/scores/chunk/geneval.parquet", "scores", scores)]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_table(table_from_rows(rows, kind), tmp_path / name, kind)
    results = [
        {"filename": f"out/{n:05}/samples/{sample:04}.png", "tag": RECORDS[n]["tag"], "prompt": f"prompt {n}"}
        | {"correct": n == 0, "reason": "", "metadata": json.dumps(RECORDS[n])}
        for n in range(6)
        for sample in (0, 1)
    ]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in results))


def as_written(command):
    """The options of the module's docstring that begin with this command."""
    lines = (geneval_folders.__doc__ or "").replace("\\\n", " ").splitlines()
    (line,) = [line for line in lines if f"infra.geneval_folders {command}" in line]
    return shlex.split(line)[3:]


def test_each_prompt_has_a_folder_with_its_pictures_in_order(tmp_path):
    assert main([*as_written("write"), *PROMPTS]) == 0
    folder = tmp_path / "FOLDER"
    assert sorted(path.name for path in folder.iterdir()) == [f"{n:05}" for n in range(6)]
    record = json.loads((folder / "00002" / "metadata.jsonl").read_text())
    assert record == {**RECORDS[2], "prompt": "prompt 2"}
    for sample in (0, 1):
        assert (folder / "00002" / "samples" / f"000{sample}.png").read_bytes() == picture(2, sample)


def test_its_results_stand_beside_ours(capsys):
    assert main([*as_written("read"), *PROMPTS]) == 0
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


@pytest.mark.parametrize("command", ["write", "read"])
def test_a_mode_with_several_seeds_needs_one(command, capsys):
    *options, seed, _ = as_written(command)
    assert seed == "--train-seed"
    assert main([*options, *PROMPTS]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--train-seed: required with --mode tuned" in said and "has the seeds 0 in this mode" in said
    assert main([*options, *PROMPTS, "--train-seed", "4"]) == 3
    assert "in mode tuned the seeds 0" in " ".join(capsys.readouterr().err.split())


def test_the_base_has_one_seed(tmp_path):
    rows = [
        row | {"policy": "base", "mode": "base", "train_seed": -1}
        for row in read_table(IMAGES, "images").to_pylist()
        if row["mode"] == "tuned"
    ]
    write_table(table_from_rows(rows, "images"), tmp_path / IMAGES, "images")
    assert main(["write", IMAGES, "out", *PROMPTS]) == 0


@pytest.mark.parametrize(("option", "value"), [("--mode", "hybrid"), ("--split", "nothing")])
def test_missing_input_is_named(option, value, tmp_path, capsys):
    assert main(["write", IMAGES, "out", "--train-seed", "3", *PROMPTS, option, value]) == 3
    assert value in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()
