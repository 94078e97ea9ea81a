"""What goes over pipes and HTTP: nothing is lost, and nothing that was changed on the way is used."""

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.executors.wire import (
    decode_batch,
    encode_batch,
    read_scores,
    read_settings,
    start_line,
)
from chunk_grpo.scorers.workers import lines
from tests.scorers.odd_scorers import batch, settings

NUMBERS = [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1 / 3, np.nan, np.inf, -np.inf]


def test_a_batch_comes_back_as_it_was() -> None:
    prompts = ["a photo", 'of "quotes"\nand lines', "ein Vögelchen 🐦", "half a pair \ud83d", ""]
    every_byte = np.arange(5 * 16 * 12 * 3, dtype=np.uint32).astype(np.uint8).reshape(5, 16, 12, 3)
    records: list[dict[str, object]] = [{"a": [1, 2.5, None, {"b": "ü"}]}, {}, {"t": True}, {}, {}]
    sent = ScoreBatch(every_byte[:, ::2, ::-1], prompts, records, np.array([3, 3, 1, 2, 0]))
    question = encode_batch(sent)
    assert question.line.count(b"\n") == 1
    assert question.line.endswith(b"\n")
    read = lines.read_batch(lines.read_message(question.line))
    got = decode_batch(read)
    assert np.array_equal(got.images, sent.images)
    assert got.images.dtype == np.uint8
    assert (got.prompts, got.metadata, got.groups) == (prompts, records, [3, 3, 1, 2, 0])
    assert [row.key for row in read.rows] == question.keys
    got.images[0, 0, 0, 0] = 7  # a scorer of another process may write into its own copy


def test_no_image_is_a_batch_too() -> None:
    empty = batch().rows([])
    got = decode_batch(lines.read_batch(lines.read_message(encode_batch(empty).line)))
    assert got.images.shape == (0, 4, 4, 3)
    assert len(got) == 0


def test_a_key_is_the_row_and_the_sha256_of_size_prompt_and_pixels() -> None:
    image = ScoreBatch(np.full((1, 1, 2, 3), 255, dtype=np.uint8), ["ä"], [{}], [0])
    digest = hashlib.sha256(b'1 2 "\\u00e4"' + b"\xff" * 6).hexdigest()
    assert encode_batch(image).keys == [f"0-{digest[:32]}"]


def test_equal_images_have_keys_of_their_own() -> None:
    assert len(set(encode_batch(batch().rows([0, 0, 0])).keys)) == 3


def test_scores_keep_every_bit() -> None:
    question = encode_batch(batch(count=len(NUMBERS)))
    read = lines.read_batch(lines.read_message(question.line))
    values = np.array(NUMBERS)
    line = lines.write_message(lines.scores_message(read, values, {"half": values / 2}, "spec"))
    scores = read_scores(lines.read_message(line), question, "spec", "it")
    assert scores.values.tobytes() == values.tobytes()
    assert scores.details["half"].tobytes() == (values / 2).tobytes()


def test_numbers_of_numpy_are_written_as_they_are() -> None:
    numbers = [np.float32(0.1), np.float64(0.1), 1, np.int64(3)]
    message = json.loads(lines.write_message({"values": numbers}))
    assert message["values"] == [float(np.float32(0.1)), 0.1, 1, 3.0]


def test_metadata_that_json_has_not_is_an_error_of_the_data() -> None:
    bad = ScoreBatch(batch().images[:1], ["a dog"], [{"set": {1, 2}}], [0])
    with pytest.raises(DataError, match=r"prompt 'a dog': its metadata cannot be written as JSON"):
        encode_batch(bad)


def test_settings_come_back_as_they_were() -> None:
    sent = settings("odd", nested={"list": [1, 2.5]}, text="x")
    start = lines.read_start(lines.read_message(start_line("odd", sent, "cuda:1")))
    assert (start.key, start.device) == ("odd", "cuda:1")
    assert read_settings(start) == sent
    with pytest.raises(ConfigError, match=r"scorers.odd: the worker does not accept these settings"):
        read_settings(replace(start, settings={**start.settings, "kind": "of tomorrow"}))


def flip_a_pixel(message: dict[str, Any]) -> None:
    pixels = bytearray(base64.b64decode(message["rows"][1]["pixels"]))
    pixels[5] ^= 1
    message["rows"][1]["pixels"] = base64.b64encode(pixels).decode()


def turn_the_picture(message: dict[str, Any]) -> None:
    message["height"], message["width"] = 2, 8


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (flip_a_pixel, "rows[1].key: is not that of this picture and prompt; something changed on the way"),
        (turn_the_picture, "rows[0].key: is not that of this picture"),
        (lambda m: m["rows"].reverse(), "rows[0].key: is not that of this picture"),
        (lambda m: m["rows"][0].update(prompt="another"), "rows[0].key: is not that of this picture"),
        (lambda m: m["rows"][2].update(pixels="AAAA"), "rows[2].pixels: must be 4 * 4 * 3 bytes, got 3"),
        (lambda m: m["rows"][2].update(pixels="A"), "rows[2].pixels: not base64"),
        (lambda m: m["rows"][2].pop("prompt"), "rows[2].prompt: is missing"),
        (lambda m: m["rows"][2].update(metadata=[]), "rows[2].metadata: must be dict, got list"),
        (lambda m: m["rows"][2].update(group=True), "rows[2].group: must be int, got bool"),
        (lambda m: m["rows"].append(3), "rows[4]: must be an object, got int"),
        (lambda m: m.update(height="4"), "height: must be int, got str"),
        (lambda m: m.pop("id"), "id: is missing"),
    ],
)
def test_what_was_changed_on_the_way_is_refused(
    change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    message = json.loads(encode_batch(batch()).line)
    lines.read_batch(message)
    change(message)
    with pytest.raises(lines.MalformedError) as caught:
        lines.read_batch(message)
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_no_message(text: bytes) -> None:
    with pytest.raises(lines.MalformedError):
        lines.read_message(text)
