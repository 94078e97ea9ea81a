"""An editing set of one's own runs through all stages: a table of prompts and pictures, and a reward of both."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from chunk_grpo.artifacts import read_table
from chunk_grpo.artifacts.embeddings import open_embeddings
from chunk_grpo.artifacts.pictures import open_pictures
from chunk_grpo.image_files import as_pictures, decode_image, fitted, read_picture
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.shapes.edits import parse_edit
from chunk_grpo.shapes.render import render
from tests.conftest import ORDER, Workspace
from tests.families.parity import load, module_of
from tests.shapes_scorers import shapes_scorer

NEGATIVE = {"flux_kontext": {"prompt_embeds", "pooled"}, "qwen_image_edit": None}
"""By family: tensors of the negative prompt; None: each row has its own."""
REWARD = '''
import numpy as np


def kept(images, prompts, metadata, sources):
    """How near each image is to the picture that it edits, 0 to 1."""
    return 1 - np.abs(images / 255 - sources / 255).mean(axis=(1, 2, 3))
'''


def write_set(root: Path) -> None:
    """24 prompts, each with a picture of its own of 48 x 48 pixels."""
    (root / "edits").mkdir()
    random = np.random.default_rng(1)
    with (root / "edits" / "edits.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["prompt", "source", "kind"])
        for number in range(24):
            pixels = random.integers(0, 256, (48, 48, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "edits" / f"{number}.png")
            table.writerow([f"make it {('red', 'blue')[number % 2]}", f"{number}.png", "colour"])
    (root / "edit_rewards.py").write_text(REWARD)


def use_set(raw: dict[str, Any], name: str, checkpoint: Path) -> None:
    case = module_of(name).CASE
    raw["model"].update(family=name, checkpoint=str(checkpoint), max_sequence_length=case.tokens)
    raw["prompts"].update(
        source="file", train_file={"path": "edits/edits.csv", "picture_field": "source"}, wise_count=0
    )
    for section in ("sampling", "generate"):  # on the pipeline's own grid; both velocities read the picture
        raw[section].update(shift=None, cfg_scale=2.0)
    raw["scorers"] = {
        "kept": {"kind": "external", "source": "edit_rewards:kept", "version": 1, "options": {}}
        | {"splits": ["eval"], "batch_size": 8}
    }
    raw["rewards"] = {"kept": 1.0}
    raw["train"]["heldout"]["scorers"] = []


def edited_by(name: str, workspace: Workspace, checkpoint: Path) -> Workspace:
    """The workspace with the set and the random checkpoint of a family."""
    module_of(name).random_pipeline().save_pretrained(checkpoint)
    write_set(workspace.root)
    workspace.edit(lambda raw: use_set(raw, name, checkpoint))
    return Workspace(workspace.root, scorer="kept")


@pytest.fixture
def editing(workspace: Workspace, tmp_path: Path) -> Workspace:
    return edited_by("flux_kontext", workspace, tmp_path / "checkpoint")


@pytest.mark.parametrize("name", ["flux_kontext", pytest.param("qwen_image_edit", marks=pytest.mark.slow)])
def test_pictures_reach_network_reward_and_report(name: str, workspace: Workspace, tmp_path: Path) -> None:
    editing = edited_by(name, workspace, tmp_path / "checkpoint")
    for stage in (*ORDER, "report"):
        if stage == "report":  # of the variant that was run alone
            editing.edit(lambda raw: raw.update(variants={editing.variant: raw["variants"][editing.variant]}))
        assert editing.run(stage) == 0, stage
    prompts = read_table(str(editing.artifacts / "prompts" / "evaluation.parquet"), "prompts").to_pylist()
    rows = list(csv.DictReader((editing.root / "edits" / "edits.csv").open()))
    scores = read_table(str(editing.artifacts / "scores" / "base" / "kept.parquet"), "scores").to_pylist()
    images = read_table(editing.images("base"), "images").to_pylist()
    by_id = {row["prompt_id"]: decode_image(row["image"]["bytes"], "") for row in images}
    pictures = [fitted(read_picture(editing.root / "edits" / row["source"]), 32, 32) for row in rows]
    with open_embeddings(editing.artifacts / "embeddings" / "evaluation") as stored:
        read = stored.read([stored.row_of[p["prompt_id"], p["prompt"]] for p in prompts])
        negative = stored.negative()
        assert NEGATIVE[name] == (None if negative is None else set(negative))
    family = load(name, tmp_path / "checkpoint")
    latents = family.encode([row["prompt"] for row in rows], pictures).tensors["source"]
    for place, prompt in enumerate(prompts):
        (number,) = (n for n, each in enumerate(latents) if (each - read["source"][place]).abs().max() < 1e-5)
        assert rows[number]["prompt"] == prompt["prompt"]
        apart = np.abs(by_id[prompt["prompt_id"]] / 255 - pictures[number] / 255).mean()
        (score,) = (s["value"] for s in scores if s["prompt_id"] == prompt["prompt_id"])
        assert score == pytest.approx(1 - apart)
    profile = read_table(str(editing.artifacts / "profile" / "l1_profile.parquet"), "l1_profile")
    own_grid = load(name, tmp_path / "checkpoint", height=32, width=32).pipeline_times(17)
    assert profile["t"].to_pylist()[:17] == pytest.approx(own_grid[:-1].tolist())
    page = (editing.artifacts / "report" / "index.html").read_text()
    assert '<th scope="col">source</th>' in page
    assert "make it red: source" in page


def test_edits_of_the_toy_world_bring_their_pictures(editing: Workspace) -> None:
    def toy_edits(raw: dict[str, Any]) -> None:
        raw["prompts"].update(source="shapes-edits", train_file=None)
        raw["scorers"] = {"exact": {"kind": "shapes-edit", "splits": ["eval"], "batch_size": 8}}
        raw["rewards"] = {"exact": 1.0}

    editing.edit(toy_edits)
    for stage in ("inputs", "prepare_prompts"):
        assert editing.run(stage) == 0, stage
    prompts = read_table(str(editing.artifacts / "prompts" / "evaluation.parquet"), "prompts").to_pylist()
    with open_pictures(editing.artifacts / "prompts" / "pictures") as found:
        sources = np.stack([read_picture(found[prompt["prompt_id"]]) for prompt in prompts])
    edits = [parse_edit(prompt["prompt"], json.loads(prompt["metadata"])) for prompt in prompts]
    assert np.array_equal(sources, as_pictures(render([edit.source for edit in edits]).numpy()))
    results = as_pictures(render([edit.result for edit in edits]).numpy())
    for images, scores in ((sources, (0, 0, 1)), (results, (1, 1, 1))):
        metadata = [json.loads(prompt["metadata"]) for prompt in prompts]
        batch = ScoreBatch(images, [p["prompt"] for p in prompts], metadata, range(len(prompts)), sources)
        scored = shapes_scorer("shapes-edit").score(batch)
        for values, value in zip((scored.values, *map(scored.details.get, ("asked", "kept"))), scores, strict=True):
            assert values is not None and set(values) == {value}


def test_a_family_that_edits_nothing_is_refused_before_any_work(
    editing: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    editing.edit(lambda raw: raw["model"].update(family="flux"))
    assert editing.run("inputs") == 2
    assert "model.family: flux edits no pictures; choose a family that does" in capsys.readouterr().err


def test_a_family_that_only_edits_is_refused_before_any_work(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace.edit(lambda raw: raw["model"].update(family="qwen_image_edit"))
    assert workspace.run("inputs") == 2
    assert "model.family: qwen_image_edit only edits pictures, got prompts without; name the pictures by" in (
        capsys.readouterr().err
    )


def test_a_missing_picture_is_named(editing: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    (editing.root / "edits" / "7.png").unlink()
    assert editing.run("prepare_prompts") == 3
    assert "edits/edits.csv, line 9: names the picture '7.png', which is no file in edits." in (
        " ".join(capsys.readouterr().err.split())
    )
