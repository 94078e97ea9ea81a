"""A scorer that fails in the stage score: what is asked again, what is kept, and how the stage ends."""

import signal
from pathlib import Path

import pytest

from tests.conftest import Workspace
from tests.stages.own_scorers import CODE, OUT, OWN, add_judge, calls, check, do, limit, score, scores
from tests.waiting import wait_for

KEPT = ".ckpt"


def kept(workspace: Workspace) -> list[Path]:
    return sorted((workspace.root / KEPT).glob("*/batch-*.parquet"))


def test_an_error_of_the_network_is_asked_again(workspace: Workspace) -> None:
    add_judge(workspace)
    do(workspace, "timeout 2")
    code, errors = score(workspace)
    assert code == 0, errors
    assert "scorer own: no answer for 0.0 s (ReadTimeout: the judge was slow); asked again for 6.0 s more" in errors
    assert calls(workspace) == [2] * 5
    assert len(scores(workspace)) == 8


@pytest.mark.slow
def test_edited_scorer_does_not_resume_older_scores(workspace: Workspace) -> None:
    add_judge(workspace)
    do(workspace, "key 4")
    assert score(workspace)[0] == 3
    (workspace.root / "own_rewards.py").write_text(CODE.replace("/ 255", "/ 256"))
    check(workspace)
    do(workspace, "")
    assert score(workspace)[0] == 0
    assert calls(workspace) == [2] * 4


def test_sigterm_ends_a_scorer_that_hangs_and_costs_one_batch(workspace: Workspace) -> None:
    add_judge(workspace)
    assert score(workspace)[0] == 0
    whole = (workspace.root / OUT).read_bytes()
    (workspace.root / OUT).unlink()
    do(workspace, "hang 3")
    process = workspace.process("score_base", **OWN)
    wait_for((workspace.root / "hangs").exists, 60, "a scorer that hangs")
    process.send_signal(signal.SIGTERM)
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, "Traceback" in errors) == (75, False), errors
    assert len(kept(workspace)) == 2
    do(workspace, "")
    assert score(workspace)[0] == 0
    assert calls(workspace) == [2, 2]
    assert (workspace.root / OUT).read_bytes() == whole
    assert not list((workspace.root / KEPT).iterdir())


def test_a_scorer_that_hangs_ends_the_stage_at_its_limit(workspace: Workspace) -> None:
    add_judge(workspace)
    limit(workspace, 1.0)
    do(workspace, "hang 2")
    process = workspace.process("score_base", **OWN)  # which ends although a thread of it hangs
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, "Traceback" in errors) == (75, False), errors
    assert "scorer own: no answer within 1 s (executors.own.timeout_seconds)" in " ".join(errors.split())
    assert calls(workspace) == [2, 2]
    assert len(kept(workspace)) == 1


def test_scorer_calling_sys_exit_is_an_error(workspace: Workspace) -> None:
    add_judge(workspace)
    do(workspace, "exit")
    code, errors = score(workspace)
    assert code == 1
    assert "scorer own: own_rewards:judge called sys.exit(0)" in errors
    assert not (workspace.root / OUT).exists()


def test_refused_images_are_reported_together_and_retried(workspace: Workspace) -> None:
    add_judge(workspace)
    do(workspace, "refuse")
    code, errors = score(workspace)
    said = " ".join(errors.split())
    assert code == 3, errors
    assert "scorer own: 4 of 8 images have no score, more than the share 0 that scorers.own.refusals" in said
    assert said.count("sample 0: the picture is not to be judged") == 4
    assert calls(workspace) == [2] * 4
    assert not (workspace.root / OUT).exists()
    do(workspace, "refuse 4")
    assert score(workspace)[0] == 3
    do(workspace, "")
    assert score(workspace)[0] == 0
    assert calls(workspace) == [2]  # of the batch that had the last refused image


def test_refused_images_within_the_share_have_a_row_with_the_reason(workspace: Workspace) -> None:
    add_judge(workspace, refusals=0.25)
    do(workspace, "refuse 3")
    assert score(workspace)[0] == 0
    without = [row for row in scores(workspace) if row["value"] is None]
    assert [(row["metric"], row["refusal"]) for row in without] == [("score", "the picture is not to be judged")]
    assert len(scores(workspace)) == 8


@pytest.mark.slow
def test_raised_refusal_share_rescores_only_refused_images(workspace: Workspace) -> None:
    add_judge(workspace)
    do(workspace, "refuse 3")
    assert score(workspace)[0] == 3
    workspace.edit(lambda raw: raw["scorers"]["own"].update(refusals=0.2))
    check(workspace)
    do(workspace, "refuse")
    assert score(workspace)[0] == 0
    assert calls(workspace) == [2]
    assert sum(row["value"] is None for row in scores(workspace)) == 1
