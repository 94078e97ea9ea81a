"""Prompts of a table with their embeddings, which stay in their files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from chunk_grpo.artifacts import read_table
from chunk_grpo.artifacts.embeddings import Embeddings, open_embeddings
from chunk_grpo.artifacts.pictures import open_pictures
from chunk_grpo.errors import DataError
from chunk_grpo.families.prompts import NegativePrompt, PromptSet, StoredConditioning
from chunk_grpo.image_files import read_picture


class EncodedPrompts:
    """The table of prompts beside the embeddings of some or all of them, which stay in their files."""

    def __init__(
        self,
        prompts: str,
        embeddings: Embeddings,
        place: str,
        cfg_scale: float,
        pictures: Mapping[str, Path] | None = None,
    ) -> None:
        """Read the table, prompts/1 in Parquet, whose prompts have the embeddings.

        `place` is the folder of the embeddings, for messages. Unless `cfg_scale`, the scale of classifier-free
        guidance, is 1, the negative prompt is read too. `pictures` has those that they edit, for
        rewards; empty or None: there are none.
        """
        self._pictures = pictures
        negative = None if cfg_scale == 1 else embeddings.negative()
        self._negative = None if negative is None else NegativePrompt(negative)
        self._prompts, self._embeddings, self._place = prompts, embeddings, place
        self._records = read_table(prompts, "prompts").to_pylist()

    def of(self, *splits: str) -> PromptSet:
        """The prompts of `splits` (default: all), at least one, in the table's order."""
        records = [r for r in self._records if not splits or r["split"] in splits]
        if not records:
            wanted = f" of the splits {', '.join(splits)}" if splits else ""
            raise DataError(f"{self._prompts}: must hold prompts{wanted}, got none")
        reader = {name: partial(read_picture, path) for name, path in (self._pictures or {}).items()}
        stored = [self._embeddings.row_of.get((r["prompt_id"], r["prompt"])) for r in records]
        return PromptSet(
            ids=[r["prompt_id"] for r in records],
            texts=[r["prompt"] for r in records],
            metadata=[json.loads(r["metadata"]) for r in records],
            conditioning=StoredConditioning(self._embeddings, stored, self._negative),
            pictures=[reader[r["prompt_id"]] for r in records] if reader else None,
        )

    def require(self, prompts: PromptSet, needed: Iterable[int] | None = None) -> PromptSet:
        """Return the prompts if those at `needed` (default: all) have embeddings; else DataError."""
        for at in range(len(prompts)) if needed is None else needed:
            if (prompts.ids[at], prompts.texts[at]) not in self._embeddings.row_of:
                raise DataError(
                    f"{self._place}: must hold the prompts of {self._prompts} that this stage uses, got no row for "
                    f"{prompts.ids[at]!r}, {prompts.texts[at]!r}; run `dvc repro`"
                )
        return prompts


@contextmanager
def encoded_prompts(
    prompts: str, embeddings: str, cfg_scale: float, pictures: str | None = None
) -> Iterator[EncodedPrompts]:
    """Open the prompts of a table with the folder of their embeddings, for a scale of guidance.

    `pictures` is the folder of those that the prompts edit, for rewards.
    """
    with open_embeddings(embeddings) as opened, nullcontext() if pictures is None else open_pictures(pictures) as found:
        yield EncodedPrompts(prompts, opened, embeddings, cfg_scale, found)


def first(prompts: PromptSet, count: int) -> PromptSet:
    """The first `count` prompts, or all if there are fewer."""
    return prompts.rows(range(min(count, len(prompts))))
