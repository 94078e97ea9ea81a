"""A run's workspace is one commit, shares the DVC cache, and leaves the checkout alone."""

import json
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from chunk_grpo.git import commit_of_working_tree, is_of_working_tree, resolved, uncommitted
from chunk_grpo.orchestration import clones
from chunk_grpo.orchestration.clones import IN_USE, clone_in_use, locked, make_clone
from chunk_grpo.orchestration.commands import Commands, CommandStoppedError
from chunk_grpo.orchestration.dvc_internals import Repo
from chunk_grpo.orchestration.outcomes import StageFailed
from chunk_grpo.orchestration.pipeline import Pipeline
from chunk_grpo.orchestration.workspace import RunSpec, TrainedModels, make_workspace, share_cache, write_params
from tests.forked_dvc import forked_dvc
from tests.small_pipeline import Shell, quiet


def clone_of(pipeline: Path, folder: Path, commit: str = "HEAD") -> Path:
    make_clone(pipeline, resolved(pipeline, commit), folder)
    share_cache(pipeline, folder)
    return folder


def run(folder: Path, stage: str) -> str:
    return Pipeline(folder, Commands()).run(stage, quiet).outcome


def test_clone_has_the_commit_and_reports_uncommitted_edits(pipeline: Path, tmp_path: Path, shell: Shell) -> None:
    first = resolved(pipeline, "HEAD")
    shell(pipeline, "git", "commit", "--quiet", "--allow-empty", "--message", "second")
    assert resolved(clone_of(pipeline, tmp_path / "old", "HEAD~1"), "HEAD") == first
    (pipeline / "dvc.lock").touch()  # a result, not a change
    before = (pipeline / "params.yaml").read_text()
    (pipeline / "params.yaml").write_text("text: edited\n")
    (pipeline / "new.txt").write_text("new")
    clone = clone_of(pipeline, tmp_path / "runs/one")
    assert shell(clone, "git", "rev-parse", "HEAD") == shell(pipeline, "git", "rev-parse", "HEAD")
    assert (clone / "params.yaml").read_text() == before
    assert not (clone / "new.txt").exists()
    assert sorted(line[3:] for line in uncommitted(pipeline)) == ["new.txt", "params.yaml"]


def test_commit_of_working_tree_leaves_it_unchanged(pipeline: Path, tmp_path: Path, shell: Shell) -> None:
    (pipeline / "dvc.lock").touch()
    assert commit_of_working_tree(pipeline) == resolved(pipeline, "HEAD")  # no edits
    (pipeline / ".gitignore").write_text((pipeline / ".gitignore").read_text() + "/secret.txt\n")
    (pipeline / "params.yaml").write_text("text: edited\n")
    (pipeline / "new.txt").write_text("new")
    (pipeline / "secret.txt").write_text("ignored")
    shell(pipeline, "git", "add", "params.yaml")
    (removed,) = [name for name in shell(pipeline, "git", "ls-files").split() if name == "dvc.yaml"]
    (pipeline / removed).unlink()
    before = [shell(pipeline, "git", *words) for words in (("status", "--short"), ("branch", "-av"), ("stash", "list"))]
    commit = commit_of_working_tree(pipeline)
    assert [
        shell(pipeline, "git", *words) for words in (("status", "--short"), ("branch", "-av"), ("stash", "list"))
    ] == before
    clone = tmp_path / "runs/one"
    make_clone(pipeline, commit, clone)
    assert (clone / "params.yaml").read_text() == "text: edited\n"
    assert (clone / "new.txt").read_text() == "new"
    assert not (clone / "secret.txt").exists()
    assert not (clone / "dvc.lock").exists()
    assert not (clone / removed).exists()
    assert resolved(clone, "HEAD~1") == resolved(pipeline, "HEAD")
    assert is_of_working_tree(clone, commit)
    assert not is_of_working_tree(clone, "HEAD~1")


def test_a_commit_that_a_checkout_lacks_comes_from_its_origin(pipeline: Path, tmp_path: Path, shell: Shell) -> None:
    """A worker's checkout may be older than that of the machine where a run begins."""
    shell(tmp_path, "git", "clone", "--quiet", str(pipeline), "worker")
    shell(pipeline, "git", "commit", "--quiet", "--allow-empty", "--message", "newer")
    newer = resolved(pipeline, "HEAD")
    make_clone(tmp_path / "worker", newer, tmp_path / "clone")
    assert resolved(tmp_path / "clone", "HEAD") == newer
    with pytest.raises(RuntimeError, match="no such commit"):
        resolved(tmp_path / "worker", newer)


def test_a_clone_shares_the_cache_and_leaves_the_checkout_alone(pipeline: Path, tmp_path: Path) -> None:
    def times() -> dict[Path, int]:
        files = [path for path in pipeline.rglob("*") if {".dvc", ".git"}.isdisjoint(path.parts)]
        return {path: path.stat().st_mtime_ns for path in files if path.is_file()}

    before = times()
    assert run(clone_of(pipeline, tmp_path / "runs/one"), "prepare") == "ran"
    assert times() == before
    assert run(pipeline, "prepare") == "restored"


def test_a_clone_keeps_local_settings_of_dvc(pipeline: Path, tmp_path: Path) -> None:
    forked_dvc(pipeline, "remote", "add", "--local", "-d", "near", "../store")
    clone = clone_of(pipeline, tmp_path / "deep/er/one")
    assert Pipeline(clone, Commands()).has_remote()
    with Repo(str(clone)) as repo:
        assert Path(repo.cloud.get_remote().path) == tmp_path / "store"


@pytest.mark.slow
def test_models_of_a_published_run_are_kept_with_their_parameters(pipeline: Path, tmp_path: Path) -> None:
    """Only what is of the day comes from the preset as it is now."""
    for stage in ("prepare", "train@a", "train@b"):
        run(pipeline, stage)
    params = yaml.safe_load((pipeline / "params.yaml").read_text())
    params["generate"]["seed"], params["report"]["title"] = 7, "As it was"
    models = TrainedModels(commit="c", params=json.dumps(params), lock=(pipeline / "dvc.lock").read_text())
    spec = RunSpec(commit=resolved(pipeline, "HEAD"), preset="tiny", models=models)
    spec = RunSpec.model_validate(spec.as_parameter())  # as another machine gets it
    with make_workspace(pipeline, tmp_path, "run@one", spec, Commands(), quiet) as made:
        assert made.root == tmp_path / "runs/run-one"
        assert made.is_preset
        here, there = (
            yaml.safe_load((made.root / "params.yaml").read_text()),
            yaml.safe_load((pipeline / "params.yaml").read_text()),
        )
        assert here["generate"]["seed"] == 7
        assert here["report"] == there["report"]
        assert set(made.pipeline.restore(["train@a", "train@b"], quiet)) == {"train@a", "train@b"}
        assert (made.root / "models/a.txt").read_text() == (pipeline / "models/a.txt").read_text()


def test_a_run_begins_with_the_results_of_the_last_one_of_the_preset(pipeline: Path, tmp_path: Path) -> None:
    """Also where the run cache, from which DVC would restore one stage after the other, is gone."""
    spec = RunSpec(commit=resolved(pipeline, "HEAD"))
    with make_workspace(pipeline, tmp_path, "one", spec, Commands(), quiet) as made:
        made.pipeline.run("prepare", quiet)
        made.remember()
    shutil.rmtree(pipeline / ".dvc/cache/runs")
    with make_workspace(pipeline, tmp_path, "two", spec, Commands(), quiet) as made:
        assert made.restore(["prepare"], quiet)["prepare"].outcome == "restored"
        assert (made.root / "prepared.txt").exists()


def test_another_specification_has_another_digest_on_every_machine() -> None:
    spec = RunSpec(commit="c", preset="tiny", variants=("chunk",))
    changes = ({}, {"commit": "d"}, {"preset": "smoke"}, {"variants": None}, {"overrides": ["generate.seed=7"]})
    digests = [RunSpec.model_validate(spec.as_parameter() | change).digest() for change in changes]
    assert digests[0] == spec.digest()
    assert len(set(digests)) == len(changes)


@pytest.mark.slow
def test_what_was_pushed_is_not_pushed_again(pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushes: list[Path] = []
    monkeypatch.setattr(Pipeline, "push", lambda self, log: pushes.append(self.root))
    spec = RunSpec(commit=resolved(pipeline, "HEAD"), preset="tiny")
    with make_workspace(pipeline, tmp_path, "one", spec, Commands(), quiet) as made:
        for stage, pushed in (("prepare", 1), ("prepare", 1), ("train@a", 2)):
            made.pipeline.run(stage, quiet)
            made.push(quiet)
            assert len(pushes) == pushed, stage


def test_old_clones_go_but_for_those_in_use(pipeline: Path, tmp_path: Path) -> None:
    runs, commit = tmp_path / "runs", resolved(pipeline, "HEAD")
    for age, name in enumerate("dcba"):
        make_clone(pipeline, commit, runs / name)
        if name == "b":
            shutil.rmtree(runs / name / ".git")  # as a kill leaves a clone that was being removed
        os.utime(runs / name, (1000 - age, 1000 - age))
    with locked(runs / "a" / IN_USE), clone_in_use(pipeline, commit, runs / "e", keep=3):
        assert sorted(path.name for path in runs.iterdir() if path.is_dir()) == ["a", "c", "d", "e"]
    with clone_in_use(pipeline, commit, runs / "f", keep=3):
        assert sorted(path.name for path in runs.iterdir() if path.is_dir()) == ["d", "e", "f"]


def test_clones_made_and_removed_at_once_stay_whole(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several may remove the same old one; one that is not in use yet stays, however many are newer by then."""
    make_clone(pipeline, resolved(pipeline, "HEAD"), tmp_path / "runs" / "old")
    os.utime(tmp_path / "runs" / "old", (1000, 1000))
    remove = shutil.rmtree

    def remove_slowly(path: Path) -> None:
        (path / IN_USE).unlink()  # a lock that another one makes anew is free
        time.sleep(0.3)
        remove(path)

    def make_early(repository: Path, commit: str, clone: Path) -> None:
        make_clone(repository, commit, clone)
        seconds = {"a": 0.2, "b": 0.4, "c": 0.8}[clone.name]
        os.utime(clone, (1000 / seconds, 1000 / seconds))
        time.sleep(seconds)

    monkeypatch.setattr(shutil, "rmtree", remove_slowly)
    monkeypatch.setattr(clones, "make_clone", make_early)
    all_in_use, whole = threading.Barrier(3), {}

    def use(name: str) -> None:
        with clone_in_use(pipeline, resolved(pipeline, "HEAD"), tmp_path / "runs" / name, keep=1):
            all_in_use.wait(20)
            whole[name] = not uncommitted(tmp_path / "runs" / name)

    with ThreadPoolExecutor() as pool:
        for each in [pool.submit(use, name) for name in "abc"]:
            each.result()
    assert whole == dict.fromkeys("abc", True)
    assert not (tmp_path / "runs" / "old").exists()


def test_lock_is_exclusive_and_waiting_can_be_stopped(tmp_path: Path) -> None:
    stopping, found = threading.Event(), []

    def second() -> None:
        with locked(tmp_path / "locks/it", stopping=threading.Event()) as was_free:
            found.append(was_free)

    thread = threading.Thread(target=second)
    with locked(tmp_path / "locks/it") as was_free:
        assert was_free
        thread.start()
        threading.Timer(0.5, stopping.set).start()
        with pytest.raises(CommandStoppedError), locked(tmp_path / "locks/it", stopping=stopping):
            pass
        assert found == []
    thread.join()
    assert found == [False]


def test_run_without_preset_uses_committed_params(pipeline: Path, tmp_path: Path, shell: Shell) -> None:
    params = yaml.safe_load((pipeline / "params.yaml").read_text())
    params["generate"]["seed"] = 77
    write_params(pipeline, params)
    shell(pipeline, "git", "commit", "--quiet", "--all", "--message", "our settings")
    said: list[str] = []
    commit = resolved(pipeline, "HEAD")
    with make_workspace(pipeline, tmp_path, "ours", RunSpec(commit=commit), Commands(), said.append) as made:
        assert yaml.safe_load((made.root / "params.yaml").read_text()) == params
        assert made.preset == "tiny"
        assert not made.is_preset  # what it publishes would stand in the place of the preset's
    assert not [line for line in said if "Not part of this run" in line]
    spec = RunSpec(commit=commit, preset="tiny")
    with make_workspace(pipeline, tmp_path, "preset", spec, Commands(), said.append) as made:
        assert yaml.safe_load((made.root / "params.yaml").read_text())["generate"]["seed"] != 77
        assert made.is_preset
    assert any("Not part of this run, since it was given preset tiny" in line for line in said)
    assert "  generate.seed: 77; the preset has 2000" in said
    write_params(pipeline, params | {"composed_from": "ours"})
    shell(pipeline, "git", "commit", "--quiet", "--all", "--message", "our name")
    spec = RunSpec(commit=resolved(pipeline, "HEAD"))
    with make_workspace(pipeline, tmp_path, "named", spec, Commands(), quiet) as made:
        assert (made.preset, made.is_preset) == ("ours", True)


ALWAYS = """\
  look:
    cmd: cp notes.txt seen.txt
    always_changed: true
    outs: [seen.txt]
"""


@pytest.fixture
def looking(pipeline: Path, shell: Shell) -> Path:
    """Pipeline with a stage that always runs, on whose output `prepare` depends."""
    text = (pipeline / "dvc.yaml").read_text().replace("stages:\n", "stages:\n" + ALWAYS)
    text = text.replace("deps: [stages/work.py]", "deps: [stages/work.py, seen.txt]")
    (pipeline / "dvc.yaml").write_text(text)
    (pipeline / ".gitignore").write_text((pipeline / ".gitignore").read_text() + "/seen.txt\n")
    (pipeline / "notes.txt").write_text("one")
    shell(pipeline, "git", "add", "--all")
    shell(pipeline, "git", "commit", "--quiet", "--message", "notes")
    return pipeline


@pytest.mark.slow
def test_always_changed_stage_runs_once_per_flow_run(looking: Path, tmp_path: Path, shell: Shell) -> None:
    spec = RunSpec(commit=resolved(looking, "HEAD"))
    with make_workspace(looking, tmp_path, "one", spec, Commands(), quiet) as made:
        assert "look" not in [stage.name for stage in made.pipeline.stages()]
        assert made.spec.inputs == {"seen.txt": "one"}
        assert made.pipeline.run("prepare", quiet).outcome == "ran"
        passed = RunSpec.model_validate(made.spec.as_parameter())
    with make_workspace(looking, tmp_path, "two", passed, Commands(), quiet) as other:
        assert set(other.pipeline.restore(["prepare"], quiet)) == {"prepare"}
    changed = passed.model_copy(update={"inputs": {"seen.txt": "as the first machine saw it"}})
    with make_workspace(looking, tmp_path, "three", changed, Commands(), quiet) as other:
        assert (other.root / "seen.txt").read_text() == "as the first machine saw it"
        assert other.spec.digest() != made.spec.digest()
        assert set(other.pipeline.restore(["prepare"], quiet)) == set()
    shell(looking, "dvc", "repro", "look")
    assert run(looking, "prepare") == "restored"  # in the checkout


def test_a_stage_that_always_runs_and_fails_says_so(looking: Path, tmp_path: Path, shell: Shell) -> None:
    shell(looking, "git", "rm", "--quiet", "notes.txt")
    shell(looking, "git", "commit", "--quiet", "--message", "no notes")
    spec = RunSpec(commit=resolved(looking, "HEAD"))
    failing = make_workspace(looking, tmp_path, "one", spec, Commands(), quiet)
    with pytest.raises(StageFailed, match=r"stage look failed with exit code 1(.|\n)*notes\.txt"), failing:
        pass
