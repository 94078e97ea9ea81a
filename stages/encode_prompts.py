"""Encode prompts once, so that later stages need no text encoder in memory."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from chunk_grpo.artifacts import read_table
from chunk_grpo.artifacts.embeddings import distinct_texts, write_embeddings
from chunk_grpo.config import Params
from chunk_grpo.families.base import Family
from chunk_grpo.progress import Meter
from stages._inputs import load_model
from stages._stage import argument, run_stage


@dataclass(frozen=True)
class Arguments:
    model: str = field(metadata=argument("JSON of stage inputs: content of the base model's files"))
    prompts: str = field(metadata=argument("prompts/1, Parquet"))
    out: str = field(metadata=argument("folder for embeddings/2 and its shards", writes=True))


def encoded(family: Family, texts: Sequence[str], batch_size: int) -> Iterator[Mapping[str, Tensor]]:
    """Encode texts; yield the tensors of each batch, on the CPU."""
    with Meter("encoding prompts", len(texts)) as meter:
        for start in range(0, len(texts), batch_size):
            batch = texts[start : start + batch_size]
            yield family.encode(batch).to("cpu").named()
            meter.advance(len(batch))


def main(params: Params, arguments: Arguments) -> None:
    """Encode each distinct text once."""
    prompts = [(r["prompt_id"], r["prompt"]) for r in read_table(arguments.prompts, "prompts").to_pylist()]
    family = load_model(params, arguments.model, ("text",), (params.model.height, params.model.width))
    batches = encoded(family, distinct_texts(prompts), params.encode.batch_size)
    write_embeddings(prompts, batches, arguments.out)


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
