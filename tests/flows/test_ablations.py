"""Several variants and presets in one run, and two workers of the pool `gpu`, on the small pipeline."""

from typing import Any

import pytest

from chunk_grpo.artifacts.run_record import read_record
from tests.drills.watch import Watch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ABLATIONS = "chunk-grpo/ablations"
GPU_WORKERS = 2


def completed(watch: Watch, **parameters: Any) -> tuple[str, str]:
    """A run that has completed, and what it says."""
    run = watch.start(ABLATIONS, **parameters)
    ended = watch.ended(run, 300)
    assert ended["state_type"] == "COMPLETED", ended["state"]["message"]
    return run, str(ended["state"]["message"])


def training_times(watch: Watch, run: str) -> list[tuple[float, float]]:
    """When each process that has trained for a run began to, and ended."""
    children = [child["id"] for child in watch.children(run)]
    files = [file for each in children for file in watch.prefect.home.glob(f"runs/*-{each}-*/*.times")]
    texts = [file.read_text().split() for file in files]
    return [(float(begin), float(end)) for begin, end in texts]


def test_trainings_of_different_variants_run_side_by_side_up_to_the_limit(watch: Watch) -> None:
    """Three of them on two workers."""
    variants = {name: {"objective": "chunk", "plan": "listed", "eta": 10 / 60} for name in "abc"}
    run, message = completed(watch, presets=["smoke"], overrides={"variants": variants})
    assert message == "5 stages: 5 ran"
    times = training_times(watch, run)
    assert len(times) == 3
    events = sorted([(begin, 1) for begin, _ in times] + [(end, -1) for _, end in times])
    at_once = [sum(change for _, change in events[: index + 1]) for index in range(len(events))]
    assert max(at_once) == 2
    published = watch.prefect.home / "published"
    (record,) = published.glob("runs/ablations-smoke-*/smoke/run.json")
    page = f"{watch.prefect.reports_url}/{record.parent.relative_to(published)}/report/index.html"
    assert f"[The report as a page]({page})" in watch.latest_artifact("report-smoke")


def test_two_presets_that_train_the_same_do_it_once(watch: Watch) -> None:
    variants = {name: {"eta": 5 / 60} for name in "ab"}
    changes = {"report": {"title": "of both"}, "variants": variants}
    run, message = completed(watch, presets=["tiny", "smoke"], overrides=changes)
    assert message.startswith("8 stages: ")
    assert len(training_times(watch, run)) == 2
    tables = [watch.outcomes(run, preset) for preset in ("tiny", "smoke")]
    for name in ("train@a", "train@b"):
        assert sorted(table[name] for table in tables) == ["ran", "restored"]
    assert {child["name"] for child in watch.children(run)} == {"train@a", "train@b"}


def test_each_value_of_a_parameter_is_a_setting_with_its_own_results(watch: Watch) -> None:
    run, message = completed(watch, presets=["smoke"], overrides=["train.iterations=1,2"])
    assert message.startswith("8 stages: ")
    assert {child["name"] for child in watch.children(run)} == {
        f"train@{variant}, smoke iterations={number}" for variant in "ab" for number in (1, 2)
    }
    for number in (1, 2):
        text = watch.latest_artifact(f"outcomes-smoke-iterations-{number}")
        assert f"## Preset smoke, with `train.iterations={number}`" in text
    published = watch.prefect.home / "published/runs"
    found = published.glob("ablations-smoke-iterations-1-2-*/smoke-iterations-*/smoke/run.json")
    records = {path.parts[-3]: read_record(path).run for path in found}
    assert {name: record.overrides for name, record in records.items()} == {
        f"smoke-iterations-{number}": (f"train.iterations={number}",) for number in (1, 2)
    }
    (table,) = published.glob("ablations-smoke-iterations-1-2-*/comparison.md")
    assert table.read_text(encoding="utf-8") == watch.latest_artifact("comparison-ablations")


def test_a_failing_variant_does_not_stop_the_others(watch: Watch) -> None:
    changes = {"variants": {"a": {"kl_coef": 3.0}}, "report": {"title": "one fails"}}
    code, told = watch.command(ABLATIONS, presets=["tiny"], overrides=changes)
    assert code == 1
    assert "stage train@a failed with exit code 3 (bad input)" in told
    table = watch.latest_artifact("outcomes-tiny")
    assert "| train@a | gpu | **failed** |" in table
    assert "| train@b | gpu | ran |" in table
    assert "| report |  | not reached |" in table


@pytest.mark.parametrize(
    ("parameters", "said"),
    [({"presets": ["tinny"]}, "tinny"), ({"commit": "nosuch"}, "commit: must be a commit, branch or tag that ")],
)
def test_wrong_parameters_are_refused_before_any_stage(watch: Watch, parameters: dict[str, Any], said: str) -> None:
    code, told = watch.command(ABLATIONS, **({"presets": ["tiny"]} | parameters))
    assert code == 1
    assert said in told
