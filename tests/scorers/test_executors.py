"""One contract for scorers in this process, in another and at a server: the same numbers and the same failures."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from chunk_grpo.config.scorers import AnyExecutor, InProcess, InSubprocess, ShapesScorer
from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.scorers.base import ScoreBatch, Scorer, check_scores
from chunk_grpo.scorers.contract import check_contract
from chunk_grpo.scorers.placing import place_scorer
from chunk_grpo.scorers.registry import make_scorer
from chunk_grpo.scorers.shapes import ShapesVivid
from chunk_grpo.scorers.subprocess_scorer import SubprocessScorer
from chunk_grpo.scorers.wire import WorkerError
from chunk_grpo.shapes.prompts import all_prompts
from tests.scorers.odd_scorers import KEY, batch, settings
from tests.scorers.servers import ROOT, ServerProcess, over_http, server_in_thread, write_params

LINES = ROOT / "chunk_grpo" / "scorers" / "workers"
PLACES = ("in-process", "subprocess", "http")
ELSEWHERE = ("subprocess", "http")


def in_subprocess(**changes: Any) -> InSubprocess:
    values = {
        "python": None,
        "script": None,
        "device": None,
        "start_seconds": 20.0,
        "timeout_seconds": 20.0,
    }
    return InSubprocess(kind="subprocess", **values | changes)


@pytest.fixture(scope="module")
def params(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_params(tmp_path_factory.mktemp("server") / "params.yaml", KEY, settings())


@pytest.fixture(scope="module")
def scorers(params: Path) -> Iterator[dict[str, Scorer]]:
    """The same scorer in three places; one worker and one server for most of the tests."""
    with ServerProcess(params, KEY) as server:
        yield from made_scorers(server)


def made_scorers(server: ServerProcess) -> Iterator[dict[str, Scorer]]:
    places: dict[str, AnyExecutor | None] = {
        "in-process": InProcess(kind="in-process", device=None),
        "subprocess": in_subprocess(),
        "http": over_http(server.url),
    }
    made = {place: place_scorer(KEY, settings(), executor) for place, executor in places.items()}
    yield made
    for scorer in made.values():
        scorer.close()
    assert server.end()[0] == 0
    assert psutil.Process().children(recursive=True) == []


@pytest.fixture(params=PLACES)
def scorer(scorers: dict[str, Scorer], request: pytest.FixtureRequest) -> Scorer:
    return scorers[request.param]


@pytest.fixture(params=ELSEWHERE)
def remote(scorers: dict[str, Scorer], request: pytest.FixtureRequest) -> Scorer:
    return scorers[request.param]


def gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether a process ends in time; an ended one that nobody asked for counts."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


class TestEverywhere:
    def test_it_keeps_the_contract(self, scorer: Scorer) -> None:
        check_contract(scorer, batch())

    def test_it_says_what_it_is(self, scorer: Scorer, scorers: dict[str, Scorer]) -> None:
        said = (scorer.name, scorer.version, scorer.needs, scorer.groupwise)
        assert said == (KEY, 1, frozenset({"prompt", "metadata"}), False)
        assert scorer.spec_hash() == make_scorer(KEY, settings()).spec_hash()

    @pytest.mark.parametrize("count", [1, 4, 70])  # 70: more than its batch_size
    def test_values_and_details_are_the_same_to_the_bit(
        self, scorer: Scorer, scorers: dict[str, Scorer], count: int
    ) -> None:
        one, other = scorer.score(batch(count=count)), scorers["in-process"].score(batch(count=count))
        assert one.values.dtype == np.float64
        assert one.values.tobytes() == other.values.tobytes()
        assert one.details["pixels"].tobytes() == other.details["pixels"].tobytes()

    @pytest.mark.parametrize("do", ["short", "long", "column"])
    def test_another_number_of_values_is_refused(self, scorer: Scorer, do: str) -> None:
        with pytest.raises(DataError, match=r"scorer odd: needs one value for each of 4 images, got \("):
            check_scores(scorer.name, scorer.score(batch(do)), batch().prompts)

    def test_nan_is_refused(self, scorer: Scorer) -> None:
        with pytest.raises(
            DataError, match=r"image 1 of the batch \('prompt x'\) got nan; scores must be finite"
        ):
            check_scores(scorer.name, scorer.score(batch("nan")), batch().prompts)

    @pytest.mark.parametrize("do", ["reversed", "turned"])
    def test_the_wrong_order_is_seen(self, scorer: Scorer, do: str) -> None:
        with pytest.raises(DataError, match=r"^independent of the order: scorer odd gave image"):
            check_contract(scorer, batch(do))

    @pytest.mark.parametrize(
        ("do", "kind"), [("data", DataError), ("config", ConfigError), ("transient", TransientError)]
    )
    def test_an_error_comes_as_it_was_raised(self, scorer: Scorer, do: str, kind: type[Exception]) -> None:
        with pytest.raises(kind) as caught:
            scorer.score(batch(do))
        assert (type(caught.value), str(caught.value)) == (kind, f"the reason ({do})")

    def test_a_batch_whose_parts_do_not_fit_is_refused_before_it_is_sent(self, scorer: Scorer) -> None:
        whole = batch()
        with pytest.raises(ValueError, match=r"must be of one length, got \(4, 3, 4, 4\)"):
            scorer.score(ScoreBatch(whole.images, whole.prompts[:3], whole.metadata, whole.groups))


class TestElsewhere:
    def test_a_bug_comes_with_the_traceback_of_the_other_process(self, remote: Scorer) -> None:
        with pytest.raises(WorkerError) as caught:
            remote.score(batch("bug"))
        text = str(caught.value)
        assert "failed with ZeroDivisionError: the reason (bug)\nThere:\nTraceback (most recent" in text
        assert 'odd_scorers.py", line' in text

    def test_an_error_of_a_scorers_own_keeps_its_kind(self, remote: Scorer) -> None:
        with pytest.raises(DataError, match=r"^the reason \(special\)$"):
            remote.score(batch("special"))

    def test_an_error_of_the_system_may_pass_as_it_may_in_this_process(self, remote: Scorer) -> None:
        with pytest.raises(TransientError, match=r"^ConnectionResetError: the reason \(connection\)$"):
            remote.score(batch("connection"))

    def test_what_the_scorer_prints_is_no_answer(self, remote: Scorer, scorers: dict[str, Scorer]) -> None:
        values = remote.score(batch("print")).values
        assert np.array_equal(values, scorers["in-process"].score(batch()).values)

    def test_it_imports_no_torch_for_a_scorer_that_does_not(self, remote: Scorer) -> None:
        assert not remote.score(batch()).details["torch"].any()

    def test_it_answers_again_after_each_failure(self, remote: Scorer, scorers: dict[str, Scorer]) -> None:
        for do in ("data", "short", "nan", "bug"):
            with pytest.raises((DataError, WorkerError)):
                remote.score(batch(do))
        expected = scorers["in-process"].score(batch()).values
        assert np.array_equal(remote.score(batch()).values, expected)


def test_a_scorer_of_this_package_gives_the_same_bits_in_all_places() -> None:
    section = ShapesScorer(kind="shapes-graded", splits=("eval",), batch_size=3)
    specs = all_prompts()[::400][:5]
    images = np.random.default_rng(0).integers(0, 256, (len(specs), 32, 32, 3), dtype=np.uint8)
    images[:, 8:20, 8:20] = (255, 0, 0)
    pictures = ScoreBatch(images, [s.prompt for s in specs], [s.metadata() for s in specs], range(len(specs)))
    here = make_scorer("graded", section)
    expected = here.score(pictures).values
    assert len(set(expected.tolist())) > 1
    worker = place_scorer("graded", section, in_subprocess())
    with server_in_thread(make_scorer("graded", section)) as url:
        served = place_scorer("graded", section, over_http(url))
        for other in (worker, served):
            assert other.score(pictures).values.tobytes() == expected.tobytes()
            assert other.spec_hash() == here.spec_hash()
            other.close()


@pytest.mark.parametrize("device", [None, "cuda:1"])
def test_in_this_process_it_gets_its_device(device: str | None) -> None:
    section = ShapesScorer(kind="shapes-vivid", splits=("eval",), batch_size=3)
    scorer = place_scorer("vivid", section, InProcess(kind="in-process", device=device))
    assert isinstance(scorer, ShapesVivid)
    assert scorer.device == device
    assert isinstance(place_scorer("vivid", section, None), ShapesVivid)


class TestSubprocess:
    def test_a_crash_restarts_it_once_and_asks_again(
        self, scorers: dict[str, Scorer], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        scorer = scorers["subprocess"]
        assert isinstance(scorer, SubprocessScorer)
        scorer.check()
        before = scorer.pid
        with caplog.at_level(logging.WARNING):
            values = scorer.score(batch("exit once", marker=str(tmp_path / "marker"))).values
        assert np.array_equal(values, scorers["in-process"].score(batch()).values)
        assert scorer.pid not in (before, None)
        assert before is not None and gone(before)
        assert "ended with exit code 7" in caplog.text

    def test_the_second_crash_is_told_with_exit_code_and_last_words(self, scorers: dict[str, Scorer]) -> None:
        with pytest.raises(TransientError) as caught:
            scorers["subprocess"].score(batch("exit"))
        assert "ended with exit code 7. Its last words:\none line\nsomething is broken\n" in str(caught.value)
        assert str(caught.value).endswith("This was the second attempt.")
        assert scorers["subprocess"].score(batch()).values.shape == (4,)

    def test_sys_exit_in_a_scorer_is_a_crash(self, scorers: dict[str, Scorer]) -> None:
        with pytest.raises(TransientError, match=r"exit code 1. Its last words:\nenough"):
            scorers["subprocess"].score(batch("sys.exit"))

    def test_a_hanging_one_is_killed_with_its_children(self, tmp_path: Path) -> None:
        scorer = SubprocessScorer(KEY, settings(), in_subprocess(start_seconds=4.0, timeout_seconds=0.5))
        scorer.score(batch())
        start = time.monotonic()
        with pytest.raises(TransientError, match=r"gave no answer within .* s and was killed"):
            scorer.score(batch("hang", pids=str(tmp_path / "pids")))
        assert 0.5 < time.monotonic() - start < 30
        assert scorer.pid is None
        assert all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())
        scorer.close()

    def test_a_crash_ends_its_children(self, scorers: dict[str, Scorer], tmp_path: Path) -> None:
        with pytest.raises(TransientError, match="exit code 7"):
            scorers["subprocess"].score(batch("child", pids=str(tmp_path / "pids")))
        assert all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())

    def test_a_process_that_left_its_group_keeps_nobody_waiting(
        self, scorers: dict[str, Scorer], tmp_path: Path
    ) -> None:
        start = time.monotonic()
        with pytest.raises(TransientError, match="exit code 7"):
            scorers["subprocess"].score(batch("child", pids=str(tmp_path / "pids"), apart=True))
        assert time.monotonic() - start < 60
        for left in (tmp_path / "pids").read_text().split()[1::2]:
            psutil.Process(int(left)).kill()

    def test_it_gets_the_gpu_of_this_process_if_none_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "worker.py").write_text(
            "import json, sys\n"
            "device = json.loads(sys.stdin.readline())['device']\n"
            "print(json.dumps(dict(type='error', kind='DataError', message=str(device), traceback='')))\n"
        )
        script = str(tmp_path / "worker.py")

        def told(device: str | None) -> str:
            with pytest.raises(DataError) as caught:
                SubprocessScorer(KEY, settings(), in_subprocess(script=script, device=device)).check()
            return str(caught.value)

        assert told(None) == "None"
        monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
        monkeypatch.setattr("torch.cuda.current_device", lambda: 3)
        assert (told(None), told("cuda:1")) == ("cuda:3", "cuda:1")

    def test_close_closes_the_scorer_there_and_ends_the_process(self, tmp_path: Path) -> None:
        marker = tmp_path / "closed"
        scorer = SubprocessScorer(KEY, settings("Closing", marker=str(marker)), in_subprocess())
        scorer.score(batch())
        pid = scorer.pid
        scorer.close()
        assert marker.exists()
        assert pid is not None and not psutil.pid_exists(pid)
        scorer.close()  # a second time, there is nothing to close

    def test_it_outlives_the_thread_that_started_it(self) -> None:
        scorer = SubprocessScorer(KEY, settings(), in_subprocess())
        thread = threading.Thread(target=scorer.check)
        thread.start()
        thread.join()
        pid = scorer.pid
        time.sleep(0.2)
        scorer.score(batch())
        assert scorer.pid == pid
        scorer.close()

    @pytest.mark.parametrize("do", ["", "hang"] if sys.platform == "linux" else [""])
    def test_it_dies_with_its_parent(self, do: str) -> None:
        code = (
            "from tests.scorers.odd_scorers import *\n"
            "from tests.scorers.test_executors import SubprocessScorer, in_subprocess\n"
            "scorer = SubprocessScorer(KEY, settings(), in_subprocess())\n"
            "scorer.check()\n"
            "print(scorer.pid, flush=True)\n"
            f"scorer.score(batch({do!r}))\n"
            "time.sleep(600)\n"
        )
        with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            worker = int(parent.stdout.readline())
            time.sleep(0.3)
            children = psutil.Process(worker).children()
            parent.kill()
        assert gone(worker, 2.0)
        for child in children:  # `sleep` of a worker that hung
            child.kill()

    def test_an_interpreter_without_the_package_scores_by_a_script(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTHONPATH", str(ROOT))  # is for this interpreter
        venv.create(tmp_path / "other", with_pip=False)
        scorer = SubprocessScorer(KEY, settings(offset=0.25), self.script(tmp_path, SOUND))
        assert scorer.score(batch()).values.tolist() == (batch().images[:, 0, 0, 0] + 0.25).tolist()
        assert (scorer.name, scorer.version, scorer.groupwise) == ("first-pixel", 3, False)
        assert scorer.needs == frozenset()
        other = SubprocessScorer(KEY, settings(offset=0.5), self.script(tmp_path, SOUND))
        assert len({scorer.spec_hash(), other.spec_hash()}) == 2
        with pytest.raises(DataError, match=r"^nothing to judge$"):
            scorer.score(batch(count=1))
        scorer.close()
        other.close()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ("answer['keys'].reverse()", "answered another question: keys must be"),
            ("answer['keys'].pop()", "answered another question: keys must be"),
            ("answer['id'] = 'x'", "answered another question: id must be"),
            ("answer['spec_hash'] = 'x'", "answered another question: spec_hash must be"),
            ("answer['type'] = 'ready'", "answered another question: type must be"),
            ("answer['values'] = [None, 'x']", "answered in another form"),
            ("del answer['details']", "answered in another form"),
            ("answer = 'text'", "what is no message: must be a JSON object, got str"),
        ],
    )
    def test_an_answer_to_another_question_is_never_used(
        self, tmp_path: Path, change: str, message: str
    ) -> None:
        scorer = SubprocessScorer(KEY, settings(), in_subprocess(script=str(tmp_path / "worker.py")))
        (tmp_path / "worker.py").write_text(BY_HAND.format(change=change))
        with pytest.raises(DataError, match=message):
            scorer.score(batch())
        assert scorer.pid is None  # what it would say next is not read
        scorer.close()

    @pytest.mark.parametrize(
        ("script", "kind", "message"),
        [
            ("print('hello')", DataError, "answered what is no message: not JSON"),
            (
                "raise SystemExit('no such package')",
                ConfigError,
                "exit code 1. Its last words:\nno such package",
            ),
            ("import os; os.kill(os.getpid(), 9)", TransientError, "was ended by SIGKILL, without a word"),
            ('print(\'{"type": "ready", "protocol": 0}\')', DataError, "speaks no protocol 1"),
            ('print(\'{"type": "ready", "protocol": 1}\')', DataError, "does not say what it is"),
        ],
    )
    def test_a_worker_that_does_not_start_is_told(
        self, tmp_path: Path, script: str, kind: type[Exception], message: str
    ) -> None:
        (tmp_path / "worker.py").write_text(script)
        scorer = SubprocessScorer(KEY, settings(), in_subprocess(script=str(tmp_path / "worker.py")))
        with pytest.raises(kind, match=message):
            scorer.check()
        scorer.close()

    def test_an_error_at_the_start_comes_as_it_was_raised(self) -> None:
        scorer = SubprocessScorer(KEY, settings("no_such_thing"), in_subprocess())
        with pytest.raises(ConfigError, match=r"scorers.odd.source: cannot import .*no_such_thing"):
            scorer.check()
        scorer.close()

    def test_what_cannot_be_run_is_a_configuration_error(self, tmp_path: Path) -> None:
        for changes, message in (
            ({"python": "/no/such/python"}, "executors.odd.python: must be a Python interpreter"),
            ({"script": "no_such.py"}, "executors.odd.script: must be a Python file, got 'no_such.py'"),
        ):
            with pytest.raises(ConfigError, match=message):
                SubprocessScorer(KEY, settings(), in_subprocess(**changes)).check()

    def test_another_scorer_after_a_restart_is_refused(self, tmp_path: Path) -> None:
        script = tmp_path / "worker.py"
        script.write_text(BY_HAND.format(change="pass"))
        scorer = SubprocessScorer(KEY, settings(), in_subprocess(script=str(script)))
        scorer.score(batch())
        script.write_text(BY_HAND.format(change="pass").replace("'by-hand'", "'another'"))
        assert scorer.pid is not None
        os.kill(scorer.pid, signal.SIGKILL)
        with pytest.raises(DataError, match="is another scorer after a restart: its identity was by-hand"):
            scorer.score(batch())
        scorer.close()

    @staticmethod
    def script(folder: Path, text: str) -> InSubprocess:
        (folder / "script.py").write_text(text)
        python = folder / "other" / "bin" / "python"
        return in_subprocess(python=str(python), script=str(folder / "script.py"))


SOUND = f"""
import sys
sys.path.insert(0, {str(LINES)!r})
import lines

def open_worker(start):
    try:
        import chunk_grpo
    except ImportError:
        pass
    else:
        raise RuntimeError("this interpreter has the package")

    def score(batch):
        if len(batch.rows) < 2:
            raise lines.DataError("nothing to judge")
        return [row.pixels[0] + start.settings["options"]["offset"] for row in batch.rows], {{}}

    return lines.Worker("first-pixel", 3, score, needs=())

lines.serve(open_worker)
"""

BY_HAND = """
import json, sys
sys.stdin.readline()
ready = dict(type="ready", protocol=1, name="odd", version=1, needs=[], groupwise=False, spec_hash='by-hand',
             python="3", packages={{}})
print(json.dumps(ready), flush=True)
for line in sys.stdin:
    question = json.loads(line)
    keys = [row["key"] for row in question["rows"]]
    answer = dict(type="scores", id=question["id"], spec_hash='by-hand', keys=keys, details={{}})
    answer["values"] = [0.0] * len(keys)
    {change}
    print(json.dumps(answer), flush=True)
"""


class TestHttp:
    def test_a_crash_or_a_missing_server_is_told_with_the_command_that_starts_it(self, params: Path) -> None:
        with ServerProcess(params, KEY) as server:
            scorer = place_scorer(KEY, settings(), over_http(server.url))
            scorer.check()
            port = server.url.rsplit(":", 1)[1]
            command = f"Start it there: `python -m chunk_grpo.scorers.serve odd --port {port}`"
            for _ in range(2):  # it crashes; then nobody listens
                with pytest.raises(TransientError) as caught:
                    scorer.score(batch("exit"))
                assert f"the server at {server.url} does not answer (" in str(caught.value)
                assert command in str(caught.value)
            assert server.process.wait(5.0) == 7
            scorer.close()

    def test_a_hanging_one_is_given_up_after_the_time_out(self, params: Path) -> None:
        with ServerProcess(params, KEY) as server:
            scorer = place_scorer(KEY, settings(), over_http(server.url, timeout_seconds=0.5))
            scorer.check()
            start = time.monotonic()
            with pytest.raises(TransientError, match=r"did not answer within 0.5 s \(ReadTimeout\)"):
                scorer.score(batch("hang"))
            assert 0.4 < time.monotonic() - start < 10
            scorer.close()
