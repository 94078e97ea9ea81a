"""Sentences about training experiments that were not run."""

import dataclasses

import pytest

from chunk_grpo.config import load_params
from chunk_grpo.reporting.content import not_trained
from chunk_grpo.reporting.inputs import settings_from


@pytest.mark.parametrize(
    ("single_chunks", "chunk_rewards", "sentences"),
    [
        (False, False, ["Training single chunks (the paper’s Fig. 6) and other rewards (its Table 4)."]),
        (False, True, ["Training single chunks (the paper’s Fig. 6)."]),
        (True, False, ["Training with other rewards (the paper’s Table 4)."]),
        (True, True, []),
    ],
)
def test_studies_that_no_variant_makes(
    single_chunks: bool, chunk_rewards: bool, sentences: list[str]
) -> None:
    settings = settings_from(load_params()).training
    found = dataclasses.replace(settings, single_chunks=single_chunks, chunk_rewards=chunk_rewards)
    assert not_trained(found) == sentences
