"""docs/deploy.md names settings that exist; it and docs/one_card.md have the numbers of the plan."""

import re

import prefect.settings

from chunk_grpo.config import parse_params
from chunk_grpo.orchestration.presets import composed
from chunk_grpo.planning.machines import machine
from chunk_grpo.planning.plan import make_plan
from tests.infra.deployment_files import ROOT

TEXT = (ROOT / "docs" / "deploy.md").read_text("utf-8")


def test_every_setting_of_prefect_exists() -> None:
    names = set(re.findall(r"`(PREFECT_[A-Z_]+)", TEXT))
    assert len(names) > 8
    assert [n for n in names if "_INTEGRATIONS_" not in n and not hasattr(prefect.settings, n)] == []


PLACES = (("flux-dev", 8, 1), ("flux-dev", 32, 4))


def numbers(
    preset: str, gpus: int, machines: int, gpu: str = "H100", variant: str | None = None
) -> dict[str, str]:
    """Cells of a column of the table, by row."""
    raw = composed(ROOT, preset)
    if variant:
        raw["variants"] = {variant: raw["variants"][variant]}
    plan = make_plan(parse_params(raw), machine(gpu, gpus, machines=machines, stop_seconds=600))
    longest = max(cost.seconds.most for cost in plan.iterations)
    most = max(phase.bytes for phase in plan.memory)
    hours = dict.fromkeys(f"{limit:.0f}" for limit in plan.total.hours)
    return {
        "preset": f"`{preset}`",
        "memory of a GPU, at most": f"{most / 2**30:.0f} of {plan.machine.memory_bytes / 2**30:.0f} GiB",
        "disk": f"{plan.storage.disk / 1e9:.0f} GB",
        "a checkpoint": f"{plan.storage.checkpoint / 1e9:.1f} GB",
        "a stop, of 600 s": f"{plan.stop_seconds:.0f} s",
        "an iteration, at most": f"{longest:.0f} s",
        "the preset, 3 trainings" if not variant else "the whole run": f"{' to '.join(hours)} h",
    }


def test_the_plans_numbers_are_those_of_the_plan() -> None:
    columns = [numbers(*place) for place in PLACES]
    for row in columns[0]:
        assert f"| {row} | {' | '.join(column[row] for column in columns)} |" in TEXT


def test_the_numbers_of_one_card_are_those_of_the_plan() -> None:
    page = (ROOT / "docs" / "one_card.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| [^|]+ \| (RTX4090|L40S|H100) \| (.+) \|$", page, re.MULTILINE)
    assert {preset for preset, _, _ in rows} >= {
        *(path.stem for path in (ROOT / "conf" / "preset").glob("night-*.yaml")),
        *("sd35-medium", "flux-dev-lora"),
    }
    for preset, gpu, cells in rows:
        plan = numbers(preset, 1, 1, gpu, "chunk-ws")
        keys = ("memory of a GPU, at most", "disk", "an iteration, at most", "the whole run")
        assert cells == " | ".join(plan[key] for key in keys), preset
