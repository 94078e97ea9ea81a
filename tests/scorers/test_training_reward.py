"""HPSv3 (a small random checkpoint) as the training reward: in the process of the stage, and at a server."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import VARIANT, Workspace
from tests.scorers.checkpoints_hpsv3 import make_hpsv3
from tests.scorers.servers import ServerProcess

pytestmark = [pytest.mark.slow]


def rewarded_by_hpsv3(folder: Path) -> dict[str, Any]:
    """Its section of `scorers`."""
    return {
        "kind": "hpsv3",
        "splits": ["eval"],
        "batch_size": 4,
        "model": {"checkpoint": str(folder / "model"), "revision": None},
        "backbone": {"checkpoint": str(folder / "backbone"), "revision": None},
        "dtype": "float32",
    }


def trained(workspace: Workspace) -> dict[str, bytes]:
    """Outputs of the stage without measured seconds."""
    assert workspace.run("check_scorers") == 0
    assert workspace.run("train") == 0
    return {
        name: content for name, content in workspace.files().items() if name.startswith(f"train/{VARIANT}/")
    }


def test_training_is_the_same_in_process_and_over_http(workspace, finished, tmp_path):
    model = make_hpsv3(tmp_path / "model")
    workspace.edit(lambda raw: raw["scorers"].update(hpsv3=rewarded_by_hpsv3(model)))
    workspace.edit(lambda raw: raw.update(rewards={"hpsv3": 1.0}))
    in_process = trained(workspace)
    toy = {name: finished.files()[name] for name in in_process}
    assert in_process != toy  # it is this reward that was trained on
    (workspace.artifacts / "train" / VARIANT).rename(tmp_path / "older")
    with ServerProcess(workspace.root / "params.yaml", "hpsv3") as server:
        executor = {"kind": "http", "url": server.url, "token_variable": None, "timeout_seconds": 60.0}
        workspace.edit(lambda raw: raw["executors"].update(hpsv3=executor))
        assert trained(workspace) == in_process
        assert server.end()[0] == 0
