"""infra/params.py: what `make params` and `make run` do to params.yaml first."""

import shutil
import sys
from pathlib import Path

import pytest

from chunk_grpo.__main__ import call
from infra import params

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.setattr(params, "ROOT", tmp_path)
    return tmp_path


def test_compose_asks_before_edits_are_lost(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("params", ["compose", "smoke"]) == 0
    text = (root / "params.yaml").read_text()
    (root / "params.yaml").write_text(text.replace("eta: 0.7", "eta: 0.6"))
    assert call("params", ["compose", "tiny"]) == 2
    assert "sampling.eta: 0.6; the preset has 0.7" in capsys.readouterr().err
    assert call("params", ["compose", "tiny", "--force"]) == 0
    assert (root / "params.yaml").read_bytes() == (ROOT / "params.yaml").read_bytes()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("variants:", "variants: null\nvariant:", "variants: must be a mapping of names, got null"),
        ("  encode: null", "  encdoe: null", "pools.encdoe: unknown key; did you mean 'encode'?"),
    ],
)
def test_check_refuses_values_that_dvc_ignores(
    old: str, new: str, said: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("params", ["check"]) == 0
    text = (root / "params.yaml").read_text()
    assert old in text
    (root / "params.yaml").write_text(text.replace(old, new))
    assert call("params", ["check"]) == 2
    assert said in capsys.readouterr().err


def test_unused_train_prompts_give_a_note(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("params", ["check"]) == 0
    assert capsys.readouterr() == ("", "")  # 3 seeds draw 960 of 300 prompts
    assert call("params", ["compose", "flux-dev", "--force"]) == 0
    composed = capsys.readouterr()
    assert call("params", ["check"]) == 0
    assert capsys.readouterr() == composed
    assert (composed.out, composed.err.count("\n")) == ("", 1)
    assert composed.err.startswith(
        "note: prompts.train_count: 50,000 train prompts are listed, but at most 2,432 are used: 1 x 150 x 16 = 2,400 "
        "(train.seeds, iterations, prompts_per_iteration) and 32 (profile.num_prompts)."
    )


def test_a_tracker_that_is_not_installed_is_found_before_the_first_stage(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert call("params", ["compose", "tiny"]) == 0
    file = root / "params.yaml"
    file.write_text(file.read_text("utf-8").replace("- tensorboard", "- wandb"), "utf-8")
    assert call("params", ["check"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: trackers: wandb is not installed. Run `pip install ") and "[wandb]" in said


@pytest.mark.parametrize(("backend", "code"), [("flash", 2), ("_native_math", 0)])
def test_an_attention_backend_that_is_not_installed_is_found_before_the_first_stage(
    root: Path, capsys: pytest.CaptureFixture[str], backend: str, code: int
) -> None:
    file = root / "params.yaml"
    file.write_text(file.read_text("utf-8").replace("attention_backend: null", f"attention_backend: {backend}"))
    assert call("params", ["check"]) == code
    said = capsys.readouterr().err
    assert said.startswith("error: model.attention_backend: flash does not work") if code else not said
