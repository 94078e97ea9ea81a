"""Published models are evaluated again on a schedule: the preset `smoke`, with its real stages."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from chunk_grpo.artifacts import table_from_rows, write_table
from chunk_grpo.reporting.history import HistoryRow
from chunk_grpo.reporting.history_store import HISTORY, MEANS, read_history, read_means_of
from chunk_grpo.reporting.markdown import slug
from tests.drills.watch import FINAL, Run, Watch, serving
from tests.waiting import wait_for
from tests.webhook import webhook

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

INTERVAL = 120.0
FAR = 10.0
"""More than any score of the shapes world can be."""


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    """A clone of this repository, served, with a DVC cache of its own."""
    with serving(tmp_path_factory.mktemp("served") / "repository") as made:
        yield made


@pytest.fixture(scope="module")
def published(watch: Watch) -> Path:
    """The folder of a finished run of `smoke`."""
    completed(watch, "full")
    folder = watch.prefect.home / "published" / "smoke"
    assert json.loads((folder / "run.json").read_text())["complete"] is True
    return folder


@pytest.fixture(scope="module")
def known(watch: Watch, published: Path) -> str:
    """The name of an evaluation that the history has."""
    name, _ = evaluated(watch, published, overrides=seed(1))
    return name


def completed(watch: Watch, deployment: str = "reevaluate", preset: str = "smoke", **parameters: Any) -> Run:
    """A run that has completed."""
    ended = watch.ended(watch.start(f"chunk-grpo/{deployment}", preset=preset, **parameters), 900)
    assert ended["state_type"] == "COMPLETED", ended["state"]["message"]
    return ended


def evaluated(watch: Watch, published: Path, **parameters: Any) -> tuple[str, str]:
    """The name of a new evaluation, and what its run says."""
    run = completed(watch, **parameters)
    (name,) = (name for name in evaluations(published) if name.endswith(f"-{slug(str(run['name']))}"))
    return name, str(run["state"]["message"])


def seed(number: int) -> dict[str, Any]:
    """New images, also for two runs within a minute."""
    return {"generate": {"seed": number}}


def evaluations(published: Path) -> dict[str, set[int]]:
    """Names and image seeds of the evaluations in the history."""
    found: dict[str, set[int]] = {}
    for row in read_history(published / HISTORY) if (published / HISTORY).exists() else ():
        found.setdefault(row.evaluation, set()).add(row.image_seed)
    return found


def test_without_a_published_run_there_is_nothing_to_evaluate(watch: Watch) -> None:
    message = completed(watch, preset="tiny")["state"]["message"]
    assert "No finished run of preset tiny is published" in message


def test_only_newest_late_run_evaluates(watch: Watch) -> None:
    """Without a worker the runs of a schedule become late; a run started by hand is none of them."""
    pool, deployment = "work_pools/cpu", watch.ask("GET", "deployments/name/chunk-grpo/reevaluate")
    schedules = f"deployments/{deployment['id']}/schedules"
    schedule = {
        "schedule": {"interval": 30.0, "anchor_date": datetime.now(UTC).isoformat()},
        "active": True,
        "parameters": {"preset": "tiny"},
    }

    def late() -> list[Run]:
        waiting = {"state": {"name": {"any_": ["Late"]}}, "deployment_id": {"any_": [deployment["id"]]}}
        found = watch.ask("POST", "flow_runs/filter", {"flow_runs": waiting, "sort": "EXPECTED_START_TIME_ASC"})
        return [run for run in found if run["auto_scheduled"]]

    watch.ask("PATCH", pool, {"is_paused": True})
    (created,) = watch.ask("POST", schedules, [schedule])
    try:
        wait_for(lambda: len(late()) >= 4, 300, "four late runs")
        by_hand = watch.start("chunk-grpo/reevaluate", preset="tiny")
        missed = late()
        watch.ask("PATCH", pool, {"is_paused": False})
        told = [watch.ended(run["id"], 300)["state"] for run in missed]
        assert [state["type"] for state in told] == ["COMPLETED"] * len(told)
        for state in told[:-1]:
            assert re.fullmatch(
                r"Late: .*, planned for .* UTC, is due too and measures the same models.", state["message"]
            )
            assert state["name"] == "Nothing"
        none = "No finished run of preset tiny is published"
        assert none in watch.ended(by_hand, 300)["state"]["message"]
        wait_for(lambda: any(none in run["state"]["message"] for run in ended_of(watch)), 300, "the newest")
    finally:
        watch.ask("PATCH", pool, {"is_paused": False})
        watch.ask("DELETE", f"{schedules}/{created['id']}")


def ended_of(watch: Watch) -> list[Run]:
    """Scheduled runs for the preset `tiny` that have completed."""
    live = {"state": {"type": {"any_": ["COMPLETED"]}}}
    found = watch.ask("POST", "flow_runs/filter", {"flow_runs": live})
    return [run for run in found if run["parameters"].get("preset") == "tiny" and run["auto_scheduled"]]


def test_two_runs_of_the_schedule_stand_in_the_history(watch: Watch, published: Path) -> None:
    assert (published / "report" / "index.html").is_file()
    trained, before = (published / "dvc.lock").read_bytes(), evaluations(published)
    deployment = watch.ask("GET", "deployments/name/chunk-grpo/reevaluate")
    schedule = {
        "schedule": {"interval": INTERVAL, "anchor_date": datetime.now(UTC).isoformat()},
        "active": True,
        "parameters": {"preset": "smoke"},
    }
    (created,) = watch.ask("POST", f"deployments/{deployment['id']}/schedules", [schedule])
    wait_for(lambda: len(evaluations(published)) >= len(before) + 2, 900, "two evaluations")
    watch.ask("DELETE", f"deployments/{deployment['id']}/schedules/{created['id']}")
    wait_for(lambda: not unfinished(watch), 900, "the end of what the schedule has begun")
    new = {name: seeds for name, seeds in evaluations(published).items() if name not in before}
    assert all(len(seeds) == 1 for seeds in new.values())
    assert len({seed for seeds in new.values() for seed in seeds}) == len(new)  # new images each time

    page = watch.latest_artifact("trend-smoke")
    assert [name for name in new if name not in page] == []
    assert "data:image/png;base64," in page
    # The models, and what was published of them, stay.
    assert (published / "dvc.lock").read_bytes() == trained


def unfinished(watch: Watch) -> list[Run]:
    """Runs for the preset `smoke` that have not ended, or not begun."""
    live = {"state": {"type": {"not_any_": [*FINAL]}}}
    found = watch.ask("POST", "flow_runs/filter", {"flow_runs": live})
    return [run for run in found if run["parameters"].get("preset") == "smoke"]


def test_scoring_again_without_a_change_is_nothing_new(watch: Watch, published: Path) -> None:
    first, _ = evaluated(watch, published, new_seeds=False)
    before = evaluations(published)
    again = completed(watch, new_seeds=False)["state"]
    assert again["name"] == "Nothing"
    assert re.fullmatch(rf"No change: all \d+ scores equal those of {first}\.", again["message"])
    assert evaluations(published) == before


def test_another_policy_is_evaluated_beside_the_models(watch: Watch, published: Path) -> None:
    """Its transformer is the base model's, so are its scores; the models are not trained again."""
    trained = (published / "dvc.lock").read_bytes()
    toy = {"toy": {"kind": "weights", "path": "assets/tiny-flux"}}
    name, _ = evaluated(watch, published, overrides={**seed(3), "policies": toy})
    rows = [row for row in read_history(published / HISTORY) if row.evaluation == name]
    means = {
        policy: {(row.split, row.scorer): row.mean for row in rows if (row.policy, row.mode) == policy}
        for policy in {(row.policy, row.mode) for row in rows}
    }
    assert means["toy", "tuned"] == means["toy", "hybrid"] == means["base", "base"] != means["dance", "tuned"]
    assert (published / "dvc.lock").read_bytes() == trained


def test_moved_score_is_reported_once(watch: Watch, published: Path, known: str) -> None:
    """The only evaluation that is known has means that no score can reach."""
    shift(published, known)
    with webhook(watch.prefect) as told:
        run = watch.start("chunk-grpo/reevaluate", preset="smoke", overrides=seed(2))
        ended = watch.ended(run, 900)
        assert re.match(r"[1-9]\d* of \d+ scores moved", ended["state"]["message"])
        wait_for(lambda: told, 30, "the webhook was called")
        time.sleep(5)  # for a second call, which would be wrong
    warning = {"logs": {"flow_run_id": {"any_": [run]}, "level": {"ge_": 30}}}
    (logged,) = watch.ask("POST", "logs/filter", warning)
    assert told == [f"A score has moved. {logged['message']}"]
    assert re.search(rf"\n- shapes-\w+ on eval, .+: .+, \N{{MINUS SIGN}}\d+\.\d+ since {known} \(band", told[0])
    assert "**moved**" in watch.latest_artifact("trend-smoke")


def shift(published: Path, known: str) -> None:
    """Let an evaluation be the only one in the history, with all its means too high."""
    rows = [row for row in read_history(published / HISTORY) if row.evaluation == known]
    table = table_from_rows(map(asdict, map(raised, rows)), "evaluation_history")
    write_table(table, published / HISTORY, "evaluation_history")
    file = published / MEANS / f"{known}.parquet"
    means = read_means_of(file)
    place = means.column_names.index("mean")
    means = means.set_column(place, means.schema.field(place), pc.add(means["mean"], FAR))
    write_table(means, file, "evaluation_prompts")


def raised(row: HistoryRow) -> HistoryRow:
    first = HistoryRow(**{name: value for name, value in asdict(row).items() if name not in COMPARED})
    return replace(first, mean=row.mean + FAR, low=row.low + FAR, high=row.high + FAR)


COMPARED = ("change", "reference", "difference", "band", "p_value")
"""Columns that tell of another evaluation."""
