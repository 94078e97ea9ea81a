"""One contract for scorers in this process, in another and at a server: the same numbers and the same failures."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from chunk_grpo.config.scorers import AnyExecutor, InProcess, ShapesScorer
from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.scorers.base import ScoreBatch, Scorer, check_scores
from chunk_grpo.scorers.contract import check_contract
from chunk_grpo.scorers.executors import remote as remote_module
from chunk_grpo.scorers.executors.wire import Question, WorkerError, encode_batch
from chunk_grpo.scorers.running.limited import Limited
from chunk_grpo.scorers.running.placing import place_scorer
from chunk_grpo.scorers.running.registry import make_scorer
from chunk_grpo.scorers.shapes import ShapesVivid
from chunk_grpo.shapes.prompts import all_prompts
from tests.scorers.odd_scorers import KEY, batch, settings
from tests.scorers.servers import ServerProcess, in_subprocess, over_http, server_in_thread, write_params

PLACES = ("in-process", "subprocess", "http")
ELSEWHERE = ("subprocess", "http")


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

    def test_a_message_has_no_more_images_than_are_scored_at_a_time(
        self, remote: Scorer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """70 images of 1024 x 1024 in one message would be half a gigabyte."""
        sent: list[int] = []

        def counted(part: ScoreBatch) -> Question:
            sent.append(len(part))
            return encode_batch(part)

        monkeypatch.setattr(remote_module, "encode_batch", counted)
        remote.score(batch(count=70))
        assert sent == [64, 6]

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
        assert (
            "failed with ZeroDivisionError: the reason (bug)\nTraceback of the worker:\nTraceback (most recent"
            in text
        )
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
    assert isinstance(scorer, Limited)
    assert isinstance(scorer.scorer, ShapesVivid)
    assert scorer.scorer.device == device
    without = InProcess(kind="in-process", device=device, timeout_seconds=None)
    assert isinstance(place_scorer("vivid", section, without), ShapesVivid)
    assert isinstance(place_scorer("vivid", section, None), Limited)


def test_an_external_scorer_places_itself() -> None:
    """No one would read its device; but a script of the user's own does."""
    executors: list[AnyExecutor] = [InProcess(kind="in-process", device="cuda:1")]
    executors += [in_subprocess().model_copy(update={"device": "cuda:1"})]
    for executor in executors:
        with pytest.raises(
            ConfigError, match=r"^executors\.odd\.device: must be null, got 'cuda:1': .*odd\.options"
        ):
            place_scorer(KEY, settings(), executor)
    place_scorer(KEY, settings(), executors[1].model_copy(update={"script": "mine.py"}))
