"""Every code block of README and docs is run or checked, or says why not."""

import json
import re
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
from pydantic import ValidationError

from chunk_grpo.artifacts import read_table
from chunk_grpo.config import load_params
from chunk_grpo.errors import ConfigError
from chunk_grpo.orchestration.presets import composed
from tests.architecture.test_docs import ROOT
from tests.conftest import Workspace
from tests.docs.blocks import BLOCKS, TEXTS, Block, spans
from tests.docs.commands import CHECKS, problems
from tests.docs.running import RUNNERS, Reader, merged
from tests.test_presets import PRESETS

TO_RUN = [block for block in BLOCKS if block.reason is None]

LONG = {
    *("docs/artifacts.md", "docs/library.md", "docs/one_card.md", "docs/own_scorers.md", "docs/planning.md"),
    *("docs/results.md", "docs/tuned.md"),
}
"""Pages whose blocks train, or start many processes."""


def pages() -> list[Any]:
    """Pages with blocks to run, as parameters of a test."""
    return [
        pytest.param(page, marks=pytest.mark.slow if page in LONG else ())
        for page in sorted({block.page for block in TO_RUN})
    ]


def complaints(block: Block) -> list[str]:
    """Faults of a block's language and marks."""
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
def test_block_is_runnable_or_gives_a_reason(block: Block) -> None:
    assert complaints(block) == []


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "sh"], ids=lambda block: block.place)
def test_commands_name_existing_files_and_options(block: Block) -> None:
    """Also where they are not run."""
    assert problems(block.text) == []


@pytest.mark.parametrize("page", [page for page in TEXTS if page != "CHANGELOG.md"])
def test_inline_commands_name_existing_files_and_options(page: str) -> None:
    said = [span for span in spans(TEXTS[page]) if span.partition(" ")[0] in CHECKS and " " in span]
    said = [re.sub(r" -[-\w]+$", "", span) for span in said]  # `dvc exp run -S`: an option without its value
    assert [problem for span in said for problem in problems(span)] == []


@cache
def settings_of(preset: str) -> Any:
    return composed(ROOT, preset)


def refusals(text: str) -> list[str]:
    """Why no preset takes these settings; nothing where one does."""
    found = []
    for preset in PRESETS:
        try:
            merged(settings_of(preset), text, f"preset {preset}")
        except (ConfigError, ValidationError) as error:
            found.append(f"{preset}: {error}")
        else:
            return []
    return found


@pytest.mark.parametrize("block", [b for b in TO_RUN if b.language == "yaml"], ids=lambda block: block.place)
def test_settings_are_valid_in_a_preset(block: Block) -> None:
    assert refusals(block.text) == []


@pytest.mark.parametrize("page", pages())
def test_the_blocks_of_a_page_run(page: str, checkout: Workspace, bucket: str) -> None:
    reader = Reader(checkout, bucket.removeprefix("s3://"))
    for block in [block for block in TO_RUN if block.page == page]:
        reader.run(block)


def test_documented_query_averages_match_report(checkout: Workspace) -> None:
    (query,) = [block for block in TO_RUN if block.page == "docs/artifacts.md" and block.language == "sql"]
    summary = json.loads((checkout.artifacts / "report" / "summary.json").read_text("utf-8"))
    rows = Reader(checkout, "none").run(query)
    assert {split for *_, split, _ in rows} == {"eval", "wise"}
    averages = {row[:3]: row[4] for row in rows if row[3] == "eval"}
    assert len(averages) == 5 * 3  # base, two variants tuned and hybrid; scorers
    for (policy, mode, scorer), average in averages.items():
        known = summary["base"][scorer] if mode == "base" else summary[policy][mode][scorer]["mean"]
        assert average == pytest.approx(known, abs=1e-4), (policy, mode, scorer)


def test_the_documented_plots_are_the_profile_and_a_curve_of_each_seed(checkout: Workspace) -> None:
    command = [sys.executable, "-m", "dvc", "plots", "show", "--json"]
    shown = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["data"]
    ((plot,), others) = shown.pop("artifacts/profile/l1_profile.csv"), shown
    points = [(point["field"], int(point["step"])) for point in plot["content"]["data"]["values"]]
    assert points == [(sampler, step) for sampler in ("sde", "ode") for step in range(17)]
    params = load_params(checkout.root / "params.yaml")
    assert set(others) == {
        f"artifacts/curves/{variant}/seed-{seed}/{kind}.csv"
        for variant in params.variants
        for seed in params.train.seeds
        for kind in ("reward", "held-out")
    }
    for name, (curve,) in others.items():
        variant, seed, kind = re.fullmatch(r"artifacts/curves/([\w-]+)/seed-(\d+)/(.*)\.csv", name).groups()  # type: ignore[union-attr]
        path = checkout.artifacts / f"train/{variant}/seed-{seed}/metrics.parquet"
        table = read_table(str(path), "train_metrics")
        metric = {"reward": "reward_mean", "held-out": "heldout_reward"}[kind]
        expected = [
            (row["iteration"], pytest.approx(row["value"], abs=1e-5))
            for row in table.to_pylist()
            if row["metric"] == metric
        ]
        drawn = [(int(p["iteration"]), float(p["reward"])) for p in curve["content"]["data"]["values"]]
        assert drawn == expected


@pytest.mark.parametrize(
    "block",
    [
        Block("page", 1, "mermaid", "flowchart TD"),
        Block("page", 1, "sh", "make run", reason="no"),
        Block("page", 1, "sh", "make run", reason="tests/test_none.py does"),
        Block("page", 1, "sh", "dvc repro", stages=("train",)),
    ],
)
def test_a_block_without_a_runner_or_a_reason_is_refused(block: Block) -> None:
    assert len(complaints(block)) == 1


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("make rnu", "rnu"),
        ("make params PRESTE=smoke", "the Makefile has no PRESTE"),
        ("make params PRESET=smoek && make run", "no preset smoek"),
        ("python -m infra.smokes", "no module infra.smokes"),
        ("python -m tests.drills.disk --disc cache", "tests.drills.disk has no option --disc"),
        ("chunk-grpo plna", "chunk-grpo has no plna"),
        ("chunk-grpo plan --gpuss 8", "chunk-grpo does not take these words"),
        ("dvc repro --nothing", "dvc does not take these words"),
        ("prefect deployment run chunk-grpo/ful --watch", "no deployment chunk-grpo/ful"),
        ('prefect deployment run chunk-grpo/full --params \'{"untill": "train"}\'', "untill"),
        ("docker compose -f infra/compos.yaml up", "infra/compos.yaml: no such file"),
        ("A=1 pyhton -m infra.smoke", "pyhton: no program"),
    ],
)
def test_detects_command_with_unknown_name(command: str, problem: str) -> None:
    (found,) = problems(command)
    assert problem in found
