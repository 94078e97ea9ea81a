"""The record of a stage's code, and the copy that DVC's stages run."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chunk_grpo import code as _code
from chunk_grpo.code import check_code, code_records, copy_code
from chunk_grpo.errors import DataError

ROOT = _code.ROOT


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a copy of the code, which counts as the code of this process."""
    copy_code(tmp_path / "code")
    monkeypatch.setattr(_code, "ROOT", tmp_path / "code")
    return tmp_path / "code"


def edit(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"# edited\n")


def test_a_record_has_modules_that_are_imported_by_name_and_templates(tmp_path: Path) -> None:
    records = code_records(ROOT)
    assert {"chunk_grpo/families/models/flux.py", "chunk_grpo/core/objective.py"} <= records["train"].keys()
    assert "chunk_grpo/reporting/templates/index.html.j2" in records["report"]
    assert "chunk_grpo/core/objective.py" not in records["generate"]


def test_an_edit_changes_the_records_of_the_stages_that_use_the_file(code: Path) -> None:
    before = code_records(code)
    edit(code / "chunk_grpo/core/objective.py")
    after = code_records(code)
    assert {name for name in before if before[name] != after[name]} == {"train"}


def test_a_copy_follows_edits_new_files_and_removed_ones(code: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy_code(copy)
    kept = copy / "chunk_grpo/core/sde.py"
    time_before = kept.stat().st_mtime_ns
    edit(code / "chunk_grpo/core/objective.py")
    (code / "stages/new.py").write_text("A = 1\n")
    (code / "stages/report.py").unlink()
    (copy / "stages/older.py").write_text("A = 1\n")
    copy_code(copy)
    same = {p.relative_to(code): p.read_bytes() for p in code.rglob("*.py")}
    assert {p.relative_to(copy): p.read_bytes() for p in copy.rglob("*.py")} == same
    assert kept.stat().st_mtime_ns == time_before


def test_a_copy_keeps_the_commit_of_its_start(tmp_path: Path) -> None:
    copy_code(tmp_path / "code")
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    ask = "from chunk_grpo.artifacts.manifest import code_commit; print(code_commit())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "code")}
    found = subprocess.check_output([sys.executable, "-c", ask], cwd=tmp_path, env=environment, text=True)
    assert found.strip() == commit


def test_code_that_was_edited_after_its_record_is_refused(code: Path, tmp_path: Path) -> None:
    record = tmp_path / "train.json"
    record.write_text(json.dumps(code_records(code)["train"]))
    check_code(str(record))
    edit(code / "chunk_grpo/core/objective.py")
    (code / "stages/train.py").unlink()
    with pytest.raises(DataError, match=r"^chunk_grpo/core/objective\.py: .*\(and 1 more files\); run `dvc"):
        check_code(str(record))


def test_edit_of_checkout_is_reported_and_copy_continues(code, tmp_path, monkeypatch, capsys):
    record = tmp_path / "train.json"
    record.write_text(json.dumps(code_records(code)["train"]))
    checkout = tmp_path / "checkout"
    shutil.copytree(code, checkout)
    monkeypatch.chdir(checkout)
    check_code(str(record))
    assert capsys.readouterr().err == ""
    edit(checkout / "chunk_grpo/core/objective.py")
    check_code(str(record))
    assert capsys.readouterr().err.startswith("chunk_grpo/core/objective.py: edited since this run began.")


@pytest.mark.parametrize(
    ("stage", "copied"), [("check_scorers", True), ("dvc.yaml:check_scorers", True), ("inputs", False), (None, False)]
)
def test_a_stage_of_dvc_imports_the_copy(code: Path, tmp_path: Path, stage: str | None, copied: bool) -> None:
    """The help has the docstring of the module that runs, and a default of a package that it imports."""
    copy_code(tmp_path / ".code")
    for folder, word in ((tmp_path / ".code", "copied"), (code, "edited")):
        module = folder / f"stages/{(stage or 'check_scorers').rpartition(':')[2]}.py"
        module.write_text(module.read_text().replace('"""', f'"""{word} module. ', 1))
        schema = folder / "stages/_stage.py"
        schema.write_text(schema.read_text().replace("the parameter file", f"{word} package"))
    for package in ("chunk_grpo", "stages"):
        (tmp_path / package).symlink_to(code / package)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DVC_STAGE")}
    environment |= {} if stage is None else {"DVC_STAGE": stage}
    module_name = f"stages.{(stage or 'check_scorers').rpartition(':')[2]}"
    done = subprocess.run(
        [sys.executable, "-m", module_name, "--help"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    word, other = ("copied", "edited") if copied else ("edited", "copied")
    assert f"{word} module. " in done.stdout and f"{word} package" in done.stdout, done.stderr
    assert other not in done.stdout
