"""How processes wait for scores: together, until a stop, and without losing what is sampled."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch

from chunk_grpo.errors import ChunkGrpoError, DataError, TransientError
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.training.rollouts import Experience, Iteration, SampledTrajectories, collect_experience
from chunk_grpo.training.run import TrainingData
from chunk_grpo.training.schedule import starts_per_prompt
from chunk_grpo.training.scoring import UnscoredError, Waits
from chunk_grpo.training.stopping import GivenUpError
from tests.shapes_scorers import Away, reward_that_is_away

from .conftest import CHUNK_WS, method_of, small_params

G = 4
WEIGHTS = {"shapes-graded": 1.0, "shapes-vivid": 0.6}
BRANCHING = {"objective": "step", "plan": "step", "branching": {"points": 2, "children": 2}, "fraction": 1.0}
GAINS = {"objective": "chunk", "plan": "listed", "credit": "chunk-gains"}


def failing(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def test_a_result_is_returned_when_all_have_theirs() -> None:
    assert Waits().together(lambda: 7) == 7
    assert Waits(by_all=lambda action: [action(), False]).together(lambda: 7) == 7


def test_a_scorer_that_is_away_leaves_the_iteration_unscored() -> None:
    with pytest.raises(UnscoredError, match=r"^scorer own: no answer$") as caught:
        Waits().together(failing(TransientError("scorer own: no answer")))
    assert caught.value.exit_code == 75


def test_that_another_process_has_ended_is_not_a_scorers_failure() -> None:
    """There is nobody to save a checkpoint with."""

    def broken(action: Callable[[], bool]) -> list[bool]:
        action()
        raise TransientError("another process has ended")

    with pytest.raises(TransientError) as caught:
        Waits(by_all=broken).together(lambda: 7)
    assert type(caught.value) is TransientError


@pytest.mark.parametrize("error", [DataError("a refused image"), KeyError("a bug")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        Waits().together(failing(error))
    assert caught.value is error


def test_a_stop_in_any_process_ends_the_wait_of_all() -> None:
    stopping = Waits(lambda: True)
    with pytest.raises(GivenUpError):
        stopping.together(stopping.check)
    with pytest.raises(GivenUpError):
        Waits(by_all=lambda action: [action(), True]).together(lambda: 7)
    Waits().check()


def test_a_pause_ends_with_the_call_or_at_a_stop() -> None:
    failed: Future[int] = Future()
    failed.set_exception(KeyError("raised later"))
    Waits().pause(failed)
    looks = iter([False, True])
    Waits(lambda: next(looks)).pause(Future())
    assert next(looks, None) is None


def experience(
    family: FluxFamily,
    data: TrainingData,
    reward: Reward,
    sampled: list[SampledTrajectories] | None = None,
    variant: dict[str, Any] = CHUNK_WS,
    **train: Any,
) -> Experience:
    """Two prompts, in batches of four rows or of two starts with four rows each."""
    params = small_params(variant, **{"group_size": G, "rollout_batch_size": 4, **train})
    method = method_of(params)
    starts = range(2 * starts_per_prompt(G, method.variant.branching))
    where = Iteration(3, data.prompts.rows([1, 3]), starts)
    return collect_experience(family, method, where, reward, params.train, 0, sampled=sampled)


def alike(one: Experience, other: Experience) -> bool:
    """Whether trajectories and scores have the same bits."""
    same = [one.predicted.keys() == other.predicted.keys()]
    for mine, others in ((one.scores, other.scores), (one.predicted, other.predicted)):
        same += [np.array_equal(values, others[name]) for name, values in mine.items()]
    pairs = zip(one.trajectories.state().values(), other.trajectories.state().values(), strict=True)
    return all(same) and all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


@pytest.mark.parametrize("variant", [CHUNK_WS, BRANCHING, GAINS], ids=["whole", "branches", "gains"])
@pytest.mark.parametrize("kept", [1, 2])
def test_kept_batches_are_scored_and_not_sampled_again(variant, kept, family, data, monkeypatch):
    """Through a checkpoint, whichever number of batches was sampled, with the images that they predict."""
    whole = experience(family, data, data.reward, variant=variant)
    sampled: list[SampledTrajectories] = []
    with pytest.raises(UnscoredError, match="away at call 2"):
        experience(family, data, reward_that_is_away(WEIGHTS, range(2, 9), away_seconds=0.0), sampled, variant)
    assert len(sampled) == 2
    again = [SampledTrajectories.from_state(each.state(), family.device) for each in sampled[:kept]]
    passes: list[int] = []
    velocity = type(family).velocity

    def counted(self: FluxFamily, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        passes.append(len(x))
        return velocity(self, x, *rest)

    monkeypatch.setattr(type(family), "velocity", counted)
    assert alike(experience(family, data, data.reward, again, variant), whole)
    assert again == []  # they are the experience's now
    assert bool(passes) == (kept == 1)


@pytest.mark.parametrize("background", [True, False])
def test_after_a_scorer_was_away_no_other_batch_waits_for_it(background, family, data):
    """All batches are sampled: processes make equally many passes, and a later run needs them."""
    reward = reward_that_is_away(WEIGHTS, range(1, 99), away_seconds=0.0)
    sampled: list[SampledTrajectories] = []
    with pytest.raises(ChunkGrpoError, match=r"after 1 attempt; .* away at call 1\."):
        experience(family, data, reward, sampled, rollout_batch_size=2, reward_in_background=background)
    assert len(sampled) == 4
    scorer = reward._scorers["shapes-graded"]
    assert isinstance(scorer, Away) and next(scorer._calls) == 2  # it was asked once
