"""docs/equations.md is complete and true: functions, docstrings and tests are where it says."""

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import chunk_grpo.core as core
from tests.architecture.reach import Reach, sources

ROOT = Path(__file__).resolve().parents[2]
MAP = ROOT / "docs" / "equations.md"
PAGES = [MAP, ROOT / "docs" / "deviations.md", *sorted((ROOT / "docs" / "adr").glob("*.md"))]


def table_rows(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in cells if row[0] != "equation" and not set(row[0]) <= set("-")]


def labels(cell):
    """The equations a row is about: "(7)" -> ["(7)"], "(17)-(20)" -> four of them, "App. B.3" -> itself."""
    numbers = [int(number) for number in re.findall(r"\((\d+)\)", cell)]
    return [f"({number})" for number in range(numbers[0], numbers[-1] + 1)] if numbers else [cell]


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


def citation(docstring):
    """The part of a docstring that says where it comes from: from "Paper:" to the next blank line."""
    found = re.search(r"Paper:.*?(?=\n\s*\n|\Z)", docstring or "", re.DOTALL)
    return found.group() if found else ""


def public_objects():
    """Name, as "module.name", and object of each public function and class that core defines."""
    for module_info in pkgutil.iter_modules(core.__path__):
        module = importlib.import_module(f"{core.__name__}.{module_info.name}")
        for name, value in vars(module).items():
            public = not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
            if public and (inspect.isfunction(value) or inspect.isclass(value)):
                yield f"{module_info.name}.{name}", value


def defined_tests(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


OBJECTS = dict(public_objects())
METHOD_ROWS = [row for row in table_rows(MAP) if len(row) == 6]
PAIRS = [(label, name) for row in METHOD_ROWS for label in labels(row[0]) for name in names(row[2])]
TESTS = sorted({found for page in PAGES for found in re.findall(r"test_\w+\.py::test_\w+", page.read_text("utf-8"))})


TEXTS = sources(ROOT, "chunk_grpo", "stages", "flows", "pretraining")


@pytest.fixture(scope="module")
def reach():
    return Reach(TEXTS)


def test_every_equation_of_the_method_has_one_row():
    mapped = [label for row in METHOD_ROWS for label in labels(row[0])]
    assert mapped == [f"({number})" for number in range(1, 17)] + ["App. B.3"]


def test_every_equation_of_appendix_a_is_explained():
    mapped = [label for row in table_rows(MAP) if len(row) == 3 for label in labels(row[0])]
    assert mapped == [f"({number})" for number in range(17, 41)]


@pytest.mark.parametrize("row", METHOD_ROWS, ids=lambda row: row[0])
def test_row_names_a_function_and_a_test(row):
    assert names(row[2])
    assert names(row[4])


@pytest.mark.parametrize(("label", "name"), PAIRS)
def test_function_exists_and_cites_its_equation(label, name):
    assert name in OBJECTS
    assert label in citation(inspect.getdoc(OBJECTS[name]))


def unreached(programs, functions, reach):
    """The functions of core, "module.name", that none of these programs comes to."""
    found = set().union(*(reach.of(program) for program in programs))
    return [name for name in functions if f"{core.__name__}.{name}" not in found]


@pytest.mark.parametrize("row", METHOD_ROWS, ids=lambda row: row[0])
def test_named_program_reaches_the_function(row, reach):
    assert unreached(names(row[3]), names(row[2]), reach) == []


def test_training_and_report_reach_every_mapped_function(reach):
    functions = [name for row in table_rows(MAP) if len(row) == 4 for name in names(row[2]) if name in OBJECTS]
    assert len(functions) > 10
    assert unreached(["stages.train", "stages.report"], functions, reach) == []


def test_detects_function_without_caller(reach):
    texts = TEXTS | {"chunk_grpo.core.unused": "def idle():\n    return 1\n"}
    assert unreached(["stages.train"], ["unused.idle"], Reach(texts)) == ["unused.idle"]
    called = TEXTS["chunk_grpo.core.ratios"] + "\nfrom chunk_grpo.core import unused\nunused.idle()\n"
    assert unreached(["stages.train"], ["unused.idle"], Reach(texts | {"chunk_grpo.core.ratios": called})) == []


def test_every_core_and_training_function_is_reached_by_a_program(reach):
    programs = [name for name in TEXTS if name.startswith(("stages.", "flows.", "pretraining."))]
    found = set().union(*(reach.of(program) for program in programs))
    rooms = [name for name in TEXTS if name.startswith(("chunk_grpo.core.", "chunk_grpo.training."))]
    assert {name for room in rooms for name in reach.public(room)} - found == set()


def test_every_function_that_cites_the_paper_is_mapped():
    citing = {name for name, value in OBJECTS.items() if citation(inspect.getdoc(value))}
    assert citing == {name for _, name in PAIRS}


@pytest.mark.parametrize("test", TESTS)
def test_named_test_exists(test):
    file, name = test.split("::")
    assert name in defined_tests(ROOT / "tests" / "core" / file)


def test_links_between_the_pages_resolve():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+\.md)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).is_file(), f"{page.name} links to {target}"
