"""Train one variant with one training seed; write the policy and its metrics."""

import os
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from chunk_grpo import environment
from chunk_grpo.artifacts import check_writable, join, output_dir, read_json, table_from_rows, write_csv, write_table
from chunk_grpo.artifacts.kept import KEPT, Kept, forget_recorded
from chunk_grpo.artifacts.manifest import ITERATIONS, Notes
from chunk_grpo.artifacts.pictures import INDEX
from chunk_grpo.artifacts.storage import is_remote
from chunk_grpo.config import Params, TrainParams, VariantParams
from chunk_grpo.errors import ConfigError
from chunk_grpo.library.checkpoint import recorded_checkpoint
from chunk_grpo.library.runs import moving_settings, resume_key, trained, training_data
from chunk_grpo.library.stored_prompts import EncodedPrompts, encoded_prompts, first
from chunk_grpo.library.times import times_of
from chunk_grpo.recorded import require_training, training_settings
from chunk_grpo.scorers.running.placing import place_checked
from chunk_grpo.scorers.running.spec import spec_from
from chunk_grpo.stopping import STOP
from chunk_grpo.training.copies import remove_copies
from chunk_grpo.training.journal import FILE, read_journal
from chunk_grpo.training.method import Method, method_from
from chunk_grpo.training.metrics import MetricRow
from chunk_grpo.training.optimizers import require_optimizer
from chunk_grpo.training.plans import read_plan
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.run import RunPaths, TrainingData
from chunk_grpo.training.schedule import prompts_of_iteration, scheduled_prompts, starts_of_update
from stages._launch.processes import run_processes
from stages._stage import reads, value, writes

TIMED = ("seconds_", "rate_")
"""Prefixes of wall-clock metrics, which differ between runs and are written to a file of their own."""

CURVES = {"reward_mean": "reward", "heldout_reward": "held-out"}
"""Metric that is drawn, to the name of its file."""

LOGS = Path("logs")
"""Tracker logs. Not a DVC output: they contain timestamps."""


@dataclass(frozen=True)
class Arguments:
    variant: str = value("name of the variant")
    seed: int = value("training seed")
    settings: str = reads("JSON of stage inputs: settings of the variant's training")
    model: str = reads("JSON of stage inputs: content of the base model's files")
    prompts: str = reads("prompts/1, Parquet")
    pictures: str = reads("folder with pictures/1 and the pictures that prompts edit")
    embeddings: str = reads("folder with embeddings/2 and its shards")
    plan: str = reads("chunk_plan/1, Parquet: the variant's chunks")
    scorers: str = reads("JSON of stage check_scorers: specs of the scorers used in training")
    out: str = writes("folder for transformer/ and metrics.parquet")
    curves: str = writes("folder for reward.csv and held-out.csv, for `dvc plots`")
    timings: str = writes("train_metrics/1, Parquet: wall-clock metrics")


def variant_of(params: Params, arguments: Arguments) -> VariantParams:
    """Settings of the trained variant."""
    if arguments.variant not in params.variants:
        raise ConfigError(
            f"--variant: must be a name in variants ({', '.join(params.variants)}), got {arguments.variant!r}"
        )
    return params.variants[arguments.variant]


def read_method(params: Params, arguments: Arguments) -> Method:
    """The variant's method, with its chunk plan and the Eq. (16) weights."""
    sampling, planned = params.sampling, params.variants[arguments.variant].plan
    plan, weights = read_plan(arguments.plan, planned, sampling.num_sde_steps)
    checkpoint = recorded_checkpoint(params.model, arguments.model, sampling)
    times = times_of(sampling.num_steps, sampling.shift, lambda: checkpoint.loaded("vae"))
    return method_from(params, arguments.variant, plan, weights, times)


def read_training_data(params: Params, arguments: Arguments, stored: EncodedPrompts) -> TrainingData:
    """Prompts and rewards; every prompt that training uses must have embeddings."""
    train, prompts = params.train, stored.of("train")
    used = scheduled_prompts(arguments.seed, train.iterations, train.prompts_per_iteration, len(prompts))
    heldout = stored.require(first(stored.of("eval"), train.heldout.num_prompts))
    specs = [spec_from(record, arguments.scorers) for record in read_json(arguments.scorers).values()]
    scorers = {spec.key: place_checked(spec, params.scorers, params.executors) for spec in specs}
    return training_data(stored.require(prompts, used), heldout, scorers, params.rewards, train)


def checkpoint_key(params: Params, arguments: Arguments, data: TrainingData) -> str:
    """Name of the computation.

    It includes the variant's name: two variants with equal settings may train at the same time, and the first one to
    finish removes its checkpoints. Of the embeddings those of the first iteration and of the held-out prompts stand
    for all: the others are of the same encoder, and more iterations have more of them.
    """
    about = params.model_dump(mode="json", include={"model", "sampling", "rewards"})
    about |= training_settings(params, arguments.variant)
    about["train"] = moving_settings(params.train, params.variants[arguments.variant])
    about["start"] = read_json(arguments.settings)["start"]
    pictures = join(arguments.pictures, INDEX)
    files = (arguments.model, arguments.prompts, pictures, arguments.plan, arguments.scorers)
    count = params.train.prompts_per_iteration
    first_ones = prompts_of_iteration(0, count, len(data.prompts), arguments.seed)
    embedded = (data.prompts.rows(first_ones), data.heldout)
    return resume_key([about, arguments.variant, arguments.seed], files, embedded)


def start_of(train: TrainParams) -> Path | None:
    """File or folder of the policy that training starts from; None: the base model's network."""
    if train.start_from is None:
        return None
    from chunk_grpo.families.weights.policy import local_policy  # here: imports diffusers, which a launcher can spare

    return local_policy(train.start_from, "train.start_from")


def copies_of_environment() -> str | None:
    """Folder (absolute) or URL of the copies of all trainings' checkpoints; None: there are no copies."""
    location = os.environ.get(environment.CHECKPOINTS)
    if not location:
        return None
    if not is_remote(location) and not Path(location).is_absolute():
        raise ConfigError(f"{environment.CHECKPOINTS}: must be a URL or an absolute path, got {location!r}")
    check_writable(join(location, "probe"))
    return location


def main(params: Params, arguments: Arguments) -> Notes:
    """Train; resume from a checkpoint if there is one.

    Settings, and the policy to start from, must be the recorded ones. The manifest gets the number of iterations that
    this process trained: its seconds are of these alone.
    """
    variant_of(params, arguments)
    require_optimizer(params.train.optimizer)
    processes = Processes()  # before anything is loaded: this selects the process's GPU
    require_training(params, arguments.variant, arguments.settings)
    writes = processes.is_main
    for place in (KEPT, LOGS) if writes else ():
        check_writable(place / arguments.variant)
    processes.by_main(lambda: forget_recorded(remove_copies=remove_copies))
    copies = processes.by_main(copies_of_environment)
    method = read_method(params, arguments)
    checkpoint = recorded_checkpoint(params.model, arguments.model, params.sampling)
    name = f"{arguments.variant}/seed-{arguments.seed}"
    shown = training_settings(params, arguments.variant)
    scale = params.sampling.cfg_scale
    with encoded_prompts(arguments.prompts, arguments.embeddings, scale, arguments.pictures) as stored:
        data = read_training_data(params, arguments, stored)
        key = processes.by_main(lambda: checkpoint_key(params, arguments, data))
        folder = KEPT / key
        kept = Kept(folder, {name: getattr(arguments, name) for name in ("out", "curves", "timings")})
        if processes.by_main(kept.has_ended):
            processes.by_main(kept.take_over)
            return {ITERATIONS: 0}
        copies = None if copies is None else join(copies, key)
        paths = RunPaths(folder, key, LOGS, name, params.trackers, shown, start_of(params.train), copies)
        with output_dir(arguments.out) if writes else nullcontext(Path()) as draft, STOP.deferred():
            metrics = trained(
                checkpoint, data, method, params.train, arguments.seed, paths, draft,
                # again: the policy to start from may have been edited while it was read
                lambda: require_training(params, arguments.variant, arguments.settings),
            )  # fmt: skip
            if writes:
                write_metrics(metrics, arguments, draft)
    if not params.train.keep_state:
        processes.by_main(kept.end)
        if writes and copies is not None and not kept.has_ended():
            remove_copies(copies)
    return {ITERATIONS: trained_now(metrics, LOGS / name)}


def trained_now(metrics: Iterable[MetricRow], journal: Path) -> int:
    """Number of iterations that this process trained; the journal's heading has those before."""
    record = read_journal(journal / FILE)
    return max(number for number, _, _ in metrics) - (record.heading.done if record else 0)


def write_metrics(metrics: Iterable[MetricRow], arguments: Arguments, draft: Path) -> None:
    """Write metrics to the folder `draft`, wall-clock metrics and curves elsewhere.

    A curve is a file of its own, because DVC draws all files of a folder.
    """
    rows = [
        {"variant": arguments.variant, "train_seed": arguments.seed, "iteration": i, "metric": m, "value": v}
        for i, m, v in metrics
    ]
    for is_timed, location in ((False, str(draft / "metrics.parquet")), (True, arguments.timings)):
        own = [row for row in rows if str(row["metric"]).startswith(TIMED) == is_timed]
        write_table(table_from_rows(own, "train_metrics"), location, "train_metrics")
    with output_dir(arguments.curves) as folder:
        for metric, name in CURVES.items():
            points = [row for row in rows if row["metric"] == metric]
            columns = {"iteration": [row["iteration"] for row in points], "reward": [row["value"] for row in points]}
            write_csv(pa.table(columns), str(folder / f"{name}.csv"))


def shared_rows(params: Params, arguments: Arguments) -> int:
    """Number of trajectories of an update, which the processes divide evenly."""
    return starts_of_update(params.train, variant_of(params, arguments).branching)


if __name__ == "__main__":
    sys.exit(run_processes(main, Arguments, divisible=shared_rows, on_cpus=lambda params: params.train.cpu_processes))
