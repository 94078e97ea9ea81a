"""Encode prompts once, so that later stages need no text encoder in memory."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from chunk_grpo.artifacts import read_table
from chunk_grpo.artifacts.embeddings import distinct_texts, write_embeddings
from chunk_grpo.config import Params
from chunk_grpo.families.base import Family
from chunk_grpo.families.cut_prompts import no_warnings_of_cut_prompts
from chunk_grpo.machines import send_files
from chunk_grpo.parallel import Workers, exhaust
from chunk_grpo.progress import Meter
from stages._inputs import load_model
from stages._launch.processes import run_processes
from stages._stage import argument, inputs_of


@dataclass(frozen=True)
class Arguments:
    model: str = field(
        metadata=argument("JSON of stage inputs: content of the base model's files", reads=True)
    )
    prompts: str = field(metadata=argument("prompts/1, Parquet", reads=True))
    out: str = field(metadata=argument("folder for embeddings/2 and its shards", writes=True))


def encoded(
    family: Family, texts: Sequence[str], batch_size: int, workers: Workers
) -> Iterator[Mapping[str, Tensor]]:
    """Encode texts; yield the tensors of each batch, on the CPU, in the main process.

    All batches have `batch_size` texts, so that a text has the same embedding whichever others are encoded: sizes of
    matrices decide how a product is rounded. A training with more iterations then finds the embeddings that it knows.
    """
    batches = [texts[start : start + batch_size] for start in range(0, len(texts), batch_size)]

    def encode(batch: Sequence[str]) -> Mapping[str, Tensor]:
        whole = [*batch, *[batch[-1]] * (batch_size - len(batch))]
        with no_warnings_of_cut_prompts():  # the stage prepare_prompts has reported them
            tensors = family.encode(whole).to("cpu").tensors
        return {name: tensor[: len(batch)] for name, tensor in tensors.items()}

    with Meter("encoding prompts", len(texts)) as meter:
        found = workers.in_order(batches, encode)
        for number, tensors in enumerate(found):
            yield tensors
            meter.advance(len(batches[number]))


def main(params: Params, arguments: Arguments) -> None:
    """Encode each distinct text once."""
    workers = Workers()
    send_files(inputs_of(arguments))
    prompts = [(r["prompt_id"], r["prompt"]) for r in read_table(arguments.prompts, "prompts").to_pylist()]
    family = load_model(params, arguments.model, ("text",), None)
    batches = encoded(family, distinct_texts(prompts), params.encode.batch_size, workers)
    if workers.is_main:
        negative = family.encode([params.model.negative_prompt]).to("cpu").tensors
        write_embeddings(prompts, batches, arguments.out, negative=negative)
    else:
        exhaust(batches)


if __name__ == "__main__":
    sys.exit(run_processes(main, Arguments))
