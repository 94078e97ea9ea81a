"""DVC sees every value of params.yaml: no key bears a name that its run cache leaves out."""

import re
from pathlib import Path
from typing import Any

import pytest
from dvc.stage.cache import _get_cache_hash
from dvc_data.hashfile.meta import Meta
from ruamel.yaml import YAML

from chunk_grpo.config.forbidden import HIDDEN
from tests.params_edits import Edit, drop, get, leaves, problems, put, with_value
from tests.test_presets import compose

READ_ALONE = re.compile(r"[^.]+|variants\.[^.]+|chunks\.plans\.[^.]+")


def test_hidden_names_match_dvc() -> None:
    assert HIDDEN == (Meta.PARAM_SIZE, Meta.PARAM_NFILES)


def run_cache_keys(raw: dict[str, Any], of: tuple[str | int, ...]) -> dict[str, str]:
    """DVC's cache keys of stages that read one section, variant or plan alone, of which each holds the value `of`."""
    names = {".".join(map(str, of[:depth])): get(raw, of[:depth]) for depth in range(1, len(of) + 1)}
    read = {name: value for name, value in names.items() if READ_ALONE.fullmatch(name)}
    return {
        name: _get_cache_hash({"cmd": "a", "params": {"params.yaml": {name: value}}}, key=True)
        for name, value in read.items()
    }


@pytest.mark.parametrize("preset", ["tiny", "methods", "random-scorers"])
def test_every_value_changes_run_cache_key_of_its_stage(preset: str, tmp_path: Path) -> None:
    raw = YAML(typ="safe").load(compose(preset, tmp_path))
    for path in leaves(raw):
        before, after = run_cache_keys(raw, path), run_cache_keys(with_value(raw, path, "another value"), path)
        assert before and all(before[name] != after[name] for name in before), path


@pytest.mark.parametrize(
    ("edits", "path"),
    [
        ([drop("chunks.plans.equal-4.chunk_size"), put("chunks.plans.equal-4.size", 4)], "chunks.plans.equal-4.size"),
        ([put("variants.size", {"objective": "chunk", "plan": "listed"})], "variants.size"),
        ([put("variants.chunk.size", 3)], "variants.chunk.size"),
        ([put("chunks.plans.nfiles", {"kind": "single"})], "chunks.plans.nfiles"),
        (
            [put("scorers.own", {"kind": "external", "source": "a:b", "version": 1, "splits": ["eval"],
                                 "batch_size": 8, "options": {"deep": [{"size": 1}]}})],
            "scorers.own.options.deep[0].size",
        ),
        ([put("prompts.benchmarks.size", {"kind": "coco", "count": 6, "seed": 0})], "prompts.benchmarks.size"),
    ],
)  # fmt: skip
def test_rejects_name_hidden_from_dvc_once(edits: list[Edit], path: str) -> None:
    said = [line for line in problems(*edits) if line.startswith(f"{path}:")]
    assert len(said) == 1
    assert "DVC's run cache leaves such keys out" in said[0]
