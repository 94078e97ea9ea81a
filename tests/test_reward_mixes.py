"""The mixes of rewards in conf/scorers/: weights as published, in a preset, and every scorer is known."""

from pathlib import Path

import pytest

from chunk_grpo.config import load_params
from chunk_grpo.config.scorers import GenEvalScorer
from chunk_grpo.planning.scorers import scoring
from chunk_grpo.scorers.running.registry import make_scorer
from tests.test_presets import compose

MIXES = {
    "text": {"ocr": 0.8, "pickscore": 0.2},
    "text-aesthetic": {"aesthetic": 0.3, "ocr": 0.2, "pickscore": 0.5},
    "geneval": {"geneval-graded": 0.8, "pickscore": 0.2},
    "hpsv2-clip": {"clip": 1.0, "hpsv2": 1.0},
    "hpsv3-clip": {"clip": 1.0, "hpsv3": 1.0},
    "pickscore-hpsv2-clip": {"clip": 1.0, "hpsv2": 1.0, "pickscore": 1.0},
}
ITS_OWN_PROMPTS = {"geneval": ("prompts.source=coco", "prompts.train_file=null")}


@pytest.mark.parametrize("mix", MIXES)
def test_a_mix_is_valid_in_a_preset(mix: str, tmp_path: Path) -> None:
    overrides = (f"scorers={mix}", "train.heldout.scorers=[]", *ITS_OWN_PROMPTS.get(mix, ()))
    params = load_params(compose("flux-dev", tmp_path, *overrides))
    assert params.rewards == MIXES[mix]
    for name, settings in params.scorers.items():
        make_scorer(name, settings).close()
        assert settings.splits == ("eval",)
    judged = {name for name, settings in params.scorers.items() if isinstance(settings, GenEvalScorer)}
    assert set(scoring(params, tuple(params.scorers)).not_counted) <= {*judged, "clip"}
