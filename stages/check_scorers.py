"""Check every scorer's packages, files and servers before any long stage, and write its spec."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from chunk_grpo.artifacts import join, output_dir, write_json
from chunk_grpo.config import Params
from chunk_grpo.digests import Digests
from chunk_grpo.progress import Meter
from chunk_grpo.recorded import require_unchanged
from chunk_grpo.scorers.running.placing import place_scorer
from chunk_grpo.scorers.running.recorded import scorer_records
from chunk_grpo.scorers.running.spec import ScorerSpec, spec_of
from stages._stage import reads, run_stage, writes

IN_TRAINING = ("train",)
"""Replaces a scorer's splits in the specs for training: a change of its splits must not repeat training."""


@dataclass(frozen=True)
class Arguments:
    settings: str = reads("JSON of stage inputs: each scorer's settings, and content of its code and files")
    out: str = writes("folder for SCORER.json, one per scorer")
    training: str = writes("JSON: specs of the scorers used in training")


def check(params: Params) -> Iterator[ScorerSpec]:
    """Check each scorer of params.yaml and yield its spec; reads model files but loads no model."""
    with Meter("checking scorers", len(params.scorers)) as meter:
        for key, settings in params.scorers.items():
            scorer = place_scorer(key, settings, params.executors.get(key))
            try:
                scorer.check()
                yield spec_of(key, settings, scorer)
            finally:
                scorer.close()
            meter.advance(1)


def main(params: Params, arguments: Arguments) -> None:
    """Write one spec file per scorer, and one file with the specs of the scorers used in training."""
    specs = {spec.key: spec for spec in check(params)}
    require_unchanged(scorer_records(params, Digests()), arguments.settings)
    used = sorted([*params.rewards, *params.train.heldout.scorers])
    with output_dir(arguments.out) as draft:
        for key, spec in specs.items():
            write_json(spec.model_dump(mode="json"), join(str(draft), f"{key}.json"))
    in_training = {"splits": IN_TRAINING, "refusals": 0.0}
    training = {key: specs[key].model_copy(update=in_training).model_dump(mode="json") for key in used}
    write_json(training, arguments.training)


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
