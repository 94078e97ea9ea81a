"""What a person sees of a run in the Prefect UI, asserted on what a real browser shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunk_grpo.reporting.highlights import Highlights
from tests.browser.conftest import Site
from tests.browser.pages import Ui
from tests.reporting.unfinished import INPUTS, Workspace, planned_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STAGES = ("prepare", "train@a", "train@b", "report")


def open_artifact(ui: Ui, flow_run: str, key: str, *texts: str) -> None:
    """From the run's page, as one would go there."""
    ui.open(f"runs/flow-run/{flow_run}", "Completed")
    ui.tab("Artifacts", key)
    ui.click(key)
    ui.wait_for("Show raw data", *texts)


def by_head(table: list[list[str]]) -> list[dict[str, str]]:
    """The rows of a table as mappings from the heads of its columns."""
    head, *rows = table
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_a_run_is_shown_with_each_stage_as_a_task(ui: Ui, site: Site, pictures: Path) -> None:
    ui.open(f"runs/flow-run/{site.ran}", "Completed", "4 Task runs", "chunk-grpo")
    assert ui.drawn_colours(".flow-run-graph canvas") > 50  # bars with names and lines between them
    ui.screenshot(pictures / "prefect-run.png")
    ui.tab("Task Runs", *(f"{stage} Completed" for stage in STAGES))


def test_what_came_from_the_cache_is_called_so(ui: Ui, site: Site) -> None:
    ui.open(f"runs/flow-run/{site.cached}", "Completed")
    ui.tab("Task Runs", *(f"{stage} Cached" for stage in STAGES))


def test_the_logs_of_the_stages_are_shown_also_of_those_on_the_pool(ui: Ui, site: Site) -> None:
    ui.open(f"runs/flow-run/{site.ran}", "Completed")
    ui.wait_for("python -m stages.work prepare prepared.txt", "training a: {", "training b: {")


def test_the_outcome_table_tells_what_ran(ui: Ui, site: Site, pictures: Path) -> None:
    open_artifact(ui, site.ran, "outcomes", *STAGES)
    rows = {row["stage"]: row for row in by_head(ui.tables()[0])}
    assert {stage: row["outcome"] for stage, row in rows.items()} == dict.fromkeys(STAGES, "ran")
    assert rows["train@a"]["work pool"] == "gpu"
    assert all(float(row["seconds"]) > 0 for row in rows.values())
    ui.screenshot(pictures / "prefect-outcomes.png")


def test_the_outcome_table_tells_what_came_from_the_cache(ui: Ui, site: Site) -> None:
    open_artifact(ui, site.cached, "outcomes", *STAGES)
    outcomes = [row["outcome"] for row in by_head(ui.tables()[0])]
    assert len(outcomes) == len(STAGES) and "ran" not in outcomes


def test_the_plots_of_the_report_are_pictures_one_can_see(ui: Ui, site: Site) -> None:
    open_artifact(ui, site.ran, "report", "Small report")
    assert [image.alt for image in ui.images()] == ["profile"]


def test_the_deployment_has_a_form_with_its_parameters(ui: Ui, site: Site, pictures: Path) -> None:
    parameters = ("preset", "overrides", "until", "force")
    ui.open(f"deployments/deployment/{site.deployment('full')}/run", "Submit", *parameters)
    assert ui.fields()["preset (Optional)"] == "tiny"
    ui.screenshot(pictures / "prefect-form.png", height=1300)


def test_the_form_starts_a_run(ui: Ui, site: Site) -> None:
    ui.open(f"deployments/deployment/{site.deployment('full')}/run", "Submit")
    name = ui.fields()["Run Name"]
    ui.click("Submit")
    (started,) = ui.until(
        lambda: site.api("flow_runs/filter", flow_runs={"name": {"any_": [name]}}), lambda: f"no run {name}"
    )
    assert started["parameters"] == {"preset": "tiny", "overrides": [], "until": None, "force": False}
    ui.open(f"runs/flow-run/{started['id']}", name)
    # The page follows the run: its log lines come without another look.
    ui.wait_for("Beginning flow run", "Finished in state Completed('4 stages:", seconds=180)


@pytest.fixture(scope="module")
def highlights(site: Site, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Key to id of an artifact for each highlight of a synthetic run; no number in them was measured."""
    done = planned_run(tmp_path_factory.mktemp("run"))
    workspace = Workspace(tmp_path_factory.mktemp("highlights") / "workspace", done)
    workspace.finish(*INPUTS)
    return {
        made.key: str(
            site.api("artifacts/", key=made.key, type="markdown", description=made.title, data=made.inline())[
                "id"
            ]
        )
        for made in Highlights(workspace.root).new()
    }


def test_the_profile_is_seen_with_its_chunks(ui: Ui, highlights: dict[str, str]) -> None:
    ui.open(f"artifacts/artifact/{highlights['l1-profile']}", "Relative L1 distance between steps")
    (plot,) = ui.images()
    assert plot.natural > 1500 and plot.shown > 500
    assert by_head(ui.tables()[0])[0]["t"] == "1.000"
    ui.open(f"artifacts/artifact/{highlights['chunks']}", "trained by")
    summary, chunks = ui.tables()
    assert ["listed", "4", "2, 3, 4, 7", "chunk, chunk-ws"] in summary
    assert ["listed", "3", "7", "9–15", "0.400", "0.80", "18%"] in chunks


def test_the_images_are_seen_side_by_side(ui: Ui, highlights: dict[str, str]) -> None:
    ui.open(f"artifacts/artifact/{highlights['images']}", "The same prompts and seeds", "seed 20")
    images = ui.images()
    assert len(images) == 4 * 4  # prompts, and base and three variants; of 48 pixels, three times as large
    assert all(image.shown == image.natural == 144 for image in images)
    assert {image.alt.rsplit(": ")[-1] for image in images} == {
        "base",
        *(f"{v}, tuned" for v in ("dance", "chunk", "chunk-ws")),
    }


def test_the_scores_are_seen_with_their_intervals(ui: Ui, highlights: dict[str, str]) -> None:
    ui.open(f"artifacts/artifact/{highlights['scores']}", "95 % interval")
    (plot,) = ui.images()
    assert plot.natural > 1500
    rows = {row["policy"]: row["training reward"] for row in by_head(ui.tables()[0])}
    mean, difference, interval = rows["chunk, tuned"].split("\n")
    assert float(mean) > 0 and difference.startswith("+") and interval.startswith("(+")
