"""Memory, peak rates and links of GPUs by name, and the shares of a peak that passes reach."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from chunk_grpo.errors import ConfigError


@dataclass(frozen=True)
class Rates:
    """TFLOP/s that a GPU reaches, or shares of its peak, by what it computes."""

    forward: float
    """Passes without gradients; VAE, scorers and text encoders too."""
    update: float
    """Forward and backward passes, with recomputed operations."""
    compiled_forward: float
    """Passes without gradients of a training with `train.compile`."""
    compiled_update: float
    """Forward and backward passes with it."""

    @classmethod
    def equal(cls, tflops: float) -> Rates:
        """One rate for everything, compiled or not."""
        return cls(tflops, tflops, tflops, tflops)

    def times(self, factor: float) -> Rates:
        """All of them, multiplied."""
        return Rates(*(factor * rate for rate in astuple(self)))


REACHED = Rates(forward=0.40, update=0.33, compiled_forward=1.335 * 0.40, compiled_update=1.36 * 0.33)
"""Shares of the peak that passes reach, by one H200 with FLUX.1-dev's blocks (docs/performance.md, "On a GPU").

Forward passes of 4 and 12 images reached 0.40. Updates of as many reached 0.32 to 0.36, recomputed operations included,
those with an adapter 0.32 and 0.33. With compiled blocks 4 images took 0.281 s instead of 0.375, and an update with an
adapter and recomputation 1.093 s instead of 1.487. That other cards and networks reach these shares, and compiled
updates without recomputation as much as those with it, is assumed; `benchmarks.flux_gpu` measures a card.
"""

REACHED_LINK = 2 / 3
"""Share of the link's rate that collectives reach, assumed."""

NETWORK_GBS = 50
"""GB/s that a GPU receives from other machines: a network card of 400 Gb/s for each GPU, assumed."""

USABLE_MEMORY = 0.985
"""Share of the memory, as it is sold in GB, that a process sees in GiB: 80 GB are 79 GiB on an H100."""


@dataclass(frozen=True)
class Gpu:
    """A GPU's data sheet."""

    memory_gb: float
    """Memory as sold."""
    peak_tflops: float
    """bfloat16 with float32 sums, dense."""
    link_gbs: float
    """GB/s that it receives from the other cards of its machine (half of the sheet's number, which counts both
    directions)."""

    @property
    def rates(self) -> Rates:
        """TFLOP/s to expect."""
        return REACHED.times(self.peak_tflops)

    @property
    def gbs(self) -> float:
        """GB/s to expect of collectives."""
        return REACHED_LINK * self.link_gbs


GPUS = {
    # NVIDIA's data sheets of each product (nvidia.com/data-center, SXM forms; "with sparsity" halved).
    "A100": Gpu(80, 312, 300),
    "A100-40GB": Gpu(40, 312, 300),
    "H800": Gpu(80, 989, 200),
    "H100": Gpu(80, 989, 450),
    "H200": Gpu(141, 989, 450),
    "B200": Gpu(180, 2250, 900),
    # PCIe 4.0 with 16 lanes is their link, PCIe 5.0 of the last two. The RTX 5090 has a quarter of its sparse 838
    # float16 TFLOP/s, as the RTX 4090 has of 660.
    "L40S": Gpu(48, 362, 32),
    "RTX4090": Gpu(24, 165, 32),
    "RTX5090": Gpu(32, 209.5, 64),
    "RTXPRO6000": Gpu(96, 503.8, 64),
}
"""GPUs by name."""


@dataclass(frozen=True)
class Machine:
    """What a plan assumes of the machines."""

    gpu: str
    """Name in `GPUS`."""
    gpus: int
    """GPUs at hand."""
    machines: int
    """Machines with as many GPUs each."""
    memory_gb: float
    """Memory of a GPU as sold."""
    rates: Rates
    """TFLOP/s reached by a GPU."""
    gbs: float
    """GB/s that a GPU receives in collectives."""
    network_gbs: float
    """GB/s of them that it receives from other machines, if all GPUs of a machine receive."""
    disk_gbs: float
    """GB/s of the disk of weights and checkpoints."""
    stop_seconds: float
    """Seconds from a stop request to SIGKILL."""
    price: float | None
    """Price of a GPU for an hour; None: no money is shown."""

    @property
    def memory_bytes(self) -> float:
        """Bytes of a GPU that a process can use."""
        return USABLE_MEMORY * self.memory_gb * 2**30


def machine(
    gpu: str,
    gpus: int,
    *,
    stop_seconds: float,
    machines: int = 1,
    memory_gb: float | None = None,
    tflops: float | None = None,
    gbs: float | None = None,
    network_gbs: float | None = None,
    disk_gbs: float = 1.0,
    price: float | None = None,
) -> Machine:
    """A machine with the GPU's own numbers where None is given; the number of GPUs is that of all its `machines`.

    `stop_seconds` is from a stop request to SIGKILL; `tflops` is one rate for everything, compiled or not. Defaults:
    memory of a GPU of the data sheet; rates REACHED of the peak; `gbs` (GB/s of collectives) REACHED_LINK of the link;
    `network_gbs` (between machines) REACHED_LINK of NETWORK_GBS. `price` is that of a GPU for an hour.
    """
    if gpus % machines:
        raise ConfigError(f"--gpus: must be a multiple of --machines, {machines}, got {gpus}")
    sheet = GPUS[gpu]
    return Machine(
        gpu,
        gpus,
        machines,
        sheet.memory_gb if memory_gb is None else memory_gb,
        sheet.rates if tflops is None else Rates.equal(tflops),
        sheet.gbs if gbs is None else gbs,
        REACHED_LINK * NETWORK_GBS if network_gbs is None else network_gbs,
        disk_gbs,
        stop_seconds,
        price,
    )
