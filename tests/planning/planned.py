"""Parameters and plans for the tests of this folder."""

from functools import cache
from pathlib import Path
from typing import Any

from chunk_grpo.config import Params, load_params, parse_params
from chunk_grpo.orchestration.presets import composed
from chunk_grpo.planning.machines import machine
from chunk_grpo.planning.models import read_checkpoint
from chunk_grpo.planning.plan import Plan, make_plan
from chunk_grpo.planning.settings import Settings, settings_of

ROOT = Path(__file__).resolve().parents[2]
TINY = str(ROOT / "assets" / "tiny-flux")


@cache
def preset(name: str) -> Params:
    raw = composed(ROOT, name)
    if raw["model"]["checkpoint"] == "assets/tiny-flux":
        raw["model"]["checkpoint"] = TINY
    return parse_params(raw)


def edited(params: Params, **sections: dict[str, Any]) -> Params:
    """Parameters with keys of sections replaced."""
    raw = params.model_dump()
    for name, values in sections.items():
        raw[name] = {**raw[name], **values}
    return parse_params(raw)


def with_variant(params: Params, **variant: Any) -> Params:
    """Parameters with the only variant "it"."""
    raw = params.model_dump()
    raw["variants"] = {"it": variant}
    return parse_params(raw)


def settings(params: Params, gpus: int = 1, machines: int = 1) -> Settings:
    return settings_of(params, read_checkpoint(params.model.family, params.model.checkpoint), gpus, machines)


PLANS: dict[tuple[object, ...], Plan] = {}
"""Plans that tests have asked for; many ask for the same."""


def plan(params: Params, gpus: int = 1, stop_seconds: float = 600, **options: Any) -> Plan:
    options.setdefault("gpu", "H100")
    key = (params.model_dump_json(), gpus, stop_seconds, *sorted(options.items()))
    if key not in PLANS:
        name = options.pop("gpu")
        PLANS[key] = make_plan(params, machine(name, gpus, stop_seconds=stop_seconds, **options))
    return PLANS[key]


def load_own() -> Params:
    """params.yaml of the repository."""
    return edited(load_params(ROOT / "params.yaml"), model={"checkpoint": TINY})


def cells(found: Plan) -> dict[str, str]:
    """The numbers of a plan, as tables of the docs have them."""
    most = max(phase.bytes for phase in found.memory)
    hours = dict.fromkeys(f"{limit:.0f}" for limit in found.total.hours)
    return {
        "memory of a GPU, at most": f"{most / 2**30:.0f} of {found.machine.memory_bytes / 2**30:.0f} GiB",
        "disk": f"{found.storage.disk / 1e9:.0f} GB",
        "a checkpoint": f"{found.storage.checkpoint / 1e9:.1f} GB",
        "a stop, of 600 s": f"{found.stop_seconds:.0f} s",
        "an iteration, at most": f"{max(cost.seconds.most for cost in found.iterations):.0f} s",
        "hours": f"{' to '.join(hours)} h",
    }
