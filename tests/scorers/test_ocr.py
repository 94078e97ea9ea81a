"""The reward for text: its formula by hand and against Flow-GRPO's, words that are drawn and read, missing targets."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rapidocr

from chunk_grpo.config.scorers import OcrScorer
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.scorers.base import Pictures, ScoreBatch
from chunk_grpo.scorers.ocr import Ocr, text_reward
from chunk_grpo.scorers.running import registry
from tests.scorers.drawn_text import all_drawn, drawn
from tests.scorers.samples import batch_of, weights

pytestmark = pytest.mark.usefixtures("models")

OWN_MODELS = Path(rapidocr.__file__).parent / "models"


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime's threads wait in loops, which takes more time than they save."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)


def ocr(**changes: Any) -> Ocr:
    settings: dict[str, Any] = {"kind": "ocr", "splits": ("eval",), "batch_size": 4}
    return Ocr("signs", OcrScorer(**settings | changes))


def batch(images: Pictures, texts: list[Any], prompts: list[str] | None = None) -> ScoreBatch:
    prompts = prompts or [f"prompt {number}" for number in range(len(texts))]
    return ScoreBatch(images, prompts, [{"text": text} for text in texts], list(range(len(texts))))


@pytest.mark.parametrize(
    ("read", "target", "reward"),
    [
        ("sitting", "kitten", 1 - 3 / 6),  # two letters replaced, one more
        ("kitten", "sitting", 1 - 3 / 7),  # of the target's letters
        ("OPEN", "open", 1.0),
        ("New York", "newyork", 1.0),
        ("HelloWorld", "hello\n world", 1.0),
        ("we are open daily", "OPEN", 1.0),  # more text than the target is free
        ("we are opn daily", "OPEN", 0.0),  # unless the target is incomplete: 10 of at most 4
        ("opn", "OPEN", 0.75),
        ("", "OPEN", 0.0),
        ("a much longer text", "q", 0.0),  # never below 0
    ],
)
def test_reward_by_hand(read: str, target: str, reward: float) -> None:
    assert text_reward(read, target) == pytest.approx(reward)


def flow_grpo(read: str, target: str) -> float:
    """flow_grpo/ocr.py of yifan123/flow_grpo at ac4c86e on one image; its distance by the textbook's table."""
    read, target = read.replace(" ", "").lower(), target.replace(" ", "").lower()
    row = list(range(len(target) + 1))
    for i, left in enumerate(read, start=1):
        row, before = [i], row
        for j, right in enumerate(target, start=1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (left != right)))
    distance = 0 if target in read else row[-1]
    return 1 - min(distance, len(target)) / len(target)


def test_reward_is_flow_grpos() -> None:
    rng = np.random.default_rng(0)
    letters = np.array(list("aAbB 1é東"))
    rewards = []
    for _ in range(2000):
        read = "".join(rng.choice(letters, rng.integers(0, 12)))
        target = "x" * rng.integers(0, 2) + "".join(rng.choice(letters, rng.integers(0, 8))) + "a"
        rewards.append(text_reward(read, target))
        assert rewards[-1] == pytest.approx(flow_grpo(read, target))
    assert {0.0, 1.0} < set(rewards)


def test_drawn_words_are_read() -> None:
    shown, wanted = ["NASA 2049\nHello World", "", "OPN"], ["NASA 2049 hello world", "OPEN", "OPEN"]
    scores = ocr(batch_size=2).score(batch(all_drawn(shown), wanted))
    np.testing.assert_allclose(scores.values, [1, 0, 0.75])
    np.testing.assert_array_equal(scores.details["contained"], [1, 0, 0])


def test_rapidocr_gets_blue_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arrays are OpenCV's (rapidocr 3.10.0, utils/load_image.py: only files and PIL's images are converted)."""
    given: list[Pictures] = []

    def engine(image: Pictures) -> Any:
        given.append(image)
        return SimpleNamespace(txts=None)  # as without text

    monkeypatch.setattr("chunk_grpo.scorers.ocr.RapidOCR", lambda params: engine)
    red = np.full((1, 8, 8, 3), (255, 0, 1), np.uint8)
    assert ocr().score(batch(red, ["OPEN"])).values == [0]
    assert given[0][0, 0].tolist() == [1, 0, 255]


def test_target_in_quotes() -> None:
    prompts = ['a sign that says "OPEN" beside "CLOSED"', 'the word "OPAL"']
    scores = reading_open(text_field=None).score(batch_of(drawn("").repeat(2, axis=0), prompts))
    np.testing.assert_allclose(scores.values, [1, 0.5])


def test_another_field() -> None:
    given = ScoreBatch(drawn(""), ["a sign"], [{"words": "OPEN", "text": "CLOSED"}], [0])
    assert reading_open(text_field="words").score(given).values == [1]


def reading_open(**changes: Any) -> Ocr:
    """A scorer that reads OPEN in every image."""
    made = ocr(**changes)
    made.__dict__["models"] = lambda image: "OPEN"
    return made


@pytest.mark.parametrize(
    ("field", "prompt", "metadata", "said"),
    [
        ("text", "a", {"txt": "OPEN"}, r"needs the field 'text' with .*, got 'txt' \(text_field names it"),
        ("text", "a", {}, "needs the field 'text' .* got none"),
        ("text", "a", {"text": " "}, "field 'text' must be text, and not blank, got ' '"),
        ("text", "a", {"text": 12}, "field 'text' must be text, and not blank, got 12"),
        *((None, prompt, {}, "in double quotes") for prompt in ("a sign", 'a 12" pizza', 'a "" sign')),
    ],
)
def test_a_missing_target_is_refused(field: str | None, prompt: str, metadata: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=rf"^scorers\.signs: prompt .*{said}"):
        ocr(text_field=field).score(ScoreBatch(drawn("OPEN"), [prompt], [metadata], [0]))


def test_models_of_a_folder(tmp_path: Path) -> None:
    for name in ("PP-OCRv6_det_small.onnx", "PP-OCRv6_rec_small.onnx"):
        shutil.copy(OWN_MODELS / name, tmp_path)
    images = batch(drawn("Helo"), ["Hello"])
    own, other = ocr(), ocr(recogniser=weights(tmp_path))
    other.check()
    np.testing.assert_array_equal(other.score(images).values, own.score(images).values)
    assert other.spec_hash() != own.spec_hash()
    identity = other.spec_hash()
    (tmp_path / "PP-OCRv6_rec_small.onnx").write_bytes(b"other")
    assert ocr(recogniser=weights(tmp_path)).spec_hash() != identity


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    scorer, image = ocr(recogniser=weights(tmp_path)), batch(drawn("OPEN"), ["OPEN"])
    shutil.copy(OWN_MODELS / "PP-OCRv6_det_small.onnx", tmp_path / "det.onnx")
    with pytest.raises(DataError, match=r"scorers\.signs\.recogniser: no file \*rec\*\.onnx in"):
        scorer.check()
    shutil.copy(OWN_MODELS / "PP-OCRv6_det_small.onnx", tmp_path / "rec.onnx")
    with pytest.raises(DataError, match=r"recogniser: .*rec\.onnx has no list of its characters"):
        scorer.score(image)
    (tmp_path / "rec.onnx").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"recogniser: .*rec\.onnx cannot be read \(\w+: .*Fetch the files again"):
        scorer.score(image)
    shutil.copy(tmp_path / "rec.onnx", tmp_path / "other_rec.onnx")
    with pytest.raises(DataError, match=r"needs one file \*rec\*\.onnx in .*, got other_rec\.onnx, rec\.onnx"):
        scorer.score(image)


def test_release_of_rapidocr_is_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ocr().spec_hash()
    monkeypatch.setattr("chunk_grpo.scorers.ocr.installed_version", lambda package: "3.99.0")
    assert ocr().spec_hash() != before


def test_missing_packages_are_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    monkeypatch.delitem(sys.modules, "chunk_grpo.scorers.ocr")
    with pytest.raises(ConfigError, match=r"kind ocr needs .*rapidocr.*; pip install -e .*\[ocr\]"):
        registry.make_scorer("signs", ocr().settings)
