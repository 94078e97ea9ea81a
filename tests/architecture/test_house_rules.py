"""Rules for every file: short enough to read at once, and the same on every machine.

That the presets of conf/ compose is tested in tests/test_presets.py, the import directions by lint-imports.
"""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from chunk_grpo import environment

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 400
CODE = (".py", ".yaml", ".yml", ".toml", ".j2", ".sh", "Makefile", "Dockerfile")
TEXT = (*CODE, ".md", ".txt", ".json", ".cfg", ".gitignore", ".dvcignore")
OF_ONE_MACHINE = re.compile(r"(?<![\w.}*-])/(?:home|root|Users|work)/[\w.-]+")


def files(*endings: str) -> list[Path]:
    """Files of the repository and untracked ones, without checkpoints."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", ":!assets"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in names if name.endswith(endings) and (ROOT / name).is_file()]


def test_no_file_is_longer_than_the_limit() -> None:
    one_dag = ROOT / "dvc.yaml"  # DVC has no way to divide it, and a test writes most of it: test_dvc_deps.py
    read = [path for path in files(*CODE) if path != one_dag]
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in read}
    assert len(lengths) > 100
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_no_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {hit.group()}"
        for path in files(*TEXT)
        for hit in OF_ONE_MACHINE.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_shared_names_stand_in_one_module() -> None:
    """Programs meet by them: a name that one of them spells otherwise would be lost without a word."""
    shared = {value for name, value in vars(environment).items() if name.isupper()}
    assert len(shared) > 8
    spelt = []
    for folder in ("chunk_grpo", "stages", "flows", "infra", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if any(isinstance(node, ast.Constant) and node.value in shared for node in nodes):
                spelt.append(path.relative_to(ROOT).as_posix())
    assert spelt == ["chunk_grpo/environment.py"]


@pytest.mark.parametrize("line", ["cd /{}/ann", "'/{}/.cache'", "=/{}/ann", "`/{}/main`"])
def test_detects_machine_specific_path(line: str) -> None:
    for folder in ("home", "root", "Users", "work"):
        assert OF_ONE_MACHINE.search(line.format(folder))


def described_elsewhere(source: str) -> list[str]:
    """Fields that their class declares, but describes in its own docstring."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            section = (ast.get_docstring(node) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
            declared = {
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
            names = re.findall(r"^    (\w+)(?: \(.*\))?:", section, re.M)
            found += [f"{node.name}.{name}" for name in names if name in declared]
    return found


def test_fields_are_described_where_they_are_declared() -> None:
    code = files(".py")
    assert len(code) > 100
    found = {path: described_elsewhere(path.read_text(encoding="utf-8")) for path in code}
    assert {path: names for path, names in found.items() if names} == {}


def test_finds_a_field_described_elsewhere() -> None:
    assert described_elsewhere('class A:\n    """B.\n\n    Attributes:\n        c: D.\n    """\n\n    c: int\n') == [
        "A.c"
    ]


LIBRARIES = ("core", "families", "generation", "library", "reporting/statistics", "scorers", "shapes", "training")
"""What others import: in the site's reference (docs/conf.py), or what that is made of."""


def with_sections(source: str) -> list[str]:
    """Names of what has a section of arguments, results or errors; Prefect shows those of a flow in its form."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            is_flow = any(re.match(r"flow\b", ast.unparse(decorator)) for decorator in node.decorator_list)
            if not is_flow and re.search(r"^(Args|Returns|Raises|Yields):$", ast.get_docstring(node) or "", re.M):
                found.append(node.name)
    return found


def test_sections_are_in_libraries_and_flows() -> None:
    imported = [ROOT / "chunk_grpo" / name for name in LIBRARIES]
    programs = [
        path
        for path in files(".py")
        if path.parent != ROOT / "chunk_grpo"
        and not any(path.with_suffix("").is_relative_to(library) for library in imported)
    ]
    assert len(programs) > 100
    found = {path: with_sections(path.read_text(encoding="utf-8")) for path in programs}
    offending = {path: names for path, names in found.items() if names}
    assert offending == {}, "not imported as a library (LIBRARIES): one paragraph, without Args, Returns, Raises"


@pytest.mark.parametrize(("decorator", "found"), [("", ["a"]), ('@flow(name="b")\n', []), ("@flown\n", ["a"])])
def test_finds_a_section(decorator: str, found: list[str]) -> None:
    assert with_sections(f'{decorator}def a():\n    """B.\n\n    Raises:\n        C: D.\n    """\n') == found
