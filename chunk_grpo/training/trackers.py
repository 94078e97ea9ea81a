"""Whether the trackers of params.yaml can be opened; imports no torch, so that a run can ask before its first stage."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from chunk_grpo.errors import ConfigError, install_command

_WITHOUT_LOGIN = ("offline", "disabled", "dryrun")
"""Values of WANDB_MODE with which wandb contacts no server."""

EXTRAS = {"tensorboard": "training", "wandb": "wandb", "mlflow": "mlflow"}
"""Extra of pyproject.toml that installs a tracker."""

WANDB_ADVICE = (
    "Run `wandb login`, or set WANDB_MODE=offline and upload later with `wandb sync`, or remove wandb from the "
    "trackers."
)
"""What to do where wandb does not start."""

MLFLOW_ADVICE = (
    "Start its server, or correct MLFLOW_TRACKING_URI, or unset it to write logs/mlflow.db, or remove mlflow from the "
    "trackers."
)
"""What to do where MLflow does not start."""

MLFLOW_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # MLflow's own are 7 retries of 120 s, for which each iteration would wait.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""Variables for MLflow, where the environment has none of the name."""


def check_trackers(names: Sequence[str]) -> None:
    """Check early that these trackers can be opened. Contacts no server.

    Args:
        names: Values of `trackers` in params.yaml.

    Raises:
        ConfigError: One is not installed, or wandb is not logged in.
    """
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(
                f"trackers: {name} is not installed. Run `{install_command(EXTRAS[name])}`, or remove {name} from the "
                "trackers."
            )
    if "wandb" not in names or os.environ.get("WANDB_MODE") in _WITHOUT_LOGIN:
        return
    # Without a key wandb would prompt for one, and block an unattended run.
    if not os.environ.get("WANDB_IDENTITY_TOKEN_FILE") and import_module("wandb").api.api_key is None:
        raise ConfigError(f"trackers: wandb is not logged in. {WANDB_ADVICE}")
