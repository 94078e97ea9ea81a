"""The scorers with models on the pretended accelerator: the CPU's scores, few waits, no tensor of the wrong device."""

import gc
from pathlib import Path

import numpy as np
import pytest

from tests.pretended.device import WAITS
from tests.scorers.on_device import KINDS, scores
from tests.scorers.random_models import make_models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scorers")
    make_models(root / "data" / "random-models")
    gc.freeze()  # the garbage collections that follow each scorer's end leave the imported packages out
    return root


@pytest.mark.parametrize("kind", KINDS)
def test_scores_match_cpu(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    exact = scores(kind, "cpu", folder)
    with WAITS.counted():
        found = scores(kind, "pretend", folder)
    assert np.allclose(found, exact, rtol=0, atol=1e-4)
    # geneval looks at each picture's objects, of which the device does not know the number.
    assert WAITS.read.total() <= (12 * 3 if kind == "geneval" else 12), WAITS.read
