"""Every code block of README and docs is run or checked, or says why not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from chunk_grpo.errors import ConfigError
from tests.architecture.test_docs import ROOT
from tests.conftest import Workspace
from tests.docs import running
from tests.docs.blocks import BLOCKS, TEXTS, Block, blocks, spans
from tests.docs.commands import CHECKS, problems
from tests.docs.running import RUNNERS, Reader, merged
from tests.test_presets import PRESETS, compose

TO_RUN = [block for block in BLOCKS if block.reason is None]


def complaints(block: Block) -> list[str]:
    """What is wrong with a block's language and marks."""
    found = []
    if block.reason is None and block.language not in RUNNERS:
        found.append(
            f"{block.place}: nothing runs a block of {block.language or 'no language'}; name one of "
            f"{', '.join(RUNNERS)}, or write <!-- not run: REASON --> before it"
        )
    if block.reason is not None and len(block.reason.split()) < 2:
        found.append(f"{block.place}: must give a reason, got {block.reason!r}")
    if block.stages and block.language != "yaml":
        found.append(f"{block.place}: only settings (yaml) run stages")
    files = re.findall(r"[\w./]+\.py|\.ci/run", block.reason or "")
    return found + [f"{block.place}: no such file: {file}" for file in files if not (ROOT / file).is_file()]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_block_can_be_run_or_says_why_not(block: Block) -> None:
    assert complaints(block) == []


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "sh"], ids=lambda block: block.place)
def test_what_commands_name_exists(block: Block) -> None:
    """Also where they are not run."""
    assert problems(block.text) == []


@pytest.mark.parametrize("page", [page for page in TEXTS if page != "CHANGELOG.md"])
def test_what_commands_within_sentences_name_exists(page: str) -> None:
    said = [span for span in spans(TEXTS[page]) if span.partition(" ")[0] in CHECKS and " " in span]
    said = [re.sub(r" -[-\w]+$", "", span) for span in said]  # `dvc exp run -S`: an option without its value
    assert [problem for span in said for problem in problems(span)] == []


@pytest.fixture(scope="module")
def presets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("presets")
    return {preset: YAML(typ="safe").load(compose(preset, folder)) for preset in PRESETS}


def refusals(text: str, presets: dict[str, dict[str, Any]]) -> list[str]:
    """Why no preset takes these settings; nothing where one does."""
    found = []
    for preset, raw in presets.items():
        try:
            merged(raw, text, f"preset {preset}")
        except (ConfigError, ValidationError) as error:
            found.append(f"{preset}: {error}")
        else:
            return []
    return found


@pytest.mark.parametrize("block", [b for b in TO_RUN if b.language == "yaml"], ids=lambda block: block.place)
def test_settings_are_valid_in_a_preset(block: Block, presets: dict[str, dict[str, Any]]) -> None:
    assert refusals(block.text, presets) == []


@pytest.mark.parametrize("page", sorted({block.page for block in TO_RUN}))
def test_the_blocks_of_a_page_run(page: str, checkout: Workspace, bucket: str) -> None:
    reader = Reader(checkout, bucket.removeprefix("s3://"))
    for block in [block for block in TO_RUN if block.page == page]:
        reader.run(block)


def test_the_averages_of_the_documented_query_are_those_of_the_report(checkout: Workspace) -> None:
    (query,) = [block for block in TO_RUN if block.page == "docs/artifacts.md" and block.language == "sql"]
    summary = json.loads((checkout.artifacts / "report" / "summary.json").read_text("utf-8"))
    rows = Reader(checkout, "none").run(query)
    assert {split for *_, split, _ in rows} == {"eval", "wise"}
    averages = {row[:3]: row[4] for row in rows if row[3] == "eval"}
    assert len(averages) == 5 * 3  # base, two variants tuned and hybrid; scorers
    for (policy, mode, scorer), average in averages.items():
        known = summary["base"][scorer] if mode == "base" else summary[policy][mode][scorer]["mean"]
        assert average == pytest.approx(known, abs=1e-4), (policy, mode, scorer)


def test_the_documented_plot_has_a_line_for_each_sampler(checkout: Workspace) -> None:
    command = [sys.executable, "-m", "dvc", "plots", "show", "--json"]
    shown = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    ((plot,),) = shown["data"].values()
    points = [(point["field"], int(point["step"])) for point in plot["content"]["data"]["values"]]
    assert points == [(sampler, step) for sampler in ("sde", "ode") for step in range(17)]


PAGE = """\
Words.

    make run

<!-- not run: needs a server -->

    make serve

1. In a list
<!-- run: check_scorers, train -->
   ```yaml
   rewards: {clip: 1.0}
   ```

<!-- another comment -->
```mermaid
flowchart TD
```
"""


def test_blocks_are_found_with_their_marks() -> None:
    assert list(blocks(PAGE, "page")) == [
        Block("page", 3, "sh", "make run\n"),
        Block("page", 7, "sh", "make serve\n", reason="needs a server"),
        Block("page", 12, "yaml", "rewards: {clip: 1.0}\n", stages=("check_scorers", "train")),
        Block("page", 17, "mermaid", "flowchart TD\n"),
    ]


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        (Block("page", 1, "mermaid", "flowchart TD"), "nothing runs a block of mermaid"),
        (Block("page", 1, "", "a tree"), "nothing runs a block of no language"),
        (Block("page", 1, "sh", "make run", reason="no"), "must give a reason"),
        (
            Block("page", 1, "sh", "make run", reason="tests/test_none.py does"),
            "no such file: tests/test_none.py",
        ),
        (Block("page", 1, "sh", "dvc repro", stages=("train",)), "only settings"),
    ],
)
def test_a_block_without_a_runner_or_a_reason_is_refused(block: Block, complaint: str) -> None:
    (found,) = complaints(block)
    assert complaint in found


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("make rnu", "rnu"),
        ("make params PRESTE=smoke", "the Makefile has no PRESTE"),
        ("make params PRESET=smoek && make run", "no preset smoek"),
        ("python -m infra.smokes", "no module infra.smokes"),
        ("python -m no.such.module", "no module no.such.module"),
        ("python -m tests.drills.disk --disc cache", "tests.drills.disk has no option --disc"),
        ("dvc exp runn", "dvc does not take these words"),
        ("dvc repro --nothing", "dvc does not take these words"),
        ("prefect deployment run chunk-grpo/ful --watch", "no deployment chunk-grpo/ful"),
        ('prefect deployment run chunk-grpo/full --params \'{"untill": "train"}\'', "untill"),
        (
            'prefect deployment run chunk-grpo/full --params \'{"overrides": ["train.iteration=2"]}\'',
            "Could not override 'train.iteration'",
        ),
        ("docker compose -f infra/compos.yaml up", "infra/compos.yaml: no such file"),
        ("A=1 pyhton -m infra.smoke", "pyhton: no program"),
    ],
)
def test_a_command_that_names_what_is_not_there_is_found(command: str, problem: str) -> None:
    (found,) = problems(command)
    assert problem in found


def test_settings_with_a_wrong_key_are_found(presets: dict[str, dict[str, Any]]) -> None:
    variant = "variants: {mine: {objective: chunk, plan: guided, %s: weighted}}"
    assert refusals(variant % "selection", presets) == []
    found = refusals(variant % "selecton", presets)
    assert len(found) == len(presets)
    assert all("selecton" in refusal for refusal in found)


def test_only_programs_that_stay_in_the_folder_are_started(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="page, line 1: git, sudo: no test starts it"):
        Reader(Workspace(tmp_path), "none").run(
            Block("page", 1, "sh", "cd . && git push && A=1 sudo dvc repro")
        )


def test_commands_that_do_not_end_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LIMIT", 0.5)
    waits = "python -c 'import time; time.sleep(600)'"
    with pytest.raises(AssertionError, match=r"page, line 1: takes over 0.5 s"):
        Reader(Workspace(tmp_path), "none").run(Block("page", 1, "sh", waits))
