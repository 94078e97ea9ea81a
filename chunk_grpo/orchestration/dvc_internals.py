"""What this package imports from DVC, but for dvc_process.py.

DVC documents its command line and `dvc.api`. What is named here may change with any release: it is imported in two
modules alone, pyproject.toml bounds the version, and tests/orchestration/ runs all of it on a real repository.
"""

from dvc.config import Config
from dvc.exceptions import DvcException, InvalidArgumentError
from dvc.repo import Repo
from dvc.repo.reproduce import plan_repro
from dvc.stage import PipelineStage, Stage
from dvc.stage.exceptions import StageNotFound
from dvc.stage.serialize import to_single_stage_lockfile
from dvc.utils.hydra import apply_overrides, get_hydra_sweeps, to_hydra_overrides
from dvc.utils.serialize import dump_yaml, load_yaml, parse_yaml

__all__ = [
    "Config",
    "DvcException",
    "InvalidArgumentError",
    "PipelineStage",
    "Repo",
    "Stage",
    "StageNotFound",
    "apply_overrides",
    "dump_yaml",
    "get_hydra_sweeps",
    "load_yaml",
    "parse_yaml",
    "plan_repro",
    "to_hydra_overrides",
    "to_single_stage_lockfile",
]
