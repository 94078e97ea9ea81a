"""A reward of the user's that hangs, leaves, refuses or fails while a stage trains, in the background and not."""

import signal
import time

import pytest

from tests.conftest import Workspace
from tests.stages.own_scorers import add_judge, calls, check, do, limit

HELD_OUT, ROLLOUT = 1, 2
"""Calls of the reward: held-out images are scored before the first iteration."""

pytestmark = [pytest.mark.slow]

PLACES = [(ROLLOUT, True), (HELD_OUT, True), (HELD_OUT, False), (ROLLOUT, False)]
"""Which call, and whether rewards of a rollout are computed in the background."""


def trained_by_judge(workspace: Workspace, background: bool = True) -> None:
    add_judge(workspace, batch_size=64)
    workspace.edit(lambda raw: raw.update(rewards={"own": 1.0}))
    workspace.edit(lambda raw: raw["train"].update(reward_in_background=background, reward_away_seconds=0.1))
    workspace.edit(lambda raw: raw["train"]["heldout"].update(scorers=[]))
    check(workspace)


def train(workspace: Workspace, stop: bool = False) -> tuple[int, str]:
    """Exit code and words of the stage; with `stop` it gets SIGTERM when the reward hangs."""
    assert workspace.run("inputs") == 0
    process = workspace.process("train")
    try:
        end = time.monotonic() + 100
        while stop and not (workspace.root / "hangs").exists():
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.05)
        if stop:
            process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=100)
    finally:
        process.kill()
    return process.returncode, errors


@pytest.mark.parametrize("by", ["SIGTERM", "its limit"])
@pytest.mark.parametrize(("call", "background"), PLACES)
def test_training_ends_when_its_reward_hangs(call, background, by, workspace):
    trained_by_judge(workspace, background)
    if by == "its limit":
        limit(workspace, 1.0)
    do(workspace, f"hang {call}")
    code, errors = train(workspace, stop=by == "SIGTERM")
    assert (code, "Traceback" in errors) == (75, False), errors
    said = {
        "SIGTERM": "stopped after iteration 0 of 2; kept in .ckpt/",
        "its limit": "scorer own: no answer within 1 s (executors.own.timeout_seconds)",
    }
    assert said[by] in " ".join(errors.split())
    assert len(calls(workspace)) == call


REFUSED = (
    "scorer own: refuses an image of the prompt",
    "(the picture is not to be judged). Training needs a number for every image",
)


@pytest.mark.parametrize(
    ("what", "exit_code", "said"),
    [
        (f"exit {ROLLOUT}", 1, ["scorer own: own_rewards:judge called sys.exit(0)"]),
        ("timeout", 75, ["after 2 attempts; the last failed with ReadTimeout: the judge was slow"]),
        (f"refuse {ROLLOUT}", 3, REFUSED),
    ],
)
def test_failing_reward_ends_training(what, exit_code, said, workspace):
    """Whatever share of refusals is allowed."""
    trained_by_judge(workspace)
    workspace.edit(lambda raw: raw["scorers"]["own"].update(refusals=1.0))
    check(workspace)
    do(workspace, what)
    code, errors = train(workspace)
    assert code == exit_code
    assert all(words in " ".join(errors.split()) for words in said)
    assert exit_code == 1 or "Traceback" not in errors
    assert len(calls(workspace)) == 2


def test_a_judge_that_is_away_for_one_of_two_processes_ends_both_with_a_checkpoint(workspace):
    """The launcher ends the others some seconds after one has ended."""
    trained_by_judge(workspace)
    workspace.edit(lambda raw: raw["train"].update(cpu_processes=2))
    do(workspace, "away")
    code, errors = train(workspace)
    said = " ".join(errors.split())
    assert (code, "Traceback" in errors, "another process has ended" in errors) == (75, False, False), errors
    assert "the last failed with ReadTimeout: the judge was slow" in said
    assert "Stopped after iteration 0 of 2; kept in .ckpt/" in said
    do(workspace, "")
    code, errors = train(workspace)
    assert code == 0, errors
