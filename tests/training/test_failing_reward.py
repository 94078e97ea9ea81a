"""A reward of the user's that hangs, leaves, refuses or fails while a stage trains, in the background and not."""

import signal
import time

import pytest

from tests.conftest import Workspace
from tests.stages.own_scorers import add_judge, calls, check, do, limit

HELD_OUT, ROLLOUT = 1, 2
"""Calls of the reward: held-out images are scored before the first iteration."""

PLACES = [
    (ROLLOUT, True),
    *(
        pytest.param(*place, marks=pytest.mark.slow)
        for place in ((HELD_OUT, True), (HELD_OUT, False), (ROLLOUT, False))
    ),
]
"""Which call, and whether rewards of a rollout are computed in the background."""


def trained_by_judge(workspace: Workspace, background: bool = True) -> None:
    add_judge(workspace, batch_size=64)
    workspace.edit(lambda raw: raw.update(rewards={"own": 1.0}))
    workspace.edit(lambda raw: raw["train"].update(reward_in_background=background, reward_wait=0.1))
    workspace.edit(lambda raw: raw["train"]["heldout"].update(scorers=[]))
    check(workspace)


def train(workspace: Workspace, stop: bool = False) -> tuple[int, str]:
    """Exit code and words of the stage; with `stop` it gets SIGTERM when the reward hangs."""
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


@pytest.mark.slow
@pytest.mark.parametrize(("call", "background"), PLACES)
def test_sigterm_ends_a_training_whose_reward_hangs(
    call: int, background: bool, workspace: Workspace
) -> None:
    trained_by_judge(workspace, background)
    do(workspace, f"hang {call}")
    code, errors = train(workspace, stop=True)
    assert (code, "Traceback" in errors) == (75, False), errors
    assert "stopped after iteration 0 of 2; kept in .ckpt/" in errors


@pytest.mark.parametrize(("call", "background"), PLACES)
def test_a_reward_that_hangs_ends_training_at_its_limit(
    call: int, background: bool, workspace: Workspace
) -> None:
    trained_by_judge(workspace, background)
    limit(workspace, 1.0)
    do(workspace, f"hang {call}")
    code, errors = train(workspace)
    assert (code, "Traceback" in errors) == (75, False), errors
    assert "scorer own: no answer within 1 s (executors.own.timeout_seconds)" in " ".join(errors.split())
    assert len(calls(workspace)) == call


@pytest.mark.slow
def test_a_reward_that_leaves_is_an_error(workspace: Workspace) -> None:
    trained_by_judge(workspace)
    do(workspace, f"exit {ROLLOUT}")
    code, errors = train(workspace)
    assert code == 1
    assert "scorer own: own_rewards:judge called sys.exit(0)" in errors


@pytest.mark.slow
def test_a_client_of_a_judge_that_stays_silent_ends_training_without_a_traceback(
    workspace: Workspace,
) -> None:
    trained_by_judge(workspace)
    do(workspace, "timeout")
    code, errors = train(workspace)
    assert (code, "Traceback" in errors) == (75, False), errors
    assert "scorer own: no answer after 3 attempts; the last failed with ReadTimeout" in " ".join(
        errors.split()
    )
    assert len(calls(workspace)) == 3


def test_a_refused_image_ends_training_whatever_the_share(workspace: Workspace) -> None:
    trained_by_judge(workspace)
    workspace.edit(lambda raw: raw["scorers"]["own"].update(refusals=1.0))
    check(workspace)
    do(workspace, f"refuse {ROLLOUT}")
    code, errors = train(workspace)
    said = " ".join(errors.split())
    assert (code, "Traceback" in errors) == (3, False), errors
    assert "scorer own: refuses an image of the prompt" in said
    assert "(the picture is not to be judged). Training needs a number for every image" in said
