"""chunk_grpo/artifacts/layout.py: the paths of dvc.yaml, and the only other place that spells them."""

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from chunk_grpo.artifacts.layout import ARTIFACTS, Layout
from stages import report
from tests.conftest import ROOT

AT = Layout()
SPELT = re.compile(r"(^|/)artifacts(/|$)|(^|/)seed-$|/(metrics|images)\.parquet$")
"""A text or the part of one that spells a path of artifacts."""


def outputs() -> set[str]:
    """Outputs in dvc.yaml, with V, 0 and S as variant or policy, seed and scorer."""
    stages = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    paths = {out for stage in stages.values() for out in stage.get("do", stage)["outs"]}
    names = {"item.variant": "V", "item.policy": "V", "item.seed": "0", "item.scorer": "S", "item": "0", "key": "S"}
    return {re.sub(r"\$\{([\w.]+)\}", lambda found: names[found[1]], path) for path in paths}


@pytest.mark.parametrize(
    "path",
    [
        AT.prompts, AT.profile, AT.plan("P"), AT.settings, AT.model, AT.spec("S"),
        AT.embeddings.replace("evaluation", "S"), AT.metrics("V", 0), AT.transformer("V", 0), AT.times("V", 0),
        AT.drawn("base"), AT.drawn("V", 0), AT.scored("base", "S"), AT.scored("V", "S"),
        AT.manifest("score_base@S"), AT.summary,
    ],
)  # fmt: skip
def test_a_path_is_an_output_of_a_stage_or_in_one(path: str) -> None:
    assert any(path == out or path.startswith(f"{out}/") for out in outputs())


def test_folders_of_the_report_are_its_options_in_dvc_yaml() -> None:
    stages = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    options = dict(re.findall(r"--(\w+) (\S+)", stages["report"]["cmd"]))
    names = [field.name for field in fields(report.Arguments)]
    assert {name: options[name] for name in names} == {name: getattr(AT, name) for name in names}


def test_all_paths_are_below_the_given_folder() -> None:
    below = Layout.below("s3://bucket/run")
    for field in fields(Layout):
        assert getattr(below, field.name) == f"s3://bucket/run/{getattr(AT, field.name)}"
    assert below.drawn("chunk", 3) == f"s3://bucket/run/{ARTIFACTS}/images/chunk/seed-3/images.parquet"


def spelt(path: Path) -> list[str]:
    """Texts of a module's code that spell a path of artifacts."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts
        if SPELT.search(node.value)
    ]


def test_paths_are_spelt_in_one_module() -> None:
    read = [path for folder in ("chunk_grpo", "flows") for path in (ROOT / folder).rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix() for path in read if spelt(path)}
    assert found == {"chunk_grpo/artifacts/layout.py"}


@pytest.mark.parametrize(
    "code", ["a / 'artifacts'", "f'seed-{s}'", "f'artifacts/images/{p}'", "f'{p}/metrics.parquet'"]
)
def test_finds_a_spelt_path(tmp_path: Path, code: str) -> None:
    (tmp_path / "a.py").write_text(f'"""artifacts/x"""\nb = {code}\n')
    assert spelt(tmp_path / "a.py")
