"""A checkout in which the preset smoke has been run: where readers type what the pages show."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import SCORER, VARIANT, Workspace, kept
from tests.real_checkout import make_checkout

SCORERS = ("shapes-exact", SCORER, "shapes-vivid")


@pytest.fixture(scope="session")
def smoke(finished: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Checkout with all stages run, up to the report. Read only; `checkout` is a copy."""

    def make(root: Path) -> None:
        made = Workspace(Path(shutil.copytree(finished.root, root, dirs_exist_ok=True)))
        dance = replace(made, variant="dance")
        for stage in ("train", "generate"):
            assert dance.run(stage) == 0, stage
        for scorer in SCORERS:
            if scorer != SCORER:
                assert replace(made, scorer=scorer).run("score_base") == 0
                assert replace(made, scorer=scorer).run("score") == 0
            assert replace(dance, scorer=scorer).run("score") == 0
        assert made.run("report") == 0
        assert sorted(path.name for path in (made.artifacts / "train").iterdir()) == [VARIANT, "dance"]

    source = kept("reported", make)
    root = make_checkout(tmp_path_factory.mktemp("docs") / "checkout")
    shutil.copytree(source / "artifacts", root / "artifacts")
    shutil.copy(source / "params.yaml", root)
    return Workspace(root)


@pytest.fixture
def checkout(smoke: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A copy of it, as the folder of the process."""
    root = tmp_path / "checkout"
    shutil.copytree(smoke.root, root, symlinks=True)
    monkeypatch.chdir(root)
    return Workspace(root)
