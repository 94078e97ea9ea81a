"""A choice that is listed and not implemented, or the other way round, is found at the import."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from chunk_grpo.config import VariantParams
from chunk_grpo.core import choices
from chunk_grpo.core.choices import SDES, Choice, implemented

TABLES = {name: table for name, table in vars(choices).items() if name.isupper() and isinstance(table, Mapping)}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"flow": 1, "dance": 2}, "core/sde.py lacks cps, ode"),
        ({"flow": 1, "dance": 2, "cps": 3, "ode": 4, "heun": 5}, "core/sde.py has unknown heun"),
    ],
)
def test_a_missing_implementation_is_named(found, message):
    with pytest.raises(TypeError, match=message):
        implemented(SDES, "core/sde.py", found)


def test_every_table_is_implemented_where_it_says():
    """Each names its module in the text below it, and that module checks at its import."""
    text = Path(choices.__file__).read_text()
    package = Path(choices.__file__).parents[1]
    assert len(TABLES) == 11
    for name in TABLES:
        where = text.partition(f"\n{name}: ")[2].partition("implemented in ")[2].partition(".py")[0]
        assert f"    {name}," in (source := (package / f"{where}.py").read_text()) or f"({name}," in source
        assert f'"{where}.py"' in source


def test_labels_tell_choices_apart():
    for table in TABLES.values():
        assert all(isinstance(choice, Choice) and choice.label and choice.source for choice in table.values())
        assert len({choice.label for choice in table.values()}) == len(table)


def test_configuration_takes_the_names_from_the_tables():
    fields = VariantParams.model_fields
    settings = ("objective", "sde", "selection", "step_weights", "ratio_norm", "trust_region")
    settings += ("advantage_std", "combine", "likelihood")
    listed = {str(list(table)) for table in TABLES.values()}
    for setting in settings:
        schema = VariantParams.model_json_schema()["properties"][setting]
        names = schema.get("enum") or schema["anyOf"][0]["enum"]
        assert str(names) in listed, fields[setting]


def test_the_tables_need_no_torch():
    command = "import sys, chunk_grpo.core.choices; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0
