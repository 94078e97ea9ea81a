"""chunk_grpo/orchestration/outcomes.py: outcomes as text, and what errors of a remote advise."""

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
    *(OF_DVC + OF_S3.format(code) for code in ("NoSuchBucket", "SignatureDoesNotMatch", "InvalidAccessKeyId")),
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
