"""DVC's state lies where no other user can write, in checkouts and clones, also for commands that a user types."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chunk_grpo.errors import ConfigError
from chunk_grpo.orchestration.clones import make_clone
from chunk_grpo.orchestration.dvc_internals import Config, Repo
from chunk_grpo.orchestration.dvc_state import VARIABLE, keep_own_state
from chunk_grpo.orchestration.workspace import share_cache
from tests.forked_dvc import forked_dvc
from tests.small_pipeline import Shell


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a user with an empty ~/.cache gets."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "cache/chunk-grpo/dvc"


def state(root: Path) -> Path:
    """Where DVC keeps the state of a repository."""
    with Repo(str(root)) as repo:
        return Path(repo.site_cache_dir)


def closed(folder: Path) -> bool:
    """Whether a folder is this user's, and nobody else can enter it."""
    found = folder.stat()
    return found.st_uid == os.getuid() and found.st_mode & 0o077 == 0


def test_a_plain_dvc_keeps_its_state_in_a_closed_folder(pipeline: Path, own: Path, shell: Shell) -> None:
    assert Path("/var/tmp/dvc") in state(pipeline).parents  # DVC's default, open to all
    keep_own_state(pipeline)
    forked_dvc(pipeline, "status")
    assert own in state(pipeline).parents
    assert state(pipeline).is_dir()
    assert closed(own)
    assert closed(own.parent)
    assert shell(pipeline, "git", "status", "--porcelain") == ""


def test_clones_and_worktrees_keep_state_in_closed_folder(
    pipeline: Path, own: Path, tmp_path: Path, shell: Shell
) -> None:
    commit = shell(pipeline, "git", "rev-parse", "HEAD").strip()
    make_clone(pipeline, commit, tmp_path / "clone")
    share_cache(pipeline, tmp_path / "clone")
    assert own in state(tmp_path / "clone").parents
    assert state(tmp_path / "clone") != state(pipeline)
    shell(pipeline, "git", "worktree", "add", "--quiet", str(tmp_path / "tree"))
    keep_own_state(tmp_path / "tree")
    assert own in state(tmp_path / "tree").parents


@pytest.mark.slow  # only DVC copies .dvc/config.local there
def test_temporary_experiment_keeps_state_in_closed_folder(pipeline: Path, own: Path, shell: Shell) -> None:
    keep_own_state(pipeline)
    shell(pipeline, sys.executable, "-m", "dvc", "exp", "run", "--temp", "prepare")
    assert len(list((own / "repo").iterdir())) == 2  # of the checkout, and of the experiment


def test_a_folder_that_was_opened_or_removed_is_closed_again(pipeline: Path, own: Path) -> None:
    keep_own_state(pipeline)
    own.chmod(0o777)
    keep_own_state(pipeline)
    assert closed(own)
    own.rmdir()
    keep_own_state(pipeline)
    assert closed(own)


def test_a_setting_of_the_user_stays(pipeline: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/elsewhere")
    keep_own_state(pipeline)
    monkeypatch.delenv(VARIABLE)
    with Config(str(pipeline / ".dvc")).edit("local") as config:
        config["core"]["site_cache_dir"] = "/mine"
    keep_own_state(pipeline)
    assert Config(str(pipeline / ".dvc"))["core"]["site_cache_dir"] == "/mine"
    assert not own.exists()


@pytest.mark.parametrize("what", ["file", "link to nothing"])
def test_a_folder_that_cannot_be_made_is_named(pipeline: Path, own: Path, what: str) -> None:
    own.parent.mkdir(parents=True)
    if what == "file":
        own.touch()
    else:
        own.symlink_to("nowhere")
    with pytest.raises(ConfigError, match=rf"{own}: must be a folder of yours for DVC's state.*{VARIABLE}"):
        keep_own_state(pipeline)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_cannot_enter(pipeline: Path, own: Path) -> None:
    keep_own_state(pipeline)
    for folder in (own, *own.parents[:-1]):
        if folder not in (own, own.parent):
            folder.chmod(folder.stat().st_mode | 0o055)  # pytest's folders are closed themselves
    place = state(pipeline)
    place.mkdir(parents=True, exist_ok=True)
    command = ["mv", str(place), f"{place}-taken"]
    taken = subprocess.run(command, user=65534, group=65534, extra_groups=[], capture_output=True, check=False)
    assert taken.returncode != 0
    assert b"denied" in taken.stderr
    assert place.is_dir()


def test_damaged_settings_of_dvc_are_named(pipeline: Path, own: Path) -> None:
    for content in ("[core\n", "core = 1\n", '[core]\nunknown = "1"\n'):
        (pipeline / ".dvc/config.local").write_text(content)
        with pytest.raises(ConfigError, match="must have settings that DVC can read"):
            keep_own_state(pipeline)
