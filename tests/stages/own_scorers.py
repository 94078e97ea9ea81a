"""A scorer of a user's that fails in a chosen way, written into a workspace and scored there by its stage."""

import io
import logging
import traceback
from contextlib import redirect_stderr
from typing import Any

import pytest

from chunk_grpo.artifacts import read_table
from tests.conftest import Workspace
from tests.scorers.fake_clock import FakeClock

CODE = '''
import os
import sys
import time
from pathlib import Path

import httpx

try:
    from chunk_grpo.errors import RefusedError
except ImportError:
    RefusedError = RuntimeError


def judge(images, prompts, metadata):
    """Notes how many images each call has, and does what the file `do` says for the call of that number."""
    with Path("calls").open("a") as stream:
        stream.write(f"{len(images)}\\n")
    number = len(Path("calls").read_text().splitlines())
    what, _, when = Path("do").read_text().strip().partition(" ") if Path("do").exists() else ("", "", "")
    values = list(images.mean(axis=(1, 2, 3)) / 255)
    if not what or (when and int(when) != number):
        return values
    if what == "timeout" or (what == "away" and os.environ.get("RANK") == "1"):
        raise httpx.ReadTimeout("the judge was slow")
    if what == "key":
        raise KeyError("a bug")
    if what == "exit":
        sys.exit(0)
    if what == "hang":
        Path("hangs").touch()
        while True:
            time.sleep(600)
    if what == "refuse":
        values[0] = RefusedError("the picture is not to be judged")
    return values
'''


def add_judge(workspace: Workspace, batch_size: int = 2, code: str = CODE, **settings: Any) -> None:
    """Put the scorer `own` into params.yaml and into the specs; its stage has nothing done yet."""
    (workspace.root / "own_rewards.py").write_text(code)
    section = {"kind": "external", "splits": ["eval"], "batch_size": batch_size, "version": 1, "options": {}}
    workspace.edit(lambda raw: raw["scorers"].update(own=section | {"source": "own_rewards:judge"} | settings))
    check(workspace)


def ended(workspace: Workspace, stage: str, **changes: str) -> tuple[int, str]:
    """Exit code and words of a stage, run in this process. It does not wait before it asks again."""
    said = io.StringIO()
    log = logging.StreamHandler(said)
    with redirect_stderr(said), pytest.MonkeyPatch.context() as patch:
        patch.setattr("chunk_grpo.scorers.running.retry.time", FakeClock())
        logging.getLogger().addHandler(log)
        try:
            code = workspace.run(stage, **changes)
        except Exception:
            traceback.print_exc()
            code = 1
        finally:
            logging.getLogger().removeHandler(log)
    return code, said.getvalue()


def check(workspace: Workspace) -> None:
    code, errors = ended(workspace, "check_scorers")
    assert code == 0, errors


def limit(workspace: Workspace, seconds: float) -> None:
    executor = {"kind": "in-process", "device": None, "timeout_seconds": seconds}
    workspace.edit(lambda raw: raw["executors"].update(own=executor))


def do(workspace: Workspace, what: str) -> None:
    """Set the scorer's behaviour and reset its count of calls."""
    (workspace.root / "do").write_text(what)
    (workspace.root / "calls").unlink(missing_ok=True)


def calls(workspace: Workspace) -> list[int]:
    """The number of images of each call."""
    path = workspace.root / "calls"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


OUT = "artifacts/scores/base/own.parquet"
OWN = {"spec": "artifacts/specs/scorers/own.json", "out": OUT}


def score(workspace: Workspace) -> tuple[int, str]:
    """Exit code and words of the stage score_base."""
    return ended(workspace, "score_base", **OWN)


def scores(workspace: Workspace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_table(str(workspace.root / OUT), "scores").to_pylist()
    return rows
