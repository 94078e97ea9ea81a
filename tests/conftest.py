"""The smoke preset's stages by the command lines of dvc.yaml, with paths of a test's own."""

import fcntl
import hashlib
import importlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from chunk_grpo.code import code_records

pytest_plugins = ["tests.s3_server", "tests.small_pipeline"]

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ROOT / "assets" / "tiny-flux"
VARIANT, SCORER = "chunk-ws", "shapes-graded"
ORDER = (
    "inputs",
    "prepare_prompts",
    "check_scorers",
    "try_scorers",
    "encode_prompts@profile",
    "encode_prompts@evaluation",
    "encode_training",
    "profile_l1",
    "chunk_boundaries",
    "train",
    "generate_base",
    "generate",
    "score_base",
    "score",
)


_code_records = cache(code_records)
"""The code stays while tests run, and nine tenths of the time of `inputs` are spent on reading it."""


@cache
def dvc_stages() -> dict[str, Any]:
    """The stages of dvc.yaml."""
    stages: dict[str, Any] = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]
    return stages


RECORDED = {"train": {"variants"}, "prepare_prompts": {"prompts", "model"}, "check_scorers": {"scorers"}}
"""Records of the stage `inputs` with which a stage compares params.yaml and the user's files."""


@dataclass(frozen=True)
class Workspace:
    """A folder with params.yaml of the smoke preset and artifacts/, in which stages run."""

    root: Path
    variant: str = VARIANT
    scorer: str = SCORER
    seed: int = 0

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    def edit(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change params.yaml."""
        yaml = YAML()  # keeps the order
        raw = yaml.load(self.root / "params.yaml")
        change(raw)
        yaml.dump(raw, self.root / "params.yaml")

    def options(self, stage: str, **changes: str) -> tuple[str, list[str]]:
        """The module and the options of a stage as dvc.yaml writes them; `changes` replace options' values.

        But the stage reads params.yaml itself, so that an edit of it needs no new record, and its code is not compared
        with a record.
        """
        stages = dvc_stages()
        stage, _, part = stage.partition("@")
        text = stages[stage].get("do", stages[stage])["cmd"]
        of_seed = f"{self.variant}-{self.seed}"
        key = {"score": f"{self.variant}-{self.scorer}", "score_base": self.scorer}.get(stage, of_seed)
        values = {
            "key": f"{part}-{self.scorer}" if stage == "score_policy" else part or key,
            "item.policy": part,
            "item.variant": self.variant,
            "item.scorer": self.scorer,
            "item.seed": str(self.seed),
            "item": {"profile": "scheduled/profile", "": str(self.seed)}.get(part, part),
        }
        for name, value in values.items():
            text = text.replace(f"${{{name}}}", value)
        assert "$" not in text, text
        _, _, _, module, *options = shlex.split(text)  # exec python -m
        if module != "stages.inputs":
            assert options[:3:2] == ["--params", "--code"]
            options = options[4:]
        for name, value in changes.items():
            options[options.index(f"--{name}") + 1] = value
        return module, options

    def run(self, stage: str, **changes: str) -> int:
        """Run a stage in this process, after recording anew what it compares with params.yaml and the user's files."""
        if stage in RECORDED and (code := self.run("inputs", **self.kept_records(stage))) != 0:
            return code
        return self.run_as_recorded(stage, **changes)

    def run_as_recorded(self, stage: str, **changes: str) -> int:
        """Run a stage in this process. As in a process of its own, modules of the folder are imported anew."""
        module, options = self.options(stage, **changes)
        found = importlib.import_module(module)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.root)
            patch.syspath_prepend(self.root)
            patch.setattr(sys, "dont_write_bytecode", True)
            patch.setattr("stages.inputs.code_records", _code_records)
            try:
                return int(importlib.import_module("stages._stage").run_stage(found.main, found.Arguments, options))
            finally:
                for name, held in list(sys.modules.items()):
                    if str(getattr(held, "__file__", None)).startswith(f"{self.root}{os.sep}"):
                        del sys.modules[name]

    def kept_records(self, stage: str) -> dict[str, str]:
        """Changes of the options of `inputs` with which only the records that a stage is compared with are new."""
        files = {"settings", "model", "prompts", "scorers", "names"} - RECORDED[stage]
        folders = {"codes", "variants", "policies"} - RECORDED[stage]
        return {name: f"recorded/{name}.json" for name in files} | {name: f"recorded/{name}" for name in folders}

    def images(self, policy: str) -> str:
        """Location of the images of `base` or of the variant."""
        folder = self.artifacts / "images" / policy
        return str((folder if policy == "base" else folder / f"seed-{self.seed}") / "images.parquet")

    def schedule(self, **train: Any) -> None:
        """Change `train` of params.yaml, and record it and encode the prompts that training then uses, as DVC would."""
        self.edit(lambda raw: raw["train"].update(train))
        for stage in ("inputs", "prepare_prompts", "encode_training"):
            assert self.run(stage) == 0, stage

    def process(self, stage: str, *prefix: str, **changes: str) -> "subprocess.Popen[str]":
        """Start a stage as a process of its own, by `prefix` (a wrapper such as nice) if there is one."""
        if stage in RECORDED.keys() - {"train"}:
            assert self.run("inputs", **self.kept_records(stage)) == 0
        module, options = self.options(stage, **changes)
        environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        command = [*prefix, sys.executable, "-m", module, *options]
        return subprocess.Popen(command, cwd=self.root, env=environment, stderr=subprocess.PIPE, text=True)

    def finish(self, stage: str, seconds: float = 600) -> None:
        """Run a stage as a process of its own, to its end."""
        with self.process(stage) as process:
            _, errors = process.communicate(timeout=seconds)
        assert process.returncode == 0, errors

    def files(self, *starts: str) -> dict[str, bytes]:
        """Files below artifacts/, of all or of some folders."""
        paths = [path for path in self.artifacts.rglob("*") if path.is_file()]
        found = {path.relative_to(self.artifacts).as_posix(): path.read_bytes() for path in paths}
        return {name: content for name, content in found.items() if name.startswith(starts or "")}

    def trained(self) -> dict[str, bytes]:
        """Weights and metrics of the variant."""
        return self.files(f"train/{self.variant}/")


def prompt_file(path: str) -> dict[str, Any]:
    """The section of a file of prompts."""
    return {"path": path, **dict.fromkeys(("hub_file", "revision", "prompt_field", "category_field", "limit"))}


def any_prompt(raw: dict[str, Any]) -> None:
    """Score with the only toy scorer that accepts any prompt."""
    raw["scorers"] = {"shapes-vivid": {"kind": "shapes-vivid", "splits": ["eval"], "batch_size": 8}}
    raw["rewards"] = {"shapes-vivid": 1.0}
    raw["train"]["heldout"]["scorers"] = []


def new_workspace(root: Path) -> Workspace:
    from dvc.utils.hydra import compose_and_dump

    config = str(ROOT / "conf")
    compose_and_dump(root / "params.yaml", config, None, "config", str(ROOT), ["preset=smoke"])
    workspace = Workspace(root)
    workspace.edit(lambda raw: raw["model"].update(checkpoint=str(CHECKPOINT)))
    return workspace


def _digest() -> str:
    """Digest of all that the stages' results come from."""
    packages = sorted(path.name for path in Path(sysconfig.get_path("purelib")).glob("*.dist-info"))
    digest = hashlib.sha256(repr((packages, sys.version, os.environ.get("OMP_NUM_THREADS"))).encode())
    for name in ("assets", "chunk_grpo", "conf", "stages", "dvc.yaml", "tests/conftest.py"):
        for path in sorted([ROOT / name, *(ROOT / name).rglob("*")]):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


_DIGEST = _digest()
"""Of the code that this process imports, unless it is edited meanwhile."""


def kept(name: str, make: Callable[[Path], object]) -> Path:
    """A folder that `make` fills, for all workers and later sessions until code, configuration or packages change."""
    home = ROOT / ".pytest_cache" / name
    home.mkdir(parents=True, exist_ok=True)
    root = home / _DIGEST
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            for older in sorted(home.glob("*/"), key=lambda path: path.stat().st_mtime)[:-2]:
                shutil.rmtree(older)
            part = root.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            make(part)
            if _digest() != _DIGEST:  # an edit while the tests run: nobody else takes this folder
                root = home / f"{_DIGEST}-{os.getpid()}"
            part.rename(root)
    return root


@pytest.fixture(scope="session")
def finished() -> Workspace:
    """Every stage up to the scores ran once. Read only: `workspace` is a copy to change."""

    def make(root: Path) -> None:
        made = new_workspace(root)
        for stage in ORDER:
            assert made.run(stage) == 0, stage

    return Workspace(kept("finished", make))


@pytest.fixture
def workspace(finished: Workspace, tmp_path: Path) -> Workspace:
    """A copy of the finished one."""
    root = tmp_path / "workspace"
    shutil.copytree(finished.root, root)
    return Workspace(root)
