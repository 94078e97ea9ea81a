"""infra/skypilot: a worker of a pool on a machine that SkyPilot starts, and starts again elsewhere."""

import os
import subprocess
from pathlib import Path

from tests.docs.commands import problems
from tests.infra.deployment_files import INFRA, SECRET, documents, is_known

(TASK,) = documents(INFRA / "skypilot" / "worker.yaml")
VARIABLES = TASK["envs"] | TASK["secrets"]
READ_BY_THE_SCRIPT = {"REPOSITORY", "COMMIT", "POOL", "STORE"}


def test_variables_are_known_or_used() -> None:
    assert {name for name in VARIABLES if not is_known(name)} == READ_BY_THE_SCRIPT
    assert all(f'"${name}"' in TASK["setup"] + TASK["run"] for name in READ_BY_THE_SCRIPT)


def test_secrets_have_no_value_and_stand_apart() -> None:
    assert [name for name in VARIABLES if SECRET.search(name) and name not in TASK["secrets"]] == []
    assert set(TASK["secrets"].values()) == {None}


def test_the_worker_starts_in_a_clone_of_the_commit(tmp_path: Path) -> None:
    """Also where the clone is there already, as after a restart on the same machine."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "python3.11"
    programs = {
        "git": 'echo "git $*" >> "$CALLS"; [ "$1" != clone ] || mkdir -p "$3/.venv/bin"',
        "python3": f'echo "python3 $*" >> "$CALLS"; [ "$4" != find ] || echo {python}',
        "make": 'echo "make $*" >> "$CALLS"; [ "$1" != .venv ] || cp ../bin/git .venv/bin/dvc',
    }
    for name, code in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{code}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    given = {"REPOSITORY": "https://host/r", "COMMIT": "main", "POOL": "h100", "STORE": "s3://b/dvc"}
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    environment = os.environ | given | {"PATH": path, "CALLS": str(tmp_path / "calls")}
    for script in (TASK["setup"], TASK["setup"], TASK["run"]):
        subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, check=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    prepared = [
        "git checkout main",
        "python3 -m pip install uv==0.13.9",
        "python3 -m uv python install 3.11",
        "python3 -m uv python find 3.11",
        f"make .venv PYTHON={python}",
        "git remote add --local --force -d store s3://b/dvc",  # dvc
    ]
    assert calls == ["git clone https://host/r chunk-grpo", *prepared, *prepared, "make worker POOL=h100"]


def test_its_commands_exist() -> None:
    lines = [line.removeprefix("exec ") for line in (TASK["setup"] + TASK["run"]).splitlines()]
    assert [problem for line in lines if line.startswith("make") for problem in problems(line)] == []
