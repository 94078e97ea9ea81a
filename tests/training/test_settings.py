"""Settings of speed and memory: the training of the default within a bound, and ratios of 1 on policy."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from safetensors.torch import load_file
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from chunk_grpo.errors import ConfigError
from chunk_grpo.families import compiling
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.training.processes import Processes
from tests.training.conftest import CHUNK_WS, LORA
from tests.training.worker import Job, Seen, do, result, run_pair

TUNING: dict[str, dict[str, Any]] = {"full": {}, "LoRA, checkpointing": {**LORA, "gradient_checkpointing": True}}
RUN: dict[str, Any] = {"iterations": 2, "kl_coef": 0.0, "old_log_probs": "training"}


@pytest.fixture(scope="module", params=["full", pytest.param("LoRA, checkpointing", marks=pytest.mark.slow)])
def tuning(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What is trained."""
    return {**RUN, **TUNING[request.param]}


@pytest.fixture(scope="module")
def default(tuning: dict[str, Any], prompts: PromptSet, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Two iterations with the settings of the preset tiny."""
    return trained(Job(CHUNK_WS, tuning), prompts, tmp_path_factory.mktemp("default"))


def trained(job: Job, prompts: PromptSet, folder: Path) -> Seen:
    seen = do(job, prompts, folder)
    assert seen.error == ""
    assert max(seen.metric("fidelity_p99")) < 1e-4
    return seen


def is_close(seen: Seen, default: Seen, gradient: float, weights: float) -> bool:
    """Whether the first gradient (relative norm) and the last weights (largest difference) stay within bounds."""
    assert seen.gradient is not None
    assert default.gradient is not None
    first = float((seen.gradient - default.gradient).norm() / default.gradient.norm())
    last = max(float((seen.weights[name] - value).abs().max()) for name, value in default.weights.items())
    return first <= gradient and last <= weights


RATE = 1.5e-4
"""Learning rate: AdamW moves a weight by about as much an update, whatever the size of its gradient."""


def test_the_fused_optimizer_makes_the_same_steps(tuning, default, prompts, tmp_path):
    seen = trained(Job(CHUNK_WS, {**tuning, "optimizer": "adamw-fused"}), prompts, tmp_path)
    assert is_close(seen, default, 0.0, 1e-6)


ALIKE: dict[str, Any] = {
    "rollout_batch_size": 6,
    "micro_batch_size": 64,
    "iterations": 1,
    "updates_per_iteration": 1,
    "heldout": {"images_per_prompt": 3},
}
"""Batches of six images without gradients and of one number of items with them, for few graphs: each takes seconds."""


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize(
    ("compiler", "changes"),
    [
        ("eager", {}),
        pytest.param("aot_eager", LORA | {"gradient_checkpointing": True, "kl_coef": 0.05}, marks=pytest.mark.slow),
        pytest.param("inductor", {"kl_coef": 0.05}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(900)
def test_compiled_blocks(compiler: str, changes: dict[str, Any], prompts: PromptSet, tmp_path: Path) -> None:
    """`eager` runs the traced operations, `aot_eager` differentiates their graph, `inductor` generates code.

    With a KL term the reference is a compiled copy. Weights and files have the same names.
    """
    job = Job(CHUNK_WS, {**RUN, **ALIKE, **changes}, compiler=compiler)
    plain = trained(job, prompts, tmp_path / "plain")
    counters.clear()
    seen = trained(replace(job, train={**job.train, "compile": True}), prompts, tmp_path / "compiled")
    assert counters["stats"]["unique_graphs"] >= 4
    assert is_close(seen, plain, 1e-4, 2 * RATE)
    assert seen.weights.keys() == plain.weights.keys()
    files = [sorted((tmp_path / way).rglob("*.safetensors")) for way in ("plain", "compiled")]
    assert [file.name for file in files[0]] == [file.name for file in files[1]] != []
    for a, b in zip(*files, strict=True):
        assert load_file(a).keys() == load_file(b).keys()


class Block(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


class Blocks(torch.nn.Sequential):
    _repeated_blocks = ("Block",)


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("sizes", [12, pytest.param(260, marks=pytest.mark.slow)])
def test_compiles_for_any_number_of_batch_sizes(sizes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update's last micro-batch has any number of items; torch's own limits are 8 and 256 graphs."""
    monkeypatch.setattr(compiling, "_BACKEND", "eager")
    network = Blocks(Block(), Block())
    compiling.compile_blocks(network)
    counters.clear()
    for images in range(1, sizes + 1):
        network(torch.zeros(images, 2))
    assert counters["stats"]["unique_graphs"] == sizes


@pytest.mark.usefixtures("graphs")
def test_a_block_that_does_not_compile_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(compiling, "_BACKEND", fails)
    monkeypatch.setattr(compiling, "_OPTIONS", None)
    network = Blocks(Block())
    compiling.compile_blocks(network)
    said = r"torch cannot compile a block here \(RuntimeError: no kernel\); .* or set train\.compile to false$"
    with pytest.raises(ConfigError, match=said):
        network(torch.zeros(1, 2))


@pytest.mark.usefixtures("graphs")
def test_graphs_are_kept_in_a_folder_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_BACKEND", "eager")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    given = str(tmp_path / "given")
    for own, found in ((default_cache_dir(), str(tmp_path / "chunk-grpo" / "compiled")), (given, given)):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", own)
        compiling.compile_blocks(Blocks(Block()))
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == found


TWICE = """
import torch
from torch._dynamo.utils import counters
from chunk_grpo.families import compiling

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        return (x @ self.weight).sin()

network = torch.nn.Sequential(Block(), Block())
network._repeated_blocks = ("Block",)
compiling.compile_blocks(network)
network(torch.zeros(2, 4)).sum().backward()
found = counters["inductor"]
print([found["fxgraph_cache_miss"], found["fxgraph_cache_hit"]])
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    said = [
        subprocess.run(
            [sys.executable, "-c", TWICE],
            env=variables | {"XDG_CACHE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]
        for _ in range(2)
    ]
    (missed, _), (missed_again, hit_again) = map(json.loads, said)
    assert missed > 0 and missed_again == 0 and hit_again > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("graphs")
def test_a_compiled_training_is_resumed_to_the_same_bytes(prompts: PromptSet, tmp_path: Path) -> None:
    """Other numbers of images are compiled first, as in a new process; numbers of items differ between updates."""
    few = {"prompts_per_iteration": 4, "group_size": 4, "rollout_batch_size": 4, "micro_batch_size": 4}
    train = {**RUN, **LORA, **few, "compile": True, "checkpoint_every": 2}
    job = Job(CHUNK_WS, train, folder="stopped")
    whole = do(replace(job, folder="whole"), prompts, tmp_path)
    stopped = do(replace(job, stop_at=18), prompts, tmp_path, rank=1)
    torch.compiler.reset()
    resumed = do(job, prompts, tmp_path)
    assert "training resumes from there" in stopped.error
    assert resumed.error == whole.error == ""
    assert resumed.has_weights_of(whole)


@pytest.mark.usefixtures("graphs")
def test_a_pass_without_a_backward_pass_keeps_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph is a training's: the output requires a gradient as there, but leads back to no earlier block."""
    monkeypatch.setattr(compiling, "_BACKEND", "eager")
    network = Blocks(Block(), Block())
    compiling.compile_blocks(network)
    x = torch.ones(2, 2, requires_grad=True)
    counters.clear()
    expected = network(x)
    with torch.no_grad(), compiling.graphs_of_training():
        found = network(x)
    assert counters["stats"]["unique_graphs"] == 1
    assert torch.equal(found, expected)
    assert found.requires_grad
    assert found.grad_fn is None
    assert expected.grad_fn is not None


ROUNDING: dict[str, dict[str, Any]] = {**TUNING, "LoRA": LORA}
"""Trained weights in bfloat16, for which the compiled graphs with and without a gradient round differently."""

ONE_IMAGE = {"rollout_batch_size": 1, "micro_batch_size": 1, "iterations": 1, "old_log_probs": "rollout"}
"""Batches of one image in every pass."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("cfg_scale", [1.0, 2.0])
@pytest.mark.parametrize("name", ROUNDING)
def test_compiled_ratios_of_a_policy_to_itself_are_1(name, cfg_scale, prompts, tmp_path):
    """Old log-probabilities are the rollout's. Other numbers of images would round differently by themselves."""
    train = {**RUN, **ONE_IMAGE, **ROUNDING[name], "compile": True}
    seen = do(Job(CHUNK_WS, train, dtype="bfloat16", cfg_scale=cfg_scale), prompts, tmp_path)
    assert seen.error == ""
    assert seen.metric("fidelity_p99") == [0.0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiled_blocks_of_shards(prompts: PromptSet, tmp_path: Path) -> None:
    """Two processes; the reference is a sharded copy. Ratios of a policy to itself are 1, too."""
    shards = {**RUN, "group_size": 4, "shard_weights": True}
    plain = Job(CHUNK_WS, {**shards, **ALIKE, "kl_coef": 0.05}, "plain")
    compiled = replace(plain, folder="compiled", train={**plain.train, "compile": True}, compiler="eager")
    ratios = Job(CHUNK_WS, {**shards, **LORA, **ONE_IMAGE, "compile": True}, "ratios", dtype="bfloat16")
    run_pair({"plain": plain, "compiled": compiled, "ratios": ratios}, prompts, tmp_path)
    for rank in range(2):
        first, seen, own = (result(tmp_path, name, rank) for name in ("plain", "compiled", "ratios"))
        assert first.error == seen.error == own.error == ""
        assert is_close(seen, first, 1e-4, 2 * RATE)
        assert max(seen.metric("fidelity_p99")) < 1e-4
        assert own.metric("fidelity_p99") == [0.0]


def test_a_machine_without_a_compiler_is_refused(prompts, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    torch.compiler.reset()
    with torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}):
        seen = do(Job(CHUNK_WS, {**RUN, "compile": True}), prompts, tmp_path)
    assert "ConfigError: train.compile: torch cannot compile for cpu here" in seen.error
    assert seen.looks == 0


def test_no_more_images_are_decoded_together_than_the_update_has_items(prompts, tmp_path, monkeypatch):
    """Four and a rest of two. Other group sizes move pixels by 1e-5, and rewards, of 256 values a pixel, by 0.01."""
    decode, seen = FluxFamily.decode, []

    def counted(self: FluxFamily, latents: torch.Tensor) -> torch.Tensor:
        seen.append(len(latents))
        found = decode(self, latents)
        whole = decode(self, latents.repeat(2, 1, 1))[: len(latents)]
        assert (found - whole).abs().max() < 1e-5
        return found

    base = Job(CHUNK_WS, {**RUN, "iterations": 1, "rollout_batch_size": 6, "micro_batch_size": 64})
    default = trained(base, prompts, tmp_path / "default")
    monkeypatch.setattr(FluxFamily, "decode", counted)
    few = trained(replace(base, train={**base.train, "micro_batch_size": 4}), prompts, tmp_path)
    assert max(seen) == 4
    assert sum(seen) == 6 + 2 * 4  # the rollout, and two held-out evaluations
    for name in ("reward_mean", "heldout_reward"):
        assert few.metric(name)[0] == pytest.approx(default.metric(name)[0], abs=0.01)


def test_a_programs_own_accelerator_keeps_its_settings() -> None:
    """A program that trains with the library may accumulate gradients in a loop of its own."""
    own = Accelerator(gradient_accumulation_steps=8, mixed_precision="bf16")
    try:
        assert Processes().count == 1
        assert own.gradient_accumulation_steps == 8
        assert own.mixed_precision == "bf16"
    finally:
        own.free_memory()
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ACCELERATE_USE_FSDP", "true", r"accelerate is set to FSDP: set train\.shard_weights to true instead"),
        # Each would train for itself and write the same files.
        ("WORLD_SIZE", "2", "2 processes were started, but accelerate sees 1: without GPUs"),
    ],
)
def test_refuses_environment_that_accelerate_reads_otherwise(variable, value, message, monkeypatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=message):
        Processes()
