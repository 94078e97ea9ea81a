"""Short runs of the drills: no process is left, and no byte changes."""

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from chunk_grpo.config import parse_params
from chunk_grpo.orchestration.presets import composed
from tests.drills.changes import USER_FILES, Changes, State, small
from tests.flows.faults import REPOSITORY, training


def drilled(name: str, *options: str) -> str:
    """What a drill says that ends well."""
    command = [sys.executable, "-m", f"tests.drills.{name}", *options]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    print(result.stdout)  # noqa: T201
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("training --kill stage", "The same bytes in "),
        ("training --kill engine", "The same bytes in "),
        ("training --kill stalled", "The same bytes in "),
        ("stops --seed 7 --count 2", "The same bytes after 4 hits; "),
        ("cache --seed 1 --count 3", "3 changes, seed 1: no difference"),
        ("cache --seed 2 --count 20 --during", "20 changes, seed 2: no difference"),
    ],
)
def test_a_drill_finds_no_difference(command: str, said: str) -> None:
    """A training that is killed behind its first checkpoint, or at random moments; and changes with DVC's cache."""
    assert said in drilled(*command.split())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="mounts a disk of its own")
@pytest.mark.parametrize("disk", ["clones", "cache", "home"])
def test_full_disk_is_reported_and_next_run_completes(
    disk: str, tmp_path: Path, make_pipeline: Callable[[Path], Path]
) -> None:
    """On the small pipeline."""
    root = make_pipeline(tmp_path / "checkout")
    options = ["--disk", disk, "--root", str(root), "--megabytes", "64"]
    options += ["--overrides", json.dumps(training(15.0))]
    said = drilled("disk", *options, "--stage", "train@a", "--command", "train models/a.txt")
    assert "Kept from before: prepare" in said
    assert "The next run: 4 stages: " in said


def drawn(seed: int, count: int) -> list[tuple[str, State]]:
    """The first changes of a seed."""
    files = {name: text.encode() for name, text in USER_FILES.items()}
    state = State(small(composed(REPOSITORY, "smoke")), files | {"model/scheduler/scheduler_config.json": b"{}"})
    code = {"chunk_grpo/some.py": b"VALUE = 2\nOTHER = 0.5  # not 3px\n"}
    changes, found = Changes(seed, [composed(REPOSITORY, "tiny")], code), [("", state)]
    for _ in range(count):
        found.append(changes.draw(found[-1][1], [found[-1][1]]))
    return found


def test_drawn_changes_are_valid_reproducible_and_cover_all_kinds() -> None:
    found = drawn(0, 80)
    assert found[:20] == drawn(0, 19)
    for _, state in found:
        parse_params(state.params)
    for (_, before), (words, after) in pairwise(found):
        assert before.written() != after.written(), words
    words = "\n".join(words for words, _ in found)
    for kind in (" -> ", "order of keys", "chunk_grpo/some.py", "prompts.txt", "own_rewards.py"):
        assert kind in words, kind
