"""Bytes and files against what the smoke preset writes, within 3 %, and what stages read at FLUX.1-dev's size."""

from pathlib import Path

import pytest
from safetensors import safe_open

from chunk_grpo.artifacts import read_table
from chunk_grpo.config import load_params
from chunk_grpo.families.base import TuningOptions
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.planning.cost import loaded_bytes
from chunk_grpo.planning.memory import averages_of
from chunk_grpo.planning.models import read_checkpoint
from chunk_grpo.planning.scorers import scoring
from chunk_grpo.planning.settings import Settings, settings_of
from chunk_grpo.planning.storage import (
    checkpoint_bytes,
    images_of,
    policy_bytes,
    prompts_of,
    storage_of,
    unfinished_bytes,
)
from chunk_grpo.training.schedule import prompts_of_iteration
from infra.plan import only
from tests.conftest import VARIANT, Workspace
from tests.planning.planned import edited, plan, preset, settings, with_variant


@pytest.fixture(scope="module")
def smoke(finished: Workspace) -> Settings:
    params = load_params(finished.root / "params.yaml")
    return settings_of(params, read_checkpoint(params.model.family, params.model.checkpoint), 1)


def test_embeddings(finished: Workspace, smoke: Settings) -> None:
    """Bytes of a row; the evaluation prompts of smoke are all distinct, so they have a row each."""
    folder = finished.artifacts / "embeddings"
    for split in ("training", "profile", "evaluation"):
        files = [p for p in folder.rglob("shard-*.safetensors") if p.relative_to(folder).parts[0].startswith(split)]
        rows = 0
        for file in files:
            with safe_open(file, "np") as stored:
                rows += stored.get_slice("pooled").get_shape()[0]
        written = sum(file.stat().st_size for file in files)
        assert rows * smoke.network.text_bytes == pytest.approx(written, rel=0.03)
        if split == "evaluation":
            assert storage_of(smoke).evaluation_embeddings == pytest.approx(written, rel=0.03)


def test_images(finished: Workspace, smoke: Settings) -> None:
    """All variants' images; one variant was run here."""
    variants, seeds = len(smoke.params.variants), len(smoke.params.train.seeds)
    base = read_table(str(finished.artifacts / "images/base/images.parquet"), "images").num_rows
    own = read_table(finished.images(VARIANT), "images").num_rows
    assert images_of(smoke.params) == base + variants * own
    assert own == 2 * seeds * base


def test_policies(finished: Workspace, smoke: Settings) -> None:
    folder = finished.artifacts / f"train/{VARIANT}/seed-0/transformer"
    written = sum(path.stat().st_size for path in folder.iterdir())
    assert policy_bytes(smoke) == pytest.approx(written, rel=0.03)


def test_checkpoints(smoke: Settings, tmp_path: Path) -> None:
    """A checkpoint of the toy network with AdamW's state."""
    import torch

    from chunk_grpo.training.checkpoint import TrainingState
    from tests.checkpoints import save, store_in
    from tests.training.conftest import OPTIONS

    family = FluxFamily.load(OPTIONS, ("transformer",))
    family.prepare_training(TuningOptions(None, 1.0, (), False, None), 0)
    parameters = list(family.trainable_parameters())
    optimizer = torch.optim.AdamW(parameters)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    state = TrainingState(1, family.trainable_state(), optimizer.state_dict(), [])
    save(store_in(tmp_path), state)
    written = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert checkpoint_bytes(smoke) == pytest.approx(written, rel=0.03)


def test_each_average_is_a_copy_of_the_trained_weights() -> None:
    """The average that is evaluated, and DiffusionNFT's that samples."""
    found = []
    for decay, averages in ((None, {}), (None, {"sampling_average": {}}), (0.9, {"sampling_average": {}})):
        params = edited(preset("tiny"), train={"ema_decay": decay})
        found.append(settings(with_variant(params, objective="step", plan="step", likelihood="nft", **averages)))
    copies = [checkpoint_bytes(each) - checkpoint_bytes(found[0]) for each in found]
    assert copies == [0, 4 * found[0].network.trained_weights, 8 * found[0].network.trained_weights]
    assert [averages_of(each, next(iter(each.params.variants))) for each in found] == [0, 1, 2]


def test_kept_checkpoints_are_those_of_all_runs() -> None:
    """Two seeds of three variants; two checkpoints each, and one that is being written; each may have a best policy."""
    plain = edited(preset("flux-dev"), train={"seeds": (0, 1)})
    kept = edited(plain, train={"keep_state": True})
    assert len(plain.variants) == 3 and plain.train.heldout.keep_best
    found = storage_of(settings(plain, 8))
    assert found.checkpoints == 3 * (found.checkpoint + found.policy)
    assert storage_of(settings(kept, 8)).checkpoints == 13 * (found.checkpoint + found.policy)


def test_prompts_that_are_drawn() -> None:
    """The union of prompts_of_iteration over all iterations and seeds, also where an epoch ends within one."""
    tiny = preset("tiny")
    for seeds, iterations, count in (((0,), 40, 8), ((0,), 10, 8), ((0,), 30, 7), ((0, 1), 10, 8)):
        params = edited(tiny, train={"seeds": seeds, "iterations": iterations, "prompts_per_iteration": count,
                                     "updates_per_iteration": 1})  # fmt: skip
        total = params.prompts.train_count
        met = {row for seed in seeds for n in range(iterations) for row in prompts_of_iteration(n, count, total, seed)}
        assert prompts_of(params).used == len(met)
    assert 80 < prompts_of(params).used < 160  # the seeds meet the same prompts in part


def test_flux_storage_bytes_by_hand() -> None:
    """flux-dev: 2,400 prompts of 512 x 4096 + 768 bfloat16, 32 of the profile, 32 held-out; and 12 bytes a weight."""
    found = storage_of(settings(preset("flux-dev"), 8))
    assert found.training_embeddings + found.evaluation_embeddings == 2864 * (512 * 4096 + 768) * 2
    assert found.checkpoint == 142_816_899_840
    assert found.policy == 2 * 11_901_408_320
    assert found.images == 400 * (1 + 2 * 3)


def test_outputs_are_on_the_disk_twice_and_in_a_bucket_once() -> None:
    """flux-dev: 12.02 GB of embeddings, 6 policies of 23.80 GB with the best ones, 2,800 images of 1024 x 1024 x 1.5.

    Three checkpoints of 142.82 GB, each with the best policy's 23.80 GB, are no outputs of DVC.
    """
    found = storage_of(settings(preset("flux-dev"), 8))
    embeddings, policies, images = 2864 * (512 * 4096 + 768) * 2, 6 * 2 * 11_901_408_320, 2800 * 1024**2 * 1.5
    assert found.outputs == embeddings + policies + images
    assert found.disk == 3 * (142_816_899_840 + 2 * 11_901_408_320) + 2 * found.outputs


def test_a_stop_within_an_iteration_saves_the_trajectories() -> None:
    """192 images of 18 states and the final latent, 2025 x 64 float32."""
    flux = settings(preset("flux-dev"), 8)
    assert unfinished_bytes(flux, "chunk") == 192 * 19 * 2025 * 64 * 4


def test_loading_of_weights() -> None:
    """FLUX.1-dev in bfloat16: network 23.80 GB, VAE 0.17, T5-XXL and CLIP-L 9.77; three seeds, two variants.

    HPSv3, 16.6 GB, alone is the reward and scores the base and both variants.
    """
    flux = preset("flux-dev")
    two = edited(
        only(flux, ["dance", "chunk"]).model_copy(
            update={"scorers": {"hpsv3": flux.scorers["hpsv3"]}, "executors": {}}
        ),
        train={"seeds": (1, 2, 3), "heldout": {**flux.train.heldout.model_dump(), "scorers": ()}},
    )
    found = {name: size / 1e9 for name, size in loaded_bytes(settings(two)).items()}
    hpsv3 = scoring(two, ("hpsv3",)).bytes / 1e9
    expected = {
        "encode": 5 * 9.77,
        "profile": 23.80,
        "train": 3 * (23.97 + hpsv3),
        "generate": 23.97 + 6 * (23.97 + 23.80),
        "score": 3 * hpsv3,
    }
    assert found == pytest.approx(expected, rel=0.003)
    slow = {stage.name: stage.seconds.least for stage in plan(two, disk_gbs=0.5).stages}
    fast = {stage.name: stage.seconds.least for stage in plan(two, disk_gbs=1.0).stages}
    for name in ("encode", "profile", "generate", "score"):
        assert slow[name] - fast[name] == pytest.approx(expected[name], rel=0.003)
