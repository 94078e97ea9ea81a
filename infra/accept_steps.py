"""The steps of `chunk-grpo accept`: each takes a `Trial` and returns what it found; an error is a failure."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import psutil

from chunk_grpo.artifacts.manifest import cpu_name
from chunk_grpo.config.models import ModelParams
from chunk_grpo.config.notices import notices
from chunk_grpo.config.resolved import resolved_variant
from chunk_grpo.errors import Stopped
from chunk_grpo.families.weights.records import may_be_hub_id
from chunk_grpo.git import uncommitted
from chunk_grpo.gpus import has_gpu
from chunk_grpo.orchestration.outcomes import StageFailed
from chunk_grpo.orchestration.repeating import repeating
from chunk_grpo.planning.plan import make_plan
from chunk_grpo.training.trackers import check_trackers
from infra.accept_curve import curve
from infra.accept_trial import Found, Trial

SECONDS_LIMIT = 2.0
"""Largest accepted multiple of the planned seconds: the plan has the rate of large batches."""

MEMORY_LIMIT = 1.1
"""Largest accepted multiple of the planned memory of a GPU."""

FIDELITY_LIMIT = 0.2
"""Accepted share of the clip range by which rounding moves log-probabilities (p99). A training warns at half."""

REWARD_LIMIT = 0.05
"""Largest accepted difference of the mean reward between numbers of processes, as a share of its spread."""

KINDS = {"imagereward": ("model", "tokenizer"), "hpsv3": ("model", "backbone")}
"""Kinds of scorers that benchmarks/reference_scores.py knows, and their sets of weights."""

PHASES = {
    "train": ("loading", "rollout", "update", "optimiser's step"),
    "generate_base": ("generate",),
    "generate": ("generate",),
}
"""Phases of the plan's memory by stage; of text encoders the plan counts no activations, so they are not compared."""

GIB, LOOK_SECONDS = 2**30, 0.05


def machine(trial: Trial) -> Found:
    """Driver, torch and cards; disk and host memory against the plan."""
    import torch  # takes seconds

    has_gpu()  # ConfigError: a card that torch does not see
    stored, free = trial.plan.storage, shutil.disk_usage(trial.out).free
    host = psutil.virtual_memory().total
    names = [card.name if card.gib is None else f"{card.name}, {card.gib:.0f} GiB" for card in trial.cards]
    numbers = {
        "cards": names,
        "driver": trial.cards[0].driver if trial.cards else None,
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}",
        "python": f"{platform.python_version()}, {platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "disk, GB free and planned": [free / 1e9, stored.disk / 1e9],
        "host memory, GB here and planned": [host / 1e9, stored.host / 1e9],
        "weights to download, GB": trial.plan.downloads / 1e9,
    }
    if free < stored.disk:
        return Found("fail", "Less disk is free than the plan needs: choose --out on a larger disk.", numbers)
    if host < stored.host:
        return Found("fail", "Less host memory than the plan needs: see docs/planning.md.", numbers)
    return Found("pass", f"{'; '.join(names) or 'No GPU'}. Disk and host memory hold the plan.", numbers)


def settings(trial: Trial) -> Found:
    """The stages before any long one, of the small copy; trackers of the parameters as they are."""
    check_trackers(trial.params.trackers)
    reach_model(trial.params.model)
    trial.pipeline.run_due(["try_scorers"], trial.say)
    edited = [line for line in uncommitted(trial.root) if line[:2] != "??" and line[3:] != "params.yaml"]
    numbers = {"notices": list(notices(trial.params)), "edits that did not run": edited}
    return Found("pass", "Weights, adapter, prompts and scorers are there; scorers judged made-up images.", numbers)


def reach_model(model: ModelParams) -> None:
    """Take the smallest file of a model of the hub, or DataError: a gated one gives none without its licence."""
    if not may_be_hub_id(model.checkpoint):
        return
    from huggingface_hub import hf_hub_download

    from chunk_grpo.families.weights.hub import not_downloaded

    try:
        hf_hub_download(model.checkpoint, "model_index.json", revision=model.revision)
    except Exception as error:  # its types depend on the network library of the installed huggingface_hub
        raise not_downloaded("model.checkpoint", model.checkpoint, model.revision, error) from error


def plan(trial: Trial) -> Found:
    """Planned seconds and memory of an iteration of the parameters as they are."""
    planned = trial.plan
    cost = next(each for each in planned.iterations if each.variant == trial.variant)
    fullest = max(planned.memory, key=lambda phase: phase.bytes)
    numbers = {
        "gpu": f"{trial.machine.gpus} x {trial.machine.gpu}, {trial.machine.memory_gb:.0f} GB",
        "seconds of an iteration": [cost.seconds.least, cost.seconds.most],
        "hours": list(planned.total.hours),
        "GiB of a GPU": {phase.name: phase.bytes / GIB for phase in planned.memory},
        "findings": [f"{finding.level}: {finding.text}" for finding in planned.findings],
    }
    cannot = [finding.text for finding in planned.findings if finding.level == "cannot"]
    if cannot:
        return Found("fail", f"The preset cannot run here: {cannot[0]}.", numbers)
    said = (
        f"{fullest.bytes / GIB:.1f} GiB of a GPU in the fullest phase, {fullest.name}; "
        f"{cost.seconds.most:.3g} s an iteration at most"
    )
    return Found("pass", said + ("." if trial.cards else ", of an H100: there is no GPU."), numbers)


def references(trial: Trial) -> Found:
    """Scorers against published scores."""
    numbers: dict[str, Any] = {}
    compared: dict[str, int] = {}
    for key, scorer in trial.params.scorers.items():
        kind: str = scorer.kind
        if kind not in KINDS:
            numbers[key] = f"not checked: no published scores are known here of {kind}"
        elif kind not in trial.references:
            numbers[key] = f"not checked: needs --reference {kind}=FOLDER, the images of its README"
        elif kind == "hpsv3" and trial.hpsv3_python is None:
            numbers[key] = "not checked: HPSv3 publishes none; --hpsv3-python computes them"
        else:
            done = subprocess.run(reference(trial, kind, scorer), cwd=trial.root, capture_output=True, text=True)
            trial.say(done.stdout + done.stderr)
            numbers[key], compared[key] = (done.stdout + done.stderr).strip().splitlines(), done.returncode
    if not compared:
        return Found("not checked", "No scorer was compared with published scores.", numbers)
    said = " ".join(f"{key}: {numbers[key][-1]}" for key in compared)
    return Found("fail" if any(compared.values()) else "pass", said, numbers)


def reference(trial: Trial, kind: str, scorer: Any) -> list[str]:
    """Command that compares a scorer with published scores."""
    words = ["--images", str(trial.references[kind]), "--dtype", scorer.dtype]
    for part in KINDS[kind]:
        words += [f"--{part}", getattr(scorer, part).checkpoint]
    if kind == "hpsv3":
        words += ["--hpsv3-python", str(trial.hpsv3_python)]
    return [sys.executable, "-m", "benchmarks.reference_scores", kind, *words]


def run(trial: Trial) -> Found:
    """All other stages of the small copy."""
    trial.pipeline.run_due([], trial.say)
    numbers = {
        "stages": trial.stages(),
        "reward by iteration": [each["reward_mean"] for each in trial.metrics()],
        "policy": trial.policy(),
    }
    return Found("pass", "Every stage ran; look at the images in workspace/artifacts/report.", numbers)


def plan_held(trial: Trial) -> Found:
    """Measured seconds and memory of `run` against the plan of the small copy."""
    cost = trial.small_plan.iterations[0].seconds.most
    parts = [
        each["seconds_rollout"] + each["seconds_waiting_for_reward"] + each["seconds_update"]
        for each in trial.metrics(timed=True)
    ]
    seconds = min(parts)  # the others may have waited for the compiler, which the plan does not count
    numbers: dict[str, Any] = {"seconds of an iteration": parts, "planned, at most": cost}
    if not trial.cards:
        return Found("not checked", f"No GPU: the fastest iteration took {seconds:.3g} s of a CPU.", numbers)
    over, compared = [], 0
    for row in trial.stages():
        names = PHASES.get(row["stage"].partition("@")[0], ())
        sizes = [each.bytes - each.parts["context"] for each in trial.small_plan.memory if each.name in names]
        if sizes and row["GPU MiB"] is not None:
            compared += 1
            found, planned = row["GPU MiB"] / 1024, max(sizes) / GIB
            numbers[f"GiB of {row['stage']}, measured and planned"] = [found, planned]
            if found > MEMORY_LIMIT * planned:
                over.append(f"{row['stage']} took {found:.1f} GiB of a GPU, planned {planned:.1f}")
    if trial.knows_rate and seconds > SECONDS_LIMIT * cost:
        over.append(f"the fastest iteration took {seconds:.1f} s, planned {cost:.1f}")
    if over:
        advice = "Send this page, and leave that much more room and time than `chunk-grpo plan` says."
        return Found("fail", f"{'; '.join(over)}. {advice}", numbers)
    said = [f"The fastest iteration took {seconds:.3g} s, planned {cost:.3g} at most."]
    if not trial.knows_rate:
        said.append(f"The plan does not know the rate of {trial.cards[0].name}: give --tflops.")
    if not compared:
        said.append("No stage used a GPU, so that memory was not compared.")
    return Found("pass" if trial.knows_rate or compared else "not checked", " ".join(said), numbers)


def ratios(trial: Trial) -> Found:
    """Rounding of log-ratios of later updates against the clip range; the first update takes its ratios as 1."""
    rows = trial.metrics()
    names = {end: f"fidelity_later_{end}" for end in ("p50", "p99", "max")}
    found = {end: [each[name] for each in rows if name in each] for end, name in names.items()}
    if not found["p99"]:
        return Found("not checked", f"Training of {trial.variant} has no ratios.")
    worst, clip = max(found["p99"]), min(resolved_variant(trial.small, trial.variant).limits)
    steps = [value for each in rows for name, value in each.items() if name.startswith("fidelity_p99/")]
    numbers = {
        **{f"{end} by iteration": values for end, values in found.items()},
        "p99 of the first update by iteration": [each.get("fidelity_p99") for each in rows],
        "its largest p99 of a step": max(steps, default=None),
        "clip range": clip,
    }
    said = f"p99 of the difference is {worst:.2g}, {worst / clip:.1%} of the clip range {clip:g}."
    if worst <= FIDELITY_LIMIT * clip:
        return Found("pass", said, numbers)
    if trial.small.train.old_log_probs == "training":
        advice = "Old log-probabilities are recomputed already: set a wider clip_range."
    else:
        advice = "Ratios of later updates carry this noise: set train.old_log_probs: training."
    return Found("fail", f"{said} {advice}", numbers)


def resume(trial: Trial) -> Found:
    """Stop the training of `run` by SIGTERM after its first iteration, resume it, and compare the policies."""
    before, began, me = trial.policy(), time.time(), threading.get_ident()
    stopped: list[int] = []

    def look() -> None:
        record = trial.journal()
        if not stopped and record and record.started > began and record.times:
            stopped.append(max(record.times))
            trial.pipeline.commands.end(me)

    try:
        with repeating(look, LOOK_SECONDS):
            trial.train()
    except StageFailed as stop:
        if stop.exit_code != Stopped.exit_code:
            raise
    else:
        return Found("not checked", "The training ended before the signal came.")
    trial.train()
    record, after = trial.journal(), trial.policy()
    done = record.heading.done if record else 0
    numbers = {"stopped after iteration": stopped, "resumed after iteration": done, "policies": [before, after]}
    if before != after:
        return Found("fail", "The resumed policy has other bytes. Send this page and log.txt.", numbers)
    if not done:
        return Found("fail", "The training began anew: no checkpoint was saved. Send log.txt.", numbers)
    return Found("pass", f"Stopped and resumed after iteration {done}: the same bytes.", numbers)


def processes(trial: Trial) -> Found:
    """Train again with two processes, or one where `run` had two, and compare the first rewards."""
    count = len(trial.cards)
    if count < 2:
        return Found("not checked", f"There is {'one' if count else 'no'} GPU.")
    other = 1 if count == 2 else 2
    if not make_plan(trial.small, replace(trial.machine, gpus=other)).fits:
        return Found("not checked", f"By the plan the training does not fit {other} of {count} GPUs.")
    before = trial.metrics()
    trial.train(other)
    after = trial.metrics()
    first, second = before[0]["reward_mean"], after[0]["reward_mean"]
    numbers = {
        f"rewards of {count} and {other} processes": [
            [each["reward_mean"] for each in both] for both in (before, after)
        ]
    }
    said = f"The first mean reward is {first:.5g} with {count} processes and {second:.5g} with {other}"
    if abs(first - second) > REWARD_LIMIT * before[0]["reward_std"]:
        return Found("fail", f"{said}: more than rounding. Send this page and log.txt.", numbers)
    return Found("pass", f"{said}.", numbers)


STEPS: Mapping[str, tuple[Callable[[Trial], Found], tuple[str, ...]]] = {
    "machine": (machine, ()),
    "settings": (settings, ()),
    "plan": (plan, ()),
    "references": (references, ()),
    "run": (run, ("settings",)),
    "plan held": (plan_held, ("run",)),
    "ratios": (ratios, ("run",)),
    "resume": (resume, ("run",)),
    "processes": (processes, ("run",)),
    "curve": (curve, ("plan", "run")),
}
"""What each step calls, and the steps that must have passed."""
