"""A small real pipeline that can be served, in a repository of its own: prepare, train@a, train@b, report."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from dvc.utils.hydra import compose_and_dump

from tests.forked_dvc import forked_dvc

REPOSITORY = Path(__file__).resolve().parents[1]

DVC_YAML = """\
stages:
  prepare:
    cmd: python -m stages.work prepare prepared.txt
    deps: [stages/work.py]
    params: [report.title]
    outs: [prepared.txt]
    meta:
      makes_model: true
  train:
    foreach: ${variants}
    do:
      cmd: python -m stages.work train models/${key}.txt
      deps: [prepared.txt, stages/work.py]
      params: ["variants.${key}"]
      outs: ["models/${key}.txt"]
      meta:
        work_pool: ${pools.train}
        flow: train
        makes_model: true
  report:
    cmd: python -m stages.work report artifacts/report
    deps: [models/a.txt, models/b.txt, stages/work.py]
    params: [generate.seed]
    outs: [artifacts/report]
"""

WORK_PY = '''\
"""Stands in for every stage: says that it runs, then does what params.yaml says.

Of a variant, `eta` is how many minutes it trains, and `kl_coef` the exit code of its training, which leaves its
process id in VARIANT.pid, and when it began and ended in VARIANT.times.
"""

import base64
import json
import os
import sys
import time
from pathlib import Path

import yaml

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

kind, out = sys.argv[1], Path(sys.argv[2])
params = yaml.safe_load(Path("params.yaml").read_text())
out.parent.mkdir(parents=True, exist_ok=True)
if kind == "prepare":
    out.write_text(params["report"]["title"] or "no title")
elif kind == "train":
    variant = params["variants"][out.stem]
    print(f"training {out.stem}: {variant}", flush=True)
    Path(f"{out.stem}.pid").write_text(str(os.getpid()))
    begin = time.time()
    time.sleep(60 * variant.get("eta", 0))
    Path(f"{out.stem}.times").write_text(f"{begin} {time.time()}")
    if code := int(variant.get("kl_coef", 0)):
        print(f"no training for {out.stem}")
        sys.exit(code)
    out.write_text(Path("prepared.txt").read_text() + str(variant))
else:
    out.mkdir(exist_ok=True)
    (out / "l1_profile.png").write_bytes(base64.b64decode(PIXEL))
    gained = {"a": {"tuned": {"reward": {"difference": 0.5, "low": 0.25, "high": 0.75}}}}
    (out / "summary.json").write_text(json.dumps(gained))
    (out / "report.md").write_text("# Small report\\n\\n![profile](l1_profile.png) ![away](https://example.org/x.png)\\n")
'''

VARIANTS = """\
# @package _global_
variants:
  a: {objective: chunk, plan: guided}
  b: {objective: chunk, plan: listed}
"""

ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "t",
    "GIT_AUTHOR_EMAIL": "t@localhost",
    "GIT_COMMITTER_NAME": "t",
    "GIT_COMMITTER_EMAIL": "t@localhost",
    "DVC_NO_ANALYTICS": "1",
}

Shell = Callable[..., str]


def quiet(_: str) -> None:
    """Log nothing."""


@pytest.fixture(scope="session")
def shell() -> Shell:
    """Run a program in a folder and return its output; a failure fails the test."""

    def run(folder: Path, *command: str) -> str:
        result = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
        assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
        return result.stdout

    return run


@pytest.fixture(scope="session")
def template(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small pipeline with this repository's flows, committed, nothing run. Read only."""
    folder = tmp_path_factory.mktemp("template") / "checkout"
    files = {
        "dvc.yaml": DVC_YAML,
        "stages/__init__.py": "",
        "stages/work.py": WORK_PY,
        "conf/variants/small.yaml": VARIANTS,
        ".gitignore": "/prepared.txt\n/models/\n/artifacts/\n*.pid\n*.times\n/.prefect/\n__pycache__/\n",
    }
    for name in ("conf", "flows", "infra"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("prefect.toml", "prefect.yaml"):
        shutil.copy(REPOSITORY / name, folder)
    for preset, variants in (("tiny", "tiny"), ("smoke", "pair")):
        file = folder / "conf" / "preset" / f"{preset}.yaml"
        text = file.read_text().replace(f"/variants: {variants}", "/variants: small")
        file.write_text(text.replace("  train: null ", "  train: gpu "))
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    compose_and_dump(folder / "params.yaml", str(folder / "conf"), None, "config", str(folder), ["preset=tiny"])
    shell(folder, "git", "init", "--quiet", "--initial-branch", "main")
    shell(folder, sys.executable, "-m", "dvc", "init", "--quiet")
    (folder / ".dvc/config").write_text("[core]\n    analytics = false\n")
    shell(folder, "git", "add", "--all")
    shell(folder, "git", "commit", "--quiet", "--message", "small pipeline")
    return folder


@pytest.fixture(scope="session")
def finished_template(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small pipeline, every stage run. Read only."""
    folder = tmp_path_factory.mktemp("finished") / "checkout"
    shutil.copytree(template, folder, symlinks=True)
    forked_dvc(folder, "repro", "--quiet")
    return folder


@pytest.fixture(scope="session")
def make_pipeline(template: Path) -> Callable[[Path], Path]:
    """Copy the small pipeline into a new folder."""

    def make(folder: Path) -> Path:
        return shutil.copytree(template, folder, symlinks=True, dirs_exist_ok=True)

    return make


@pytest.fixture
def finished_pipeline(tmp_path: Path, finished_template: Path) -> Path:
    """The small pipeline, committed, every stage run."""
    return shutil.copytree(finished_template, tmp_path / "checkout", symlinks=True)


@pytest.fixture
def pipeline(tmp_path: Path, make_pipeline: Callable[[Path], Path]) -> Path:
    """The small pipeline, committed, nothing run."""
    return make_pipeline(tmp_path / "checkout")
