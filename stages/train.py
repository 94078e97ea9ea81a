"""Train one variant with one training seed; write the policy and its metrics."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import torch
from safetensors.torch import save

from chunk_grpo import environment
from chunk_grpo.artifacts import (
    check_writable,
    join,
    output_dir,
    read_json,
    read_table,
    table_from_rows,
    write_csv,
    write_table,
)
from chunk_grpo.artifacts.storage import is_remote
from chunk_grpo.artifacts.unrecorded import KEPT, Results, forget_recorded
from chunk_grpo.config import Params, VariantParams
from chunk_grpo.core.chunking import ChunkPlan
from chunk_grpo.digests import Digests
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.weights.policy import local_policy
from chunk_grpo.families.weights.records import policy_record
from chunk_grpo.scorers.base import Scorer
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.scorers.running.placing import place_checked
from chunk_grpo.scorers.running.spec import spec_from
from chunk_grpo.stopping import STOP
from chunk_grpo.training.copies import remove_copies
from chunk_grpo.training.method import Method, method_from
from chunk_grpo.training.metrics import MetricRow, finite_rows
from chunk_grpo.training.optimizers import require_optimizer
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.run import RunPaths, TrainingData
from chunk_grpo.training.schedule import prompts_of_iteration, scheduled_prompts, starts_of_update
from chunk_grpo.training.trainer import Trainer
from stages._inputs import EncodedPrompts, encoded_prompts, first, load_model
from stages._kept import add_files
from stages._launch.code import add_code
from stages._launch.processes import run_processes
from stages._settings import training_settings
from stages._stage import argument, inputs_of
from stages._times import times_of

TIMED = ("seconds_", "rate_")
"""Prefixes of wall-clock metrics, which differ between runs and are written to a file of their own."""

CURVES = {"reward_mean": "reward", "heldout_reward": "held-out"}
"""Metric that is drawn, to the name of its file."""

COMPUTES = (
    "chunk_grpo/core",
    "chunk_grpo/families",
    "chunk_grpo/image_files.py",
    "chunk_grpo/scorers/base.py",
    "chunk_grpo/scorers/reward.py",
    "chunk_grpo/scorers/running",
    "chunk_grpo/seeding.py",
    "chunk_grpo/training",
    "stages/_inputs.py",
    "stages/_times.py",
    "stages/train.py",
)
"""Code that decides what a training computes. The code of single scorers is in their specs."""

MOVES_NOTHING = {"checkpoint_every", "checkpoints_kept", "keep_state", "reward_attempts", "reward_wait"}
"""Settings of `train` that change no state of a training."""

LOGS = Path("logs")
"""Tracker logs. Not a DVC output: they contain timestamps."""


@dataclass(frozen=True)
class Arguments:
    variant: str = field(metadata=argument("name of the variant"))
    seed: int = field(metadata=argument("training seed"))
    settings: str = field(
        metadata=argument("JSON of stage inputs: settings of the variant's training", reads=True)
    )
    model: str = field(
        metadata=argument("JSON of stage inputs: content of the base model's files", reads=True)
    )
    prompts: str = field(metadata=argument("prompts/1, Parquet", reads=True))
    embeddings: str = field(metadata=argument("folder with embeddings/2 and its shards", reads=True))
    plan: str = field(metadata=argument("chunk_plan/1, Parquet: the variant's chunks", reads=True))
    scorers: str = field(
        metadata=argument("JSON of stage check_scorers: specs of the scorers used in training", reads=True)
    )
    out: str = field(metadata=argument("folder for transformer/ and metrics.parquet", writes=True))
    curves: str = field(
        metadata=argument("folder for reward.csv and held-out.csv, for `dvc plots`", writes=True)
    )
    timings: str = field(metadata=argument("train_metrics/1, Parquet: wall-clock metrics", writes=True))


def variant_of(params: Params, arguments: Arguments) -> VariantParams:
    """Settings of the trained variant."""
    if arguments.variant not in params.variants:
        raise ConfigError(
            f"--variant: must be a name in variants ({', '.join(params.variants)}), got {arguments.variant!r}"
        )
    return params.variants[arguments.variant]


def check_settings(params: Params, arguments: Arguments) -> None:
    """Compare the recorded settings with params.yaml: DVC depends on the record, the stage reads params.yaml.

    The policy to start from must be the recorded one too.
    """
    recorded, start = read_json(arguments.settings), params.train.start_from
    record = recorded.pop("start")
    if recorded != training_settings(params, arguments.variant):
        raise DataError(
            f"{arguments.settings}: must have the settings of params.yaml for variant {arguments.variant}, got "
            "others; run `dvc repro`"
        )
    if start is not None and policy_record(start, "train.start_from", Digests()) != record:
        raise DataError(
            f"train.start_from: the files of {start.path} differ from those recorded in {arguments.settings}; run "
            "`dvc repro` to start from the current ones"
        )


def checkpoint_key(params: Params, arguments: Arguments, data: TrainingData) -> str:
    """Digest of the computation: a checkpoint is resumed only with the same code, settings and inputs.

    It includes the variant's name: two variants with equal settings may train at the same time, and the first one to
    finish removes its checkpoints. Of the embeddings those of the first iteration and of the held-out prompts stand
    for all: the others are of the same encoder, and more iterations have more of them.
    """
    settings = training_settings(params, arguments.variant)
    without = MOVES_NOTHING | (set() if depends_on_iterations(params, arguments.variant) else {"iterations"})
    settings["train"] = {key: value for key, value in settings["train"].items() if key not in without}
    content = params.model_dump(mode="json", include={"model", "sampling", "rewards"})
    about = [content, settings, read_json(arguments.settings)["start"], arguments.variant, arguments.seed]
    digest = hashlib.sha256(json.dumps(about).encode())
    add_code(digest, *COMPUTES)
    add_files(digest, (arguments.model, arguments.prompts, arguments.plan, arguments.scorers))
    count = params.train.prompts_per_iteration
    first_ones = prompts_of_iteration(0, count, len(data.prompts), arguments.seed)
    for prompts in (data.prompts.rows(first_ones), data.heldout):
        tensors = prompts.conditioning.to("cpu").tensors
        digest.update(save({name: tensor.contiguous() for name, tensor in sorted(tensors.items())}))
    return digest.hexdigest()[:16]


def depends_on_iterations(params: Params, variant: str) -> bool:
    """Whether the state at an iteration depends on how many follow.

    Annealed selection does. The last iteration is measured even if it is not due, which counts where held-out scores
    select a policy.
    """
    heldout = params.train.heldout
    return params.variants[variant].selection == "annealed" or heldout.decides or heldout.keep_best


def copies_of_environment() -> str | None:
    """Folder (absolute) or URL of the copies of all trainings' checkpoints; None: there are no copies."""
    location = os.environ.get(environment.CHECKPOINTS)
    if not location:
        return None
    if not is_remote(location) and not Path(location).is_absolute():
        raise ConfigError(f"{environment.CHECKPOINTS}: must be a URL or an absolute path, got {location!r}")
    check_writable(join(location, "probe"))
    return location


def read_method(params: Params, arguments: Arguments) -> Method:
    """Read the variant's method, with its chunk plan and the Eq. (16) weights.

    The plan's number of steps must be the number of trainable steps.
    """
    of = {"plan": params.variants[arguments.variant].plan}
    rows = sorted(read_table(arguments.plan, "chunk_plan", of).to_pylist(), key=lambda row: int(row["chunk"]))
    plan = ChunkPlan(tuple(row["num_steps"] for row in rows))
    if plan.num_steps != params.sampling.num_sde_steps:
        raise DataError(
            f"{arguments.plan}: must cover sampling.num_steps - 1 = {params.sampling.num_sde_steps} steps, "
            f"got {plan.num_steps}; run `dvc repro`"
        )
    weights = torch.tensor([row["weight"] for row in rows], dtype=torch.float64)
    sampling = params.sampling
    times = times_of(sampling, lambda: load_model(params, arguments.model, ("vae",), sampling))
    return method_from(params, arguments.variant, plan, weights, times)


def read_training_data(params: Params, arguments: Arguments, stored: EncodedPrompts) -> TrainingData:
    """Read the train and held-out prompts, and the rewards; every prompt that training uses must have embeddings."""
    train, prompts = params.train, stored.of("train")
    scorers, unseen = read_scorers(params, arguments.scorers), train.heldout.scorers
    used = scheduled_prompts(arguments.seed, train.iterations, train.prompts_per_iteration, len(prompts))
    return TrainingData(
        prompts=stored.require(prompts, used),
        heldout=stored.require(first(stored.of("eval"), train.heldout.num_prompts)),
        reward=reward_of(params, scorers, params.rewards),
        unseen=reward_of(params, scorers, dict.fromkeys(unseen, 1.0)) if unseen else None,
    )


def read_scorers(params: Params, location: str) -> dict[str, Scorer]:
    """The scorers used in training, as the stage check_scorers recorded them, on the executors of params.yaml."""
    specs = [spec_from(record, location) for record in read_json(location).values()]
    return {spec.key: place_checked(spec, params.scorers, params.executors) for spec in specs}


def reward_of(params: Params, scorers: Mapping[str, Scorer], weights: Mapping[str, float]) -> Reward:
    """Weighted sum of scorers."""
    return Reward(scorers, weights, params.train.reward_attempts, params.train.reward_wait)


def metric_rows(variant: str, seed: int, rows: Iterable[MetricRow]) -> list[dict[str, str | int | float]]:
    """Rows of train_metrics/1."""
    who: dict[str, str | int | float] = {"variant": variant, "train_seed": seed}
    return [{**who, "iteration": i, "metric": metric, "value": value} for i, metric, value in rows]


def main(params: Params, arguments: Arguments) -> None:
    """Train; resume from a checkpoint if there is one.

    Settings, and the policy to start from, must be the recorded ones.
    """
    variant_of(params, arguments)
    require_optimizer(params.train.optimizer)
    processes = Processes()  # before anything is loaded: this selects the process's GPU
    processes.receive(inputs_of(arguments))
    check_settings(params, arguments)
    writes = processes.is_main
    for place in (KEPT, LOGS) if writes else ():
        check_writable(place / arguments.variant)
    processes.by_main(lambda: forget_recorded(remove_copies=remove_copies))
    copies = processes.by_main(copies_of_environment)
    method = read_method(params, arguments)
    name = f"{arguments.variant}/seed-{arguments.seed}"
    shown = training_settings(params, arguments.variant)
    with encoded_prompts(arguments.prompts, arguments.embeddings, params.sampling) as stored:
        data = read_training_data(params, arguments, stored)
        key = processes.once_a_machine(
            lambda: checkpoint_key(params, arguments, data), "the inputs of this training"
        )
        folder, is_owner = KEPT / key, processes.owns_disk(KEPT)
        results = results_of(arguments, folder)
        if processes.by_main(results.exist):
            processes.by_main(lambda: take(results, folder))
            return
        start = params.train.start_from
        begin = None if start is None else local_policy(start, "train.start_from")
        copies = None if copies is None else join(copies, key)
        paths = RunPaths(folder, key, LOGS, name, params.trackers, shown, begin, copies)
        with output_dir(arguments.out) if writes else nullcontext(Path()) as draft, STOP.deferred():
            metrics = train(params, arguments, data, method, paths, draft)
            if writes:
                rows = metric_rows(arguments.variant, arguments.seed, metrics)
                write_metrics(rows, draft, arguments.timings)
                write_curves(rows, arguments.curves)
    if params.train.keep_state:
        return
    # Machine 0 forgets first: parts on the other machines without its files do no harm, but not the reverse.
    processes.by_main(lambda: end(results, folder))
    if is_owner and not writes:
        forget(folder)
    if writes and copies is not None and not results.exist():
        remove_copies(copies)


def results_of(arguments: Arguments, folder: Path) -> Results:
    """The results of a training; the file of its wall-clock metrics is no other training's."""
    outputs = {"out": arguments.out, "curves": arguments.curves, "timings": arguments.timings}
    return Results(folder, outputs)


def take(results: Results, folder: Path) -> None:
    """Write the results of a training that ended, and was killed before DVC had recorded them."""
    sys.stderr.write("training had ended; its results are taken over\n")
    results.restore()
    forget(folder)


def end(results: Results, folder: Path) -> None:
    """Keep the results where DVC is still to record them, and remove the checkpoints."""
    results.keep()
    forget(folder)


def train(
    params: Params,
    arguments: Arguments,
    data: TrainingData,
    method: Method,
    paths: RunPaths,
    out: Path,
) -> list[MetricRow]:
    """Train, and write the policy, and the best one if it is kept, to `out`."""
    family = load_model(params, arguments.model, ("transformer",), params.sampling)
    trainer = Trainer(family, data, method, params.train, arguments.seed, paths)
    check_settings(
        params, arguments
    )  # again: the policy to start from may have been edited while it was read
    metrics = finite_rows(trainer.run(lambda: STOP.requested))
    trainer.save_policies(out)
    return metrics


def write_metrics(rows: list[dict[str, str | int | float]], draft: Path, timings: str) -> None:
    """Write metrics to the folder `draft`, and wall-clock metrics to `timings`."""
    seconds = [row for row in rows if str(row["metric"]).startswith(TIMED)]
    others = [row for row in rows if not str(row["metric"]).startswith(TIMED)]
    write_table(table_from_rows(others, "train_metrics"), str(draft / "metrics.parquet"), "train_metrics")
    write_table(table_from_rows(seconds, "train_metrics"), timings, "train_metrics")


def write_curves(rows: list[dict[str, str | int | float]], location: str) -> None:
    """Write the training reward by iteration, and that of the held-out images, to the folder `location`.

    A file for each line of a plot: DVC draws all files of a folder.
    """
    with output_dir(location) as folder:
        for metric, name in CURVES.items():
            points = [row for row in rows if row["metric"] == metric]
            columns = {
                "iteration": [row["iteration"] for row in points],
                "reward": [row["value"] for row in points],
            }
            write_csv(pa.table(columns), str(folder / f"{name}.csv"))


def forget(folder: Path) -> None:
    """Remove the checkpoints of a finished run, not its kept results.

    Iteration checkpoints are removed first: if the process is killed in between, a remaining checkpoint still has the
    best policies that it needs.
    """
    if not folder.exists():
        return  # no checkpoint was due before training stopped early
    for path in sorted(folder.glob("iteration-*.pt")):
        path.unlink()
    if not (results := Results(folder, {})).exist():
        shutil.rmtree(folder)
        return
    for path in folder.iterdir():
        if path != results.folder:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def shared_rows(params: Params, arguments: Arguments) -> int:
    """Number of trajectories of an update, which the processes divide evenly."""
    return starts_of_update(params.train, variant_of(params, arguments).branching)


if __name__ == "__main__":
    sys.exit(
        run_processes(
            main, Arguments, divisible=shared_rows, on_cpus=lambda params: params.train.cpu_processes
        )
    )
