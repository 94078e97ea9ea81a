"""dvc.yaml names, for every stage, the record of all code that the stage imports, and all parameters that it reads.

DVC runs a stage again when one of its deps or params changes. So a missing one means a cached result that is
silently stale, and one too many means runs for nothing.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grimp
import pytest
from ruamel.yaml import YAML

from chunk_grpo.code import BY_NAME, code_records
from chunk_grpo.config import Params

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("chunk_grpo", "stages")
GRAPH = grimp.build_graph(*PACKAGES, cache_dir=None, exclude_type_checking_imports=True)


def dvc_stages() -> dict[str, dict[str, Any]]:
    """Every stage of dvc.yaml; a stage with `foreach` by its template."""
    stages = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    return {name: stage.get("do", stage) for name, stage in stages.items()}


STAGES = dvc_stages()
SETTINGS = "artifacts/inputs/params.json"
CACHED = [name for name, stage in STAGES.items() if not stage.get("always_changed")]
"""The others run each time, whatever has changed."""


def module_of(stage: str) -> str:
    """The module that a stage's command runs."""
    found = re.search(r"python -m (stages\.\w+)", STAGES[stage]["cmd"])
    assert found, f"dvc.yaml, {stage}: cmd must run python -m stages.NAME"
    return found.group(1)


def file_of(module: str) -> str:
    """A module's file, relative to the repository."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.relative_to(ROOT).as_posix()


def imported_modules(module: str) -> set[str]:
    """The module, all that it imports at any remove, and the packages that hold them, whose code runs too."""
    found: set[str] = set()
    waiting = {module}
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= GRAPH.find_upstream_modules(name) | set(filter(None, [name.rpartition(".")[0]]))
        waiting -= found
    return found


def covers(dep: str, file: str) -> bool:
    return file == dep or file.startswith(f"{dep}/")


RECORDS = code_records(ROOT)
TYPES_ALONE = ("chunk_grpo/families/", "chunk_grpo/weights.py")
"""Modules of families that others import for their types alone, and what these import, are part of the record too."""


@pytest.mark.parametrize("stage", CACHED)
def test_the_record_of_the_code_is_a_dep_and_the_only_code(stage: str) -> None:
    code = [dep for dep in STAGES[stage]["deps"] if not dep.startswith("artifacts/")]
    records = [dep for dep in STAGES[stage]["deps"] if dep.startswith("artifacts/inputs/code/")]
    module = module_of(stage).rpartition(".")[2]
    assert (code, records) == ([], [f"artifacts/inputs/code/{module}.json"])
    assert f"--params {SETTINGS} --code {records[0]} " in STAGES[stage]["cmd"]


@pytest.mark.parametrize("module", RECORDS)
def test_a_record_has_the_code_that_the_stage_imports(module: str) -> None:
    imported = {file_of(name) for name in imported_modules(f"stages.{module}")} - {"chunk_grpo/__init__.py"}
    recorded = {file for file in RECORDS[module] if file.endswith(".py")}
    by_name = {f for name, folder in BY_NAME.items() if file_of(name) in recorded for f in python_files(folder)}
    assert imported - recorded == set()
    assert {f for f in recorded - imported - by_name if not f.startswith(TYPES_ALONE)} == set()
    assert by_name <= recorded


def test_by_name_holds_every_import_of_this_project_by_a_name() -> None:
    """Others import the user's code and optional packages, and the functions and commands for users."""
    importing = {
        name
        for name in python_files("chunk_grpo")
        if re.search(r"\b(import_module|resolve_name)\(", (ROOT / name).read_text("utf-8"))
    }
    assert importing - {file_of(name) for name in BY_NAME} == {
        "chunk_grpo/__init__.py",
        "chunk_grpo/__main__.py",  # the console command
        "chunk_grpo/scorers/running/external.py",
        "chunk_grpo/scorers/running/placing.py",  # executors, which change no score
        "chunk_grpo/scorers/running/registry.py",  # check_scorers
        "chunk_grpo/training/sinks.py",
        "chunk_grpo/training/trackers.py",
    }


def python_files(folder: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.py")}


# Parameters: `params` stands for the whole of params.yaml in a stage; what is read of it is visible in the source.


def functions(file: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def origins(file: str) -> dict[str, str]:
    """Name of a function that `file` imports from first-party code -> the file that defines it."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {
        alias.name: file_of(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES
        for alias in node.names
    }


METHODS = functions("chunk_grpo/config/models.py")
"""Methods of Params, which read it in the stage's stead."""


def read_paths(file: str, name: str, subject: str = "params") -> Iterator[str]:
    """The dotted paths that function `name` of `file` reads of `subject`, through the functions it hands it to.

    `params.variants[NAME]` is the path `variants.*`, `params.chunks.plans[NAME]` is `chunks.plans.*`; `*` alone is
    everything.
    """
    function = functions(file)[name]
    parent = {child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(function):
        if not (isinstance(node, ast.Name) and node.id == subject):
            continue
        above = parent[node]
        if isinstance(above, ast.Call) and node in above.args:
            assert isinstance(above.func, ast.Name), f"{file}, line {node.lineno}: cannot follow {subject}"
            callee = above.func.id
            home = file if callee in functions(file) else origins(file)[callee]
            place = functions(home)[callee].args.args[above.args.index(node)].arg
            yield from read_paths(home, callee, place)
        elif isinstance(above, ast.Attribute):
            yield from attribute_paths(above, parent)
        else:
            assert isinstance(above, ast.Delete), f"{file}, line {node.lineno}: cannot follow {subject}"


def attribute_paths(node: ast.Attribute, parent: dict[ast.AST, ast.AST]) -> Iterator[str]:
    """`params.train.seeds` -> train.seeds; a method of Params -> what it reads; model_dump -> everything."""
    if node.attr == "model_dump":
        yield "*"
        return
    if node.attr in METHODS:
        yield from read_paths("chunk_grpo/config/models.py", node.attr, "self")
        return
    above = parent[node]
    if isinstance(above, ast.Subscript) and above.value is node:
        yield f"{node.attr}.*"
    elif isinstance(above, ast.Attribute) and above.attr in ("get", "items"):
        yield node.attr
    elif isinstance(above, ast.Attribute):
        chosen = parent[above]
        one_of_many = isinstance(chosen, ast.Subscript) and chosen.value is above
        yield f"{node.attr}.{above.attr}" + (".*" if one_of_many else "")
    else:
        yield node.attr


def declared_paths(stage: str) -> list[str]:
    params = STAGES[stage].get("params", [])
    return [path for file in params for path in file[SETTINGS]]


def within(path: str, declared: str) -> bool:
    return path == declared or path.startswith(f"{declared}.")


RECORDED = {
    "prepare_prompts": {"scorers", "rewards"},  # the data of prompts that scorers need
    "train": {"train", "variants", "chunks.plans"},
    "generate_policy": {"policies"},
}
"""Read of params.yaml, but compared with a record of the stage `inputs`, on which the stage depends instead."""

NOT_REALLY = {
    # The checkpoint's key holds whole sections, all of them among the stage's params; the names of the variants
    # are read for an error message; trackers are told what comes out and change nothing of it.
    # What moves a score of `scorers` is in the specs, on which the stage depends; `executors` says where a scorer runs.
    "train": {"*", "variants", "trackers", "executors", "scorers", "pools"},
    # They count the images of the whole run, for the log; a group of another number of images is no new trial.
    "try_scorers": {
        "generate.images_per_prompt",
        *("train", "train.seeds", "train.heldout", "prompts.eval_count"),
        *("variants", "variants.values", "policies", "policies.values"),
        *("chunks.plans.*", "sampling.num_sde_steps"),
    },
    # `train.seeds` name the tables of a folder of images, and base and compared policies have one table.
    "score_base": {"executors", "scorers", "train.seeds"},
    "score_policy": {"executors", "scorers", "train.seeds"},
    # Read where the command has --saved.
    "generate_base": {"policies", "policies.*"},
    "generate": {"policies", "policies.*"},
    "score": {"executors", "scorers"},
    "report": {"executors", "pools", "trial"},
}
"""Reads in the source that change no result of the stage."""

SECTIONS = set(Params.model_fields)


@pytest.mark.parametrize("stage", CACHED)
def test_declared_params_equal_params_read_by_stage(stage: str) -> None:
    read = set(read_paths(file_of(module_of(stage)), "main")) - NOT_REALLY.get(stage, set())
    if "*" in read:
        read = SECTIONS - NOT_REALLY.get(stage, set())
    read = {path for path in read if not any(within(path, name) for name in RECORDED.get(stage, ()))}
    declared = declared_paths(stage)
    missing = sorted(path for path in read if not any(within(path, name) for name in declared))
    surplus = [name for name in declared if not any(within(path, name) or within(name, path) for path in read)]
    assert not missing, f"dvc.yaml, {stage}: add to params: {missing}"
    assert not surplus, f"dvc.yaml, {stage}: remove from params, nothing reads them: {surplus}"


@pytest.mark.parametrize("stage", ["score_base", "score_policy"])
def test_policies_without_seeds_have_one_table_of_images(stage: str) -> None:
    assert re.search(r"--images \S+\.parquet\b", STAGES[stage]["cmd"])


@pytest.mark.parametrize(("stage", "is_read"), [("generate", False), ("generate_policy", True)])
def test_a_saved_policy_is_on_the_command_line(stage: str, is_read: bool) -> None:
    assert ("--saved" in STAGES[stage]["cmd"]) == is_read


@pytest.mark.parametrize("stage", RECORDED)
def test_the_record_of_the_settings_is_a_dep(stage: str) -> None:
    deps = STAGES[stage]["deps"]
    record = r"artifacts/inputs/(prompts|(variants|policies)/\$\{[a-z.]+\})\.json"
    assert any(re.match(record, dep) for dep in deps)


@pytest.mark.parametrize("stage", STAGES)
def test_a_command_touches_declared_paths_only(stage: str) -> None:
    """Every path on the command line lies in a dep or an out, and every out is on it."""
    paths = re.findall(r"(?<= )artifacts/\S+", STAGES[stage]["cmd"])
    outs = STAGES[stage]["outs"]
    declared = [*STAGES[stage].get("deps", []), *outs, SETTINGS]
    assert [path for path in paths if not any(covers(name, path) for name in declared)] == []
    assert [out for out in outs if not any(covers(out, path) for path in paths)] == []
