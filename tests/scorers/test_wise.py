"""WISE against a local server: scores, what is sent, what is kept, and what of it a killed run asks again."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chunk_grpo.errors import DataError, Stopped
from chunk_grpo.scorers.base import check_scores
from chunk_grpo.scorers.wise.scorer import Wise
from tests.scorers.judge_cases import GOOD, batch_of, id_of, wise
from tests.scorers.judge_server import Reply, by_image

ROOT = Path(__file__).resolve().parents[2]


class TestScores:
    def test_legacy_by_hand(self, judge_server, make_wise):
        judge_server.answer = lambda request: Reply(
            {1: GOOD, 2: "**Realism:** 2\n**Consistency:** 0\n**Aesthetic Quality:** 1"}[id_of(request)]
        )
        scores = make_wise().score(batch_of(2))
        np.testing.assert_allclose(scores.values, [0.8, 0.25], atol=1e-15)
        assert {name: values.tolist() for name, values in scores.details.items()} == {
            "consistency": [2.0, 0.0],
            "realism": [1.0, 2.0],
            "aesthetic": [0.0, 1.0],
        }
        check_scores("wise", scores, ["a", "b"])

    def test_verified_is_right_or_wrong(self, judge_server, make_wise):
        judge_server.answer = lambda request: Reply(
            "<think>Score: 1?</think> Score: 0" if id_of(request) == 1 else "Score: 1"
        )
        scores = make_wise(protocol="verified").score(batch_of(2))
        assert scores.values.tolist() == [0.0, 1.0] and scores.details == {}


class TestRequests:
    def test_request_fields_cannot_replace_the_question(self, make_wise):
        with pytest.raises(ValueError, match="must not hold messages, model, n, stream"):
            make_wise(request=dict.fromkeys(("messages", "model", "n", "stream"), 1))

    def test_rejects_base_url_with_key(self, make_wise):
        with pytest.raises(ValueError, match="base_url"):
            make_wise(base_url="http://user:pw@host/v1")

    def test_the_users_evaluator_asks_its_question(self, judge_server, make_wise, tmp_path):
        text = "Rate {prompt_data['Prompt']}, {prompt_data['Explanation']}\\nScore: 0"
        lines = [
            "def build_evaluation_messages(prompt_data, image_base64):",
            f"    return [{{'text': 'Be fair.'}}, {{'text': f\"{text}\"}}]",
        ]
        (tmp_path / "vllm_eval.py").write_text("\n".join(lines))
        make_wise(protocol="verified", instructions=str(tmp_path / "vllm_eval.py")).score(batch_of(1))
        (request,) = judge_server.requests
        assert request.body["messages"][0]["content"][0]["text"] == "Be fair."
        assert request.text == "Rate prompt 1, meaning 1\nScore: 0"

    @pytest.mark.parametrize("concurrency", [1, 3])
    def test_concurrency_is_reached_and_not_exceeded(self, judge_server, make_wise, concurrency):
        judge_server.answer = lambda request: Reply(GOOD, wait_seconds=0.15)
        make_wise(concurrency=concurrency).score(batch_of(2 * concurrency))
        assert judge_server.most_at_once == concurrency and len(judge_server.requests) == 2 * concurrency

    def test_inside_a_running_loop(self, make_wise):
        async def caller() -> int:
            return len(make_wise().score(batch_of(2)).values)

        assert asyncio.run(caller()) == 2

    def test_a_stop_comes_through_at_once(self, judge_server, make_wise):
        judge_server.answer = lambda request: Reply(GOOD, wait_seconds=20.0)
        threads = own_threads()

        def stop(number: int, frame: object) -> None:
            raise Stopped("stopped")

        before = signal.signal(signal.SIGALRM, stop)
        start = time.monotonic()
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.4)
            with pytest.raises(Stopped, match="stopped"):
                make_wise().score(batch_of(6))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert time.monotonic() - start < 10.0
        assert own_threads() <= threads  # earlier tests' threads may end meanwhile


def own_threads() -> set[threading.Thread]:
    """Threads but the server's, of which each connection has one."""
    return {thread for thread in threading.enumerate() if "process_request_thread" not in thread.name}


def stored(scorer: Wise) -> Path:
    """File of its answers."""
    return Path(scorer.settings.answers) / f"{scorer.spec_hash()}.jsonl"


class TestKept:
    def test_changed_image_prompt_explanation_or_id_is_asked_anew(self, judge_server, make_wise):
        one = batch_of(1)
        make_wise().score(one)
        others = [
            replace(one, images=one.images ^ 1),
            replace(one, images=one.images.reshape(1, 5, 6, 3)),
            replace(one, prompts=["rewritten"]),
            replace(one, metadata=[{"wise_id": 1, "explanation": "other"}]),
            replace(one, metadata=[{**one.metadata[0], "wise_id": 2}]),
        ]
        for count, other in enumerate(others, start=2):
            make_wise().score(other)
            assert len(judge_server.requests) == count

    @pytest.mark.parametrize(
        ("protocol", "identity", "key"),
        [
            ("legacy", "d081388fc0f252c8", "0222e0728e750186500963b2815a321a3299deb88381c7f68295ee07b56b44db"),
            ("verified", "70bf688fdaf12307", "c24eb5dd502ee3ad49e1e36c07d71d2f56d56b19149c20a14516a151bb710d66"),
        ],
    )
    def test_paid_answers_stay_valid(self, make_wise, tmp_path, protocol, identity, key):
        """Whoever changes these repeats every request of every user: raise `version` instead, on purpose."""
        named = wise("http://127.0.0.1:8910/v1", tmp_path, protocol=protocol, request={"seed": None})
        assert named.spec_hash() == identity
        scorer = make_wise(protocol=protocol)
        scorer.score(batch_of(1))
        path = stored(scorer)
        assert json.loads(path.read_text())["key"] == key

    def test_identity_ignores_path_of_evaluator(self, make_wise, tmp_path):
        slots = "{prompt_data['Prompt']} {prompt_data['Explanation']}"
        messages = f"[{{'text': 'S'}}, {{'text': f\"{slots} Score: 1\"}}]"
        text = f"def build_evaluation_messages(prompt_data):\n    return {messages}\n"
        for name, content in {"a": text, "b": text, "c": text.replace("'S'", "'T'")}.items():
            (tmp_path / name).write_text(content)
        a, b, c = (make_wise(protocol="verified", instructions=str(tmp_path / n)).spec_hash() for n in "abc")
        assert a == b != c

    def test_a_cut_last_line_is_dropped(self, judge_server, make_wise, caplog):
        scorer, batch = make_wise(concurrency=1), batch_of(3)
        values = scorer.score(batch).values
        path = stored(scorer)
        path.write_bytes(path.read_bytes()[:-30])
        assert make_wise().score(batch).values.tolist() == values.tolist()
        assert len(judge_server.requests) == 4
        assert [json.loads(line)["label"] for line in path.read_text().splitlines()] == [
            f"WISE prompt {i}" for i in (1, 2, 3)
        ]
        assert "the last answer was cut off" in caplog.text

    @pytest.mark.parametrize("line", [b"nonsense", b'{"key": "a"}', None, b'{"key": "a", "answer": "Score: 1"}'])
    def test_other_damage_names_the_line(self, make_wise, line):
        """None stands for a sound answer whose key is a number."""
        scorer = make_wise()
        scorer.score(batch_of(2))
        path = stored(scorer)
        first, second = path.read_bytes().splitlines()
        line = line or second.replace(b'"key": "', b'"key": 1, "was": "')
        path.write_bytes(b"\n".join([first, line, second, b""]))
        with pytest.raises(DataError, match=rf"{path.name}, line 2: .*Delete the line"):
            make_wise().score(batch_of(2))

    def test_first_stored_answer_is_used(self, make_wise):
        scorer = make_wise()
        values = scorer.score(batch_of(1)).values
        path = stored(scorer)
        record = json.loads(path.read_text())
        for answer in (GOOD, GOOD.replace("2", "0")):
            with path.open("a") as stream:
                stream.write(json.dumps({**record, "answer": answer}) + "\n")
        assert make_wise().score(batch_of(1)).values.tolist() == values.tolist()

    def test_reports_answers_folder_that_cannot_be_created(self, make_wise, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(DataError, match="cannot store the judge's answers"):
            make_wise(answers=str(tmp_path / "file")).score(batch_of(1))

    def test_a_killed_run_asks_only_for_what_is_missing(self, judge_server, tmp_path):
        judge_server.answer = lambda request: Reply(by_image(request).body, wait_seconds=0.25)
        code = (
            "import sys; from pathlib import Path; from tests.scorers.judge_cases import wise, batch_of; "
            "wise(sys.argv[1], Path(sys.argv[2]), concurrency=2).score(batch_of(12))"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, judge_server.url, str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        )
        try:
            until = time.monotonic() + 30
            while len(judge_server.requests) < 5 and time.monotonic() < until and process.poll() is None:
                time.sleep(0.01)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        (path,) = tmp_path.glob("*.jsonl")
        kept = [
            json.loads(line)["label"] for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")
        ]
        sent = len(judge_server.requests)
        judge_server.answer = by_image
        assert sent - 2 <= len(kept) <= sent < 12
        judge_server.requests.clear()
        resumed = wise(judge_server.url, tmp_path, concurrency=8).score(batch_of(12)).values
        assert {id_of(r) for r in judge_server.requests} == set(range(1, 13)) - {int(k.split()[-1]) for k in kept}
        assert len(judge_server.requests) == 12 - len(kept)
        assert resumed.tolist() == wise(judge_server.url, tmp_path / "b").score(batch_of(12)).values.tolist()
