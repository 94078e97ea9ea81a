"""Encode prompts once, so that later stages need no text encoder in memory."""

import sys
from dataclasses import dataclass

from chunk_grpo.artifacts import read_table
from chunk_grpo.artifacts.embeddings import distinct_texts, write_embeddings
from chunk_grpo.config import Params
from chunk_grpo.families.cut_prompts import no_warnings_of_cut_prompts
from chunk_grpo.library.checkpoint import recorded_checkpoint
from chunk_grpo.library.encoding import encoded
from chunk_grpo.parallel import Workers, exhaust
from stages._launch.processes import run_processes
from stages._stage import reads, writes


@dataclass(frozen=True)
class Arguments:
    model: str = reads("JSON of stage inputs: content of the base model's files")
    prompts: str = reads("prompts/1, Parquet")
    out: str = writes("folder for embeddings/2 and its shards")


def main(params: Params, arguments: Arguments) -> None:
    """Encode each distinct text once."""
    workers = Workers()
    prompts = [(r["prompt_id"], r["prompt"]) for r in read_table(arguments.prompts, "prompts").to_pylist()]
    family = recorded_checkpoint(params.model, arguments.model).loaded("text")
    negative = family.encode([params.model.negative_prompt]).to("cpu").tensors
    with no_warnings_of_cut_prompts():  # the stage prepare_prompts has reported them
        batches = encoded(family, distinct_texts(prompts), params.encode.batch_size, workers)
        if workers.is_main:
            write_embeddings(prompts, batches, arguments.out, negative=negative)
        else:
            exhaust(batches)


if __name__ == "__main__":
    sys.exit(run_processes(main, Arguments))
