"""Checkpoints of training: what names the computation, and more iterations that go on from a kept one."""

import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.code import copy_code
from chunk_grpo.config import load_params
from chunk_grpo.environment import CHECKPOINTS
from chunk_grpo.errors import DataError
from chunk_grpo.library.stored_prompts import encoded_prompts, first
from chunk_grpo.recorded import require_training
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.training.journal import FILE, read_journal
from chunk_grpo.training.run import TrainingData
from chunk_grpo.training.state_files import MANIFEST
from stages.train import Arguments, checkpoint_key, read_training_data
from tests.conftest import VARIANT, Workspace


def train_arguments(workspace: Workspace) -> Arguments:
    """Arguments of the stage `train`, valid in any current folder."""
    _, options = workspace.options("train")
    given = dict(zip(options[::2], options[1::2], strict=True))
    paths = {
        field.name: given[f"--{field.name}"].replace("artifacts/", f"{workspace.artifacts}/")
        for field in fields(Arguments)
    }
    return Arguments(**paths | {"seed": workspace.seed})


def test_a_checkpoint_belongs_to_a_variant_to_the_code_and_to_the_base_policy(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variants with equal settings may train side by side; and another base policy may have the name of the first."""
    code, model = tmp_path / "code", workspace.root / "model"
    copy_code(code)
    shutil.copytree(load_params(workspace.root / "params.yaml").model.checkpoint, model)
    monkeypatch.setattr("chunk_grpo.code.ROOT", code)
    workspace.edit(lambda raw: raw["model"].update(checkpoint=str(model)))
    workspace.edit(lambda raw: raw["variants"].update(twin=raw["variants"][VARIANT]))
    params, arguments = load_params(workspace.root / "params.yaml"), train_arguments(workspace)

    def key(**changes: Any) -> str:
        assert workspace.run("inputs") == 0
        with encoded_prompts(arguments.prompts, arguments.embeddings, params.sampling.cfg_scale) as stored:
            data = read_training_data(params, arguments, stored)
            return checkpoint_key(params, replace(arguments, **changes), data)

    first = key()
    assert key() == first != key(variant="twin")
    (code / "stages/report.py").write_text((code / "stages/report.py").read_text() + "# another version\n")
    assert key() == first
    weights = model / "transformer" / "diffusion_pytorch_model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert key() != first
    weights.write_bytes(content)
    assert key() == first
    (code / "stages/train.py").write_text((code / "stages/train.py").read_text() + "# another version\n")
    assert key() != first


@pytest.mark.slow  # the default tier tests it in test_library.py
@pytest.mark.parametrize("variant", [VARIANT, "dance"])
def test_more_iterations_go_on_from_the_kept_state(variant: str, workspace: Workspace) -> None:
    """Two and two iterations give the bytes of four; a measurement that was due as the last one is left out."""
    trained = replace(workspace, variant=variant)
    trained.edit(lambda raw: raw["train"].update(ema_decay=0.5))
    trained.edit(lambda raw: raw["train"]["heldout"].update(every=3))

    def train(iterations: int, keep: bool = True) -> dict[str, bytes]:
        trained.schedule(iterations=iterations, keep_state=keep, checkpoints_kept=4)
        assert trained.run("train") == 0
        return trained.files(f"train/{variant}/", f"curves/{variant}/")

    def begun_after() -> int:
        record = read_journal(trained.root / "logs" / variant / "seed-0" / FILE)
        assert record is not None
        return record.heading.done

    four = train(4, keep=False)
    assert list((trained.root / ".ckpt").iterdir()) == []
    two = train(2)
    assert begun_after() == 0
    assert train(4) == four
    assert begun_after() == 2
    assert train(2) == two
    assert begun_after() == 2


def test_training_starts_from_a_policy_of_another_run(workspace: Workspace, tmp_path: Path) -> None:
    """Its files are part of what names the computation."""
    assert workspace.run("train") == 0
    policy, start = tmp_path / "policy", {"revision": None, "file": None}
    shutil.copytree(workspace.artifacts / "train" / VARIANT / "seed-0", policy)
    before = workspace.files()[f"curves/{VARIANT}/seed-0/held-out.csv"].splitlines()
    workspace.edit(lambda raw: raw["train"].update(start_from={"path": str(policy), **start}))
    assert workspace.run("train") == 0
    after = workspace.files()[f"curves/{VARIANT}/seed-0/held-out.csv"].splitlines()
    assert float(after[1].split(b",")[1]) == pytest.approx(float(before[-1].split(b",")[1]), abs=1e-5)
    name = key_of(workspace)
    shutil.copytree(workspace.artifacts / "train" / VARIANT / "seed-0", policy, dirs_exist_ok=True)
    with pytest.raises(DataError, match=r"train\.start_from: the files of .* differ from those recorded"):
        params, arguments = load_params(workspace.root / "params.yaml"), train_arguments(workspace)
        require_training(params, arguments.variant, arguments.settings)
    assert workspace.run("inputs") == 0
    assert key_of(workspace) != name


def key_of(workspace: Workspace) -> str:
    """Name of the computation, without scorers."""
    params, arguments = load_params(workspace.root / "params.yaml"), train_arguments(workspace)
    with encoded_prompts(arguments.prompts, arguments.embeddings, params.sampling.cfg_scale) as stored:
        heldout = stored.require(first(stored.of("eval"), 2))
        return checkpoint_key(params, arguments, TrainingData(stored.of("train"), heldout, Reward({}, {})))


@pytest.mark.parametrize(
    ("edit", "is_another"),
    [
        (
            lambda raw: raw["train"].update(checkpoint_every=7, checkpoint_minutes=5.0, keep_state=True, iterations=9),
            False,
        ),
        (lambda raw: raw["train"].update(seeds=[0, 5]), False),
        (lambda raw: raw["train"].update(kl_coef=0.5), True),
        (lambda raw: raw["train"].update(group_size=8), True),
    ],
)
def test_key_changes_only_with_result_settings(
    edit: Callable[[dict[str, Any]], object], is_another: bool, workspace: Workspace
) -> None:
    before = key_of(workspace)
    workspace.edit(edit)
    assert (key_of(workspace) != before) == is_another


@pytest.mark.parametrize(
    "edit",
    [
        lambda raw: raw["variants"][VARIANT].update(selection="annealed"),
        lambda raw: raw["train"]["heldout"].update(keep_best=True),
        lambda raw: raw["train"]["heldout"].update(patience=3),
    ],
)
def test_key_includes_iterations_if_states_depend_on_them(
    edit: Callable[[dict[str, Any]], object], workspace: Workspace
) -> None:
    workspace.edit(edit)
    before = key_of(workspace)
    workspace.edit(lambda raw: raw["train"].update(checkpoint_every=7, keep_state=True))
    assert key_of(workspace) == before
    workspace.edit(lambda raw: raw["train"].update(iterations=9))
    assert key_of(workspace) != before


@pytest.mark.slow
def test_copies_of_the_kept_state_serve_a_machine_without_it(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that keeps no state removes its copies, too."""

    def train(iterations: int, keep: bool) -> dict[str, bytes]:
        workspace.schedule(iterations=iterations, keep_state=keep)
        assert workspace.run("train") == 0
        return workspace.trained()

    four, bucket = train(4, keep=False), tmp_path / "bucket"
    monkeypatch.setenv(CHECKPOINTS, str(bucket))
    train(2, keep=True)
    (key,) = (workspace.root / ".ckpt").iterdir()
    assert [path.relative_to(bucket) for path in bucket.rglob(MANIFEST)] == [
        Path(key.name, "iteration-000002", MANIFEST)
    ]
    shutil.rmtree(key)
    assert train(4, keep=False) == four
    record = read_journal(workspace.root / "logs" / VARIANT / "seed-0" / FILE)
    assert record is not None and record.heading.done == 2
    assert list((workspace.root / ".ckpt").iterdir()) == []
    assert [path for path in bucket.rglob("*") if path.is_file()] == []


def test_rejects_relative_checkpoint_copy_path(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CHECKPOINTS, "copies")
    assert workspace.run("train") == 2
    assert f"{CHECKPOINTS}: must be a URL or an absolute path, got 'copies'" in capsys.readouterr().err
