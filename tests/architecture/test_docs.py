"""docs/ tells the truth: every schema and column, every key of params.yaml, every link, the report's deviations."""

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from chunk_grpo.artifacts import SCHEMAS
from chunk_grpo.config.reference import params_schema
from chunk_grpo.reporting.paper import DEVIATIONS
from infra.reference import PAGE, SCHEMA, reference

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(DOCS.rglob("*.md")),
    ROOT / "benchmarks" / "studies" / "README.md",
    ROOT / "pretraining" / "README.md",
]
ROW_OF_DEVIATION = {
    "The last step has no noise": "The last step has no noise and is not trained",
    "A transition’s log-probability is the mean": "logarithm is a mean over latent dimensions",
    "Chunks are drawn without replacement": "without replacement, no correction, as released",
    "The profile is measured under the SDE": "profile on the SDE",
    "KL is computed in closed form": "closed form between the two Gaussians",
}
"""The start of each of the report's deviations, and words of its row in docs/deviations.md."""


def rows(text: str) -> list[list[str]]:
    """The cells of every table line that starts with code."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


SCHEMA_SECTIONS = {
    found.group(1): found.group(2)
    for found in re.finditer(r"^## (\w+/\d+):(.*?)(?=^## |\Z)", (DOCS / "artifacts.md").read_text("utf-8"), re.M | re.S)
}


def test_every_schema_has_a_section_and_no_other_does() -> None:
    assert set(SCHEMA_SECTIONS) == {f"{schema.name}/{schema.version}" for schema in SCHEMAS.values()}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=lambda schema: schema.name)
def test_every_column_is_described_with_its_type(schema: Any) -> None:
    table = SCHEMA_SECTIONS[f"{schema.name}/{schema.version}"].split("\n\n| metric |")[0]
    described = [(row[0].strip("`"), row[1]) for row in rows(table)]
    assert described == [(field.name, str(field.type)) for field in schema.columns]


def test_the_reference_of_params_yaml_is_that_of_its_models() -> None:
    written = {name: (ROOT / name).read_text("utf-8") for name in (PAGE, SCHEMA)}
    made = reference(ROOT)
    differing = [name for name in made if made[name] != written[name]]
    assert differing == [], "run chunk-grpo params reference"


def test_every_field_of_the_parameters_is_described() -> None:
    definitions = params_schema()["$defs"]
    assert len(definitions) > 40
    fields = [
        (f"{model}.{name}", field)
        for model, definition in definitions.items()
        for name, field in definition["properties"].items()
    ]
    assert [name for name, field in fields if not field.get("description")] == []


def test_documented_method_variants_equal_preset() -> None:
    """docs/methods.md, third column: what a reader copies is what runs."""
    lines = (DOCS / "methods.md").read_text("utf-8").splitlines()
    cells = [line.strip("|").split("|")[2] for line in lines if line.startswith("|")]
    spans = [span for cell in cells for span in re.findall(r"`([^`]+)`", cell)]
    described: dict[str, Any] = {}
    for span in spans:
        described |= YAML(typ="safe").load(span)
    assert described == YAML(typ="safe").load(ROOT / "conf" / "variants" / "methods.yaml")["variants"]
    assert len(spans) == len(described)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_to_files_resolve(page: Path) -> None:
    for target in re.findall(r"(?<!!)\[[^\]]*\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", ["faults", "security"])
def test_every_row_names_tests_that_exist(page: str) -> None:
    """Or says, on the page about security, that there is none."""
    table = (DOCS / f"{page}.md").read_text("utf-8").partition("\n## ")[0]
    for line in [line for line in table.splitlines() if line.startswith("| ")][1:]:
        event, _, cell = line.strip("| ").split(" | ")
        named = re.findall(r"`([^`]+\.py)(?:::(\w+))?`", cell)
        assert named or (page == "security" and "no test" in cell), f"docs/{page}.md: {event}: no test"
        for path, name in named:
            file = ROOT / path
            found = file.is_file() and f"def {name}(" in (file.read_text("utf-8") if name else "def (")
            assert found, f"docs/{page}.md: {event}: {path} {name}"


@pytest.mark.parametrize("deviation", DEVIATIONS, ids=lambda text: text[:30])
def test_a_deviation_named_in_the_report_has_a_row(deviation: str) -> None:
    words = next(row for start, row in ROW_OF_DEVIATION.items() if deviation.startswith(start))
    assert words in (DOCS / "deviations.md").read_text(encoding="utf-8")


def test_nothing_advises_to_collect_garbage_by_workspace() -> None:
    """It removes what other runs, and models that are published, have in the cache."""
    folders = ("chunk_grpo", "stages", "flows", "infra", "docs", "conf")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    paths += [path for path in ROOT.iterdir() if path.is_file()]
    texts = {path: path.read_bytes().decode("utf-8", errors="replace") for path in paths}
    advice = re.compile(r"dvc\s+gc\s+(?:\S+\s+)*?(?:--workspace\b|-\w*w)")
    assert [path.name for path, text in texts.items() if advice.search(text)] == []
    assert "## A full disk\n" in texts[DOCS / "operations.md"], "named in a message of storage.py"
