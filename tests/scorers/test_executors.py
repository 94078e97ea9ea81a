"""One contract for scorers in this process, in another and at a server: the same numbers and the same failures."""

from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from chunk_grpo.config.scorers import AnyExecutor, AnyScorer, InProcess, PreservedScorer
from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.scorers.base import ScoreBatch, Scorer, check_scores
from chunk_grpo.scorers.contract import check_contract
from chunk_grpo.scorers.executors import remote as remote_module
from chunk_grpo.scorers.executors.messages import WorkerError, encode_batch
from chunk_grpo.scorers.preserved import Preserved
from chunk_grpo.scorers.running.placing import place_scorer
from chunk_grpo.scorers.running.registry import make_scorer
from chunk_grpo.scorers.running.retry import Limited
from tests.scorers.odd_scorers import KEY, batch, settings
from tests.scorers.servers import ServerProcess, in_subprocess, over_http, server_in_thread, write_params

PLACES = ("in-process", "subprocess", "http")
ELSEWHERE = ("subprocess", "http")
SMALL = settings().model_copy(update={"batch_size": 3})
PRESERVED = PreservedScorer(kind="preserved", measure="structure", box_field="box", splits=("eval",), batch_size=3)


def placed(section: AnyScorer, url: str) -> dict[str, Scorer]:
    """The same scorer in three places."""
    places: dict[str, AnyExecutor] = {
        "in-process": InProcess(kind="in-process", device=None),
        "subprocess": in_subprocess(),
        "http": over_http(url),
    }
    return {place: place_scorer(KEY, section, executor) for place, executor in places.items()}


@pytest.fixture(scope="module")
def scorers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Scorer]]:
    """One worker and one server for most of the tests, three images at a time."""
    params = write_params(tmp_path_factory.mktemp("server") / "params.yaml", KEY, SMALL)
    others = psutil.Process().children(recursive=True)  # such as a server of the whole session
    with ServerProcess(params, KEY) as server:
        made = placed(SMALL, server.url)
        yield made
        for scorer in made.values():
            scorer.close()
        assert server.end()[0] == 0
        assert [each for each in psutil.Process().children(recursive=True) if each not in others] == []


@pytest.fixture(params=PLACES)
def scorer(scorers: dict[str, Scorer], request: pytest.FixtureRequest) -> Scorer:
    return scorers[request.param]


@pytest.fixture(params=ELSEWHERE)
def remote(scorers: dict[str, Scorer], request: pytest.FixtureRequest) -> Scorer:
    return scorers[request.param]


class TestEverywhere:
    def test_it_keeps_the_contract(self, scorer: Scorer) -> None:
        check_contract(scorer, batch())

    def test_executor_keeps_scorer_identity(self, scorer: Scorer) -> None:
        said = (scorer.name, scorer.version, scorer.needs, scorer.groupwise)
        assert said == (KEY, 1, frozenset({"prompt", "metadata"}), False)
        assert scorer.spec_hash() == make_scorer(KEY, SMALL).spec_hash()

    def test_values_and_details_are_the_same_to_the_bit(self, scorer: Scorer) -> None:
        one, other = scorer.score(batch(count=7)), make_scorer(KEY, SMALL).score(batch(count=7))
        assert one.values.dtype == np.float64
        assert one.values.tobytes() == other.values.tobytes()
        assert one.details["pixels"].tobytes() == other.details["pixels"].tobytes()

    def test_a_refused_image_has_a_reason_and_the_others_their_scores(self, scorer: Scorer) -> None:
        """The second of each three is refused; that of the last one alone is not."""
        scores = scorer.score(batch("refuse", count=7))
        assert dict(scores.refused) == {1: "the reason (1)", 4: "the reason (1)"}
        values = check_scores(KEY, scores, batch(count=7).prompts).values
        whole = make_scorer(KEY, SMALL).score(batch(count=7)).values
        assert np.flatnonzero(np.isnan(values)).tolist() == [1, 4]
        assert np.array_equal(np.delete(values, [1, 4]), np.delete(whole, [1, 4]))

    @pytest.mark.parametrize(
        ("do", "kind"),
        [("data", DataError), ("config", ConfigError), ("transient", TransientError), ("special", DataError)],
    )
    def test_error_keeps_kind_and_message(self, scorer: Scorer, do: str, kind: type[Exception]) -> None:
        with pytest.raises(kind, match=rf"^the reason \({do}\)$"):
            scorer.score(batch(do))

    def test_sys_exit_is_reported_as_scorer_bug(self, scorer: Scorer) -> None:
        with pytest.raises((RuntimeError, WorkerError), match=r"scorer odd: \S+:odd called sys\.exit\(enough\)"):
            scorer.score(batch("sys.exit"))

    def test_batch_of_unequal_lengths_is_refused_before_sending(self, scorer: Scorer) -> None:
        whole = batch()
        with pytest.raises(ValueError, match=r"must be of one length, got \(4, 3, 4, 4\)"):
            scorer.score(ScoreBatch(whole.images, whole.prompts[:3], whole.metadata, whole.groups))

    def test_it_answers_again_after_each_failure(self, scorer: Scorer) -> None:
        for do in ("data", "short", "nan", "bug", "sys.exit"):
            with pytest.raises((DataError, WorkerError, ZeroDivisionError, RuntimeError)):
                scorer.score(batch(do))
        assert np.array_equal(scorer.score(batch()).values, make_scorer(KEY, SMALL).score(batch()).values)


class TestElsewhere:
    def test_a_message_has_no_more_images_than_are_scored_at_a_time(
        self, remote: Scorer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """70 images of 1024 x 1024 in one message would be a quarter of a gigabyte."""
        sent: list[int] = []

        def counted(part: ScoreBatch, question: str) -> bytes:
            sent.append(len(part))
            return encode_batch(part, question)

        monkeypatch.setattr(remote_module, "encode_batch", counted)
        remote.score(batch(count=7))
        assert sent == [3, 3, 1]

    def test_a_bug_comes_with_file_and_line_of_the_other_process(self, remote: Scorer) -> None:
        said = r"odd raised ZeroDivisionError: the reason \(bug\) \(odd_scorers\.py, line \d+\)\. Mend it"
        with pytest.raises(DataError, match=said):
            remote.score(batch("bug"))

    def test_remote_connection_error_is_transient(self, remote: Scorer) -> None:
        with pytest.raises(TransientError, match=r"^ConnectionResetError: the reason \(connection\)$"):
            remote.score(batch("connection"))

    def test_scorer_output_does_not_disturb_the_protocol(self, remote: Scorer) -> None:
        values = remote.score(batch("print")).values
        assert np.array_equal(values, make_scorer(KEY, SMALL).score(batch()).values)

    def test_worker_imports_torch_only_if_scorer_does(self, remote: Scorer) -> None:
        assert not remote.score(batch()).details["torch"].any()


def test_a_groupwise_scorer_gets_whole_groups_in_all_places() -> None:
    section = settings("Compared").model_copy(update={"batch_size": 3})
    pictures = batch(count=8).rows([0, 2, 4, 6, 1, 3, 5, 7])
    with server_in_thread(make_scorer(KEY, section)) as url:
        for scorer in placed(section, url).values():
            assert scorer.groupwise
            check_contract(scorer, pictures)
            assert sorted(scorer.score(pictures).values) == [0.0] * 4 + [1.0] * 4
            scorer.close()


def test_a_scorer_of_this_package_gives_the_same_bits_in_all_places() -> None:
    """With the pictures that were edited, and boxes of the edits in the metadata."""
    images, sources = np.random.default_rng(0).integers(0, 256, (2, 5, 16, 16, 3), dtype=np.uint8)
    boxes = [{"box": [0.0, 0.0, 1.0, share]} for share in (0.1, 0.3, 0.5, 0.7, 0.9)]
    pictures = ScoreBatch(images, ["red"] * 5, boxes, range(5), sources)
    here = make_scorer(KEY, PRESERVED)
    expected = here.score(pictures).values
    assert len(set(expected.tolist())) == 5
    with server_in_thread(make_scorer(KEY, PRESERVED)) as url:
        for scorer in placed(PRESERVED, url).values():
            assert scorer.score(pictures).values.tobytes() == expected.tobytes()
            assert scorer.spec_hash() == here.spec_hash()
            scorer.close()


def test_in_this_process_it_gets_its_device_and_time() -> None:
    scorer = place_scorer(KEY, PRESERVED, InProcess(kind="in-process", device="cuda:1"))
    assert isinstance(scorer, Limited)
    assert isinstance(scorer.scorer, Preserved)
    assert scorer.scorer.device == "cuda:1"
    without = InProcess(kind="in-process", device=None, timeout_seconds=None)
    assert isinstance(place_scorer(KEY, PRESERVED, without), Preserved)
    assert isinstance(place_scorer(KEY, PRESERVED, None), Limited)


def test_an_external_scorer_places_itself() -> None:
    """No one would read its device; but a script of the user's own does."""
    for executor in (InProcess(kind="in-process", device="cuda:1"), in_subprocess(device="cuda:1")):
        with pytest.raises(ConfigError, match=r"^executors\.odd\.device: must be null, got 'cuda:1': .*odd\.options"):
            place_scorer(KEY, settings(), executor)
    place_scorer(KEY, settings(), in_subprocess(device="cuda:1", script="mine.py"))
