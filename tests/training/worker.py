"""Trainings of two processes, with the environment of torchrun: what each saw of its jobs.

`do` runs a job in the process of the test, which is the comparison.
"""

import multiprocessing
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from chunk_grpo.config.models import BasePrecision
from chunk_grpo.errors import ChunkGrpoError
from chunk_grpo.families import compiling
from chunk_grpo.families.base import Conditioning
from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.training import trainer as trainers
from chunk_grpo.training.metrics import MetricRow
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.run import RunPaths, TrainingData
from chunk_grpo.training.trainer import Trainer
from chunk_grpo.training.update import Update
from tests.families import parity
from tests.shapes_scorers import reward_that_is_away, shapes_reward
from tests.training.conftest import CHUNK_WS, OPTIONS, method_of, small_params, two_blocks

SGD_RATE = 100.0
"""Learning rate with which SGD moves the toy checkpoint's weights by much more than their rounding."""


@dataclass(frozen=True)
class Job:
    """One call of the trainer."""

    variant: dict[str, Any] = field(default_factory=lambda: dict(CHUNK_WS))
    """Settings of the variant."""
    train: dict[str, Any] = field(default_factory=dict)
    """Changes to the `train` section."""
    folder: str = "job"
    """Of checkpoints and logs; jobs with the same one resume each other."""
    stop_at: int | None = None
    """Number of the look at the stop request that is answered with yes, by process 1."""
    own_folder: bool = False
    """Whether each process gets a folder of its own below that."""
    dtype: str = "float32"
    """Floating-point type of the base weights."""
    base_precision: BasePrecision | None = None
    """Precision of the checkpoint's quantised layers."""
    block_swap: float = 0.0
    """Share of the checkpoint's blocks whose layers stay in the CPU's memory."""
    sgd: bool = False
    """Whether plain SGD takes AdamW's place. AdamW divides by the gradient's own size, so that a rounding error in a
    gradient near 0 moves a weight as far as any other."""
    device: str = "cpu"
    """Device of the policy and the prompts; cuda is each process's own GPU."""
    attention_backend: str | None = None
    """Of diffusers; None: the library's default."""
    compiler: str = "inductor"
    """What torch.compile does with the graphs of `train.compile`."""
    apart: bool = False
    """Whether each process counts as a machine of its own."""
    cfg_scale: float = 1.0
    """Scale of classifier-free guidance away from the first prompt."""
    cfg_passes: Literal[1, 2] = 1
    """Passes of the network for a guided velocity."""
    family: str = "flux"
    """Name of the family, which encodes texts and, if it edits, pictures itself unless it is two blocks."""
    away: range = range(0)
    """Numbers of the calls, from 1, that the reward of process 1 does not answer."""
    checkpoint: str | None = None
    """Random checkpoint of the family; None: two blocks with the toy's VAE."""
    frozen: int | None = None
    """Process for whose checkpoints no time passes; None: neither."""


@dataclass
class Seen:
    """Result of a job in one process."""

    error: str = ""
    """The error that ended it, or ""."""
    rows: list[MetricRow] = field(default_factory=list)
    """Metrics."""
    gradient: Tensor | None = None
    """Of the first update, before it is clipped."""
    moved: Tensor | None = None
    """Weights at the end less those at the start; None with an adapter."""
    held: float = 0.0
    """Of the trained weights and of a copy for reference, the share that this process holds."""
    looks: int = 0
    """How often it looked at the stop request."""
    items: list[int] = field(default_factory=list)
    """Of each update, how many items this process trained."""
    weights: dict[str, Tensor] = field(default_factory=dict)
    """At the end: of the network, or beside a quantised base of the adapter alone."""
    sizes: list[int] = field(default_factory=list)
    """Of the plan at the end."""

    def has_weights_of(self, other: "Seen") -> bool:
        """Whether all weights, at least one, are the same bits."""
        pairs = [(self.weights[name], value) for name, value in other.weights.items()]
        return pairs != [] and all(torch.equal(*pair) for pair in pairs)

    def metric(self, name: str) -> list[float]:
        """A metric's values, iteration after iteration."""
        return [value for _, metric, value in self.rows if metric == name]


def do(job: Job, prompts: PromptSet, root: Path, rank: int = 0) -> Seen:
    """Run a job in this process."""
    params = small_params(job.variant, job.cfg_scale, **job.train)
    if job.device == "cuda":
        Processes()  # selects the process's GPU, as stage train does before it loads anything
    family, conditioning = loaded(job, prompts)
    guided = replace(conditioning, negative=conditioning.rows([0]).tensors)
    prompts = replace(prompts, conditioning=guided)
    start = None if job.train.get("lora") else flat(family.transformer.state_dict())
    data = TrainingData(
        prompts.rows(range(5)),
        prompts.rows([5, 6]),
        reward_that_is_away(
            {"shapes-graded": 1.0, "shapes-vivid": 0.6},
            job.away if rank == 1 else (),
            away_seconds=params.train.reward_away_seconds,
        ),
        shapes_reward({"shapes-exact": 1.0}),
    )
    folder = root / job.folder / (str(rank) if job.own_folder else "")
    paths = RunPaths(folder, "test", folder / "logs", "it", ("tensorboard",) if job.own_folder else ())
    seen = Seen()

    def should_stop() -> bool:
        """Every process counts, and only the second one is told: all of them have to hear of it."""
        seen.looks += 1
        return seen.looks == job.stop_at and rank == 1

    with watched(seen, job, rank):
        try:
            trainer = Trainer(family, data, method_of(params), params.train, 0, paths)
            seen.rows = trainer.run(should_stop)
            seen.sizes = list(trainer._learner.selector.plan.sizes)
            trainer.save_policies(folder / "policies")
            seen.held = held(trainer)
        except ChunkGrpoError as error:
            seen.error = f"{type(error).__name__}: {error}"
    # torchao's tensors refuse much, and stay as they are
    last = family.transformer.state_dict() if job.base_precision is None else family.trainable_state()
    seen.weights = {name: whole(value).cpu().clone() for name, value in last.items()}
    seen.moved = None if start is None else flat(seen.weights) - start
    return seen


def loaded(job: Job, prompts: PromptSet) -> tuple[DiffusersFamily, Conditioning]:
    """The family and its conditioning of the prompts."""
    options = {
        "dtype": getattr(torch, job.dtype),
        "base_precision": job.base_precision,
        "block_swap": job.block_swap,
        "device": job.device,
        "attention_backend": job.attention_backend,
        "cfg_scale": job.cfg_scale,
        "cfg_passes": job.cfg_passes,
    }
    if job.checkpoint is not None:
        other = parity.load(job.family, Path(job.checkpoint), **options)
        sources = parity.module_of(job.family).CASE.sources
        edited = parity.pictures(len(prompts), *sources[0]) if sources else None
        return other, other.encode(prompts.texts, edited, prompts.texts[0])
    return two_blocks(replace(OPTIONS, **options)), prompts.conditioning.to(job.device)


def held(trainer: Trainer) -> float:
    """See `Seen`."""
    reference = getattr(trainer._learner._policies.reference, "__self__", None)
    weights = list(trainer._family.trainable_parameters())
    weights += reference.transformer.parameters() if isinstance(reference, DiffusersFamily) else []
    parts = [weight.to_local() if isinstance(weight, DTensor) else weight for weight in weights]
    return sum(part.numel() for part in parts) / sum(weight.numel() for weight in weights)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be spread over processes."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def flat(weights: dict[str, Tensor]) -> Tensor:
    """All weights in one vector, float64."""
    return torch.cat([value.detach().cpu().double().flatten() for value in weights.values()])


@contextmanager
def watched(seen: Seen, job: Job, rank: int) -> Iterator[None]:
    """Inside, the first gradient and the number of items of each update are kept."""
    clip, accumulate = Processes.clip_gradient, Update.accumulate_gradient

    def clip_gradient(self: Processes, parameters: Any, max_norm: float) -> float:
        if seen.gradient is None:
            trained = [each for each in parameters if each.requires_grad]
            seen.gradient = torch.cat([whole(each.grad).cpu().double().flatten() for each in trained])
        return clip(self, parameters, max_norm)

    def accumulate_gradient(self: Update, *arguments: Any, **options: Any) -> Any:
        seen.items.append(sum(len(part) for part in self._packing.all))
        return accumulate(self, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Processes, "clip_gradient", clip_gradient)
        patch.setattr(Update, "accumulate_gradient", accumulate_gradient)
        patch.setattr(compiling, "_BACKEND", job.compiler)
        if job.apart and "LOCAL_WORLD_SIZE" in os.environ:
            patch.setenv("LOCAL_WORLD_SIZE", "1")
        if job.frozen == rank:
            patch.setattr(trainers, "time", SimpleNamespace(monotonic=lambda: 0.0))
        if job.sgd:
            patch.setattr(torch.optim, "AdamW", plain_sgd)
        yield


def plain_sgd(parameters: list[Tensor], lr: float, weight_decay: float) -> torch.optim.SGD:
    """Replacement for AdamW that ignores its settings."""
    del lr, weight_decay
    return torch.optim.SGD(parameters, lr=SGD_RATE)


def environment(rank: int, port: int, device: str) -> dict[str, str]:
    """torchrun's variables for one of two processes."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    return {
        **os.environ,
        **{name: str(value) for name, value in places.items()},
        "MASTER_ADDR": "127.0.0.1",
        "ACCELERATE_USE_CPU": str(device == "cpu").lower(),
        # What accelerate launch passes on from its configuration must not move results.
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }


PROCESSES = multiprocessing.get_context("forkserver")
"""A server that has imported this module forks the processes, each of which would import for seconds."""
PROCESSES.set_forkserver_preload(["tests.training.worker"])


def in_pair(folder: Path, target: Callable[..., None], *given: Any, device: str = "cpu") -> list[tuple[int, str]]:
    """Call a function of a module in two processes in `folder`; return each one's exit code and what it printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = [
        PROCESSES.Process(target=_called, args=(folder, rank, environment(rank, port, device), target, *given))
        for rank in range(2)
    ]
    try:
        for process in running:
            process.start()
        for process in running:
            process.join(240)
        codes = [process.exitcode for process in running]
    finally:
        for process in running:
            process.kill()
    assert None not in codes, "no end within 240 s"
    return [(code or 0, (folder / f"printed-{rank}").read_text()) for rank, code in enumerate(codes)]


def _called(folder: Path, rank: int, variables: dict[str, str], target: Callable[..., None], *given: Any) -> None:
    os.chdir(folder)
    with Path(f"printed-{rank}").open("w") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    os.environ.update(variables)
    torch.set_num_threads(1)
    target(*given)


def run_pair(
    jobs: dict[str, Job], prompts: PromptSet, folder: Path, device: str = "cpu", compiles: bool = True
) -> None:
    """Do the jobs in two processes; `result` reads what they saw from the folder."""
    ends = in_pair(folder, work, jobs, prompts, compiles, device=device)
    assert [code for code, _ in ends] == [0, 0], "\n".join(printed for _, printed in ends)


def work(jobs: dict[str, Job], prompts: PromptSet, compiles: bool) -> None:
    rank, folder = int(os.environ["RANK"]), Path()
    torch.compiler.set_stance("default" if compiles else "force_eager")
    for name, job in jobs.items():
        seen = do(job, prompts, folder, rank)
        torch.save(asdict(seen), f"{name}-{rank}.pt")
        torch.distributed.barrier()
        if (job.stop_at is not None or job.away) and rank == 0:
            shutil.copytree(job.folder, f"{name}-left")
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def result(folder: Path, name: str, rank: int) -> Seen:
    """Result that a process saved."""
    return replace(Seen(), **torch.load(folder / f"{name}-{rank}.pt", weights_only=True))
