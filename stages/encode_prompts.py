"""Encode all prompts once, so that later stages need no text encoder in memory."""

import sys
from dataclasses import dataclass, field

import torch

from chunk_grpo.artifacts import read_table, table_from_rows, write_table
from chunk_grpo.artifacts.tensors import write_tensors
from chunk_grpo.config import Params
from chunk_grpo.progress import Meter
from stages._inputs import load_model
from stages._stage import argument, run_stage


@dataclass(frozen=True)
class Arguments:
    model: str = field(metadata=argument("JSON of stage inputs: content of the base model's files"))
    prompts: str = field(metadata=argument("prompts/1, Parquet"))
    index: str = field(
        metadata=argument("embeddings/1, Parquet: row of the tensors for each prompt", writes=True)
    )
    tensors: str = field(
        metadata=argument("prompt_embeds [n, T, E] and pooled [n, F], safetensors", writes=True)
    )


def main(params: Params, arguments: Arguments) -> None:
    """Encode each distinct text once."""
    records = read_table(arguments.prompts, "prompts").to_pylist()
    row_of = {text: row for row, text in enumerate(dict.fromkeys(r["prompt"] for r in records))}
    family = load_model(params, arguments.model, ("text",), (params.model.height, params.model.width))
    texts = list(row_of)
    parts = []
    with Meter("encoding prompts", len(texts)) as meter:
        for first in range(0, len(texts), params.encode.batch_size):
            batch = texts[first : first + params.encode.batch_size]
            parts.append(family.encode(batch).to("cpu"))
            meter.advance(len(batch))
    tensors = {
        "prompt_embeds": torch.cat([part.prompt_embeds for part in parts]),
        "pooled": torch.cat([part.pooled for part in parts]),
    }
    rows = [{"prompt_id": r["prompt_id"], "row": row_of[r["prompt"]], "prompt": r["prompt"]} for r in records]
    write_tensors(tensors, arguments.tensors)
    write_table(table_from_rows(rows, "embeddings"), arguments.index, "embeddings")


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
