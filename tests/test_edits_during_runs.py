"""Edits while `dvc repro` runs a stage: results are of what the stage read, and the next run does what is due."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dvc.utils.serialize import dump_yaml, load_yaml

from chunk_grpo.orchestration.presets import composed
from tests.drills.command import stage_environment
from tests.drills.forked import forking
from tests.own_pipeline import own_checkout, small
from tests.real_checkout import ROOT, ran
from tests.waiting import wait_for

Change = Callable[[Path], None]


def append(name: str, line: str) -> Change:
    """A change that adds a line to a file."""

    def change(root: Path) -> None:
        path = root / name
        path.write_text(path.read_text() + line)

    return change


def put(section: str, key: str, value: object) -> Change:
    """A change of a value of params.yaml."""

    def change(root: Path) -> None:
        params = load_yaml(str(root / "params.yaml"))
        params[section][key] = value
        dump_yaml(str(root / "params.yaml"), params)

    return change


def other_commit(root: Path) -> None:
    """Check out the branch `other`, with the uncommitted changes left out."""
    subprocess.run(["git", "checkout", "--quiet", "--force", "other"], cwd=root, check=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A checkout in which the smallest pipeline was run, with a branch `other` of another seed and code; programs."""
    folder = tmp_path_factory.mktemp("edits")
    root = own_checkout(folder / "checkout")
    dump_yaml(str(root / "params.yaml"), small(composed(ROOT, "smoke")))
    for command in (
        ("add", "--all"),
        ("commit", "--quiet", "--message", "small"),
        ("checkout", "--quiet", "-b", "other"),
    ):
        subprocess.run(["git", *command], cwd=root, check=True)
    put("generate", "seed", 77)(root)
    append("chunk_grpo/core/flow.py", "# of the other commit\n")(root)
    for command in (("commit", "--quiet", "--all", "--message", "other"), ("checkout", "--quiet", "-")):
        subprocess.run(["git", *command], cwd=root, check=True)
    with forking(folder / "fork") as programs:
        repro(root, programs)
        yield root, programs


def repro(root: Path, programs: Path, change: Change | None = None, stage: str = "") -> tuple[int, str]:
    """Exit code and log of `dvc repro`; make the change when it has begun the stage."""
    log = root.parent / "log"
    with log.open("wb") as stream:
        command = ["/bin/sh", "-c", "exec python -m dvc repro"]
        environment = stage_environment(programs)
        running = subprocess.Popen(command, cwd=root, env=environment, stdout=stream, stderr=subprocess.STDOUT)
    if change is not None:
        wait_for(lambda: f"Running stage '{stage}':" in log.read_text(), 120, f"{stage} to begin")
        change(root)
    return running.wait(), log.read_text()


def results(root: Path) -> dict[str, str]:
    """Hashes of all results by path; manifests and times have clocks."""
    lock = load_yaml(str(root / "dvc.lock"))["stages"].values()
    outs = {out["path"]: str(out["md5"]) for stage in lock for out in stage["outs"]}
    clocks = ("artifacts/runs", "artifacts/timings", "artifacts/report", "artifacts/inputs")
    return {path: md5 for path, md5 in outs.items() if not path.startswith(clocks)}


def commits(root: Path) -> set[str]:
    """Of all run manifests."""
    return {json.loads(path.read_text())["commit"] for path in (root / "artifacts/runs").glob("*.json")}


EDITS: dict[str, tuple[Change, str, Change, str]] = {
    "a seed, while images are drawn": (
        *(put("generate", "base_steps", 2), "generate_base"),
        *(put("generate", "seed", 2002), "generate_base"),
    ),
    "code, while a policy is trained": (
        *(put("train", "kl_coef", 0.1), "train@chunk-0"),
        *(append("chunk_grpo/core/objective.py", "# edited\n"), "train@chunk-0"),
    ),
    "a rate, before training": (
        *(put("sampling", "shift", 2.0), "chunk_boundaries"),
        *(put("train", "learning_rate", 0.02), "train@chunk-0"),
    ),
    "code of scores, while the base is scored": (
        *(put("generate", "seed", 5), "score_base@vivid"),
        *(append("chunk_grpo/scorers/base.py", "# edited\n"), "score_base@vivid"),
    ),
    "another commit, while prompts are encoded": (
        *(put("encode", "batch_size", 2), "encode_prompts@profile"),
        *(other_commit, "generate_base"),
    ),
}
"""A change, the stage that it makes due and during which the edit comes, the edit, and a stage that this makes due."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", EDITS)
def test_result_belongs_to_the_inputs_that_were_read(name, finished, tmp_path):
    (kept, programs), (first, stage, edit, due) = finished, EDITS[name]
    root = tmp_path / "checkout"
    shutil.copytree(kept, root, symlinks=True)
    first(root)
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=root, text=True).strip()
    code, said = repro(root, programs, edit, stage)
    assert code == 0, said[-3000:]
    assert commits(root) == {head}
    of_first = results(root)
    code, said = repro(root, programs)
    assert code == 0, said[-3000:]
    assert due in ran(said)
    of_second = results(root)
    assert ran(repro(root, programs)[1]) == set()
    # Without DVC's memory: each state from the beginning.
    for state, expected in ((of_first, "first"), (of_second, "second")):
        fresh = tmp_path / expected
        shutil.copytree(kept, fresh, symlinks=True)
        for name in ("artifacts", ".ckpt", ".code", ".dvc/cache", "dvc.lock"):
            left = fresh / name
            shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
        first(fresh)
        if expected == "second":
            edit(fresh)
        assert repro(fresh, programs)[0] == 0
        assert json.dumps(results(fresh), indent=1, sort_keys=True) == json.dumps(state, indent=1, sort_keys=True)
