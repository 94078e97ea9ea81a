"""What this package relies on of DVC's internals, each looked at on a pipeline of two stages."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from chunk_grpo.orchestration.dvc_internals import (
    Config,
    InvalidArgumentError,
    PipelineStage,
    Repo,
    Stage,
    StageNotFound,
    apply_overrides,
    dump_yaml,
    get_hydra_sweeps,
    load_yaml,
    parse_yaml,
    plan_repro,
    to_single_stage_lockfile,
)
from tests.conftest import ROOT

DVC_YAML = """\
stages:
  second: {cmd: cp a b, deps: [a], outs: [b], meta: {work_pool: gpu}}
  first: {cmd: echo 1 > a, params: [train.seed], outs: [a]}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Repo.init(str(tmp_path), no_scm=True):
        pass
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    (tmp_path / "params.yaml").write_text("train: {seed: 3}\n")
    return tmp_path


def test_the_version_is_bounded_and_this_one_is_within() -> None:
    (bounds,) = re.findall(r'"dvc(>=[\d.]+,<[\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert version("dvc") in SpecifierSet(bounds)


def test_stages_come_in_the_order_in_which_they_run(root: Path) -> None:
    with Repo(str(root)) as repo:
        graph = repo.index.graph
        order = plan_repro(graph, list(graph.nodes))
        assert [stage.name for stage in order] == ["first", "second"]
        assert all(isinstance(stage, PipelineStage) and isinstance(stage, Stage) for stage in order)
        assert order[1].meta == {"work_pool": "gpu"}
        with pytest.raises(StageNotFound):
            repo.stage.collect(f"{repo.root_dir}/dvc.yaml:third")


def test_an_entry_of_the_lock_has_command_parameters_and_digests(root: Path) -> None:
    (root / "a").write_text("1\n")
    with Repo(str(root)) as repo:
        (first,) = repo.stage.collect(f"{repo.root_dir}/dvc.yaml:first")
        first.save_deps()
        entry = to_single_stage_lockfile(first)
        assert {name: entry[name] for name in ("cmd", "params")} == {
            "cmd": "echo 1 > a",
            "params": {"params.yaml": {"train.seed": 3}},
        }
        (second,) = repo.stage.collect(f"{repo.root_dir}/dvc.yaml:second")
        second.save_deps()
        (dep,) = to_single_stage_lockfile(second)["deps"]
        assert (dep["path"], dep["hash"], len(dep["md5"])) == ("a", "md5", 32)


def test_settings_of_a_repository_can_be_changed(root: Path) -> None:
    with Config(str(root / ".dvc")).edit("local") as settings:
        settings["cache"] = {"dir": "/elsewhere"}
    assert Config(str(root / ".dvc"))["cache"]["dir"] == "/elsewhere"


def test_yaml_is_read_written_and_composed(tmp_path: Path) -> None:
    out = tmp_path / "out.yaml"
    out.write_text("seed: 2\n")
    apply_overrides(out, ["seed=4"])
    assert load_yaml(str(out)) == {"seed": 4}
    with pytest.raises(InvalidArgumentError):
        apply_overrides(out, ["sed=4"])
    dump_yaml(str(out), {"seeds": [1, 2]})
    assert parse_yaml(out.read_text(), "out.yaml") == load_yaml(str(out)) == {"seeds": [1, 2]}


def test_several_values_become_overrides_of_one_value_each() -> None:
    assert get_hydra_sweeps({"a": ["x=1,2"]}) == [{"a": ["x=1"]}, {"a": ["x=2"]}]
    assert get_hydra_sweeps({"a": ["x=[1,2]"]}) == [{"a": ["x=[1,2]"]}]
