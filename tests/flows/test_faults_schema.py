"""A stage of the real pipeline that writes a table of another schema: it fails, and nothing of it goes anywhere."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from chunk_grpo.git import resolved
from chunk_grpo.orchestration.clones import make_clone
from infra.local_prefect import LocalPrefect, free_port
from tests.drills.watch import Watch, watching
from tests.flows.faults import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def watch(tmp_path: Path, shell: Callable[..., str]) -> Iterator[Watch]:
    """This repository with a remote, and with a stage that forgets a column."""
    root = tmp_path / "repository"
    make_clone(REPOSITORY, resolved(REPOSITORY, "HEAD"), root)
    file = root / "stages/profile_l1.py"
    right, wrong = "write_table(table, ", 'write_table(table.drop_columns(["t_next"]), '
    assert right in file.read_text()
    file.write_text(file.read_text().replace(right, wrong))
    shell(root, "git", "commit", "--quiet", "--all", "--message", "a column less")
    shell(root, "dvc", "remote", "add", "--local", "--default", "store", str(tmp_path / "remote"))
    with watching(LocalPrefect(root=root, home=root / ".prefect", port=free_port())) as made:
        yield made


def test_a_wrong_schema_fails_the_stage_and_is_not_pushed(watch: Watch, tmp_path: Path) -> None:
    changes = {"pools": {"profile": "gpu"}}
    run = watch.start(preset="smoke", until="chunk_boundaries", overrides=changes)
    ended = watch.ended(run, 300)
    assert ended["state_type"] == "FAILED"
    assert "stage profile_l1 failed with exit code 3 (bad input)" in ended["state"]["message"]
    assert "t_next" in ended["state"]["message"]
    outcomes = watch.outcomes(run)
    assert outcomes.pop("profile_l1") == "**failed**"
    assert outcomes.pop("chunk_boundaries") == "not reached"
    assert set(outcomes.values()) == {"ran"}
    (clone,) = watch.prefect.home.glob(f"runs/*-{run}-1")
    known = yaml.safe_load((clone / "dvc.lock").read_text())["stages"]
    assert set(known) == set(outcomes)
    remote = {path.relative_to(tmp_path / "remote"): path for path in (tmp_path / "remote").rglob("*")}
    contents = {name: path.read_bytes() for name, path in remote.items() if path.is_file()}
    for stage in known.values():
        for out in stage["outs"]:
            assert Path("files/md5", out["md5"][:2], out["md5"][2:]) in contents
    assert [name for name, content in contents.items() if b"l1_rel" in content or b"l1_profile" in content] == []
