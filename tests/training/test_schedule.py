"""Which prompts an iteration trains on."""

from collections import Counter

import pytest

from chunk_grpo.training.schedule import prompts_of_iteration, scheduled_prompts


@pytest.mark.parametrize(("count", "total"), [(2, 10), (3, 10), (7, 10), (10, 10), (1, 1)])
def test_every_epoch_holds_each_prompt_once(count, total):
    epochs = 3
    iterations = -(-epochs * total // count)
    stream = [p for i in range(iterations) for p in prompts_of_iteration(i, count, total, seed=4)]
    for epoch in range(epochs):
        assert Counter(stream[epoch * total : (epoch + 1) * total]) == dict.fromkeys(range(total), 1)


def test_epochs_and_seeds_have_orders_of_their_own():
    first, second = (prompts_of_iteration(i, 20, 20, seed=4) for i in (0, 1))
    assert first != second
    assert first != prompts_of_iteration(0, 20, 20, seed=5)
    assert first == prompts_of_iteration(0, 20, 20, seed=4)


def test_more_prompts_than_there_are_go_round():
    assert Counter(prompts_of_iteration(0, 7, 3, seed=0)).most_common()[-1][1] >= 2


@pytest.mark.parametrize(("iterations", "count"), [(1, 3), (3, 4), (7, 3), (40, 8)])
@pytest.mark.parametrize("seed", [0, 3])
def test_scheduled_prompts_are_the_union_over_iterations(seed, iterations, count):
    drawn = {p for i in range(iterations) for p in prompts_of_iteration(i, count, 21, seed)}
    assert scheduled_prompts(seed, iterations, count, 21) == sorted(drawn)
