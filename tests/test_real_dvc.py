"""The pipeline under DVC itself: experiments, and what becomes of edits. What runs again: test_what_runs_again.py."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.conftest import Workspace, prompt_file
from tests.real_checkout import dvc, make_checkout, python

pytestmark = pytest.mark.timeout(600)

OWN = "def brightness(images, prompts, metadata):\n    return images.mean(axis=(1, 2, 3)) / 255\n"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Checkout of the preset smoke without results."""
    folder = make_checkout(tmp_path_factory.mktemp("dvc") / "repository")
    assert python(folder, "-m", "chunk_grpo", "params", "compose", "smoke").returncode == 0
    yield folder


def params(folder: Path) -> Any:
    return YAML(typ="safe").load(folder / "params.yaml")


@pytest.mark.slow
def test_exp_run_changes_the_parameters_that_are_there(checkout: Path) -> None:
    Workspace(checkout).edit(lambda raw: raw["train"].update(learning_rate=0.0009))
    dvc(checkout, "exp", "run", "-S", "train.iterations=3", "inputs")
    after = params(checkout)
    assert after["composed_from"] == "smoke"
    assert (after["train"]["learning_rate"], after["train"]["iterations"]) == (0.0009, 3)


def test_exp_run_refuses_a_preset_and_leaves_the_parameters(checkout: Path) -> None:
    before = (checkout / "params.yaml").read_bytes()
    done = python(checkout, "-m", "dvc", "exp", "run", "-S", "preset=tiny", "inputs")
    assert done.returncode != 0
    assert "Could not override 'preset'" in done.stderr
    assert (checkout / "params.yaml").read_bytes() == before


def own_prompts_and_scorer(raw: dict[str, Any]) -> None:
    scorer = {"kind": "external", "source": "own_rewards:brightness", "version": 1, "options": {}}
    raw["scorers"] = {"own": scorer | {"splits": ["eval"], "batch_size": 64}}
    raw["rewards"] = {"own": 1.0}
    raw["train"]["heldout"]["scorers"] = []
    raw["prompts"] |= {"source": "file", "train_file": prompt_file("mine.txt"), "wise_count": 0}


def test_a_typo_leaves_the_results_where_they_are(checkout: Path) -> None:
    """DVC removes the outputs of a stage before it runs; the first stage refuses before it comes to others."""
    folder = checkout / "artifacts" / "prompts"
    folder.mkdir(parents=True)
    (folder / "training.parquet").write_bytes(b"of an earlier run")
    kept = (checkout / "params.yaml").read_bytes()
    Workspace(checkout).edit(lambda raw: raw["prompts"].update(train_count="many"))
    done = python(checkout, "-m", "dvc", "repro", "prepare_prompts")
    assert done.returncode != 0
    assert "prompts.train_count: must be a whole number, got 'many'" in done.stderr
    assert [path.read_bytes() for path in folder.iterdir()] == [b"of an earlier run"]
    (checkout / "params.yaml").write_bytes(kept)


@pytest.mark.slow
def test_checkout_copy_reports_missing_files(tmp_path: Path) -> None:
    """`dvc exp run --temp` takes neither files of `dvc add` along nor a secret out of the environment."""
    folder = make_checkout(tmp_path / "repository")
    assert python(folder, "-m", "chunk_grpo", "params", "compose", "smoke", "--force").returncode == 0
    Workspace(folder).edit(own_prompts_and_scorer)
    (folder / "own_rewards.py").write_text(OWN)
    count = params(folder)["prompts"]["train_count"] + params(folder)["prompts"]["eval_count"]
    (folder / "mine.txt").write_text("".join(f"a red circle, number {number}\n" for number in range(count)))
    dvc(folder, "add", "mine.txt")
    for command in (("add", "--all"), ("commit", "--quiet", "--message", "mine")):
        subprocess.run(["git", *command], cwd=folder, check=True)

    def refused(*options: str, **variables: str) -> str:
        done = python(folder, "-m", "dvc", "exp", "run", "--temp", *options, "prepare_prompts", **variables)
        assert done.returncode != 0
        (told,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
        return told

    assert refused().startswith("error: mine.txt: no such file, but mine.txt.dvc tracks it.")
    dvc(folder, "exp", "run", "--temp", "--copy-paths", "mine.txt", "prepare_prompts")
    token = refused("-S", "report.title='${oc.env:HF_TOKEN}'", "--copy-paths", "mine.txt", HF_TOKEN="hunter2-hunter2")
    assert token.startswith("error: report.title: must not hold the value of the environment variable")
    assert "hunter2" not in token
