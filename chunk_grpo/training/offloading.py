"""Parts of a training that are on the GPU only while images are decoded and scored."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Literal

from chunk_grpo.families.base import Family, release_memory
from chunk_grpo.scorers.running.configured import MODELS

Offloaded = Literal["vae", "scorers"]


class Offloading:
    """Moves parts to the CPU and back. Their values stay the same bits."""

    def __init__(self, family: Family, parts: Collection[Offloaded]) -> None:
        """Move the parts to the CPU.

        Args:
            family: Model with the decoder.
            parts: `vae`: the decoder; `scorers`: the models of scorers in this process.
        """
        self._family, self._parts = family, parts
        self._put_away()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Context of decoding and scoring: inside the block the parts are on their devices.

        All scores must have been waited for at the end of the block. After an error nothing is moved, because a scorer
        may still run in the background.
        """
        if "vae" in self._parts:
            self._family.move_decoder(self._family.device)
        if "scorers" in self._parts:
            MODELS.bring_back()
        yield
        self._put_away()

    def _put_away(self) -> None:
        if "vae" in self._parts:
            self._family.move_decoder("cpu")
        if "scorers" in self._parts:
            MODELS.put_away()
        if self._parts:
            release_memory()
