"""Each stage on the smoke preset, by its command line in dvc.yaml: what it writes; again in test_families.py."""

import csv
import json
import re
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from diffusers import FluxTransformer2DModel
from safetensors.torch import load_file

from chunk_grpo.artifacts import SchemaName, read_manifest, read_table
from chunk_grpo.config import load_params
from chunk_grpo.core.choices import SDES
from chunk_grpo.image_files import decode_image
from chunk_grpo.training.schedule import prompts_of_iteration
from tests.checkpoints import newest
from tests.conftest import ORDER, SCORER, VARIANT, Workspace
from tests.waiting import wait_for


def rows(workspace: Workspace, path: str, schema: SchemaName) -> list[dict[str, Any]]:
    return read_table(workspace.artifacts / path, schema).to_pylist()


def results(workspace: Workspace) -> dict[str, bytes]:
    """Everything but the manifests and measured seconds."""
    files = workspace.files().items()
    return {name: content for name, content in files if not name.startswith(("runs/", "timings/"))}


def test_every_stage_leaves_its_manifest(finished: Workspace) -> None:
    names = {path.stem for path in (finished.artifacts / "runs").iterdir()}
    assert len(names) == len(ORDER) - 1  # but for inputs, which always runs
    for name in names:
        manifest = read_manifest(finished.artifacts / "runs" / f"{name}.json")
        assert manifest.stage == name
        assert manifest.seconds > 0


def test_prompts_are_balanced_and_held_out(finished: Workspace) -> None:
    prompts = load_params(finished.root / "params.yaml").prompts
    training = rows(finished, "prompts/training.parquet", "prompts")
    evaluation = rows(finished, "prompts/evaluation.parquet", "prompts")
    sizes = {"train": prompts.train_count, "eval": prompts.eval_count, "wise": prompts.wise_count}
    assert Counter(row["split"] for row in training) == {n: sizes[n] for n in ("train", "eval")}
    assert Counter(row["split"] for row in evaluation) == {n: sizes[n] for n in ("eval", "wise")}
    of_eval = [row for row in training if row["split"] == "eval"]
    assert of_eval == [row for row in evaluation if row["split"] == "eval"]
    found = training + [row for row in evaluation if row["split"] == "wise"]
    counts = Counter(row["split"] for row in found)
    texts = {split: {row["prompt"] for row in found if row["split"] == split} for split in counts}
    assert texts["train"].isdisjoint(texts["eval"])
    by_category = Counter(row["category"] for row in found if row["split"] == "train")
    assert len(by_category) == 6
    assert max(by_category.values()) - min(by_category.values()) <= 1
    assert len({row["prompt_id"] for row in found}) == len(found)
    assert all(json.loads(row["metadata"])["prompt"] == row["prompt"] for row in found)


@pytest.mark.parametrize(
    ("part", "table"),
    [("training/seed-0", "scheduled/seed-0"), ("profile", "scheduled/profile"), ("evaluation", "evaluation")],
)
def test_embeddings_have_a_row_for_every_text(part: str, table: str, finished: Workspace) -> None:
    index = rows(finished, f"embeddings/{part}/index.parquet", "embeddings")
    prompts = rows(finished, f"prompts/{table}.parquet", "prompts")
    assert [(row["prompt_id"], row["prompt"]) for row in index] == [
        (row["prompt_id"], row["prompt"]) for row in prompts
    ]
    tensors = load_file(finished.artifacts / "embeddings" / part / "shard-00000.safetensors")
    texts = {row["prompt"] for row in index}
    assert {len(tensor) for tensor in tensors.values()} == {len(texts)}
    assert {row["row"] for row in index} == set(range(len(texts)))
    assert len({(row["prompt"], row["row"]) for row in index}) == len(texts)


def test_embeddings_have_the_same_bytes_again(finished: Workspace, workspace: Workspace) -> None:
    (workspace.artifacts / "embeddings" / "evaluation").rename(workspace.root / "older")
    assert workspace.run("encode_prompts@evaluation") == 0
    assert results(workspace) == results(finished)


def test_only_prompts_that_training_or_the_profile_uses_are_encoded(
    finished: Workspace, workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 16 train prompts: the first 4 for the profile, and 2 in each of 2 iterations; 2 of 8 eval prompts."""
    params = load_params(finished.root / "params.yaml")
    train, heldout = (
        [row["prompt_id"] for row in rows(finished, "prompts/training.parquet", "prompts") if row["split"] == s]
        for s in ("train", "eval")
    )
    drawn = {at for i in range(2) for at in prompts_of_iteration(i, 2, 16, seed=0)}
    expected = [train[at] for at in sorted(drawn)] + heldout[:2]
    assert (params.prompts.train_count, len(train), len(heldout)) == (16, 16, 8)
    assert [row["prompt_id"] for row in rows(finished, "prompts/scheduled/seed-0.parquet", "prompts")] == expected
    profile = rows(finished, "prompts/scheduled/profile.parquet", "prompts")
    assert [row["prompt_id"] for row in profile] == train[:4]
    assert workspace.run("prepare_prompts") == 0
    assert f"train: {len(drawn | {0, 1, 2, 3})} of 16 prompts are used" in caplog.text


@pytest.mark.slow
def test_adding_a_seed_keeps_files_of_the_first(workspace: Workspace) -> None:
    """The inputs of a seed's training, which DVC compares; and the scores are those of both seeds."""
    inputs = ("inputs/variants/", "prompts/scheduled/seed-0", "prompts/scheduled/profile", "variants/")
    before = workspace.files()
    workspace.edit(lambda raw: raw["train"].update(seeds=[3, 0]))
    for stage in ORDER[: ORDER.index("train")]:
        assert replace(workspace, seed=3).run(stage) == 0, stage
    after = workspace.files()
    for name in (name for name in before if name.startswith(inputs)):
        assert after[name] == before[name], name
    assert {name for name in after if "seed-3" in name} >= {
        "prompts/scheduled/seed-3.parquet",
        "embeddings/training/seed-3/index.parquet",
    }
    for stage in ("train", "generate", "score"):
        assert replace(workspace, seed=3).run(stage) == 0, stage
    scores = rows(workspace, f"scores/{VARIANT}/{SCORER}.parquet", "scores")
    assert list(dict.fromkeys(row["train_seed"] for row in scores)) == [3, 0]


def test_settings_that_were_not_recorded_are_refused(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    workspace.edit(lambda raw: raw["train"].update(kl_coef=0.5))
    assert workspace.run_as_recorded("train") == 3
    said = f"artifacts/inputs/variants/{VARIANT}.json: must have the settings of params.yaml"
    assert said in capsys.readouterr().err


def test_a_schedule_without_embeddings_is_refused_before_work(
    workspace: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_family(*_: object) -> NoReturn:
        raise AssertionError("the model was to be loaded before this was found")

    monkeypatch.setattr("chunk_grpo.library.checkpoint.load_family", load_family)
    workspace.edit(lambda raw: raw["train"].update(iterations=6))
    capsys.readouterr()
    assert workspace.run("train") == 3
    assert re.match(
        r"error: artifacts/embeddings/training/seed-0: must hold the prompts of "
        r"artifacts/prompts/training\.parquet that this stage uses, got no row for 'train-\d+', '.*'; "
        r"run `dvc repro`\n",
        capsys.readouterr().err,
    )


def test_the_profile_has_both_samplers_and_every_step(finished: Workspace) -> None:
    params = load_params(finished.root / "params.yaml")
    found = rows(finished, "profile/l1_profile.parquet", "l1_profile")
    per_curve = Counter((row["sampler"], row["prompt_id"], row["seed"]) for row in found)
    assert len(per_curve) == 2 * params.profile.num_prompts * params.profile.num_seeds
    assert set(per_curve.values()) == {params.sampling.num_steps}
    assert all(row["l1_rel"] > 0 and row["t"] > row["t_next"] >= 0 for row in found)
    with (finished.artifacts / "profile" / "l1_profile.csv").open() as lines:
        curves = list(csv.DictReader(lines))
    assert [int(row["step"]) for row in curves] == list(range(params.sampling.num_steps))
    for sampler in ("sde", "ode"):
        means = [
            np.mean([row["l1_rel"] for row in found if (row["sampler"], row["step"]) == (sampler, step)])
            for step in range(params.sampling.num_steps)
        ]
        assert [float(row[sampler]) for row in curves] == pytest.approx(means, rel=1e-12)


def test_the_profile_follows_the_kind_of_noise(workspace: Workspace) -> None:
    """Same eta for all kinds; the deterministic sampler takes none of it."""
    curves: dict[str, set[tuple[float, ...]]] = {"sde": set(), "ode": set()}
    noisy = SDES.keys() - {"ode"}
    for sde in noisy:
        workspace.edit(lambda raw, sde=sde: raw["sampling"].update(sde=sde, eta=0.9))
        assert workspace.run("profile_l1") == 0
        table = rows(workspace, "profile/l1_profile.parquet", "l1_profile")
        for sampler, found in curves.items():
            found.add(tuple(row["l1_rel"] for row in table if row["sampler"] == sampler))
    assert {sampler: len(found) for sampler, found in curves.items()} == {"sde": len(noisy), "ode": 1}


def test_every_plan_covers_the_noisy_steps_with_its_weights(finished: Workspace) -> None:
    params = load_params(finished.root / "params.yaml")
    profile = rows(finished, "profile/l1_profile.parquet", "l1_profile")
    noisy = range(params.sampling.num_sde_steps)
    mean = [np.mean([r["l1_rel"] for r in profile if r["sampler"] == "sde" and r["step"] == s]) for s in noisy]
    sizes = json.loads((finished.artifacts / "chunks" / "chunks.json").read_text())
    assert sizes.keys() == params.chunks.plans.keys()
    assert sizes["listed"] == [2, 3, 4, 7]
    for name in sizes:
        plan = rows(finished, f"chunks/{name}.parquet", "chunk_plan")
        assert [row["num_steps"] for row in plan] == sizes[name]
        assert sum(sizes[name]) == len(noisy)
        for row in plan:
            steps = slice(row["first_step"], row["first_step"] + row["num_steps"])
            assert row["mean_l1"] == pytest.approx(np.mean(mean[steps]))
            assert row["weight"] == pytest.approx(np.mean(mean[steps]) / np.mean(mean))  # Eq. (16)


def test_training_leaves_loadable_policies_and_no_checkpoint(finished: Workspace) -> None:
    params = load_params(finished.root / "params.yaml")
    found = rows(finished, f"train/{VARIANT}/seed-0/metrics.parquet", "train_metrics")
    assert {row["train_seed"] for row in found} == set(params.train.seeds)
    heldout = [row["iteration"] for row in found if row["metric"] == "heldout_reward"]
    assert heldout == list(range(params.train.iterations + 1))
    network = FluxTransformer2DModel.from_pretrained(finished.artifacts / "train" / VARIANT / "seed-0" / "transformer")
    base = FluxTransformer2DModel.from_pretrained(Path(params.model.checkpoint) / "transformer")
    pairs = zip(network.parameters(), base.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)
    assert list((finished.root / ".ckpt").iterdir()) == []


def test_every_policy_draws_the_same_prompts_and_seeds(finished: Workspace) -> None:
    tables = [rows(finished, finished.images(name), "images") for name in ("base", VARIANT)]
    base, tuned = tables
    starts = {(row["prompt_id"], row["sample"]): row["seed"] for row in base}
    assert len(starts) == len(base) == 12
    assert {(row["mode"], row["train_seed"]) for row in base} == {("base", -1)}
    assert {(row["mode"], row["train_seed"]) for row in tuned} == {("tuned", 0), ("hybrid", 0)}
    for mode in ("tuned", "hybrid"):
        assert {(r["prompt_id"], r["sample"]): r["seed"] for r in tuned if r["mode"] == mode} == starts
    paths = [row["image"]["path"] for row in base + tuned]
    assert len(set(paths)) == len(paths)
    assert decode_image(base[0]["image"]["bytes"], paths[0]).shape == (32, 32, 3)
    grid = (finished.artifacts / "images" / VARIANT / "seed-0" / "grid.png").read_bytes()
    assert decode_image(grid, "grid.png").shape[2] == 3


def test_every_image_has_a_score(finished: Workspace) -> None:
    for name in ("base", VARIANT):
        images = rows(finished, finished.images(name), "images")
        scores = rows(finished, f"scores/{name}/{SCORER}.parquet", "scores")
        keys = ("policy", "mode", "train_seed", "prompt_id", "sample")
        assert [[r[k] for k in keys] for r in scores] == [[r[k] for k in keys] for r in images]
        assert {(row["scorer"], row["metric"]) for row in scores} == {(SCORER, "score")}
        assert all(0 <= row["value"] <= 1 for row in scores)


@pytest.mark.slow  # the default tier stops a trainer in test_start.py and a process in test_stage.py
def test_training_that_is_stopped_goes_on_and_ends_the_same(workspace: Workspace) -> None:
    """SIGTERM in mid-training, as a scheduler sends it; the second run makes what one run would have made."""
    workspace.schedule(iterations=6)
    assert workspace.run("train") == 0
    whole = results(workspace)
    target = workspace.artifacts / "train" / VARIANT / "seed-0"
    target.rename(workspace.root / "older")
    with workspace.process("train") as process:
        wait_for(lambda: newest(workspace.root), 120, "the first iteration")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 75
    assert re.search(r"(?m)^stopped after iteration ([1-5]) of 6; kept in \S+/iteration-00000\1(-1)?\. Run", errors)
    assert "Traceback" not in errors
    assert not target.exists()
    assert newest(workspace.root) >= 1
    assert workspace.run("train") == 0
    assert results(workspace) == whole
    assert list((workspace.root / ".ckpt").iterdir()) == []


def test_an_adapter_is_trained_drawn_and_scored(workspace: Workspace) -> None:
    """The trained policy is the base with an adapter of a few kilobytes; images come from both together."""
    lora = {"rank": 2, "alpha": 400.0, "targets": ["to_q", "to_k", "to_v"]}
    workspace.edit(lambda raw: raw["train"].update(lora=lora, learning_rate=0.01))
    for stage in ("train", "generate", "score"):
        assert workspace.run(stage) == 0
    folder = workspace.artifacts / "train" / VARIANT / "seed-0" / "transformer"
    assert [path.name for path in folder.iterdir()] == ["pytorch_lora_weights.safetensors"]
    images = {"base": rows(workspace, "images/base/images.parquet", "images")}
    for row in rows(workspace, f"images/{VARIANT}/seed-0/images.parquet", "images"):
        images.setdefault(row["mode"], []).append(row)
    pictures = {mode: [row["image"]["bytes"] for row in found] for mode, found in images.items()}
    assert all(a != b for a, b in zip(pictures["tuned"], pictures["base"], strict=True))
    assert all(a != b for a, b in zip(pictures["hybrid"], pictures["tuned"], strict=True))


@pytest.mark.slow  # test_editing.py has guided families in the default tier
def test_a_guided_policy_is_trained_and_drawn(workspace: Workspace) -> None:
    """Guidance away from another prompt changes images, and is trained through."""
    before = workspace.files()

    def guide(raw: dict[str, Any]) -> None:
        raw["model"].update(negative_prompt="a green cross", cfg_passes=2)
        raw["sampling"]["cfg_scale"] = raw["generate"]["cfg_scale"] = 2.0

    workspace.edit(guide)
    for stage in ORDER[ORDER.index("encode_prompts@profile") : ORDER.index("score_base")]:
        assert workspace.run(stage) == 0, stage
    after = workspace.files()
    for name in (f"images/{VARIANT}/seed-0/images.parquet", "images/base/images.parquet"):
        assert after[name] != before[name]
    assert sorted(name for name in after if name.endswith("negative.safetensors")) == [
        "embeddings/evaluation/negative.safetensors",
        "embeddings/profile/negative.safetensors",
        "embeddings/training/seed-0/negative.safetensors",
    ]


def test_training_that_stops_early_may_have_no_checkpoint(workspace: Workspace) -> None:
    """The best score is the first one, so that it ends after one iteration, before a checkpoint is due."""

    def edit(raw: dict[str, Any]) -> None:
        raw["train"]["heldout"].update(every=1, patience=1, keep_best=False)

    workspace.edit(edit)
    workspace.schedule(learning_rate=1e-12, iterations=6, checkpoint_every=5)
    assert workspace.run("train") == 0
    metrics = rows(workspace, f"train/{VARIANT}/seed-0/metrics.parquet", "train_metrics")
    assert max(row["iteration"] for row in metrics) == 1
    assert not list((workspace.root / ".ckpt").glob("*"))
