"""A run in the Prefect UI, as a real browser shows it."""

import re
from pathlib import Path

import pytest

from chunk_grpo.reporting.markdown import slug
from tests.browser.conftest import Site, completed
from tests.browser.pages import Ui
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STAGES = 23
"""Number of stages of the preset."""
TASKS = STAGES + 4
"""Tasks of a run: also one that restores, one that fetches each of two trained policies, and one that publishes."""
REWARD = "reward-chunk-ws-seed-0-smoke"
"""The artifact with the reward curves of a training."""
ITERATIONS = 2000
"""Iterations of a running training; it is cancelled before the last."""
TALL = 3000
"""Height of a window that a list with a line for each stage fits in."""


def open_artifact(ui: Ui, site: Site, flow_run: str, key: str, *texts: str, state: str = "Completed") -> None:
    """Open the newest artifact with a key from the run's page, by clicks."""
    ui.open(f"runs/flow-run/{flow_run}", state)
    ui.tab("Artifacts", key)
    mine = {"flow_run_id": {"any_": [flow_run]}, "key": {"any_": [key]}}
    newest, *_ = site.api("artifacts/filter", artifacts=mine, sort="CREATED_DESC")
    ui.click_link(f"artifacts/artifact/{newest['id']}")
    ui.wait_for("Show raw data", *texts)


def by_head(table: list[list[str]]) -> list[dict[str, str]]:
    """The rows of a table as mappings from the heads of its columns."""
    head, *rows = table
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_a_run_is_shown_with_each_stage_as_a_task(ui: Ui, site: Site, pictures: Path) -> None:
    """What came from the cache is called so."""
    for run, state in ((site.cached, "Cached"), (site.ran, "Completed")):
        ui.open(f"runs/flow-run/{run}", "Completed", f"{TASKS} Task runs" if run == site.ran else "chunk-grpo")
        stages = site.watch.outcomes(run)
        assert len(stages) == STAGES
        if run == site.ran:
            assert ui.drawn_colours(".flow-run-graph canvas") > 50  # bars with names and lines between them
            ui.screenshot(pictures / "prefect-run.png")
        ui.tab("Task Runs", *(f"{stage} {state}" for stage in stages), height=TALL)


def test_the_logs_of_the_stages_are_shown_also_of_those_on_the_pool(ui: Ui, site: Site) -> None:
    ui.open(f"runs/flow-run/{site.run_of('train@dance-0')}", "Completed")
    ui.wait_for("> exec python -m stages.train", "Finished in state Completed('ran in")


def test_outcome_table_separates_run_and_cached_stages(ui: Ui, site: Site, pictures: Path) -> None:
    for run, words in ((site.ran, {"ran"}), (site.cached, {"restored"})):
        open_artifact(ui, site, run, "outcomes-smoke", "train@dance-0")
        rows = {row["stage"]: row for row in by_head(ui.tables()[0])}
        assert len(rows) == STAGES
        assert {row["outcome"] for row in rows.values()} == words
        assert rows["train@dance-0"]["work pool"] == "gpu"
        seconds = [float(row["seconds"]) for row in rows.values()]
        assert min(seconds) > 0 if run == site.ran else min(seconds) >= 0
        assert int(rows["train@dance-0"]["bytes"].replace(",", "")) > 1_000_000
        if run == site.ran:
            ui.screenshot(pictures / "prefect-outcomes.png")


def test_reward_curves_grow_while_training_runs(ui: Ui, site: Site) -> None:
    """Their page is opened, and loaded again until it shows a later iteration, all before training ends."""
    watch, changes = site.watch, {"train": {"iterations": ITERATIONS}}
    run = watch.start(preset="smoke", until="train@chunk-ws-0", overrides=changes)
    try:
        (child,) = wait_for(lambda: watch.children(run, "train@chunk-ws-0"), 120, "training")
        shown = {"flow_run_id": {"any_": [child["id"]]}, "key": {"any_": [REWARD]}}
        wait_for(lambda: site.api("artifacts/filter", artifacts=shown), 120, "reward curves")
        open_artifact(ui, site, child["id"], REWARD, f"of {ITERATIONS}", state="Running")
        first = iteration(ui)

        def grown() -> bool:
            ui.reload("Show raw data", f"of {ITERATIONS}")
            return iteration(ui) > first

        wait_for(grown, 90, "a later iteration")
        (plot,) = ui.images()
        assert plot.natural > 500
        assert watch.run(child["id"])["state_type"] == "RUNNING"
    finally:
        watch.cancel(run)
    assert watch.ended(run, 90)["state_type"] == "CANCELLED"


def iteration(ui: Ui) -> int:
    """The last one that the page of the reward curves has."""
    (found,) = re.findall(rf"chunk-ws, training seed 0: iteration (\d+) of {ITERATIONS}", ui.text())
    return int(found)


def test_sections_of_the_report_are_seen(ui: Ui, site: Site, pictures: Path) -> None:
    open_artifact(ui, site, site.ran, "profile-smoke", "How fast the image changes, step by step")
    (plot,) = ui.images()
    assert plot.natural > 1500
    ui.screenshot(pictures / "prefect-profile.png")
    open_artifact(ui, site, site.ran, "training-smoke", "How they trained")
    open_artifact(ui, site, site.ran, "answer-smoke", "Does it help?")
    open_artifact(ui, site, site.ran, "images-smoke", "The same prompts and seeds")
    grid, *_ = ui.images()
    assert grid.alt == "Image grid: base and dance, chunk-ws, tuned and hybrid"
    assert grid.natural > 500
    ui.screenshot(pictures / "prefect-images.png")
    open_artifact(ui, site, site.ran, "scores-smoke", "95 % interval")
    rows = {row.pop("policy"): row for row in by_head(ui.tables()[0])}
    for policy in ("dance, tuned", "chunk-ws, tuned"):
        for score, cell in rows[policy].items():
            assert re.search(r"\((\S+\sto\s\S+|the same on every prompt)\)$", cell), f"{policy}, {score}: {cell}"
    ui.screenshot(pictures / "prefect-scores.png")


def test_the_report_is_linked_as_a_page_that_opens(ui: Ui, site: Site, pictures: Path) -> None:
    open_artifact(ui, site, site.ran, "report-smoke", "Smoke run")
    assert ui.images()
    ui.screenshot(pictures / "prefect-report.png")
    ui.click("The report as a page")
    ui.follow()
    ui.wait_for("Smoke run (its numbers mean nothing)")


def test_the_trend_of_two_evaluations_is_seen(ui: Ui, site: Site, pictures: Path) -> None:
    runs = [completed(site.watch, "reevaluate", overrides={"generate": {"seed": seed}}) for seed in (1, 2)]
    open_artifact(ui, site, runs[-1], "trend-smoke", "Evaluations of preset smoke")
    (plot,) = ui.images()
    assert plot.natural > 900
    names = [slug(str(site.watch.run(run)["name"])) for run in runs]
    shown = [row["evaluation"] for row in by_head(ui.tables()[-1])]
    assert [name.endswith(run) for name, run in zip(shown, reversed(names), strict=True)] == [True, True]
    ui.screenshot(pictures / "prefect-trend.png")


def test_the_deployment_has_a_form_with_its_parameters(ui: Ui, site: Site, pictures: Path) -> None:
    parameters = ("preset", "overrides", "until", "force")
    ui.open(f"deployments/deployment/{site.deployment('full')}/run", "Submit", *parameters)
    ui.screenshot(pictures / "prefect-form.png", height=1300)
    assert not any(name.startswith("preset") and value for name, value in ui.fields().items())


def test_the_form_starts_a_run_and_changes_nothing_that_was_not_filled_in(ui: Ui, site: Site) -> None:
    ui.open(f"deployments/deployment/{site.deployment('reevaluate')}/run", "Submit")
    name = ui.fields()["Run Name"]
    ui.click("Submit")
    (started,) = ui.until(
        lambda: site.api("flow_runs/filter", flow_runs={"name": {"any_": [name]}}), lambda: f"no run {name}"
    )
    assert not started["parameters"].pop("overrides")
    assert started["parameters"] == {"preset": "tiny", "new_seeds": True}
    ui.open(f"runs/flow-run/{started['id']}", name)
    # The page follows the run: its log lines come without another look.
    ui.wait_for("Beginning flow run", "No finished run of preset tiny is published", seconds=180)
