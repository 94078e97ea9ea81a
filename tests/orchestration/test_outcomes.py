"""chunk_grpo/orchestration/outcomes.py: what DVC's lines say."""

import time

import pytest

from chunk_grpo.orchestration.outcomes import DvcLog, Outcome, RemoteError, StageOutcome


@pytest.mark.parametrize("outcome", ["ran", "restored", "pulled", "unchanged"])
def test_outcome_survives_as_text(outcome: Outcome) -> None:
    text = str(StageOutcome("s", outcome, 1.26, 10))
    assert StageOutcome.parse("s", text) == StageOutcome("s", outcome, 1.3, 10)
    with pytest.raises(ValueError, match=r"stage s: expected 'ran in 1\.0 s, 2 bytes' or the like, got 'All"):
        StageOutcome.parse("s", "All states completed.")


MENDED = "Check the remote's URL (`dvc remote list`) and the credentials of this worker."
OF_DVC = "ERROR: unexpected error - "
OF_S3 = ": An error occurred ({}) when calling the PutObject operation: "


REFUSED = (
    OF_DVC + "Forbidden: An error occurred (403) when calling the HeadObject operation: Forbidden",
    *(
        OF_DVC + OF_S3.format(code)
        for code in ("NoSuchBucket", "SignatureDoesNotMatch", "InvalidAccessKeyId")
    ),
    OF_DVC + "Access Denied." + OF_S3.format("AccessDenied"),
    OF_DVC + "Unable to locate credentials",
    OF_DVC + "The config profile (nobody) could not be found",
)
MAY_PASS = (
    OF_DVC + 'Could not connect to the endpoint URL: "http://127.0.0.1:9/cache"',
    OF_DVC + "[Errno 121] We encountered an internal error." + OF_S3.format("InternalError"),
    "ERROR: failed to transfer 'b71d' - The specified key does not exist." + OF_S3.format("NoSuchKey"),
)


@pytest.mark.parametrize(
    ("line", "may_pass"), [*((line, False) for line in REFUSED), *((line, True) for line in MAY_PASS)]
)
def test_access_errors_are_not_transient(line: str, may_pass: bool) -> None:
    """The lines are those of DVC 3.67 with s3fs 2026.9."""
    error = RemoteError("dvc push", 255, ["pushing", line])
    assert error.may_pass is may_pass
    assert line in str(error)
    assert (MENDED in str(error)) is not may_pass
    assert ("goes on from what has arrived" in str(error)) is may_pass


def test_troubles_with_single_objects_are_kept_however_much_follows() -> None:
    log = DvcLog(print)
    log.add("ERROR: failed to transfer 'b71d' - Connection timeout")
    for number in range(100):
        log.add(f"line {number}")
    assert list(log.lines) == [f"line {number}" for number in range(80, 100)]
    assert "failed to transfer 'b71d'" in str(log.error("dvc push", 0))


@pytest.mark.parametrize("key", ["files/md5/b7/1dc0b4", "runs/17/1787/3e39"])
def test_a_damaged_object_is_named_as_it_is_in_the_remote(key: str) -> None:
    log = DvcLog(print)
    log.add(f"DEBUG: corrupted cache file 'runs/one/.dvc/cache/{key}'.")
    assert len(log.troubles) == 1
    error = log.error("dvc repro --pull", 255)
    assert f"Damaged in the remote, or in transfer: {key}. If this happens again, delete" in str(error)
    assert error.may_pass
    log.add("ERROR: failed to transfer 'b71d' - Connection timeout")
    assert "goes on from what has arrived" in str(log.error("dvc repro --pull", 255))


def at(log: DvcLog, monkeypatch: pytest.MonkeyPatch, *lines: tuple[float, str]) -> dict[str, float]:
    """Seconds of each stage after lines that came at these times since DVC was started."""
    started = time.monotonic()
    with monkeypatch.context() as patch:
        for seconds, line in lines:
            patch.setattr(time, "monotonic", lambda now=started + seconds: now)
            log.add(line)
    found = log.restored(0, {}, "dvc repro")
    return {name: round(outcome.seconds, 3) for name, outcome in found.items()}


CACHED = "Stage '{}' is cached - skipping run, checking out outputs"
SAME = "Stage '{}' didn't change, skipping"
LOCK = "Updating lock file 'dvc.lock'"


PULLING = "Pulling data for stage: '{}'"


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        pytest.param(
            [
                (5, CACHED.format("a")),  # 5 s until DVC has its stages: of none
                (7, "Generating lock file 'dvc.lock'"),
                (7, LOCK),
                (8, CACHED.format("b")),
                (38, LOCK),
                (42, SAME.format("c")),
                (43, "Use `dvc push` to send your updates to remote storage."),
            ],
            {"a": 2, "b": 31, "c": 4},
            id="DVC says that a stage is cached before it copies, and writes dvc.lock after that",
        ),
        pytest.param(
            [(5, SAME.format("a")), (6, CACHED.format("b")), (16, SAME.format("c")), (18, SAME.format("d"))],
            {"a": 0, "b": 11, "c": 0, "d": 2},
            id="dvc.lock stays",
        ),
        pytest.param(
            [(5, PULLING.format("a")), (15, PULLING.format("b")), (17, "Data and pipelines are up to date.")],
            {"a": 10, "b": 2},
            id="pulling is said before, too; and the last one ends with DVC",
        ),
        pytest.param(
            [
                (5, "WARNING: stage: 'a' is frozen. Its dependencies are not going to be reproduced."),
                (6, "Verifying outputs in frozen stage: 'a'"),
                (9, LOCK),
                (10, "Running stage 'b':"),
                (12, "WARNING: failed to run: python -m stages.work b, exited with 1"),
                (15, CACHED.format("c")),
                (19, LOCK),
            ],
            {"a": 3, "c": 7},
            id="a stage that would run and a frozen one leave others their time",
        ),
    ],
)
def test_the_time_of_copying_counts_for_its_stage(
    lines: list[tuple[float, str]], seconds: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert at(DvcLog(print), monkeypatch, *lines) == seconds
