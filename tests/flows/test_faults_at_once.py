"""Two runs with the same inputs, one after the other and truly at once, with one DVC cache."""

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.drills.watch import Watch, damaged_objects
from tests.flows.faults import served, slow_prepare
from tests.small_pipeline import Shell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STAGES = ["prepare", "train@a", "train@b", "report"]


@pytest.fixture(scope="module")
def watch(
    tmp_path_factory: pytest.TempPathFactory, make_pipeline: Callable[[Path], Path], shell: Shell
) -> Iterator[Watch]:
    """Two GPU workers, and a first stage that takes long enough for two runs to meet in it."""

    def slowly(folder: Path) -> Path:
        root = make_pipeline(folder)
        slow_prepare(root, 15)
        shell(root, "git", "commit", "--quiet", "--all", "--message", "slowly")
        return root

    with served(tmp_path_factory.mktemp("served"), slowly, gpu_workers=2) as made:
        yield made


def overrides(title: str) -> dict[str, Any]:
    """Inputs that no run has had, with trainings long enough to meet."""
    return {"report": {"title": title}, "variants": {name: {"eta": 15 / 60} for name in "ab"}}


def completed(watch: Watch, runs: list[str]) -> dict[str, tuple[str, ...]]:
    """Outcome of each stage in each of these completed runs."""
    for run in runs:
        ended = watch.ended(run, 300)
        assert ended["state_type"] == "COMPLETED", ended["state"]["message"]
    tables = [watch.outcomes(run) for run in runs]
    assert [list(table) for table in tables] == [STAGES] * len(runs)
    return {stage: tuple(sorted(table[stage] for table in tables)) for stage in STAGES}


def time_of(watch: Watch, run: str, what: str) -> datetime:
    return datetime.fromisoformat(watch.run(run)[what])


def test_two_runs_of_one_deployment_take_turns(watch: Watch) -> None:
    changes = overrides("in turn")
    runs = [watch.start(preset="smoke", overrides=changes) for _ in range(2)]
    outcomes = completed(watch, runs)
    assert outcomes == dict.fromkeys(STAGES, ("ran", "restored"))
    first, second = sorted(runs, key=lambda run: time_of(watch, run, "start_time"))
    assert time_of(watch, second, "start_time") >= time_of(watch, first, "end_time")
    assert damaged_objects(watch.prefect.root / ".dvc/cache") == []


def test_runs_of_two_deployments_at_once_compute_nothing_twice(watch: Watch) -> None:
    changes = overrides("at once")
    full = watch.start(preset="smoke", overrides=changes)
    ablations = watch.start("chunk-grpo/ablations", presets=["smoke"], overrides=changes)
    outcomes = completed(watch, [full, ablations])
    assert outcomes == dict.fromkeys(STAGES, ("ran", "restored"))
    begun = max(time_of(watch, run, "start_time") for run in (full, ablations))
    assert begun < min(time_of(watch, run, "end_time") for run in (full, ablations))
    clones = [next(watch.prefect.home.glob(f"runs/*-{run}-1")) for run in (full, ablations)]
    for name in ("artifacts/report/report.md", "dvc.lock"):
        assert len({(clone / name).read_bytes() for clone in clones}) == 1, name
    assert damaged_objects(watch.prefect.root / ".dvc/cache") == []
