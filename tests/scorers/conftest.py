import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.scorers.running.configured import SharedModels
from chunk_grpo.scorers.wise.scorer import Wise
from tests.scorers.judge_cases import wise
from tests.scorers.judge_server import JudgeServer
from tests.scorers.odd_scorers import KEY, settings
from tests.scorers.servers import write_params


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> SharedModels:
    """The process's models for one test: its own, none at its start."""
    own = SharedModels()
    monkeypatch.setattr("chunk_grpo.scorers.running.configured.MODELS", own)
    return own


@pytest.fixture
def judge_server() -> Iterator[JudgeServer]:
    """A judge for WISE."""
    with JudgeServer() as running:
        yield running


@pytest.fixture
def make_wise(judge_server: JudgeServer, tmp_path: Path) -> Callable[..., Wise]:
    """Makes scorers that ask it, by what is other than in `judge_cases.wise`."""

    def make(**changes: Any) -> Wise:
        return wise(judge_server.url, tmp_path / "answers", **changes)

    return make


@pytest.fixture(scope="session")
def params(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A params.yaml with the scorer `odd`."""
    return write_params(tmp_path_factory.mktemp("server") / "params.yaml", KEY, settings())


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for clients that wait."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture(scope="session", autouse=True)
def quick_collections() -> None:
    """Leave the imported packages out of the garbage collections that follow each scorer's end."""
    gc.collect()
    gc.freeze()
