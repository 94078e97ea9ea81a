"""Encode prompts once, so that later stages need no text encoder in memory."""

import sys
from dataclasses import dataclass
from functools import partial

from chunk_grpo.artifacts import read_table
from chunk_grpo.artifacts.embeddings import distinct_prompts, write_embeddings
from chunk_grpo.artifacts.pictures import open_pictures
from chunk_grpo.config import Params
from chunk_grpo.image_files import read_picture
from chunk_grpo.library.checkpoint import recorded_checkpoint
from chunk_grpo.library.encoding import encoded, negative_of
from chunk_grpo.parallel import Workers, exhaust
from chunk_grpo.weights import quiet
from stages._launch.processes import run_processes
from stages._stage import reads, writes


@dataclass(frozen=True)
class Arguments:
    model: str = reads("JSON of stage inputs: content of the base model's files")
    prompts: str = reads("prompts/1, Parquet")
    pictures: str = reads("folder with pictures/1 and the pictures that prompts edit")
    out: str = writes("folder for embeddings/2 and its shards")


def main(params: Params, arguments: Arguments) -> None:
    """Encode each distinct text, with the picture that it edits, once."""
    workers = Workers()
    prompts = [(r["prompt_id"], r["prompt"]) for r in read_table(arguments.prompts, "prompts").to_pylist()]
    family = recorded_checkpoint(params.model, arguments.model).loaded("text")
    away = params.model.negative_prompt
    negative = negative_of(family, away)
    with (
        open_pictures(arguments.pictures) as pictures,
        quiet(),  # the stage prepare_prompts has reported the prompts that are cut off
    ):
        distinct = distinct_prompts(prompts, pictures)
        edited = [partial(read_picture, pictures[name]) for name, _ in distinct] if pictures else None
        texts = [text for _, text in distinct]
        batches = encoded(family, texts, params.encode.batch_size, workers, edited, away)
        if workers.is_main:
            write_embeddings(prompts, batches, arguments.out, pictures=pictures, negative=negative)
        else:
            exhaust(batches)


if __name__ == "__main__":
    sys.exit(run_processes(main, Arguments))
