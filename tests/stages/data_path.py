"""Writes and reads embeddings and images of FLUX.1-dev's size, and prints its peak memory in KiB.

Started as `python -m tests.stages.data_path COUNT FOLDER`.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chunk_grpo.artifacts import write_rows
from chunk_grpo.artifacts.embeddings import open_embeddings, write_embeddings
from chunk_grpo.families.prompts import StoredConditioning
from chunk_grpo.library.scoring import ImageTables
from chunk_grpo.reporting.gallery import first_images

BATCH = 8
PICTURE_BYTES = 1_500_000


def batches(count: int) -> Iterator[Mapping[str, Tensor]]:
    """Embeddings of FLUX.1-dev's size; row n has the value n."""
    for first in range(0, count, BATCH):
        values = torch.arange(first, first + BATCH).bfloat16()
        rows = torch.zeros(BATCH, 512, 4096, dtype=torch.bfloat16) + values.view(-1, 1, 1)
        yield {"prompt_embeds": rows, "pooled": rows[:, 0, :768].clone()}


def images(count: int) -> Iterator[dict[str, Any]]:
    """Rows of images/1."""
    random = np.random.default_rng(0)
    for number in range(count):
        row = {"policy": "base", "mode": "base", "train_seed": -1, "sample": 0, "seed": number}
        picture = {"bytes": random.bytes(PICTURE_BYTES), "path": "a.png"}
        yield {**row, "prompt_id": f"p{number}", "image": picture}


def main(count: int, folder: Path) -> None:
    prompts = [(f"p{number}", f"text {number}") for number in range(count)]
    write_embeddings(prompts, batches(count), folder / "embeddings", shard_bytes=2**25)
    with open_embeddings(folder / "embeddings") as opened:
        stored = StoredConditioning(opened, [opened.row_of[prompt] for prompt in prompts])
        everything = stored.rows([n for n in range(count) for _ in range(2)])
        for first in range(0, len(everything), 2 * BATCH):
            batch = everything.rows(range(first, first + 2 * BATCH)).to("cpu")
            expected = (torch.arange(first, first + 2 * BATCH) // 2).bfloat16()
            assert torch.equal(batch["prompt_embeds"][:, 7, 7], expected)
    path = str(folder / "images.parquet")
    write_rows(images(count), path, "images", row_group_bytes=2**24)
    assert first_images("base", path, ["p3", "p1"]).table["seed"].to_pylist() == [1, 3]
    assert sum(1 for _ in ImageTables([path], [name for name, _ in prompts]).records()) == count
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(line.split()[1] for line in status if line.startswith("VmHWM")))  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
