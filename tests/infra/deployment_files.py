"""Helpers for tests of container, Kubernetes and AWS files: reading, linting, rendering."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prefect.settings
import yaml
from prefect.utilities.templating import apply_values

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
POOLS = ("cpu", "gpu")
UID = 10001
HOME = "/var/lib/chunk-grpo"

OURS = {
    *("CHUNK_GRPO_NOTIFY_WEBHOOK", "CHUNK_GRPO_PUBLISH", "CHUNK_GRPO_REPORTS_URL", "CHUNK_GRPO_REPOSITORY"),
    "CHUNK_GRPO_CHECKPOINTS",
}
OTHERS = {
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"),
    *("POSTGRES_USER", "POSTGRES_PASSWORD", "POSTGRES_DB"),
    "S3_BUCKET",  # SeaweedFS
    *("HF_HOME", "HF_TOKEN"),  # Hugging Face
    "NVIDIA_DRIVER_CAPABILITIES",
    *("DO_NOT_TRACK", "DVC_NO_ANALYTICS"),
    *("PATH", "PYTHONUNBUFFERED", "PIP_DISABLE_PIP_VERSION_CHECK", "PIP_NO_CACHE_DIR"),
}
SECRET = re.compile(r"PASSWORD|SECRET|AUTH_STRING$|ACCESS_KEY|TOKEN|WEBHOOK|CONNECTION_URL")
PINNED = re.compile(r"^[\w./-]+:v?\d+\.\d+(\.\d+)?(-[\w.-]+)?(@sha256:[0-9a-f]{64})?$")


def is_known(variable: str) -> bool:
    """Whether a container may get this environment variable: ours, or a documented one of a library."""
    if variable.startswith("PREFECT_"):
        return hasattr(prefect.settings, variable)
    return variable in OURS | OTHERS


def lint(tool: str, *arguments: str | Path) -> None:
    """Run a linter that is installed beside this Python; a finding is an error."""
    command = [Path(sys.executable).with_name(tool), *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{tool} {' '.join(map(str, arguments))}:\n{result.stdout}{result.stderr}"


def documents(path: Path) -> list[dict[str, Any]]:
    """Every document of a YAML file."""
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def template(kind: str, pool: str) -> dict[str, Any]:
    """A base job template; `kind` is its folder."""
    return dict(json.loads((INFRA / kind / f"{pool}.json").read_text("utf-8")))


def variables(base: dict[str, Any]) -> dict[str, Any]:
    """The variables of a base job template by name, each a JSON schema."""
    return dict(base["variables"]["properties"])


def rendered(base: dict[str, Any], **values: Any) -> dict[str, Any]:
    """The job configuration with the template's defaults, by Prefect's own rules."""
    defaults = {name: each["default"] for name, each in variables(base).items() if "default" in each}
    return dict(apply_values(base["job_configuration"], {**defaults, **values}))


def strings(value: Any) -> Iterator[str]:
    """Every string in a nested structure, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from strings(key)
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
