"""Damaged and edited tables: refused with a sentence, or read as they were written. Seeded."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chunk_grpo.artifacts import SCHEMAS, SchemaName, read_parts, read_table, table_from_rows, write_table
from chunk_grpo.artifacts.table_checks import REWRITE_IT
from chunk_grpo.errors import DataError
from stages import report
from stages._stage import run_stage
from tests.reporting.conftest import PROFILE, PROMPTS, Run, write_run

Row = dict[str, Any]
Edit = Callable[[list[Row]], object]

METRICS = "train/chunk/seed-1/metrics.parquet"
SCORES = "scores/chunk/shapes-graded.parquet"
IMAGES = "images/dance/seed-0/images.parquet"
PLAN = "chunks/guided.parquet"


def every(**values: object) -> Edit:
    return lambda rows: [row.update(values) for row in rows]


def one(number: int = 3, **values: object) -> Edit:
    return lambda rows: rows[number].update(values)


def twice(rows: list[Row]) -> None:
    rows.append(rows[3])


RULES: list[tuple[str, SchemaName, Edit, str]] = [
    (SCORES, "scores", one(value=float("nan")), "row 3: column 'value' must be finite, got nan"),
    (SCORES, "scores", one(value=float("inf")), "row 3: column 'value' must be finite, got inf"),
    (SCORES, "scores", one(value=None), "'value' must be null exactly where 'refusal' gives the reason"),
    (SCORES, "scores", one(value=None, refusal=""), "'value' must be null exactly where 'refusal'"),
    (SCORES, "scores", one(refusal="too dark"), "'value' must be null exactly where 'refusal'"),
    (SCORES, "scores", one(sample=-1), "column 'sample' must be at least 0, got -1"),
    (SCORES, "scores", one(train_seed=-2), "column 'train_seed' must be at least -1, got -2"),
    (SCORES, "scores", one(mode="best"), "'mode' must be one of base, tuned, hybrid, got 'best'"),
    (SCORES, "scores", twice, "must differ from every other row in policy, mode, train_seed, prompt_id"),
    (METRICS, "train_metrics", one(iteration=-1), "column 'iteration' must be at least 0, got -1"),
    (METRICS, "train_metrics", one(value=float("nan")), "column 'value' must be finite, got nan"),
    (METRICS, "train_metrics", twice, "must differ from every other row in variant, train_seed, iteration"),
    (PLAN, "chunk_plan", one(1, num_steps=0), "column 'num_steps' must be at least 1, got 0"),
    (PLAN, "chunk_plan", one(1, weight=float("-inf")), "column 'weight' must be finite, got -inf"),
    (PROFILE, "l1_profile", one(t=1.5), "column 't' must be at most 1, got 1.5"),
    (PROFILE, "l1_profile", one(sampler="dpm"), "'sampler' must be one of sde, ode, got 'dpm'"),
    (PROMPTS, "prompts", one(metadata="not JSON"), "'metadata' must be a JSON object, got 'not JSON'"),
    (PROMPTS, "prompts", one(metadata="[" * 9000), "'metadata' must be a JSON object, got '[[["),
    (IMAGES, "images", one(image={"bytes": None, "path": "x"}), "column 'image' must have a value, got null"),
]
"""Rules of the schemas, which hold for every reader."""

OF_THE_REPORT: list[tuple[str, SchemaName, Edit, str]] = [
    (SCORES, "scores", one(value=-5.0), "'value' must be in [0, 1], the scorer's scale, got -5.0"),
    (SCORES, "scores", one(value=1e308), "'value' must be in [0, 1], the scorer's scale, got 1e+308"),
    (SCORES, "scores", one(policy="dance"), "'policy' must be 'chunk' in every row, got 'dance'"),
    (SCORES, "scores", every(scorer="shapes-exact"), "'scorer' must be 'shapes-graded' in every row"),
    (METRICS, "train_metrics", every(variant="dance"), "'variant' must be 'chunk' in every row, got 'dance'"),
    (METRICS, "train_metrics", every(train_seed=2), "'train_seed' must be 1 in every row, got 2"),
    (PLAN, "chunk_plan", every(plan="listed"), "'plan' must be 'guided' in every row, got 'listed'"),
    (PROFILE, "l1_profile", one(l1_rel=-0.1), "column 'l1_rel' must be at least 0, got -0.1"),
    (PROMPTS, "prompts", twice, "must differ from every other row in prompt_id, got those of row 3"),
    (IMAGES, "images", every(policy="chunk"), "'policy' must be 'dance' in every row, got 'chunk'"),
]
"""What the report expects of its tables besides, and a rule of each other table."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_run(tmp_path_factory.mktemp("run"), 2, 1, 16)


@contextmanager
def edited(file: Path, schema: SchemaName, edit: Edit) -> Iterator[None]:
    """Inside, the table is well-formed Parquet of the right schema: another program could have written it."""
    before = file.read_bytes()
    rows = pq.read_table(file).to_pylist()
    edit(rows)
    columns = SCHEMAS[schema].columns
    loose = pa.schema([pa.field(field.name, field.type) for field in columns], SCHEMAS[schema].metadata)
    pq.write_table(pa.Table.from_pylist(rows, schema=loose), file)
    try:
        yield
    finally:
        file.write_bytes(before)


def assert_names_the_row(message: str, file: Path, told: str) -> None:
    assert f"{file}: row " in message and told in message
    assert message.rstrip().endswith(REWRITE_IT)


@pytest.mark.parametrize(("path", "schema", "edit", "told"), RULES)
def test_an_edited_table_is_refused(run: Run, path: str, schema: SchemaName, edit: Edit, told: str) -> None:
    file = run.root / path
    with edited(file, schema, edit), pytest.raises(DataError) as caught:
        list(read_parts(file, schema))
    assert_names_the_row(str(caught.value), file, told)


@pytest.mark.parametrize(("path", "schema", "edit", "told"), OF_THE_REPORT)
def test_the_report_refuses_tables_of_something_else(run, path, schema, edit, told, capsys):
    file = run.root / path
    with edited(file, schema, edit):
        assert run_stage(report.main, report.Arguments, run.options) == 3
    assert_names_the_row(capsys.readouterr().err, file, told)


def rows_of(name: SchemaName, random_: random.Random) -> list[Row]:
    of: Row = {"policy": "chunk", "mode": "tuned", "train_seed": 0}
    if name == "images":
        content = {"path": "a.png"}
        return [
            of | {"prompt_id": f"eval-{n}", "sample": 0, "seed": n}
            | {"image": content | {"bytes": random_.randbytes(300)}}
            for n in range(8)
        ]  # fmt: skip
    of |= {"scorer": "judge", "metric": "score", "refusal": None}
    return [of | {"prompt_id": f"eval-{n}", "sample": n % 3, "value": random_.random()} for n in range(40)]


@pytest.mark.parametrize("name", ["scores", "images"])
def test_flipped_bits_are_detected_or_harmless(name: SchemaName, tmp_path: Path) -> None:
    """Pages have checksums; a lost page is a number of rows that differs from the file's."""
    random_, path = random.Random(45), tmp_path / "table.parquet"
    write_table(table_from_rows(rows_of(name, random_), name), path, name, row_group_bytes=1000)
    content, expected = path.read_bytes(), read_table(path, name)
    refused = 0
    for _ in range(200):
        damaged = bytearray(content)
        for _ in range(random_.choice((1, 1, 1, 30))):
            damaged[random_.randrange(len(content))] ^= 1 << random_.randrange(8)
        path.write_bytes(damaged)
        for read in (lambda: read_table(path, name), lambda: pa.concat_tables(read_parts(path, name))):
            try:
                assert read().equals(expected)
            except DataError as error:
                refused += 1
                assert str(error).startswith(f"{path}: ")
    assert refused > 100


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"value": float("nan")}], "row 0: column 'value' must be finite, got nan"),
        ([{}, {}], r"row 1: must differ from every other row in policy, .*, got those of row 0"),
        ([{}, {"sample": -3}], "row 1: column 'sample' must be at least 0, got -3"),
        ([{"value": None}], "'value' must be null exactly where 'refusal' gives the reason, got null"),
    ],
)
def test_invalid_rows_are_not_written(rows: list[Row], told: str, tmp_path: Path) -> None:
    given = [rows_of("scores", random.Random(1))[0] | row for row in rows]
    with pytest.raises(DataError, match=told):
        write_table(table_from_rows(given, "scores"), tmp_path / "t.parquet", "scores", row_group_bytes=1)
    assert list(tmp_path.iterdir()) == []
