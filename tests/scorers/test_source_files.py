"""chunk_grpo/scorers/running/source_files.py: the code behind a user's scorer."""

import importlib
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
import safetensors

from chunk_grpo.digests import Digests
from chunk_grpo.scorers.running import source_files
from chunk_grpo.scorers.running.source_files import source_digest

FILES = {
    "rewards.py": "import os\nimport numpy\nfrom kit import colour\nfrom chunk_grpo.errors import DataError\n",
    "kit/__init__.py": "",
    "kit/colour.py": "from . import table\nfrom .deep.names import NAMES\n",
    "kit/table.py": "def late():\n    import beside\n",
    "kit/deep/__init__.py": "",
    "kit/deep/names.py": "NAMES = ()\n",
    "kit/unused.py": "",
    "beside.py": "",
    "unrelated.py": "",
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


def found(module: str) -> list[str]:
    return sorted(source_files.source_files(module))


def test_finds_user_modules_that_are_imported(own):
    assert found("rewards") == [*("beside", "kit", "kit.colour", "kit.deep", "kit.deep.names", "kit.table", "rewards")]


def test_a_module_in_a_package_brings_the_package(own):
    assert found("kit.deep.names") == ["kit", "kit.deep", "kit.deep.names"]


def test_a_namespace_package_inside_a_package_is_searched_without_an_import(own):
    (own / "kit" / "loose").mkdir()  # without __init__.py
    (own / "kit" / "loose" / "late.py").write_text("import beside\n")
    (own / "rewards.py").write_text("from kit.loose import late\n")
    importlib.invalidate_caches()
    assert found("rewards") == ["beside", "kit", "kit.loose.late", "rewards"]


def test_linked_environment_is_not_user_code(own, monkeypatch):
    """Its modules are found below the link, and the folders of Python are those that it points to."""
    installed = Path(safetensors.__file__).parents[1]
    (own / "link").symlink_to(installed)
    monkeypatch.setattr(sys, "path", [str(own / "link"), *(path for path in sys.path if path != str(installed))])
    (own / "rewards.py").write_text("import safetensors\n")
    importlib.invalidate_caches()
    assert found("rewards") == ["rewards"]


def test_installed_package_includes_only_its_modules():
    assert "safetensors.numpy" in found("safetensors.numpy")
    assert not [name for name in found("safetensors.numpy") if not name.startswith("safetensors")]


@pytest.mark.parametrize("module", ["no_such_module", "kit.no_such_module", "sys", "chunk_grpo.scorers.shapes"])
def test_foreign_modules_have_no_source_files(module, own):
    assert [name for name in found(module) if name not in ("kit",)] == []


def test_a_file_that_is_no_python_counts_with_its_content(own):
    (own / "beside.py").write_text("def (:")
    assert "beside" in found("rewards")


@pytest.mark.parametrize("name", FILES)
def test_an_edit_of_a_used_file_changes_the_digest(name, own):
    before = digest()
    (own / name).write_text(FILES[name] + "# edited\n")
    assert (digest() == before) == (name in ("kit/unused.py", "unrelated.py"))


def test_files_that_it_reads_count_by_their_content(own):
    (own / "weights").mkdir()
    (own / "weights" / "w.bin").write_bytes(b"1")
    before = digest(str(own / "weights"))
    assert before != digest()
    (own / "weights" / "w.bin").write_bytes(b"2")
    assert digest(str(own / "weights")) != before


def test_an_entry_point_stands_for_its_module(own, monkeypatch):
    points = EntryPoints([EntryPoint("mine", "kit.colour:f", source_files.ENTRY_POINTS)])
    monkeypatch.setattr(source_files, "entry_points", lambda group: points.select(group=group))
    assert source_files.module_of("mine") == "kit.colour"
    assert source_files.module_of("kit.table:f") == "kit.table"


def digest(*files: str) -> str:
    return source_digest("rewards:brightness", files, Digests(Path("no-memory")).of)
