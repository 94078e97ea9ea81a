"""Random histories of runs, publications, commits and removals: what `make gc` removes, and what it must not."""

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from chunk_grpo.artifacts.publishing import publish
from chunk_grpo.artifacts.run_record import RunFacts
from chunk_grpo.git import resolved
from chunk_grpo.orchestration.clones import clone_in_use
from chunk_grpo.orchestration.workspace import share_cache
from infra.gc import main
from tests.forked_dvc import forked_dvc
from tests.small_pipeline import Shell

DVC_YAML = """\
stages:
  first:
    cmd: mkdir -p artifacts && cp params.yaml artifacts/first.txt && echo $NOISE >> artifacts/first.txt
    params: [seed]
    outs: [artifacts/first.txt]
  second:
    foreach: ${variants}
    do:
      cmd: >-
        mkdir -p artifacts/${item} && echo same > artifacts/${item}/same
        && echo ${item} | cat - artifacts/first.txt > artifacts/${item}/own
      deps: [artifacts/first.txt]
      outs: ["artifacts/${item}"]
"""
KEPT_CLONES = 2


class History:
    """A checkout with its clones and published runs, and what may happen to them."""

    def __init__(self, root: Path, seed: int, shell: Shell) -> None:
        self.checkout, self.home, self.shell = root / "checkout", root / "home", shell
        self.published, self.random, self.runs = root / "elsewhere", random.Random(seed), 0
        self.checkout.mkdir(parents=True)
        shell(self.checkout, "git", "init", "--quiet")
        shell(self.checkout, "git", "config", "user.name", "t")
        shell(self.checkout, "git", "config", "user.email", "t@localhost")
        forked_dvc(self.checkout, "init", "--quiet")
        (self.checkout / "dvc.yaml").write_text(DVC_YAML)
        (self.checkout / ".gitignore").write_text("/artifacts/\n")
        self.set_params(self.checkout)
        self.commit()

    def set_params(self, folder: Path) -> None:
        names = self.random.sample(["a", "b", "c"], self.random.randint(1, 2))
        params = {"composed_from": "it", "seed": self.random.randint(1, 4), "variants": names}
        (folder / "params.yaml").write_text(json.dumps(params))

    def commit(self) -> None:
        """As `make track` commits."""
        self.shell(self.checkout, "git", "add", "--all")
        self.shell(self.checkout, "git", "commit", "--quiet", "--allow-empty", "--message", "it")

    def repro(self, folder: Path) -> None:
        """Run the pipeline; by force it may give other bytes from the same inputs."""
        os.environ["NOISE"] = str(self.random.randint(1, 3))
        forked_dvc(folder, "repro", *(["--force"] if self.random.random() < 0.3 else []))

    def run_in_checkout(self) -> None:
        self.set_params(self.checkout)
        self.repro(self.checkout)

    def run_in_clone(self) -> None:
        """As a flow run: a clone with the checkout's cache, which may be published."""
        self.runs += 1
        clone = self.home / "runs" / str(self.runs)
        with clone_in_use(self.checkout, resolved(self.checkout, "HEAD"), clone, KEPT_CLONES):
            share_cache(self.checkout, clone)
            self.set_params(clone)
            self.repro(clone)
            if self.random.random() < 0.5:
                root = self.random.choice([self.home / "published", self.published])
                publish(clone, root / self.random.choice(["", f"runs/{self.runs}"]), RunFacts("it", "c", "r"))

    def remove_something(self) -> None:
        """A published run or a clone, or the results of the checkout."""
        runs = [
            path.parent for root in (self.home / "published", self.published) for path in self.locks(root)
        ]
        lock = self.checkout / "dvc.lock"
        found = [*runs, *(self.home / "runs").glob("[0-9]*"), *([lock] if lock.exists() else [])]
        if found:
            gone = self.random.choice(found)
            gone.unlink() if gone.is_file() else shutil.rmtree(gone)

    @staticmethod
    def locks(root: Path) -> list[Path]:
        return sorted(root.rglob("dvc.lock"))

    def named(self) -> set[str]:
        """Names in the cache of all outputs that anything names."""
        texts = [path.read_text() for root in (self.home, self.published) for path in self.locks(root)]
        if (lock := self.checkout / "dvc.lock").exists():
            texts.append(lock.read_text())
        for commit in self.shell(self.checkout, "git", "rev-list", "--all").split():
            if self.shell(self.checkout, "git", "ls-tree", commit, "dvc.lock"):
                texts.append(self.shell(self.checkout, "git", "show", f"{commit}:dvc.lock"))
        stages = [stage for text in texts for stage in yaml.safe_load(text)["stages"].values()]
        found = {out["md5"] for stage in stages for out in stage["outs"]}
        listings = [self.cache / name[:2] / name[2:] for name in found if name.endswith(".dir")]
        return found | {file["md5"] for path in listings for file in json.loads(path.read_bytes())}

    @property
    def cache(self) -> Path:
        return self.checkout / ".dvc" / "cache" / "files" / "md5"

    def cached(self) -> set[str]:
        return {path.parent.name + path.name for path in self.cache.rglob("*") if path.is_file()}

    def remove_unused(self) -> int:
        """Run `make gc DELETE=1`; return the number of files that are gone."""
        before = self.cached()
        assert main(["--delete", "--checkout", str(self.checkout)]) == 0
        left = self.cached()
        assert left == self.named()
        for entry in (self.cache.parents[1] / "runs").glob("*/*/*"):
            assert {out["md5"] for out in yaml.safe_load(entry.read_text())["outs"]} <= left
        return len(before - left)


@pytest.fixture(autouse=True)
def without_start(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("chunk_grpo.orchestration.unused.dvc", forked_dvc)
    monkeypatch.setenv("NOISE", "")
    yield


def play(root: Path, seed: int, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> int:
    """Play one history; return the number of files that were removed."""
    history = History(root, seed, shell)
    monkeypatch.setenv("PREFECT_HOME", str(history.home))
    monkeypatch.setenv("CHUNK_GRPO_PUBLISH", str(history.published))
    history.published.mkdir()
    steps = {
        history.run_in_checkout: 3,
        history.run_in_clone: 5,
        history.commit: 1,
        history.remove_something: 3,
    }
    removed = 0
    for _ in range(2):
        for step in history.random.choices([*steps], [*steps.values()], k=4):
            step()
        removed += history.remove_unused()
    history.run_in_checkout()  # from whatever is left in cache and run cache
    return removed


def test_keeps_exactly_referenced_results(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert play(tmp_path, 0, shell, monkeypatch) > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("block", range(10))
def test_a_hundred_histories(
    block: int, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = range(100 + 10 * block, 110 + 10 * block)
    assert sum(play(tmp_path / str(seed), seed, shell, monkeypatch) for seed in seeds) > 0
