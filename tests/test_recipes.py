"""The recipes of CONTRIBUTING.md: a dummy of each kind, added to a copy of the code in the named files alone, works."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.real_checkout import python

ROOT = Path(__file__).resolve().parents[1]

SCORER = """
from chunk_grpo.scorers.base import Scores
from chunk_grpo.scorers.running.configured import ConfiguredScorer

import numpy as np


class Dummy(ConfiguredScorer):
    version = 1
    needs = frozenset()

    def score_rows(self, batch):
        return Scores(np.ones(len(batch.prompts)))
"""
FAMILY = '''
from chunk_grpo.families.models.flux import FluxFamily


class DummyFamily(FluxFamily):
    """Another name for the same model."""


FAMILY = DummyFamily
'''
STAGE = """
import sys
from dataclasses import dataclass

from chunk_grpo.artifacts import write_text
from chunk_grpo.config import Params
from stages._stage import run_stage, writes


@dataclass(frozen=True)
class Arguments:
    out: str = writes("text")


def main(params: Params, arguments: Arguments) -> None:
    write_text(params.composed_from, arguments.out)


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
"""
VARIANT = "  mine: {objective: chunk, plan: equal-2, sde: dance}\n"
NOISE = '        "half": lambda times, eta: (diffusion_coefs(times, "flow", eta / 2), SDE),\n'
SCALE = '        "none": Scale(lambda rewards: rewards.new_ones(()), 0.0),\n'
FREE = '"free": lambda ratio, terms, bounds: ratio * terms.advantage[:, None], '
SETTINGS = """

class DummyScorer(ScorerSettings):
    SCORER = "chunk_grpo.scorers.dummy:Dummy"
    NETWORK = NO_NETWORK
    SCALE = UNIT

    kind: Literal["dummy"]

"""
DVC_STAGE = """\
  dummy:
    cmd: exec python -m stages.dummy --manifest artifacts/runs/dummy.json --out artifacts/dummy.txt
    params: [composed_from]
    deps: [stages/dummy.py]
    outs: [artifacts/dummy.txt, artifacts/runs/dummy.json]
"""
EDITS: dict[str, dict[str, list[tuple[str, str]] | str]] = {
    "a method": {"conf/variants/methods.yaml": [("variants:\n", VARIANT)]},
    "a noise of steps": {
        "chunk_grpo/core/choices.py": [
            ("Sde: TypeAlias = Literal[", '"half", '),
            ("    Sde,\n    {\n", '        "half": Choice("steps with half of the noise", "a test"),\n'),
        ],
        "chunk_grpo/core/sde.py": [('    "core/sde.py",\n    {\n', NOISE)],
    },
    "a scale of advantages": {
        "chunk_grpo/core/choices.py": [
            ("AdvantageStd: TypeAlias = Literal[", '"none", '),
            ("    AdvantageStd,\n    {\n", '        "none": Choice("no standard deviation", "a test"),\n'),
        ],
        "chunk_grpo/core/advantages.py": [('    "core/advantages.py",\n    {\n', SCALE)],
    },
    "a trust region": {
        "chunk_grpo/core/choices.py": [
            ("TrustRegion: TypeAlias = Literal[", '"free", '),
            ("    TrustRegion,\n    {\n", '        "free": Choice("no trust region", "a test"),\n'),
        ],
        "chunk_grpo/core/objective.py": [('TRUST_REGIONS, "core/objective.py", {', FREE)],
    },
    "a scorer": {
        "chunk_grpo/config/scorers.py": [
            ("AnyScorer = Annotated[\n", "    DummyScorer |\n"),
            ('their content is part of its identity, like its code."""\n', SETTINGS),
        ],
        "chunk_grpo/scorers/NAME.py": SCORER,
    },
    "a model family": {"chunk_grpo/families/models/NAME.py": FAMILY},
    "a stage": {"stages/NAME.py": STAGE, "dvc.yaml": [("\nstages:\n", DVC_STAGE)]},
}
"""Edits of each recipe and file: lines with the text to insert after them, or a new file's text; NAME is `dummy`."""

USED = """
import json
import sys

import numpy as np
import torch
import yaml

from chunk_grpo.config import parse_params
from chunk_grpo.core.advantages import SCALES, group_advantages
from chunk_grpo.core.assignment import ChunkAssignment, TrainedChunks
from chunk_grpo.core.chunking import equal_plan
from chunk_grpo.core.flow import time_grid
from chunk_grpo.core.objective import Bounds, Terms, chunk_objective
from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.registry import load_family
from chunk_grpo.orchestration.presets import composed
from chunk_grpo.reporting.variant_summary import recipe
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.running.registry import make_scorer
from chunk_grpo.training.method import method_from
from pathlib import Path

raw = composed(Path.cwd(), "methods")
raw["model"]["family"] = "dummy"
raw["variants"]["other"] = {"objective": "chunk", "plan": "equal-2", "sde": "half", "advantage_std": "none"}
raw["scorers"]["dummy"] = {"kind": "dummy", "splits": ["eval"], "batch_size": 4}
params = parse_params(raw)
times = time_grid(17, 3.0)
mine, other = (method_from(params, name, equal_plan(2, 16), torch.ones(8), times) for name in ("mine", "other"))
flow = method_from(params, "chunk", equal_plan(2, 16), torch.ones(8), times)
batch = ScoreBatch(np.zeros((2, 8, 8, 3), dtype=np.uint8), ("a", "b"), ({}, {}), ("a", "b"))
rewards = torch.tensor([[1.0, 3.0]])
chunks = ChunkAssignment.shared(equal_plan(1, 2), 1)
ratios, terms = torch.tensor([[2.0, 4.0]]), Terms(torch.zeros(1, 2), torch.ones(1), TrainedChunks.every(chunks))
json.dump(
    {
        "a method": recipe(params.variants["mine"]),
        "a noise of steps": [recipe(params.variants["other"]), torch.equal(2 * other.grid.noise, flow.grid.noise)],
        "a scale of advantages": group_advantages(rewards, scale=SCALES[other.variant.advantage_std]).tolist(),
        "a trust region": chunk_objective(ratios.log(), terms, Bounds(0.1, trust_region="free")).item(),
        "a scorer": make_scorer("dummy", params.scorers["dummy"]).score(batch).values.tolist(),
        "a model family": type(
            load_family("dummy", LoadOptions(params.model.checkpoint, None, torch.float32), ("vae",))
        ).__name__,
    },
    sys.stdout,
)
"""
EXPECTED: dict[str, Any] = {
    "a method": "chunk objective, plan equal-2, Dance-SDE steps",
    "a noise of steps": ["chunk objective, plan equal-2, steps with half of the noise, no standard deviation", True],
    "a scale of advantages": [[-1.0, 1.0]],
    "a trust region": 3.0,
    "a scorer": [1.0, 1.0],
    "a model family": "DummyFamily",
}


def table() -> dict[str, set[str]]:
    """The files of each recipe, as CONTRIBUTING.md has them."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (an? [^|]+) \| ([^|]+) \|", text, re.MULTILINE)
    return {what: set(re.findall(r"`([^`]+)`", files)) for what, files in rows}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code with a dummy of each kind."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("chunk_grpo", "stages", "conf", "assets", "infra"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("dvc.yaml", "params.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, folder / name)
    for edits in EDITS.values():
        for name, edit in edits.items():
            path = folder / name.replace("NAME", "dummy")
            if isinstance(edit, str):
                path.write_text(edit)
            else:
                for before, inserted in edit:
                    text = path.read_text()
                    assert text.count(before) == 1, (name, before)
                    path.write_text(text.replace(before, before + inserted))
    return folder


def said(tree: Path, *arguments: str) -> str:
    """What Python says in the copy, with the copy's code."""
    done = python(tree, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_recipes_name_the_files_that_are_edited_here() -> None:
    assert table() == {what: set(edits) for what, edits in EDITS.items()}


def test_added_parts_are_found_by_name(tree: Path) -> None:
    assert json.loads(said(tree, "-c", USED)) == EXPECTED


def test_a_stage_that_was_added_runs_under_dvc(tree: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tree, check=True)
    said(tree, "-m", "dvc", "init", "--quiet")
    said(tree, "-m", "dvc", "repro", "dummy")
    assert (tree / "artifacts" / "dummy.txt").read_text() == "tiny"
    code = "from chunk_grpo.orchestration import commands, pipeline; from pathlib import Path; "
    code += "print(*(stage.name for stage in pipeline.Pipeline(Path.cwd(), commands.Commands()).stages()))"
    assert "dummy" in said(tree, "-c", code).split()
