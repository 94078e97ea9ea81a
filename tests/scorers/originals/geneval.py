"""GenEval's own evaluator and the packages it calls, for tests that compare with them.

None of it is copied into this repository: the evaluator comes from a clone that GENEVAL_SOURCE points to, packages
from PyPI into a cache folder. Stand-ins replace only what the compared functions do not use.
"""

import ast
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from chunk_grpo.scorers.geneval.records import COLOURS
from tests.scorers.originals.environments import CACHE

COMMIT = "af4902f24d3ca90ebbb446dd9891a59e0f82725f"


def geneval_source() -> Path:
    """A clone of github.com/djghosh13/geneval."""
    folder = Path(os.environ.get("GENEVAL_SOURCE", ""))
    if not (folder / "evaluation" / "evaluate_images.py").is_file():
        pytest.fail(
            "set GENEVAL_SOURCE to a clone of GenEval: `git clone https://github.com/djghosh13/geneval` "
            f"(compared with commit {COMMIT}); {str(folder)!r} has no evaluation/evaluate_images.py"
        )
    return folder


def packages(*names: str) -> Path:
    """A folder with packages of PyPI as they are, without what they depend on."""
    folder = CACHE / "-".join(names)
    if not folder.is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *names]
        subprocess.run(command, check=True)
    return folder


def evaluator(**modules: types.ModuleType) -> types.ModuleType:
    """evaluate_images.py with its default options; `modules` by the last part of their names replace stand-ins."""
    standing_in = {
        "mmdet": stand_in("mmdet"),
        "mmdet.apis": stand_in("mmdet.apis", inference_detector=None, init_detector=None),
        "open_clip": stand_in("open_clip"),
        "clip_benchmark": stand_in("clip_benchmark"),
        "clip_benchmark.metrics": stand_in("clip_benchmark.metrics", zeroshot_classification=stand_in("zsc")),
        "pandas": stand_in("pandas"),
    }
    if "pandas" in modules:
        standing_in["pandas"] = modules["pandas"]
    if "zeroshot_classification" in modules:
        standing_in["clip_benchmark.metrics"].zeroshot_classification = modules["zeroshot_classification"]
    path = geneval_source() / "evaluation" / "evaluate_images.py"
    module = types.ModuleType("evaluate_images")
    # It insists on a GPU when imported; none of the compared functions needs one.
    with mock.patch.dict(sys.modules, standing_in), mock.patch.object(torch.cuda, "is_available", lambda: True):
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    names = (geneval_source() / "evaluation" / "object_names.txt").read_text().splitlines()
    state: dict[str, Any] = {
        "DEVICE": "cpu",
        "THRESHOLD": 0.3,
        "COUNTING_THRESHOLD": 0.9,
        "MAX_OBJECTS": 16,
        "NMS_THRESHOLD": 1.0,
        "POSITION_THRESHOLD": 0.1,
        "object_detector": None,
        "classnames": [name.strip() for name in names],
        "args": types.SimpleNamespace(options={}),
    }
    module.__dict__.update(state)
    return module


def graded_original(colours: Callable[..., list[str]]) -> Any:
    """Flow-GRPO's evaluate_reward, with a function that names the colours of objects.

    The function is inside another one, which loads models, so its source is taken out by name.
    """
    folder = Path(os.environ.get("REWARD_SERVER_SOURCE", ""))
    path = folder / "reward_server" / "gen_eval.py"
    if not path.is_file():
        pytest.fail(
            "set REWARD_SERVER_SOURCE to a clone of github.com/yifan123/reward-server (compared with commit 7131478); "
            f"{str(folder)!r} has no reward_server/gen_eval.py"
        )
    wanted = ("relative_position", "evaluate_reward")
    found = [node for node in ast.walk(ast.parse(path.read_text())) if getattr(node, "name", None) in wanted]
    scope = {"np": np, "POSITION_THRESHOLD": 0.1, "color_classification": colours, "COLORS": COLOURS}
    exec(compile(ast.Module(found, []), str(path), "exec"), scope)
    return scope["evaluate_reward"]


def stand_in(name: str, **attributes: Any) -> Any:
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    return module


def run_file(path: Path, text: str | None = None, **modules: types.ModuleType) -> types.ModuleType:
    """A module of a package with stand-ins for what it imports, whose names have __ for a dot; `text` replaces its."""
    module = types.ModuleType(path.stem)
    with mock.patch.dict(sys.modules, {name.replace("__", "."): module for name, module in modules.items()}):
        exec(compile(text or path.read_text(), str(path), "exec"), module.__dict__)
    return module
