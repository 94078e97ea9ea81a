"""tests/drills/cache.py: the changes that it draws, and a short run of it."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from chunk_grpo.config import parse_params
from chunk_grpo.orchestration.presets import composed
from tests.drills.changes import USER_FILES, Changes, State, small

ROOT = Path(__file__).resolve().parents[2]
CODE = {"chunk_grpo/some.py": b"VALUE = 2\nOTHER = 0.5  # not 3px\n"}


def states(seed: int, count: int) -> list[tuple[str, State]]:
    """The first changes of a seed."""
    files = {name: text.encode() for name, text in USER_FILES.items()}
    files["model/scheduler/scheduler_config.json"] = b"{}"
    state = State(small(composed(ROOT, "smoke")), files)
    changes = Changes(seed, [composed(ROOT, "tiny")], CODE)
    found = []
    for _ in range(count):
        words, state = changes.draw(state, [state])
        found.append((words, state))
    return found


def test_every_state_is_valid_and_another_one() -> None:
    drawn = states(0, 60)
    for _, state in drawn:
        parse_params(state.params)
    for (_, before), (words, after) in itertools.pairwise(drawn):
        assert before.written() != after.written(), words


def test_a_seed_gives_the_same_changes() -> None:
    assert states(3, 20) == states(3, 20)
    assert states(3, 20) != states(4, 20)


def test_all_kinds_of_changes_are_drawn() -> None:
    words = "\n".join(words for words, _ in states(0, 80))
    for kind in (" -> ", "order of keys", "chunk_grpo/some.py", "prompts.txt", "own_rewards.py"):
        assert kind in words, kind


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_short_drill_finds_no_difference() -> None:
    command = [sys.executable, "-m", "tests.drills.cache", "--seed", "1", "--count", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 changes, seed 1: no difference" in done.stdout
