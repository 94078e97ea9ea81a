"""Training experiments that were not run are named."""

import dataclasses

import pytest

from chunk_grpo.config import load_params
from chunk_grpo.reporting.content import not_trained
from chunk_grpo.reporting.inputs import settings_from


@pytest.mark.parametrize("single_chunks", [False, True])
@pytest.mark.parametrize("chunk_rewards", [False, True])
def test_studies_that_no_variant_makes(single_chunks: bool, chunk_rewards: bool) -> None:
    settings = settings_from(load_params()).training
    found = dataclasses.replace(settings, single_chunks=single_chunks, chunk_rewards=chunk_rewards)
    text = " ".join(not_trained(found))
    assert ("Fig. 6" in text, "Table 4" in text) == (not single_chunks, not chunk_rewards)
