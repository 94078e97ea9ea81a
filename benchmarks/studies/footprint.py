"""Memory and traffic of training FLUX.1-dev on GPUs that are not there, by torch's trackers.

The network has FLUX.1-dev's configuration (11.9 billion weights) and is prepared by the same code as in training, but
its tensors are fake: they have shapes, types and lifetimes, and no values. The other processes are fake too. What is
counted is exact: bytes of tensors alive at a time (torch's FSDPMemTracker and MemTracker), and bytes of collectives.
Not counted: CUDA's context (about 2.5 GiB), workspaces of kernels, fragmentation, VAE, scorers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, Literal
from unittest.mock import patch

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel
from torch import Tensor, distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from benchmarks.flux_gpu import LORA_TARGETS
from benchmarks.random_flux import VAE, family_of_parts, random_module
from benchmarks.tables import parser_of
from benchmarks.workloads import random_inputs
from chunk_grpo.families.base import Conditioning, TuningOptions
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.sharding import shard_weights

CPU, SIDE, TEXT_TOKENS = torch.device("cpu"), 720, 512


@dataclass(frozen=True)
class Case:
    """What is trained, and on how many GPUs."""

    gpus: int = 8
    """Number of processes; weights are sharded over them if there are several."""
    micro_batch: int = 12
    """Items in a forward and backward pass."""
    rollout_batch: int = 12
    """Trajectories in a forward pass."""
    lora_rank: int | None = None
    """Rank of the adapters; None: all weights are trained."""
    optimizer: Literal["adamw", "adamw-fused"] = "adamw"
    """`adamw` in few operations over all weights, as torch runs it on GPUs, or as one kernel."""
    network: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of FluxTransformer2DModel; its defaults are FLUX.1's."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of one process, apart from `weights`."""

    weights: int
    """Number of weights of the network, in all processes."""
    held: int
    """Weights that the process holds between passes, with the inputs of the passes."""
    optimizer: int
    """AdamW's state."""
    rollout: int
    """Peak of a forward pass without gradients."""
    update: int
    """Peak of a forward and backward pass that adds to the gradients of another."""
    step: int
    """Peak of AdamW's step."""
    gathered_rollout: int
    """Whole weights gathered in a forward pass without gradients."""
    gathered_update: int
    """Whole weights gathered in a forward and backward pass."""
    reduced_update: int
    """Whole gradients reduced in a forward and backward pass."""
    decode: int
    """Peak of decoding a group of images of the rollout, beside its next pass; without the VAE's weights."""


class CollectiveBytes(TorchDispatchMode):
    """Counts the bytes of whole weights that all-gathers make, and of whole gradients that reduce-scatters take."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation here
        self.gathered, self.reduced = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # its local operations are counted
        if func is torch.ops.c10d._allgather_base_.default:
            self.gathered += args[0].nbytes
        elif func is torch.ops.c10d._reduce_scatter_base_.default:
            self.reduced += args[1].nbytes
        return func(*args, **(kwargs or {}))


def measure(case: Case) -> Footprint:
    """Peaks and traffic of one process."""
    scheduler = FlowMatchEulerDiscreteScheduler()  # it reads a value, so its tensors cannot be fake
    with _fake_processes(case.gpus) as mesh, FakeTensorMode(allow_non_fake_inputs=True):
        decode = decode_bytes(min(case.rollout_batch, case.micro_batch), scheduler)
        return _Passes(_family(case, scheduler, mesh), case).footprint(decode)


class _Tracker(MemTracker):
    """Torch's tracker for a network with frozen weights: without hooks on weights, which frozen ones refuse."""

    def _track_module_params_and_buffers(
        self, module: nn.Module, install_grad_hooks: bool = True
    ) -> tuple[int, int]:
        del install_grad_hooks  # they only name what is a gradient
        return super()._track_module_params_and_buffers(module, install_grad_hooks=False)


class _Passes:
    """Passes of a prepared family under torch's tracker."""

    def __init__(self, family: FluxFamily, case: Case) -> None:
        self._family, self._case, self._network = family, case, family.transformer
        parameters = list(family.trainable_parameters())
        fused = case.optimizer == "adamw-fused"
        self._optimizer = torch.optim.AdamW(parameters, lr=1e-5, foreach=not fused, fused=fused)
        self._tracker: Any
        if case.gpus > 1:
            self._tracker = FSDPMemTracker(self._network, self._optimizer)
        else:
            self._tracker = _Tracker()
            self._tracker.track_external(self._network, self._optimizer)

    def footprint(self, decode: int) -> Footprint:
        """Run the passes of an iteration once, in an order in which each phase finds what is alive in training."""
        case = self._case
        # AdamW reads the number of the step, and fake tensors have no values.
        with _without_propagation(), patch("torch.optim.adam._get_value", lambda _: 1.0), self._tracker:
            inputs = [
                random_inputs(self._family, count, TEXT_TOKENS)
                for count in (case.rollout_batch, case.micro_batch)
            ]
            held = _total(self._tracker.get_tracker_snapshot("current"))
            self._backward(*inputs[1])
            self._optimizer.step()
            optimizer = sum(_local(value).nbytes for value in self._states())
            step, _ = self._measured(self._optimizer.step)
            update, of_update = self._measured(lambda: self._backward(*inputs[1]))
            self._optimizer.zero_grad()
            rollout, of_rollout = self._measured(lambda: self._forward(*inputs[0]))
        return Footprint(
            weights=sum(weight.numel() for weight in self._network.parameters()),
            held=held,
            optimizer=optimizer,
            rollout=rollout,
            update=update,
            step=step,
            gathered_rollout=of_rollout.gathered,
            gathered_update=of_update.gathered,
            reduced_update=of_update.reduced,
            decode=decode,
        )

    def _measured(self, work: Callable[[], None]) -> tuple[int, CollectiveBytes]:
        """Peak bytes while `work` runs, and its traffic."""
        self._tracker.reset_mod_stats()
        self._tracker._peak_mem.clear()  # no public method resets the peak alone
        self._tracker._peak_mem_snap.clear()
        with CollectiveBytes() as traffic:
            work()
        return _total(self._tracker.get_tracker_snapshot("peak")), traffic

    @torch.no_grad()
    def _forward(self, x: Tensor, t: Tensor, conditioning: Conditioning) -> None:
        self._family.velocity(x, t, conditioning)

    def _backward(self, x: Tensor, t: Tensor, conditioning: Conditioning) -> None:
        self._tracker.reset_mod_stats()
        torch.autograd.backward(self._family.velocity(x, t, conditioning).square().mean())

    def _states(self) -> list[Tensor]:
        return [value for state in self._optimizer.state.values() for value in state.values()]


def decode_bytes(images: int, scheduler: FlowMatchEulerDiscreteScheduler) -> int:
    """Peak of decoding images of 720 x 720 with FLUX.1's VAE, beyond its weights."""
    vae = random_module(lambda: AutoencoderKL(**VAE), CPU)
    family = family_of_parts(SIDE, CPU, scheduler, vae=vae)
    latents = torch.zeros(images, (SIDE // 16) ** 2, 64)
    tracker = _Tracker()
    tracker.track_external(vae)
    with tracker:
        family.decode(latents)
    weights = sum(int(weight.nbytes) for weight in vae.parameters())
    return _total(tracker.get_tracker_snapshot("peak")) - weights


def _family(case: Case, scheduler: FlowMatchEulerDiscreteScheduler, mesh: DeviceMesh) -> FluxFamily:
    """A bfloat16 network, sharded and prepared as training does it, without text encoders and VAE."""
    network = random_module(lambda: FluxTransformer2DModel(guidance_embeds=True, **case.network), CPU)
    family = family_of_parts(SIDE, CPU, scheduler, transformer=network)
    tuning = TuningOptions(case.lora_rank, 1.0, LORA_TARGETS, gradient_checkpointing=True, autocast=None)

    def spread(sharded: nn.Module, gathered: torch.dtype | None) -> None:
        if case.gpus > 1:
            shard_weights(sharded, mesh, gathered)

    with patch("torch.utils.swap_tensors", _set_data) if case.lora_rank else nullcontext():
        family.prepare_training(tuning, 0, spread)
    return family


def _set_data(target: Tensor, value: Tensor) -> None:
    """Replacement for `torch.utils.swap_tensors`, by which modules are cast: fake tensors refuse to be swapped."""
    target.data = value.data


@contextmanager
def _fake_processes(count: int) -> Iterator[DeviceMesh]:
    """A mesh of processes of which only this one exists; its collectives return at once."""
    distributed.init_process_group("fake", rank=0, world_size=count, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (count,))
    finally:
        distributed.destroy_process_group()


@contextmanager
def _without_propagation() -> Iterator[None]:
    """Inside, DTensor infers shapes unseen by the tracker.

    It infers them on fake tensors of the whole weights. Under an active FakeTensorMode it uses that one, so the tracker
    would take them for memory of the process: AdamW's step on 8 processes would seem to need that of all.
    """
    infer = ShardingPropagator._propagate_tensor_meta_non_cached

    def unseen(*arguments: Any) -> Any:
        with _disable_current_modes():
            return infer(*arguments)

    with patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", unseen):
        yield


def _local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def _total(snapshot: Mapping[torch.device, Mapping[Any, int]]) -> int:
    return sum(parts["Total"] for parts in snapshot.values())


def main(options: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit status."""
    parser = parser_of(__doc__)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=12)
    parser.add_argument("--rollout-batch", type=int, default=12)
    parser.add_argument("--lora-rank", type=int)
    parser.add_argument("--optimizer", choices=("adamw", "adamw-fused"), default="adamw")
    parser.add_argument(
        "--blocks", type=int, help="double and single blocks, each this many; default: FLUX.1's"
    )
    arguments = vars(parser.parse_args(options))
    blocks = arguments.pop("blocks")
    case = Case(
        **arguments, network={} if blocks is None else {"num_layers": blocks, "num_single_layers": blocks}
    )
    print(json.dumps({"case": asdict(case), "bytes": asdict(measure(case))}))  # noqa: T201  # one line for programs
    return 0


if __name__ == "__main__":
    sys.exit(main())
