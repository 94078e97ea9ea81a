"""Scores on a GPU against the CPU's, on small random models in the real file formats."""

from pathlib import Path

import numpy as np
import pytest

from tests.scorers.on_device import KINDS, scores
from tests.scorers.random_models import make_models

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scorers")
    make_models(root / "data" / "random-models")
    return root


@pytest.mark.parametrize("kind", KINDS)
def test_scores_match_cpu(kind: str, device: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    exact = scores(kind, "cpu", folder)
    assert np.allclose(scores(kind, device, folder), exact, rtol=1e-3, atol=1e-3)
