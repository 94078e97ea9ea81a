"""A judge that fails: what is asked again, what ends a run, what is never told."""

import json
import logging
import re
import traceback

import numpy as np
import pytest

from chunk_grpo.errors import ConfigError, DataError, TransientError
from tests.s3_server import free_port
from tests.scorers.judge_cases import GOOD, batch_of, id_of, wise
from tests.scorers.judge_server import Reply, Request, by_image, completion

KEY = "sk-Zq7secret0123456789"
SOON = {"retry-after-ms": "5"}
"""Headers of a server that allows an immediate retry, so that tests do not wait."""


class TestFailures:
    def test_rate_limit_wait_follows_retry_after(self, judge_server, make_wise):
        judge_server.replies.append(
            Reply(b"{}", 429, {"Retry-After": "1"})
        )  # the client's own first wait is 0.5 s at most
        assert make_wise().score(batch_of(1)).values.size == 1
        first, second = judge_server.requests
        assert second.time - first.time >= 1.0
        assert first.body == second.body

    def test_each_wait_after_a_failing_server_is_longer(self, judge_server, make_wise):
        judge_server.replies.extend([Reply(b"oops", 500), Reply(drop=True)])
        make_wise().score(batch_of(1))
        a, b, c = (request.time for request in judge_server.requests)
        assert b - a >= 0.375 and c - b >= 0.75  # 0.5 and 1 s, less a quarter at most, drawn

    @pytest.mark.parametrize("status", [429, 503])
    def test_repeated_server_errors_end_scoring(self, judge_server, make_wise, status):
        judge_server.answer = lambda request: Reply(b'{"error": {"message": "busy"}}', status, SOON)
        with pytest.raises(
            TransientError, match=rf"(?s)no answer from {judge_server.url} to WISE prompt 1 .*{status}.*busy.*again"
        ):
            make_wise().score(batch_of(1))
        assert len(judge_server.requests) == 3

    def test_timeouts_end_scoring(self, judge_server, make_wise):
        judge_server.answer = lambda request: Reply(GOOD, wait_seconds=1.0)
        with pytest.raises(
            TransientError, match=f"{judge_server.url} to WISE prompt 1 after 2 attempts of 0.3 s .*timed out"
        ):
            make_wise(timeout_seconds=0.3, attempts=2).score(batch_of(1))
        assert len(judge_server.requests) == 2

    def test_unreachable_server_ends_scoring(self, tmp_path):
        url = f"http://127.0.0.1:{free_port()}/v1"
        with pytest.raises(TransientError, match=f"{url} .*Connection error.*Check that the server runs"):
            wise(url, tmp_path, attempts=1).score(batch_of(1))

    @pytest.mark.parametrize(
        ("reply", "fault"),
        [
            (Reply(b'{"choices": [{"mess'), "no chat completion .JSONDecodeError.; .* begins '{\"choices"),
            (Reply(b'{"choices": []}'), "no chat completion .IndexError."),
            (Reply(b"<html>", headers={"Content-Type": "text/html"}), "no chat completion .* '<html>'"),
            (Reply(completion(None, "content_filter")), "answer is empty .finish_reason 'content_filter'."),
            (Reply(GOOD.replace("2", "3")), "consistency must be 0 to 2, got 3; .* begins 'Consistency: 3"),
            (Reply("I would say it is fine. " * 20), "begins 'I would say.{109}'$"),
        ],
        ids=["cut JSON", "no choice", "no JSON", "no content", "out of range", "no scores"],
    )
    def test_a_refusal_says_what_was_wrong_and_how_the_answer_begins(self, judge_server, make_wise, reply, fault):
        judge_server.replies.extend([reply] * 3)
        scores = make_wise().score(batch_of(1))
        assert np.isnan(scores.values).all()
        assert re.search(rf"(?s)^no well-formed answer .* 3 attempts\. WISE prompt 1: .*{fault}", scores.refused[0])
        assert len(judge_server.requests) == 3

    def test_one_refusal_does_not_stop_the_batch(self, judge_server, make_wise):
        judge_server.answer = lambda request: Reply("no") if id_of(request) == 1 else Reply(GOOD)
        scores = make_wise(attempts=1, concurrency=1).score(batch_of(5))
        assert sorted(map(id_of, judge_server.requests)) == [1, 2, 3, 4, 5]
        assert list(scores.refused) == [0]
        assert np.isnan(scores.values).tolist() == [True, False, False, False, False]
        judge_server.requests.clear()
        judge_server.answer = by_image
        assert not make_wise().score(batch_of(5)).refused
        assert list(map(id_of, judge_server.requests)) == [1]

    def test_a_content_filter_refuses_one_image_and_is_not_asked_again(self, judge_server, make_wise):
        filtered = Reply(b'{"error": {"code": "content_filter", "message": "was filtered"}}', 400)
        judge_server.answer = lambda request: filtered if id_of(request) == 2 else Reply(GOOD)
        scores = make_wise().score(batch_of(3))
        assert "answered 400 to WISE prompt 2" in scores.refused[1]
        assert "was filtered" in scores.refused[1]
        assert sorted(map(id_of, judge_server.requests)) == [1, 2, 3]

    @pytest.mark.parametrize("status", [401, 403])
    def test_a_wrong_key_names_its_variable(self, judge_server, make_wise, monkeypatch, status):
        monkeypatch.setenv("JUDGE_KEY", KEY)
        judge_server.answer = lambda request: Reply(b"{}", status)
        with pytest.raises(DataError, match=f"answered {status} .* into the environment variable JUDGE_KEY"):
            make_wise(api_key_variable="JUDGE_KEY").score(batch_of(1))
        with pytest.raises(DataError, match=r"in scorers\.wise\.api_key_variable"):
            make_wise().score(batch_of(1))
        assert len(judge_server.requests) == 2  # it would not become right by asking again

    def test_rejected_request_error_names_the_setting(self, judge_server, make_wise):
        judge_server.answer = lambda request: Reply(b'{"error": {"message": "no field seed"}}', 422)
        with pytest.raises(DataError, match=r"answered 422 to WISE prompt 1: .*no field seed.*`request`"):
            make_wise(concurrency=1).score(batch_of(4))
        assert len(judge_server.requests) == 1  # neither that again nor the others


class TestKey:
    def test_only_the_configured_key_is_sent(self, judge_server, make_wise, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
        monkeypatch.setenv("JUDGE_KEY", f"{KEY}\n")
        make_wise(api_key_variable="JUDGE_KEY").score(batch_of(1))
        make_wise().score(batch_of(1, first=2))
        with_key, without = (request.headers for request in judge_server.requests)
        assert with_key["Authorization"] == f"Bearer {KEY}"
        assert "Authorization" not in without and "sk-other" not in str(without)

    def test_placeholder_key_is_not_masked(self, judge_server, make_wise, monkeypatch):
        monkeypatch.setenv("JUDGE_KEY", "1")
        judge_server.answer = lambda request: Reply(GOOD)
        assert make_wise(api_key_variable="JUDGE_KEY").score(batch_of(1)).details["realism"].tolist() == [1.0]

    @pytest.mark.parametrize(
        ("value", "fault"),
        [
            (None, "JUDGE_KEY is not set"),
            ("", "JUDGE_KEY is not set"),
            ("sk-a\nb", "JUDGE_KEY holds characters"),
            ("sk-ä", "JUDGE_KEY holds characters"),
        ],
    )
    def test_missing_or_invalid_key_is_reported(self, make_wise, monkeypatch, value, fault):
        monkeypatch.delenv("JUDGE_KEY", raising=False)
        if value is not None:
            monkeypatch.setenv("JUDGE_KEY", value)
        scorer = make_wise(api_key_variable="JUDGE_KEY")
        for act in (scorer.check, lambda: scorer.score(batch_of(1))):
            with pytest.raises(ConfigError, match=fault) as caught:
                act()
            assert "sk-" not in everything(caught.value)

    @pytest.mark.parametrize("status", [200, 200.2, 200.5, 401, 404, 500, 0], ids=str)
    def test_key_never_appears_in_output(self, judge_server, make_wise, monkeypatch, caplog, capfd, tmp_path, status):
        """A server that repeats the key in every way; 200.2: as finish_reason; 200.5: in thoughts."""
        monkeypatch.setenv("JUDGE_KEY", KEY)
        caplog.set_level(1)
        for name in ("openai", "httpx2", "httpcore2"):
            monkeypatch.setattr(logging.getLogger(name), "level", 1)

        def repeat(request: Request) -> Reply:
            key = request.headers["Authorization"]
            said = f"your key was {'.' * 30} {key} ..... {key}"  # cut in two by quotations of 60 and of 120
            if status in (200, 0):
                return Reply(said, drop=status == 0)
            if status == 200.2:
                return Reply(completion(None, said))
            if status == 200.5:
                return Reply(f"<think>{said}</think>{GOOD}")
            body = json.dumps({"error": {"message": said}}).replace("sk-", r"\u0073k-")
            return Reply(body.encode(), int(status), SOON)

        judge_server.answer = repeat
        judge_server.models = Reply(json.dumps({"data": [{"id": KEY}]}).encode())
        scorer = make_wise(api_key_variable="JUDGE_KEY", attempts=2)
        told = [repr(scorer), repr(vars(scorer))]
        try:
            scorer.check()
            scorer.score(batch_of(2))
        except (DataError, TransientError) as error:
            told.append(everything(error))
            assert error.__context__ is None and error.__cause__ is None
        assert judge_server.requests[0].headers["Authorization"].endswith(KEY)
        told += [f"{record.getMessage()} {vars(record)}" for record in caplog.records]
        assert len(told) > 10  # the client's own records are among them
        told += [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
        told += list(capfd.readouterr())
        assert "your key was" in "".join(told) or status in (200.5, 401, 0)
        assert "Zq7" not in "".join(told)


def everything(error: BaseException) -> str:
    """All that a log could show of an error and of those it comes from."""
    text = "".join(traceback.TracebackException.from_exception(error, capture_locals=False).format())
    seen: BaseException | None = error
    while seen is not None:
        text += repr(seen) + repr(vars(seen))
        seen = seen.__cause__ or seen.__context__
    return text


class TestCheck:
    def test_a_server_with_the_judge_is_fine(self, judge_server, make_wise, caplog):
        make_wise().check()
        assert len(judge_server.model_requests) == 1 and not judge_server.requests and not caplog.text

    @pytest.mark.parametrize(
        ("models", "warning"),
        [
            (Reply(b'{"data": [{"id": "b"}, {"id": "a"}]}'), "does not list tiny-judge, but a, b"),
            (Reply(b'{"data": []}'), "does not list tiny-judge, but none"),
            (Reply(b"{}", 404), "does not list its models; tiny-judge was not checked"),
            (Reply(b"<html>"), "does not list its models"),
        ],
    )
    def test_a_judge_that_is_not_listed_is_warned_of(self, judge_server, make_wise, caplog, models, warning):
        judge_server.models = models
        make_wise().check()
        assert f"{judge_server.url} {warning}" in caplog.text

    def test_a_refused_key_and_a_failing_server_are_errors(self, judge_server, make_wise):
        judge_server.models = Reply(b"{}", 401)
        with pytest.raises(DataError, match="answered 401 to GET /models"):
            make_wise().check()
        judge_server.models = Reply(b"{}", 500, SOON)
        with pytest.raises(TransientError, match=f"no answer from {judge_server.url} to GET /models"):
            make_wise().check()

    def test_instructions_are_read(self, judge_server, make_wise):
        with pytest.raises(DataError, match=r"scorers\.wise\.instructions: nowhere\.py"):
            make_wise(instructions="nowhere.py").check()
        assert not judge_server.model_requests
