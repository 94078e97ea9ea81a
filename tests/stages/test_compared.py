"""Saved policies, and images made elsewhere, beside the variants: drawn, scored and compared in the report."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.artifacts import read_table
from tests.conftest import VARIANT, Workspace

SCORERS = ("shapes-exact", "shapes-graded", "shapes-vivid")


def rows(workspace: Workspace, policy: str) -> list[dict[str, Any]]:
    return read_table(str(workspace.artifacts / "images" / policy / "images.parquet"), "images").to_pylist()


def compare(workspace: Workspace, **policies: dict[str, str]) -> None:
    workspace.edit(lambda raw: raw.update(policies=policies))
    assert workspace.run("inputs") == 0


@pytest.fixture
def saved(workspace: Workspace) -> Path:
    """The trained policy, as another run has left it."""
    folder = workspace.root / "saved"
    shutil.copytree(workspace.artifacts / "train" / VARIANT / "seed-0", folder)
    return folder


@pytest.fixture
def given(workspace: Workspace) -> Path:
    """The tuned images as files, the samples of a prompt in order."""
    folder = workspace.root / "given"
    folder.mkdir()
    prompts = read_table(str(workspace.artifacts / "prompts" / "evaluation.parquet"), "prompts").to_pylist()
    texts = {row["prompt_id"]: row["prompt"] for row in prompts}
    lines = []
    for number, row in enumerate(rows(workspace, f"{VARIANT}/seed-0")):
        if row["mode"] == "tuned":
            (folder / f"{number}.png").write_bytes(row["image"]["bytes"])
            entry = {"file_name": f"{number}.png", "prompt": texts[row["prompt_id"]]}
            lines.append(json.dumps(entry | {"another": 1}))
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def pictures(workspace: Workspace, policy: str, *modes: str) -> dict[tuple[str, ...], bytes]:
    """Bytes of a policy's images in these modes, by what names them."""
    columns = ("mode", "prompt_id", "sample", "seed")
    found = [row for row in rows(workspace, policy) if row["mode"] in modes]
    return {tuple(row[name] for name in columns): row["image"]["bytes"] for row in found}


def test_a_saved_policy_and_images_made_elsewhere_are_those_of_the_variant_in_the_report(
    workspace: Workspace, saved: Path, given: Path
) -> None:
    compare(workspace, mine={"kind": "weights", "path": str(saved)}, drawn={"kind": "images", "path": str(given)})
    workspace.edit(lambda raw: raw.update(variants={VARIANT: raw["variants"][VARIANT]}))
    for scorer in SCORERS:
        of_scorer = replace(workspace, scorer=scorer)
        for stage in ("score_base", "score"):
            assert of_scorer.run(stage) == 0
    for name in ("mine", "drawn"):
        assert workspace.run(f"generate_policy@{name}") == 0
        for scorer in SCORERS:
            assert replace(workspace, scorer=scorer).run(f"score_policy@{name}") == 0
    assert {(row["policy"], row["train_seed"]) for row in rows(workspace, "mine")} == {("mine", -1)}
    for name, modes in (("mine", ("tuned", "hybrid")), ("drawn", ("tuned",))):
        assert pictures(workspace, name, *modes) == pictures(workspace, f"{VARIANT}/seed-0", *modes)
        assert {row["mode"] for row in rows(workspace, name)} == set(modes)
    assert workspace.run("report") == 0
    report = workspace.artifacts / "report"
    metrics = json.loads((report / "metrics.json").read_text())
    assert metrics["mine"] == metrics[VARIANT]
    assert metrics["drawn"] == {"tuned": metrics[VARIANT]["tuned"]}
    summary = json.loads((report / "summary.json").read_text())
    assert summary["mine"] == summary[VARIANT]
    pairs = (report / "plots" / "pairs.csv").read_text()
    for pair in (f"mine,{VARIANT},0,0,0", f"drawn,{VARIANT},0,0,0", "drawn,mine,0,0,0"):
        assert pairs.count(pair) == len(SCORERS) + 1, pairs
    page = (report / "report.md").read_text()
    assert f"- mine: saved policy {saved}" in page
    assert f"- drawn: images made elsewhere, {given}" in page
    assert "The noise of drawn, made elsewhere, is another." in page
    assert re.search(r"^\| mine, hybrid \|", page, re.MULTILINE)
    assert not re.search(r"^\| drawn, hybrid \|", page, re.MULTILINE)


def with_few_images(folder: Path) -> None:
    lines = (folder / "metadata.jsonl").read_text().splitlines()
    (folder / "metadata.jsonl").write_text("\n".join(lines[1:]) + "\n")


def with_a_damaged_image(folder: Path) -> None:
    path = sorted(folder.glob("*.png"))[0]
    path.write_bytes(path.read_bytes()[:60])


def with_an_image_of_another_size(folder: Path) -> None:
    from PIL import Image

    path = sorted(folder.glob("*.png"))[0]
    Image.open(path).resize((16, 24)).save(path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (with_few_images, r"must name generate\.images_per_prompt = \d images for each prompt .*, got "),
        (with_a_damaged_image, r"\.png: not a readable picture"),
        (with_an_image_of_another_size, r"\.png: must have .* = 32 x 32 pixels, got 16 x 24"),
    ],
)
def test_images_that_cannot_be_compared(
    spoil: Any, message: str, workspace: Workspace, given: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(given)
    compare(workspace, drawn={"kind": "images", "path": str(given)})
    before = rows(workspace, "base")
    assert workspace.run("generate_policy@drawn") == 3
    assert re.search(message, capsys.readouterr().err)
    assert not (workspace.artifacts / "images" / "drawn" / "images.parquet").exists()
    assert rows(workspace, "base") == before


def test_files_that_have_changed_since(workspace: Workspace, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare(workspace, mine={"kind": "weights", "path": str(saved)})
    (saved / "transformer" / "another.txt").write_text("")
    assert workspace.run("generate_policy@mine") == 3
    assert "policies.mine: settings or files differ from those recorded" in capsys.readouterr().err
    assert workspace.run("inputs") == 0
    assert workspace.run("generate_policy@mine") == 0


@pytest.mark.parametrize("kind", ["weights", "images"])
def test_a_policy_that_is_not_there_ends_the_run_at_once(
    kind: str, workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace.edit(lambda raw: raw.update(policies={"mine": {"kind": kind, "path": "./nowhere"}}))
    assert workspace.run("inputs") == 3
    assert re.search(r"policies\.mine\.path: .*, got \./nowhere", capsys.readouterr().err)


@pytest.mark.parametrize("name", ["base", VARIANT])
def test_rejects_reserved_policy_names(name: str, workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    workspace.edit(lambda raw: raw.update(policies={name: {"kind": "weights", "path": "saved"}}))
    assert workspace.run("inputs") == 2
    assert re.search(rf"policies\.{name}: this name means", capsys.readouterr().err)
