"""Messages between a stage and a scorer in another process: nothing is lost, and no foreign answer is used."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.executors.messages import (
    Identity,
    decode_batch,
    encode_batch,
    read_identity,
    read_scores,
    read_settings,
    start_message,
    worker_for,
)
from chunk_grpo.scorers.executors.remote import check_identity
from chunk_grpo.scorers.running.external import External
from chunk_grpo.scorers.workers.worker_protocol import messages as worker_protocol
from tests.scorers.odd_scorers import KEY, batch, settings

NUMBERS = [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1 / 3, np.nan, np.inf, -np.inf]


def read(line: bytes) -> worker_protocol.Batch:
    return worker_protocol.read_batch(worker_protocol.read_message(line))


def test_a_batch_comes_back_as_it_was() -> None:
    prompts = ["a photo", 'of "quotes"\nand lines', "ein Vögelchen 🐦", "half a pair \ud83d", ""]
    every_byte = np.arange(5 * 16 * 12 * 3, dtype=np.uint32).astype(np.uint8).reshape(5, 16, 12, 3)
    records: list[dict[str, object]] = [{"a": [1, 2.5, None, {"b": "ü"}]}, {}, {"t": True}, {}, {}]
    sent = ScoreBatch(every_byte[:, ::2, ::-1], prompts, records, np.array([3, 3, 1, 2, 0]))
    line = encode_batch(sent, "a question")
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert read(line).id == "a question"
    got = decode_batch(read(line))
    assert np.array_equal(got.images, sent.images)
    assert got.images.dtype == np.uint8
    assert (got.prompts, got.metadata, got.groups) == (prompts, records, [3, 3, 1, 2, 0])
    got.images[0, 0, 0, 0] = 7  # a scorer of another process may write into its own copy


def test_sources_come_back_as_they_were() -> None:
    random = np.random.default_rng(0)
    images, sources = random.integers(0, 256, (2, 3, 4, 5, 3), dtype=np.uint8)
    sent = ScoreBatch(images, ["a", "b", "c"], [{}, {}, {}], [0, 0, 1], sources)
    got = decode_batch(read(encode_batch(sent, "q")))
    assert got.sources is not None
    assert np.array_equal(got.sources, sources)
    assert np.array_equal(got.images, images)
    plain = decode_batch(read(encode_batch(ScoreBatch(images, ["a", "b", "c"], [{}, {}, {}], [0, 0, 1]), "q")))
    assert plain.sources is None


def test_metadata_without_json_form_is_a_data_error() -> None:
    bad = ScoreBatch(batch().images[:1], ["a dog"], [{"set": {1, 2}}], [0])
    with pytest.raises(DataError, match=r"prompt 'a dog': its metadata cannot be written as JSON"):
        encode_batch(bad, "a question")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m["rows"][2].update(pixels="AAAA"), "row 2 has 3 bytes, not 4 * 4 * 3"),
        (lambda m: m["rows"][2].update(pixels="A"), "Error: Invalid base64"),
        (lambda m: m["rows"][0].update(source="AAAA"), "row 0 must have a source of 4 * 4 * 3 bytes, or no row has"),
        (lambda m: m["rows"][2].update(source=m["rows"][2]["pixels"]), "row 2 must have a source of 4 * 4 * 3 bytes"),
        (lambda m: m["rows"][2].pop("prompt"), "KeyError: 'prompt'"),
        (lambda m: m["rows"].append(3), "TypeError: 'int' object"),
        (lambda m: m.update(height=0, width=0), "height and width must be whole numbers above 0, got 0 and 0"),
        (lambda m: m.update(width=True), "height and width must be whole numbers above 0, got 4 and True"),
        (lambda m: m.update(rows=[]), "rows a list of at least one image"),
        (lambda m: m.update(type="start"), "type must be 'score', got 'start'"),
        (lambda m: m["rows"][2].update(metadata=[]), "row 2 must have a text as prompt, an object as metadata"),
    ],
)
def test_rejects_malformed_batch(change: Callable[[dict[str, Any]], object], reason: str) -> None:
    message = json.loads(encode_batch(batch(), "a question"))
    worker_protocol.read_batch(message)
    change(message)
    with pytest.raises(worker_protocol.MalformedError, match=r"^no batch of images: ") as caught:
        worker_protocol.read_batch(message)
    assert reason in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_message_must_be_a_json_object(text: bytes) -> None:
    with pytest.raises(worker_protocol.MalformedError):
        worker_protocol.read_message(text)


def test_settings_come_back_as_they_were() -> None:
    sent = settings("odd", nested={"list": [1, 2.5]}, text="x")
    message = worker_protocol.read_message(start_message("odd", sent, "cuda:1", 7))
    start = worker_protocol.read_start(message)
    assert (start.key, start.device) == ("odd", "cuda:1")
    assert read_settings(start) == sent
    with pytest.raises(ConfigError, match=r"scorers.odd: the worker does not accept these settings"):
        read_settings(replace(start, settings={**start.settings, "kind": "of tomorrow"}))
    with pytest.raises(worker_protocol.ConfigError, match="the worker uses 3, the stage 1"):
        worker_protocol.read_start({**message, "protocol": 1})


def test_scores_keep_every_bit() -> None:
    values = np.array(NUMBERS)
    message = worker_protocol.scores_message("a question", (values, {"half": values / 2}), "spec")
    line = worker_protocol.write_message(message)
    scores = read_scores(worker_protocol.read_message(line), "a question", len(values), "spec", "it")
    assert scores.values.tobytes() == values.tobytes()
    assert scores.details["half"].tobytes() == (values / 2).tobytes()


def test_numbers_of_numpy_are_written_as_they_are() -> None:
    numbers = [np.float32(0.1), np.float64(0.1), 1, np.int64(3)]
    message = json.loads(worker_protocol.write_message({"values": numbers}))
    assert message["values"] == [float(np.float32(0.1)), 0.1, 1, 3.0]


def test_worker_script_can_refuse_an_image() -> None:
    answer = ([0.5, worker_protocol.RefusedError("why")], {})
    message = worker_protocol.scores_message("a question", answer, "spec")
    line = worker_protocol.write_message(message)
    scores = read_scores(worker_protocol.read_message(line), "a question", 2, "spec", "it")
    assert (scores.values[0], dict(scores.refused)) == (0.5, {1: "why"})
    assert np.isnan(scores.values[1])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": "earlier"}, "it answered another question: id must be 'a question', got 'earlier'"),
        ({"spec_hash": "restarted"}, "it answered another question: spec_hash must be 'spec', got 'restarted'"),
        ({"type": "ready"}, "it answered another question: type must be 'scores', got 'ready'"),
        ({"values": [None, "x"]}, "it sent malformed scores"),
        ({"details": None}, "it sent malformed scores"),
        ({"refused": {"2": "why"}}, "it refused images that are not in the batch"),
    ],
)
def test_rejects_mismatched_or_malformed_answer(change: dict[str, Any], reason: str) -> None:
    message = worker_protocol.scores_message("a question", ([0.5, 1.5], {}), "spec")
    assert read_scores(message, "a question", 2, "spec", "it").values.tolist() == [0.5, 1.5]
    with pytest.raises(DataError) as caught:
        read_scores({**message, **change}, "a question", 2, "spec", "it")
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "other"}, r"scorers.odd: must be odd \(version 1\), but it is other \(version 1"),
        ({"version": 2}, r"scorers.odd: must be odd \(version 1\), but it is odd \(version 2"),
        ({"measured": {"kind": "external", "version": 7}}, r"scorers.odd.version: is 1 here, but 7 for it. Use the sa"),
        ({"protocol": 1}, "it sent no ready message of protocol 3"),
        ({"needs": ["sound"]}, r"needs\.0\n"),
        ({"spec_hash": None}, r"spec_hash\n"),
    ],
)
def test_another_scorer_is_refused(change: dict[str, Any], reason: str) -> None:
    ready = worker_protocol.ready_message(worker_for(External(KEY, settings())))

    def checked(message: dict[str, Any]) -> Identity:
        identity = read_identity(message, "it")
        check_identity(KEY, settings(), identity, "it")
        return identity

    assert "numpy" in checked(ready).software
    with pytest.raises(DataError, match=reason):
        checked({**ready, **change})
