"""Processes after the end of `make serve` and similar commands, regular or forced."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from infra.local_prefect import LocalPrefect, free_port, stop_trees
from infra.setup import SetUpError
from tests.waiting import wait_for

from .conftest import answering, make_serve, start_run

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]


def test_everything_ends_when_the_server_takes_no_state(tmp_path: Path) -> None:
    """It is busy, and refuses everything for a while."""
    with answering(503) as (port, paths):
        prefect = LocalPrefect(root=tmp_path, home=tmp_path, port=port)
        for name in ("server", "worker-cpu"):
            prefect._start(name, SLEEP)
        started = [prefect.process(name) for name in ("server", "worker-cpu")]
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 3}),
            pytest.raises(SetUpError, match=r"did not accept state .*server\.log"),
        ):
            prefect.stop()
    assert len(paths) == 2
    assert not [process for process in started if psutil.pid_exists(process.pid)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_make_serve_is_killed(
    tmp_path: Path, make_pipeline: Callable[[Path], Path], number: signal.Signals
) -> None:
    """A training is running when the server stops."""
    root, port = make_pipeline(tmp_path / "root"), free_port()
    with make_serve(root, port) as (serve, _):
        prefect = LocalPrefect(root=root, home=root / ".prefect", port=port)
        start_run(prefect, preset="smoke", overrides={"variants": {"a": {"eta": 1.0}}})
        wait_for(lambda: list(root.glob(".prefect/runs/*/*.pid")), 90, "training")
        started = psutil.Process(serve.pid).children(recursive=True)
        assert len(started) >= 8
        serve.send_signal(number)
        try:
            assert serve.wait(60) == (-number if number == signal.SIGKILL else 0)
            wait_for(lambda: not any(process.is_running() for process in started), 60, "all ended")
        finally:
            stop_trees(started)
