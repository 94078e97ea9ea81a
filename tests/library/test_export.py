"""Export of a finished run: the files, and a card that says what they are."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from diffusers import FluxTransformer2DModel
from safetensors.torch import load_file

import chunk_grpo as cg
from chunk_grpo.__main__ import call
from chunk_grpo.artifacts import write_json
from chunk_grpo.config import load_params
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.reporting.statistics import Interval
from tests.conftest import ROOT, VARIANT, Workspace
from tests.families.conftest import disturb, options

RISES = {
    "tuned": {"shapes-exact": {"mean": 0.5, "difference": 0.25, "low": 0.125, "high": 0.375, "size": 0.5}},
    "hybrid": {"shapes-exact": {"mean": 0.125, "difference": -0.125, "low": None, "high": None, "size": -0.2}},
    "small": {"shapes-exact": {"mean": 0.2504, "difference": 0.0004, "low": 0.0003, "high": 0.0005, "size": 0.01}},
}
"""As in summary.json of a report; null: no interval."""

POLICY = "artifacts/train/{}/seed-{}/transformer"


@pytest.fixture
def run(finished: Workspace, tmp_path: Path) -> Workspace:
    """A copy of a finished run whose policy is an adapter with alpha twice the rank."""
    shutil.copytree(finished.root, tmp_path / "run", symlinks=True)
    copied = Workspace(tmp_path / "run")
    adapter = {"rank": 3, "alpha": 6.0, "targets": ["to_q", "proj_out"]}
    ran_with(copied, lambda raw: raw["train"].update(lora=adapter))
    family = FluxFamily.load(LoadOptions(str(ROOT / "assets/tiny-flux"), height=32, width=32), ("transformer",))
    family.prepare_training(options(rank=3, targets=("to_q", "proj_out")), seed=0)
    disturb(family)
    folder = copied.root / POLICY.format(VARIANT, seed(copied))
    shutil.rmtree(folder)
    family.save_transformer(family.policy_state(), folder)
    summary = {"prompts": 9, "train_seeds": 1, "base": {"shapes-exact": 0.25}, VARIANT: RISES}
    (copied.artifacts / "report").mkdir(exist_ok=True)
    (copied.artifacts / "report" / "summary.json").write_text(json.dumps(summary))
    return copied


def ran_with(run: Workspace, change: Callable[[dict[str, Any]], object]) -> None:
    """Change params.yaml, and what the stages have read of it."""
    run.edit(change)
    params = load_params(run.root / "params.yaml")
    write_json(params.model_dump(mode="json"), str(run.artifacts / "inputs" / "params.json"))


def seed(run: Workspace) -> int:
    (folder,) = (run.artifacts / "train" / VARIANT).glob("seed-*")
    return int(folder.name.removeprefix("seed-"))


def exported(run: Workspace, kind: str, out: Path, variant: str = VARIANT) -> int:
    options = ["--seed", str(seed(run)), "--to", kind, "--out", str(out), "--checkout", str(run.root)]
    return call("export", [variant, *options])


def test_the_files_and_their_card(run: Workspace, tmp_path: Path) -> None:
    assert [exported(run, kind, tmp_path / kind) for kind in ("diffusers", "comfyui", "merged")] == [0, 0, 0]
    trained = run.root / POLICY.format(VARIANT, seed(run)) / "pytorch_lora_weights.safetensors"
    assert (tmp_path / "diffusers" / trained.name).read_bytes() == trained.read_bytes()
    name = f"{VARIANT}-seed-{seed(run)}.safetensors"
    alphas = [value for key, value in load_file(tmp_path / "comfyui" / name).items() if key.endswith(".alpha")]
    assert {float(value) for value in alphas} == {6.0}
    FluxTransformer2DModel.from_pretrained(tmp_path / "merged")
    for kind in ("diffusers", "comfyui", "merged"):
        text = (tmp_path / kind / "README.md").read_text()
        assert text.startswith("---\nlibrary_name: diffusers\ntags:")
        assert "| adapter | rank 3, alpha 6, to_q, proj_out |\n" in text
        table = text.partition("95 % intervals.")[2].partition("## Licence")[0].splitlines()
        assert [line.rstrip() for line in table if line.startswith("|")] == [
            "| | shapes-exact |",
            "|---|---:|",
            "| base | 0.250 |",
            "| tuned | 0.500, +0.250 (+0.125 to +0.375) |",
            "| hybrid | 0.125 |",
            "| small | 0.250, +0.0004 (+0.0003 to +0.0005), too small to see |",
        ]
        assert "| base model | tiny-flux, not on the hub, family flux |\n" in text
        assert str(ROOT) not in text
    assert "_name_or_path" not in (tmp_path / "merged" / "config.json").read_text()
    assert "ComfyUI's `models/loras`" in (tmp_path / "comfyui" / "README.md").read_text()


@pytest.mark.parametrize("kind", ["diffusers", "merged"])
def test_the_lines_of_the_card_draw(run, tmp_path, monkeypatch, kind):
    assert exported(run, kind, tmp_path / "out") == 0
    monkeypatch.chdir(tmp_path / "out")
    Path("tiny-flux").symlink_to(ROOT / "assets" / "tiny-flux")
    lines = Path("README.md").read_text().partition("```python\n")[2].partition("```")[0]
    assert f"num_inference_steps={load_params(run.root / 'params.yaml').generate.num_steps})" in lines
    exec(lines, {})
    assert Path("picture.png").exists()


def test_a_base_on_the_hub_is_named_for_it(run: Workspace, tmp_path: Path) -> None:
    ran_with(run, lambda raw: raw["model"].update(checkpoint="maker/model", revision="a" * 40))
    shutil.rmtree(run.artifacts / "report")
    assert exported(run, "comfyui", tmp_path / "out") == 0
    text = (tmp_path / "out" / "README.md").read_text()
    assert "\nbase_model: maker/model\n" in text
    assert f"| base model | maker/model at {'a' * 40}, family flux |\n" in text
    assert "The run has no report." in text


def test_an_adapter_of_a_quantised_base_is_merged_into_the_whole_one(run: Workspace, tmp_path: Path) -> None:
    assert exported(run, "merged", tmp_path / "whole") == 0
    ran_with(run, lambda raw: raw["model"].update(base_precision="nf4"))
    assert exported(run, "merged", tmp_path / "out") == 0
    weights = "diffusion_pytorch_model.safetensors"
    assert (tmp_path / "out" / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()
    assert "family flux; in training its layers were nf4 |\n" in (tmp_path / "out" / "README.md").read_text()


def test_a_later_edit_of_the_parameters_is_not_in_the_card(run: Workspace, tmp_path: Path) -> None:
    assert exported(run, "diffusers", tmp_path / "before") == 0
    run.edit(lambda raw: raw["train"].update(learning_rate=0.5))
    assert exported(run, "diffusers", tmp_path / "after") == 0
    before, after = ((tmp_path / name / "README.md").read_text() for name in ("before", "after"))
    assert before == after
    assert "learning rate 0.5" not in after


def test_a_card_has_the_variants_own_settings(run: Workspace, tmp_path: Path) -> None:
    own = {"learning_rate": 0.25, "clip_range": 0.125}
    ran_with(run, lambda raw: raw["variants"][VARIANT].update(own))
    shutil.rmtree(run.artifacts / "report")
    assert exported(run, "diffusers", tmp_path / "out") == 0
    assert "learning rate 0.25, clip range 0.125 |" in (tmp_path / "out" / "README.md").read_text()


def test_a_policy_and_a_report_of_earlier_settings_are_not_taken_for_the_last_ones(run, tmp_path, capsys):
    """The last run was stopped before its training, or before its report."""

    def entry(*sections: str, **changes: Any) -> dict[str, Any]:
        settings = json.loads((run.artifacts / "inputs" / "params.json").read_text())
        content = (run.root / record).read_bytes()
        deps = [{"path": record, "md5": hashlib.md5(content, usedforsecurity=False).hexdigest()}]
        return {"deps": deps, "params": {"p": {name: settings[name] for name in sections} | changes}}

    def lock(train: dict[str, Any], report: dict[str, Any]) -> None:
        stages = {f"train@{VARIANT}-{seed(run)}": train, "report": report}
        (run.root / "dvc.lock").write_text(json.dumps({"stages": stages}))

    record = f"artifacts/inputs/variants/{VARIANT}.json"
    trained, reported = entry("model", "rewards"), entry("train", "sampling")
    lock(trained, reported)
    assert exported(run, "diffusers", tmp_path / "same") == 0
    assert "| tuned |" in (tmp_path / "same" / "README.md").read_text()
    lock(trained, entry("train", sampling={}))
    assert exported(run, "diffusers", tmp_path / "trained") == 0
    assert "The run has no report." in (tmp_path / "trained" / "README.md").read_text()
    lock(entry("model", rewards={}), reported)
    assert exported(run, "diffusers", tmp_path / "other") == 3
    assert "was trained with other settings" in capsys.readouterr().err
    (run.root / record).write_text("{}")
    lock(trained, reported)
    assert exported(run, "diffusers", tmp_path / "other") == 3


def test_what_cannot_be_exported_leaves_nothing(run, tmp_path, capsys):
    out = tmp_path / "out"
    assert exported(run, "comfyui", out, "chunky") == 2
    assert "got chunky with seed" in capsys.readouterr().err
    folder = run.root / POLICY.format(VARIANT, seed(run))
    shutil.rmtree(folder)
    assert exported(run, "comfyui", out) == 3
    assert "run `chunk-grpo run` there" in capsys.readouterr().err
    folder.mkdir()
    assert exported(run, "comfyui", out) == 3
    assert "All weights were trained" in capsys.readouterr().err
    assert not out.exists()
    out.mkdir()
    assert exported(run, "diffusers", out) == 2
    assert "exists; name another folder" in capsys.readouterr().err


def test_a_policy_of_the_library_is_exported_with_its_card(model: cg.Model, tmp_path: Path) -> None:
    """The adapter acts in diffusers as in training; a name is the file's, and intervals stand in the card."""

    def green(images: Any, prompts: Any, metadata: Any) -> Any:
        return images[..., 1].mean(axis=(1, 2)) / 255

    prompts = model.encode(["a red circle", "a blue square"])
    sampling = model.sampling(num_steps=4, shift=3.0)
    profile = model.profile(prompts, sampling, seeds=1)
    policy = cg.train(
        model, prompts, prompts.rows([1]), green, cg.method("step"), sampling, profile, tmp_path / "policy",
        iterations=1, prompts_per_iteration=2, group_size=2, updates_per_iteration=1, learning_rate=0.1,
        clip_range=1e-3, lora={"rank": 2, "alpha": 4.0, "targets": ["to_q"]},
    )  # fmt: skip
    rise = Interval(0.25, 0.125, 0.375, 0.05, 3.0, 1, 4, 4)
    cg.export(policy, tmp_path / "comfyui", "comfyui", name="green", measured={"green, hybrid": rise})
    assert (tmp_path / "comfyui" / "green.safetensors").exists()
    card = (tmp_path / "comfyui" / "README.md").read_text()
    assert "# green\n\nPolicy `green`, training seed 0, trained with chunk-grpo.\n" in card
    assert "| prompts | 2 for training |\n| training reward | green |\n" in card
    assert "| commit |" not in card
    assert "| adapter | rank 2, alpha 4, to_q |\n" in card
    assert "| green, hybrid | +0.250 (+0.125\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}+0.375) |\n" in card
    cg.export(policy.folder, tmp_path / "merged", "merged")
    drawn: dict[str, Any] = {"num_steps": 4, "shift": 3.0}
    merged = cg.sample(model, prompts, tmp_path / "merged", **drawn).pictures.astype(int)
    tuned = cg.sample(model, prompts, policy, **drawn).pictures.astype(int)
    assert abs(merged - tuned).max() <= 1
    assert abs(merged - cg.sample(model, prompts, **drawn).pictures).max() > 1
    assert "Nothing was given to this card." in (tmp_path / "merged" / "README.md").read_text()
    with pytest.raises(ConfigError, match="to: must be one of diffusers, comfyui, merged, got 'safetensors'"):
        cg.export(policy, tmp_path / "other", "safetensors")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"training\.json"):
        cg.export(tmp_path / "merged", tmp_path / "other")
