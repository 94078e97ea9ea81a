"""WISE against a local server: what is sent, what is asked again, what ends a run, what is kept, what is never told."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunk_grpo.config.scorers import WiseScorer
from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.scorers import judge
from chunk_grpo.scorers.base import ScoreBatch, check_scores
from chunk_grpo.scorers.wise import Wise
from chunk_grpo.scorers.wise_instructions import OWN
from tests.scorers.judge_server import JudgeServer, Reply, Request, by_image, completion

ROOT = Path(__file__).resolve().parents[2]
GOOD = "Consistency: 2\nRealism: 1\nAesthetic Quality: 0"
KEY = "sk-Zq7secret0123456789"
SOON = {"retry-after-ms": "5"}
"""Of a server that wants to be asked again at once: the tests need not wait."""


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with JudgeServer() as running:
        yield running


@pytest.fixture
def make(server: JudgeServer, tmp_path: Path) -> Callable[..., Wise]:
    def make(**changes: Any) -> Wise:
        return wise(server.url, tmp_path / "answers", **changes)

    return make


def wise(url: str, folder: Path, **changes: Any) -> Wise:
    options: dict[str, Any] = {
        "kind": "wise",
        "splits": ("eval",),
        "batch_size": 2,
        "protocol": "legacy",
        "judge": "tiny-judge",
        "instructions": None,
        "request": {},
        "base_url": url,
        "api_key_variable": None,
        "concurrency": 4,
        "attempts": 3,
        "timeout_seconds": 20.0,
        "answers": str(folder),
    }
    return Wise("wise", WiseScorer.model_validate({**options, **changes}))


def batch_of(size: int, first: int = 1) -> ScoreBatch:
    """Images of noise with the ids first, first + 1, ..."""
    images = np.random.default_rng(first).integers(0, 256, (size, 6, 5, 3), dtype=np.uint8)
    ids = range(first, first + size)
    records = [{"wise_id": i, "explanation": f"meaning {i}"} for i in ids]
    return ScoreBatch(images, [f"prompt {i}" for i in ids], records, [0] * size)


def id_of(request: Request) -> int:
    return int(request.text.split('Prompt: "prompt ')[1].split('"')[0])


class TestScores:
    def test_legacy_by_hand(self, server: JudgeServer, make: Callable[..., Wise]) -> None:
        server.answer = lambda request: Reply(
            {1: GOOD, 2: "**Realism:** 2\n**Consistency:** 0\n**Aesthetic Quality:** 1"}[id_of(request)]
        )
        scores = make().score(batch_of(2))
        np.testing.assert_allclose(scores.values, [0.8, 0.25], atol=1e-15)
        assert {name: values.tolist() for name, values in scores.details.items()} == {
            "consistency": [2.0, 0.0],
            "realism": [1.0, 2.0],
            "aesthetic": [0.0, 1.0],
        }
        check_scores("wise", scores, ["a", "b"])

    def test_verified_is_right_or_wrong(self, server: JudgeServer, make: Callable[..., Wise]) -> None:
        server.answer = lambda request: Reply(
            "<think>Score: 1?</think> Score: 0" if id_of(request) == 1 else "Score: 1"
        )
        scores = make(protocol="verified").score(batch_of(2))
        assert scores.values.tolist() == [0.0, 1.0] and scores.details == {}

    def test_a_score_depends_neither_on_the_batch_nor_on_the_order(
        self, server: JudgeServer, tmp_path: Path
    ) -> None:
        batch = batch_of(9)
        together = wise(server.url, tmp_path / "a").score(batch).values
        assert len(set(together)) > 2
        alone = wise(server.url, tmp_path / "b", concurrency=1)
        order = np.random.default_rng(0).permutation(9)
        assert [alone.score(batch.rows([row])).values[0] for row in order] == together[order].tolist()
        assert make_empty(alone) == (0,)

    def test_the_metric_has_protocol_and_judge_in_its_name(self, make: Callable[..., Wise]) -> None:
        assert make(protocol="verified", judge="Qwen/Q3").name == "wise/verified/Qwen/Q3"

    @pytest.mark.parametrize(
        ("record", "fault"),
        [
            ({}, "wise_id must be a whole number from 1 to 1000, got None"),
            ({"wise_id": "7", "explanation": "e"}, "got '7'"),
            ({"wise_id": True, "explanation": "e"}, "got True"),
            ({"wise_id": 0, "explanation": "e"}, "got 0"),
            ({"wise_id": 1001, "explanation": "e"}, "got 1001"),
            ({"wise_id": 7}, "explanation must be a text, got None"),
            ({"wise_id": 7, "explanation": " "}, "explanation must be a text, got ' '"),
        ],
    )
    def test_prompts_of_others_are_refused(
        self, server: JudgeServer, make: Callable[..., Wise], record: dict[str, object], fault: str
    ) -> None:
        batch = batch_of(1)
        with pytest.raises(DataError, match=rf"scorers.wise: prompt 'prompt 1': metadata: .*{fault}"):
            make().score(ScoreBatch(batch.images, batch.prompts, [record], [0]))
        assert not server.requests


def make_empty(scorer: Wise) -> tuple[int, ...]:
    """Shape of the values of no images."""
    shape: tuple[int, ...] = scorer.score(batch_of(1).rows([])).values.shape
    return shape


class TestRequests:
    @pytest.mark.parametrize(("protocol", "max_tokens"), [("legacy", 2000), ("verified", 500)])
    def test_what_is_sent(
        self, server: JudgeServer, make: Callable[..., Wise], protocol: Any, max_tokens: int
    ) -> None:
        batch = batch_of(1, first=7)
        make(protocol=protocol).score(batch)
        (request,) = server.requests
        system, user = request.body.pop("messages")
        assert request.body == {
            "model": "tiny-judge",
            "temperature": 0.0,
            "seed": 0,
            "max_tokens": max_tokens,
        }
        assert system == {"role": "system", "content": [{"type": "text", "text": OWN[protocol].system}]}
        assert user["role"] == "user" and [part["type"] for part in user["content"]] == ["text", "image_url"]
        assert user["content"][0]["text"] == OWN[protocol].fill("prompt 7", "meaning 7")
        request.body["messages"] = [system, user]
        np.testing.assert_array_equal(request.image, batch.images[0])

    def test_fields_are_added_replaced_and_left_out(
        self, server: JudgeServer, make: Callable[..., Wise]
    ) -> None:
        extra = {"chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 9, "seed": None}
        make(request=extra).score(batch_of(1))
        body = server.requests[0].body
        assert body["chat_template_kwargs"] == {"enable_thinking": False}
        assert body["max_tokens"] == 9 and "seed" not in body and body["temperature"] == 0.0

    @pytest.mark.parametrize("field", ["messages", "model", "n", "stream"])
    def test_the_question_itself_is_no_field(self, make: Callable[..., Wise], field: str) -> None:
        with pytest.raises(ValueError, match=f"must not hold {field}"):
            make(request={field: 1})

    @pytest.mark.parametrize(
        "url",
        [
            "http://user:pw@host/v1",
            "http://host/v1?key=1",
            "http://host/v1#a",
            "host/v1",
            "http://host:99999/v1",
            "http://host:a/v1",
            "http://[::1/v1",
        ],
    )
    def test_a_url_holds_no_key_and_can_be(self, make: Callable[..., Wise], url: str) -> None:
        with pytest.raises(ValueError, match="base_url"):
            make(base_url=url)

    def test_the_users_evaluator_asks_its_question(
        self, server: JudgeServer, make: Callable[..., Wise], tmp_path: Path
    ) -> None:
        text = "Rate {prompt_data['Prompt']}, {prompt_data['Explanation']}\\nScore: 0"
        lines = [
            "def build_evaluation_messages(prompt_data, image_base64):",
            f"    return [{{'text': 'Be fair.'}}, {{'text': f\"{text}\"}}]",
        ]
        (tmp_path / "vllm_eval.py").write_text("\n".join(lines))
        make(protocol="verified", instructions=str(tmp_path / "vllm_eval.py")).score(batch_of(1))
        (request,) = server.requests
        assert request.body["messages"][0]["content"][0]["text"] == "Be fair."
        assert request.text == "Rate prompt 1, meaning 1\nScore: 0"

    @pytest.mark.parametrize("concurrency", [1, 3])
    def test_so_many_at_once_and_no_more(
        self, server: JudgeServer, make: Callable[..., Wise], concurrency: int
    ) -> None:
        server.answer = lambda request: Reply(GOOD, wait_seconds=0.15)
        make(concurrency=concurrency).score(batch_of(2 * concurrency))
        assert server.most_at_once == concurrency and len(server.requests) == 2 * concurrency

    def test_inside_a_running_loop(self, make: Callable[..., Wise]) -> None:
        async def caller() -> int:
            return len(make().score(batch_of(2)).values)

        assert asyncio.run(caller()) == 2

    def test_a_signal_handlers_error_comes_through_at_once(
        self, server: JudgeServer, make: Callable[..., Wise]
    ) -> None:
        server.answer = lambda request: Reply(GOOD, wait_seconds=20.0)
        threads = threading.active_count() - server_threads()

        def stop(number: int, frame: object) -> None:
            raise TransientError("stopped")

        before = signal.signal(signal.SIGALRM, stop)
        start = time.monotonic()
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.4)
            with pytest.raises(TransientError, match="stopped"):
                make().score(batch_of(6))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert time.monotonic() - start < 10.0
        assert threading.active_count() - server_threads() == threads


def server_threads() -> int:
    """Threads of the server: one for each connection."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


class TestFailures:
    def test_a_rate_limit_is_waited_for_as_long_as_it_says(
        self, server: JudgeServer, make: Callable[..., Wise]
    ) -> None:
        server.replies.append(
            Reply(b"{}", 429, {"Retry-After": "1"})
        )  # the client's own first wait is 0.5 s at most
        assert make().score(batch_of(1)).values.size == 1
        first, second = server.requests
        assert second.time - first.time >= 1.0
        assert first.body == second.body

    def test_each_wait_after_a_failing_server_is_longer(
        self, server: JudgeServer, make: Callable[..., Wise]
    ) -> None:
        server.replies.extend([Reply(b"oops", 500), Reply(drop=True)])
        make().score(batch_of(1))
        a, b, c = (request.time for request in server.requests)
        assert b - a >= 0.375 and c - b >= 0.75  # 0.5 and 1 s, less a quarter at most, drawn

    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_a_server_that_keeps_failing_ends_it(
        self, server: JudgeServer, make: Callable[..., Wise], status: int
    ) -> None:
        server.answer = lambda request: Reply(b'{"error": {"message": "busy"}}', status, SOON)
        with pytest.raises(
            TransientError, match=rf"(?s)no answer from {server.url} to WISE prompt 1 .*{status}.*busy.*again"
        ):
            make().score(batch_of(1))
        assert len(server.requests) == 3

    def test_silence_ends_it(self, server: JudgeServer, make: Callable[..., Wise]) -> None:
        server.answer = lambda request: Reply(GOOD, wait_seconds=1.0)
        with pytest.raises(
            TransientError, match=f"{server.url} to WISE prompt 1 after 2 attempts of 0.3 s .*timed out"
        ):
            make(timeout_seconds=0.3, attempts=2).score(batch_of(1))
        assert len(server.requests) == 2

    def test_no_server_ends_it(self, tmp_path: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        with pytest.raises(TransientError, match=f"{url} .*Connection error.*See that the server runs"):
            wise(url, tmp_path, attempts=1).score(batch_of(1))

    @pytest.mark.parametrize(
        ("reply", "fault"),
        [
            (
                Reply(b'{"choices": [{"mess'),
                "no chat completion .JSONDecodeError.; the answer begins '{\"choices",
            ),
            (Reply(b'{"choices": []}'), "no chat completion .IndexError."),
            (Reply(b"<html>", headers={"Content-Type": "text/html"}), "no chat completion .* '<html>'"),
            (Reply(completion(None, "content_filter")), "answer is empty .finish_reason 'content_filter'."),
            (Reply(GOOD.replace("2", "3")), "consistency must be 0 to 2, got 3; .* begins 'Consistency: 3"),
            (Reply("I would say it is fine. " * 20), "begins 'I would say.{109}'\\."),
        ],
        ids=["cut JSON", "no choice", "no JSON", "no content", "out of range", "no scores"],
    )
    def test_another_form_is_asked_again_and_then_refused(
        self, server: JudgeServer, make: Callable[..., Wise], reply: Reply, fault: str
    ) -> None:
        server.replies.extend([reply, reply])
        np.testing.assert_allclose(make().score(batch_of(1)).values, make().score(batch_of(1)).values)
        assert [request.body["seed"] for request in server.requests] == [0, 1, 2]
        server.replies.extend([reply] * 3)
        with pytest.raises(
            DataError, match=rf"(?s)tiny-judge gave no answer .* 3 attempts\. WISE prompt 2: .*{fault}"
        ):
            make().score(batch_of(1, first=2))
        assert len(server.requests) == 6

    def test_the_other_answers_are_kept(self, server: JudgeServer, make: Callable[..., Wise]) -> None:
        server.answer = lambda request: Reply("no", wait_seconds=0.8) if id_of(request) == 3 else Reply(GOOD)
        with pytest.raises(DataError, match="WISE prompt 3"):
            make(attempts=1).score(batch_of(5))
        assert sorted(map(id_of, server.requests)) == [1, 2, 3, 4, 5]
        server.requests.clear()
        server.answer = by_image
        make().score(batch_of(5))
        assert list(map(id_of, server.requests)) == [3]

    @pytest.mark.parametrize("status", [401, 403])
    def test_a_wrong_key_names_its_variable(
        self, server: JudgeServer, make: Callable[..., Wise], monkeypatch: pytest.MonkeyPatch, status: int
    ) -> None:
        monkeypatch.setenv("JUDGE_KEY", KEY)
        server.answer = lambda request: Reply(b"{}", status)
        with pytest.raises(DataError, match=f"answered {status} .* into the environment variable JUDGE_KEY"):
            make(api_key_variable="JUDGE_KEY").score(batch_of(1))
        with pytest.raises(DataError, match=r"in scorers\.wise\.api_key_variable"):
            make().score(batch_of(1))
        assert len(server.requests) == 2  # it would not become right by asking again

    @pytest.mark.parametrize("status", [400, 404, 422])
    def test_a_refused_request_says_what_to_look_at(
        self, server: JudgeServer, make: Callable[..., Wise], status: int
    ) -> None:
        server.answer = lambda request: Reply(b'{"error": {"message": "no field seed"}}', status)
        with pytest.raises(
            DataError, match=rf"answered {status} to WISE prompt 1: .*no field seed.*`request`"
        ):
            make(concurrency=1).score(batch_of(4))
        assert len(server.requests) == 1  # neither that again nor the others


class TestKept:
    def test_an_image_is_judged_once(self, server: JudgeServer, make: Callable[..., Wise]) -> None:
        scorer, batch = make(), batch_of(3)
        first = scorer.score(batch.rows([0, 1, 2, 1, 0]))
        assert len(server.requests) == 3
        again = make(concurrency=1, attempts=9, timeout_seconds=7.0).score(batch)
        assert len(server.requests) == 3
        assert first.values[:3].tolist() == again.values.tolist()

    def test_another_image_prompt_explanation_or_id_is_another_question(
        self, server: JudgeServer, make: Callable[..., Wise]
    ) -> None:
        one = batch_of(1)
        make().score(one)
        others = [
            ScoreBatch(one.images ^ 1, one.prompts, one.metadata, [0]),
            ScoreBatch(one.images.reshape(1, 5, 6, 3), one.prompts, one.metadata, [0]),
            ScoreBatch(one.images, ["rewritten"], one.metadata, [0]),
            ScoreBatch(one.images, one.prompts, [{"wise_id": 1, "explanation": "other"}], [0]),
            ScoreBatch(one.images, one.prompts, [{**one.metadata[0], "wise_id": 2}], [0]),
        ]
        for count, other in enumerate(others, start=2):
            make().score(other)
            assert len(server.requests) == count

    def test_what_moves_a_result_moves_the_identity(
        self, make: Callable[..., Wise], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        same: list[dict[str, Any]] = [
            {},
            {"concurrency": 9, "attempts": 1, "timeout_seconds": 1.0, "splits": ("test",), "batch_size": 9},
            {"api_key_variable": "JUDGE_KEY", "answers": str(tmp_path / "elsewhere")},
        ]
        other: list[dict[str, Any]] = [
            {"judge": "b"},
            {"protocol": "verified"},
            {"request": {"seed": None}},
            {"base_url": "http://b/v1"},
        ]
        assert len({make(**changes).spec_hash() for changes in same}) == 1
        assert len({make(**changes).spec_hash() for changes in [{}, *other]}) == 5
        before = make().spec_hash()
        monkeypatch.setitem(OWN, "legacy", OWN["verified"])
        assert make().spec_hash() != before

    def test_the_same_evaluator_elsewhere_is_the_same(
        self, make: Callable[..., Wise], tmp_path: Path
    ) -> None:
        slots = "{prompt_data['Prompt']} {prompt_data['Explanation']}"
        messages = f"[{{'text': 'S'}}, {{'text': f\"{slots} Score: 1\"}}]"
        text = f"def build_evaluation_messages(prompt_data):\n    return {messages}\n"
        for name, content in {"a": text, "b": text, "c": text.replace("'S'", "'T'")}.items():
            (tmp_path / name).write_text(content)
        a, b, c = (make(protocol="verified", instructions=str(tmp_path / n)).spec_hash() for n in "abc")
        assert a == b != c

    def test_a_cut_last_line_is_dropped(
        self, server: JudgeServer, make: Callable[..., Wise], caplog: pytest.LogCaptureFixture
    ) -> None:
        scorer, batch = make(concurrency=1), batch_of(3)
        values = scorer.score(batch).values
        path = Path(scorer.settings.answers) / f"{scorer.spec_hash()}.jsonl"
        path.write_bytes(path.read_bytes()[:-30])
        assert make().score(batch).values.tolist() == values.tolist()
        assert len(server.requests) == 4
        assert [json.loads(line)["label"] for line in path.read_text().splitlines()] == [
            f"WISE prompt {i}" for i in (1, 2, 3)
        ]
        assert "the last answer was cut off" in caplog.text

    def test_a_line_cut_by_another_process_harms_no_later_one(self, make: Callable[..., Wise]) -> None:
        scorer, batch = make(), batch_of(2)
        scorer.score(batch.rows([0]))
        path = Path(scorer.settings.answers) / f"{scorer.spec_hash()}.jsonl"
        with path.open("ab") as stream:
            stream.write(b'{"key": "half')
        scorer.score(batch.rows([1]))
        assert [json.loads(line)["label"] for line in path.read_text().splitlines()] == [
            "WISE prompt 1",
            "WISE prompt 2",
        ]

    @pytest.mark.parametrize(
        "line",
        [
            b"nonsense",
            b'{"key": "a"}',
            b'{"key": 1, "answer": "x"}',
            b"[]",
            b'{"key": "a", "answer": "Score: 1"}',
            b"\xff\xfe",
        ],
    )
    def test_other_damage_names_the_line(self, make: Callable[..., Wise], line: bytes) -> None:
        scorer = make()
        scorer.score(batch_of(2))
        path = Path(scorer.settings.answers) / f"{scorer.spec_hash()}.jsonl"
        first, second = path.read_bytes().splitlines()
        path.write_bytes(b"\n".join([first, line, second, b""]))
        with pytest.raises(DataError, match=rf"{path.name}, line 2: .*Delete the line"):
            make().score(batch_of(2))

    def test_of_two_answers_to_a_question_the_first_counts(self, make: Callable[..., Wise]) -> None:
        scorer = make()
        values = scorer.score(batch_of(1)).values
        path = Path(scorer.settings.answers) / f"{scorer.spec_hash()}.jsonl"
        record = json.loads(path.read_text())
        for answer in (GOOD, GOOD.replace("2", "0")):
            with path.open("a") as stream:
                stream.write(json.dumps({**record, "answer": answer}) + "\n")
        assert make().score(batch_of(1)).values.tolist() == values.tolist()

    def test_a_folder_that_cannot_be_made_is_told(self, make: Callable[..., Wise], tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(DataError, match="the judge's answers cannot be kept there"):
            make(answers=str(tmp_path / "file")).score(batch_of(1))

    def test_a_killed_run_asks_only_for_what_is_missing(self, server: JudgeServer, tmp_path: Path) -> None:
        server.answer = lambda request: Reply(by_image(request).body, wait_seconds=0.25)
        code = (
            "import sys; from pathlib import Path; from tests.scorers.test_wise import wise, batch_of; "
            "wise(sys.argv[1], Path(sys.argv[2]), concurrency=2).score(batch_of(12))"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, server.url, str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        )
        try:
            until = time.monotonic() + 30
            while len(server.requests) < 5 and time.monotonic() < until and process.poll() is None:
                time.sleep(0.01)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        (path,) = tmp_path.glob("*.jsonl")
        kept = [
            json.loads(line)["label"]
            for line in path.read_bytes().splitlines(keepends=True)
            if line.endswith(b"\n")
        ]
        sent = len(server.requests)
        server.answer = by_image
        assert sent - 2 <= len(kept) <= sent < 12
        server.requests.clear()
        resumed = wise(server.url, tmp_path, concurrency=8).score(batch_of(12)).values
        assert {id_of(r) for r in server.requests} == set(range(1, 13)) - {int(k.split()[-1]) for k in kept}
        assert len(server.requests) == 12 - len(kept)
        assert resumed.tolist() == wise(server.url, tmp_path / "b").score(batch_of(12)).values.tolist()


class TestKey:
    def test_it_is_sent_and_no_other(
        self, server: JudgeServer, make: Callable[..., Wise], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
        monkeypatch.setenv("JUDGE_KEY", f"{KEY}\n")
        make(api_key_variable="JUDGE_KEY").score(batch_of(1))
        make().score(batch_of(1, first=2))
        with_key, without = (request.headers for request in server.requests)
        assert with_key["Authorization"] == f"Bearer {KEY}"
        assert "Authorization" not in without and "sk-other" not in str(without)

    @pytest.mark.parametrize(
        ("value", "fault"),
        [
            (None, "JUDGE_KEY is not set"),
            ("", "JUDGE_KEY is not set"),
            ("sk-a\nb", "JUDGE_KEY holds characters"),
            ("sk-ä", "JUDGE_KEY holds characters"),
        ],
    )
    def test_a_variable_without_a_key_is_told(
        self, make: Callable[..., Wise], monkeypatch: pytest.MonkeyPatch, value: str | None, fault: str
    ) -> None:
        monkeypatch.delenv("JUDGE_KEY", raising=False)
        if value is not None:
            monkeypatch.setenv("JUDGE_KEY", value)
        scorer = make(api_key_variable="JUDGE_KEY")
        for act in (scorer.check, lambda: scorer.score(batch_of(1))):
            with pytest.raises(DataError, match=fault) as caught:
                act()
            assert "sk-" not in everything(caught.value)

    @pytest.mark.parametrize("status", [200, 200.5, 400, 401, 404, 500, 0], ids=str)
    def test_it_is_never_told(
        self,
        server: JudgeServer,
        make: Callable[..., Wise],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        capfd: pytest.CaptureFixture[str],
        tmp_path: Path,
        status: float,
    ) -> None:
        """A server that repeats the key in every way; 200.5: in the thoughts of a well-formed answer."""
        monkeypatch.setenv("JUDGE_KEY", KEY)
        caplog.set_level(1)
        for name in ("openai", "httpx2", "httpcore2"):
            monkeypatch.setattr(logging.getLogger(name), "level", 1)

        def repeat(request: Request) -> Reply:
            said = f"your key was {request.headers['Authorization']}"
            if status in (200, 0):
                return Reply(said, drop=status == 0)
            if status == 200.5:
                return Reply(f"<think>{said}</think>{GOOD}")
            return Reply(json.dumps({"error": {"message": said}}).encode(), int(status), SOON)

        server.answer = repeat
        server.models = Reply(json.dumps({"data": [{"id": KEY}]}).encode())
        scorer = make(api_key_variable="JUDGE_KEY", attempts=2)
        told = [repr(scorer), repr(vars(scorer))]
        try:
            scorer.check()
            scorer.score(batch_of(2))
        except (DataError, TransientError) as error:
            told.append(everything(error))
            assert error.__context__ is None and error.__cause__ is None
        assert server.requests[0].headers["Authorization"].endswith(KEY)
        told += [f"{record.getMessage()} {vars(record)}" for record in caplog.records]
        assert len(told) > 10  # the client's own records are among them
        told += [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
        told += list(capfd.readouterr())
        assert "your key was" in "".join(told) or status in (200.5, 401, 0)
        assert KEY not in "".join(told)


def everything(error: BaseException) -> str:
    """All that a log could show of an error and of those it comes from."""
    text = "".join(traceback.TracebackException.from_exception(error, capture_locals=False).format())
    seen: BaseException | None = error
    while seen is not None:
        text += repr(seen) + repr(vars(seen))
        seen = seen.__cause__ or seen.__context__
    return text


class TestCheck:
    def test_a_server_with_the_judge_is_fine(
        self, server: JudgeServer, make: Callable[..., Wise], caplog: pytest.LogCaptureFixture
    ) -> None:
        make().check()
        assert len(server.model_requests) == 1 and not server.requests and not caplog.text

    @pytest.mark.parametrize(
        ("models", "warning"),
        [
            (
                Reply(b'{"object": "list", "data": [{"id": "b"}, {"id": "a"}]}'),
                "does not list tiny-judge, but a, b",
            ),
            (Reply(b'{"data": []}'), "does not list tiny-judge, but none"),
            (Reply(b"{}", 404), "does not list its models; tiny-judge was not looked for"),
            (Reply(b"<html>"), "does not list its models"),
        ],
    )
    def test_a_judge_that_is_not_listed_is_warned_of(
        self,
        server: JudgeServer,
        make: Callable[..., Wise],
        caplog: pytest.LogCaptureFixture,
        models: Reply,
        warning: str,
    ) -> None:
        server.models = models
        make().check()
        assert f"{server.url} {warning}" in caplog.text

    def test_a_refused_key_and_a_failing_server_are_errors(
        self, server: JudgeServer, make: Callable[..., Wise]
    ) -> None:
        server.models = Reply(b"{}", 401)
        with pytest.raises(DataError, match="answered 401 to GET /models"):
            make().check()
        server.models = Reply(b"{}", 500, SOON)
        with pytest.raises(TransientError, match=f"no answer from {server.url} to GET /models"):
            make().check()

    def test_instructions_are_read(self, server: JudgeServer, make: Callable[..., Wise]) -> None:
        with pytest.raises(DataError, match=r"scorers\.wise\.instructions: nowhere\.py"):
            make(instructions="nowhere.py").check()
        assert not server.model_requests

    def test_a_missing_package_names_the_extra(
        self, make: Callable[..., Wise], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(judge, "find_spec", lambda name: None)
        scorer = make()
        for act in (scorer.check, lambda: scorer.score(batch_of(1))):
            with pytest.raises(ConfigError, match=r'needs openai, .* pip install "chunk-grpo\[scoring\]"'):
                act()
