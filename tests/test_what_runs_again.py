"""Rows of the table "What runs again" in docs/pipeline.md: each change in a checkout, and the stages that DVC runs."""

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from dvc.utils.serialize import dump_yaml

from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.pipeline import Pipeline
from chunk_grpo.orchestration.presets import composed
from tests.drills.command import stage_environment
from tests.drills.forked import forking
from tests.own_pipeline import own_checkout, small
from tests.params_edits import Edit, put
from tests.real_checkout import ROOT, ran

TRAINED = ("train@*", "generate@*", "score@*", "report")
"""Training of every variant, and what depends on it."""
IMAGES = ("generate_base", "generate@*", "generate_policy@*")
SCORES = ("score_base@*", "score@*", "score_policy@*")
DRAWN = (*IMAGES, *SCORES, "report")
CHECKED = ("check_scorers", "try_scorers", "report")
ENCODED = ("encode_prompts@*", "encode_training@*")
OF_CHUNK = ("chunk_boundaries", "train@chunk-0", "generate@chunk-0", "score@chunk-*", "report")

OF_OWN = (*CHECKED, "score_base@own", "score@*-own", "score_policy@*-own")
STALE = ("report", "score@*")
"""Stages that read folders in which outputs of a removed variant, seed, scorer or policy stay."""


@dataclass(frozen=True)
class Change:
    """A change of a row, and the stages that run again, as patterns."""

    again: Sequence[str]
    """Patterns of the stages that run; each matches one at least."""
    edit: Edit | None = None
    """Change of params.yaml."""
    file: str = ""
    """File of the checkout that gets another line."""
    line: str = "# another line\n"
    """That line."""


def reversed_keys(section: Callable[[dict[str, Any]], dict[str, Any]]) -> Edit:
    """Put the keys of a mapping in the reverse order."""

    def change(raw: dict[str, Any]) -> None:
        mapping = section(raw)
        items = list(mapping.items())
        mapping.clear()
        mapping.update(reversed(items))

    return change


ROWS: dict[str, list[Change]] = {
    "`generate.*`, such as `base_steps`": [
        Change(DRAWN, put("generate.seed", 3)),
        # The images of the base, and of a policy with its weights, are the same bytes.
        Change((*IMAGES, "score@*", "report"), put("generate.base_steps", 2)),
    ],
    "sizes of a plan in `chunks.plans`": [Change(OF_CHUNK, put("chunks.plans.equal.chunk_size", 1))],
    "a plan that no variant uses": [Change(("chunk_boundaries", "report"), put("chunks.plans.listed.sizes", [2, 2]))],
    "a new variant": [
        Change(
            ("chunk_boundaries", "train@new-0", "generate@new-0", "score@new-*", "report"),
            put("variants.new", {"objective": "chunk", "plan": "listed"}),
        )
    ],
    "one variant's settings": [Change(OF_CHUNK, put("variants.chunk.fraction", 1.0))],
    "a new training seed": [
        Change(
            ("prepare_prompts", "encode_training@1", "train@*-1", "generate@*-1", "score@*", "report"),
            put("train.seeds", [0, 1]),
        )
    ],
    "a new policy in `policies`, or a file of it": [
        Change(
            ("generate_policy@new", "score_policy@new-*", "report"),
            put("policies.new", {"kind": "weights", "path": "start"}),
        ),
        # Its images are the same bytes.
        Change(("generate_policy@toy", "report"), file="other/notes.txt"),
    ],
    "a new scorer in `scorers`": [
        Change(
            (*CHECKED, "score_base@new", "score@*-new", "score_policy@*-new"),
            put("scorers.new", {"kind": "shapes-vivid", "splits": ["eval"], "batch_size": 8}),
        )
    ],
    "one scorer's settings, such as `revision`": [
        # Groups of two have the same advantages, policies and images.
        Change((*OF_OWN, "train@*", "generate@*"), put("scorers.own.options.power", 2))
    ],
    "`refusals` of a scorer": [Change(OF_OWN, put("scorers.own.refusals", 0.5))],
    "settings of a scorer that affect no score, such as `batch_size`; `executors.*`": [
        Change(CHECKED, put("scorers.vivid.batch_size", 4)),
        Change(CHECKED, put("executors", {"vivid": {"kind": "in-process", "device": "cpu"}})),
    ],
    "`train.*`, `rewards`": [
        Change(TRAINED, put("train.kl_coef", 0.1)),
        Change((*CHECKED, "train@*", "generate@*"), put("rewards.own", 1.5)),  # as above
    ],
    "a file of the policy in `train.start_from`": [
        # The trained policy is the same bytes.
        Change(("train@*", "report"), file="start/notes.txt")
    ],
    "`train.iterations`, `train.prompts_per_iteration`, `train.heldout.num_prompts`": [
        Change(("prepare_prompts", "encode_training@*", *TRAINED), put("train.iterations", 2))
    ],
    "`sampling.*`": [Change(("profile_l1", "chunk_boundaries", *TRAINED), put("sampling.shift", 2.0))],
    "`prompts.benchmarks`, `prompts.wise_count`": [
        Change(
            ("prepare_prompts", "try_scorers", "encode_prompts@evaluation", *DRAWN),
            put("prompts.benchmarks.things.count", 3),
        )
    ],
    "other `prompts.*`": [
        # The prompts differ in numbers, which the toy does not know: the profile is the same.
        Change(("prepare_prompts", "try_scorers", *ENCODED, "profile_l1", "train@*", *DRAWN), put("prompts.seed", 7))
    ],
    "`trial.images`": [Change(("try_scorers", "report"), put("trial.images", 1))],
    "`report.*`": [Change(("report",), put("report.title", "Another"))],
    "the order of variants, scorers, plans, policies or benchmarks": [
        Change(("report",), reversed_keys(lambda raw: raw["variants"])),
        Change(("report",), reversed_keys(lambda raw: raw["chunks"]["plans"])),
        Change(("check_scorers", "report"), reversed_keys(lambda raw: raw["scorers"])),
        Change(
            ("prepare_prompts", "try_scorers", "encode_prompts@evaluation", *DRAWN),
            reversed_keys(lambda raw: raw["prompts"]["benchmarks"]),
        ),
    ],
    "a file of prompts": [
        Change(
            ("prepare_prompts", "try_scorers", "encode_prompts@evaluation", *DRAWN),
            file="more.txt",
            line="a red square\n",
        )
    ],
    "a file of the base model": [
        # Embeddings, profile, policies and images are the same bytes.
        Change(
            ("prepare_prompts", *ENCODED, "profile_l1", "train@*", *IMAGES, "report"),
            file="model/transformer/notes.txt",
        )
    ],
    "code of your own scorer, or a file in its `files`": [
        # Scores and policies are the same bytes.
        Change((*OF_OWN, "train@*"), file="own_tables.py"),
        Change((*OF_OWN, "train@*"), file="own_weights.txt"),
    ],
    "a file of `chunk_grpo/core`": [
        Change(("profile_l1", "train@*", *IMAGES, "report"), file="chunk_grpo/core/flow.py")
    ],
    "code of one scorer": [Change(("check_scorers", "report"), file="chunk_grpo/scorers/shapes.py")],
    "code that all scorers share (`base.py`, `reward.py`, …)": [
        Change((*CHECKED, "train@*", *SCORES), file="chunk_grpo/scorers/base.py")
    ],
    "README, docs, tests, flows, infra": [
        Change((), file="README.md"),
        Change((), file="flows/full.py"),
        Change((), file="infra/plan.py"),
    ],
}


def rows_of_the_page() -> list[str]:
    """First cells of the table."""
    text = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    lines = text.partition("## What runs again")[2].partition("\n## ")[0].splitlines()
    cells = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")]
    return cells[1:]


def test_rows_match_docs() -> None:
    assert list(ROWS) == rows_of_the_page()


@dataclass
class Checkout:
    """A checkout in which the smallest pipeline with the user's own files has been run."""

    root: Path
    programs: Path
    params: dict[str, Any] = field(default_factory=dict)

    def repro(self) -> set[str]:
        """Run `dvc repro`; the stages that ran."""
        done = subprocess.run(
            ["/bin/sh", "-c", "exec python -m dvc repro"],
            cwd=self.root,
            env=stage_environment(self.programs),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-3000:]
        return ran(done.stdout)

    def write(self, edit: Edit | None) -> None:
        params = small(composed(ROOT, "smoke"))
        params["train"] |= {"start_from": {"path": "start"}, "learning_rate": 0.01}  # which moves pixels
        params["policies"] = {"toy": {"kind": "weights", "path": "other"}}
        if edit is not None:
            edit(params)
        dump_yaml(str(self.root / "params.yaml"), params)

    @contextmanager
    def changed(self, change: Change) -> Iterator[set[str]]:
        """The stages that the change brings into the pipeline or leaves there; undone at the end."""
        path = self.root / change.file
        before = path.read_bytes() if change.file and path.exists() else None
        self.write(change.edit)
        if change.file:
            path.write_bytes((before or b"") + change.line.encode())
        try:
            yield {stage.name for stage in Pipeline(self.root, Commands()).stages()}
        finally:
            self.write(None)
            if before is not None:
                path.write_bytes(before)
            elif change.file:
                path.unlink()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    folder = tmp_path_factory.mktemp("again")
    root = own_checkout(folder / "checkout")
    for name in ("start", "other"):
        shutil.copytree(root / "model" / "transformer", root / name)
    with forking(folder / "fork") as programs:
        made = Checkout(root, programs)
        made.write(None)
        made.repro()
        yield made


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("row", "number"), [(row, number) for row, changes in ROWS.items() for number in range(len(changes))]
)
def test_what_runs_again(row: str, number: int, checkout: Checkout) -> None:
    change = ROWS[row][number]
    # The change of the row before is undone, and its results are in the cache.
    assert all(any(fnmatchcase(name, pattern) for pattern in STALE) for name in checkout.repro())
    with checkout.changed(change) as stages:
        again = checkout.repro()
    expected = {name for name in stages if any(fnmatchcase(name, pattern) for pattern in change.again)}
    assert again == expected
    for pattern in change.again:
        assert any(fnmatchcase(name, pattern) for name in again), pattern
