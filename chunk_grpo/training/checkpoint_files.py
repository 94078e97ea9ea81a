"""Names of a checkpoint's files, and the checks that a file passes before it is used."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from math import prod
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

import torch

from chunk_grpo.training.sealing import checksum_of, is_whole

FORMAT = "chunk_grpo.training/5"

CHECKPOINT = re.compile(r"iteration-([0-9]{6}|[1-9][0-9]{6,})\.pt")
PARTIAL = re.compile(CHECKPOINT.pattern + r"\.partial")
SHARDS = re.compile(r"iteration-([0-9]{6,})\.shards-([0-9]+)")
_PART = re.compile(r"__[0-9]+_[0-9]+\.distcp")

BEST = "best"
"""Folder of the best policy, beside the checkpoints that need it."""


Piece: TypeAlias = tuple[str, int, int, list[int], list[int]]
"""Piece of a tensor: file, first byte and number of bytes there; first element and size in each dimension."""

Tensors: TypeAlias = dict[str, tuple[list[int], list[Piece]]]
"""Shape and pieces of each tensor."""


class Shards(TypedDict):
    """Sharded tensors of a checkpoint: their folder, the CRC-32 of each file in it, and what is where."""

    folder: str
    checksums: dict[str, str]
    tensors: Tensors


class UnusableError(Exception):
    """A checkpoint cannot be used; the message is the reason."""


def file_name(iteration: int) -> str:
    """File name of a checkpoint, with at least six digits.

    Raises:
        ValueError: `iteration` is negative.
    """
    if iteration < 0:
        raise ValueError(f"iteration must be at least 0, got {iteration}")
    return f"iteration-{iteration:06d}.pt"


def iteration_of(name: str) -> int:
    """Iteration of a checkpoint's file, of its folder of sharded tensors, or of a best policy; -1 for other names."""
    name = name.removeprefix(f"{BEST}/")
    found = CHECKPOINT.fullmatch(name) or SHARDS.fullmatch(name)
    return -1 if found is None else int(found[1])


def check(path: Path, iteration: int, identity: str, fields: Collection[str]) -> Shards | None:
    """Description of the sharded tensors of an intact checkpoint; None if it has none.

    Args:
        path: File of the checkpoint, under any name.
        iteration: Iteration that it must hold.
        identity: Name of the computation that it must belong to.
        fields: Names of the fields that its state must have.

    Raises:
        UnusableError: The file is damaged, belongs to another computation, or holds another iteration.
    """
    try:
        whole = is_whole(path)
    except OSError as error:
        raise UnusableError(f"cannot be read ({error.strerror})") from error
    if not whole:
        raise UnusableError("damaged or not a checkpoint (its checksum is missing or wrong)")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch.load raises many types
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise UnusableError(f"not a readable checkpoint ({line})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UnusableError(f"not a checkpoint of the format {FORMAT}")
    if content.get("identity") != identity:
        raise UnusableError(
            f"of another computation (its identity is {content.get('identity')!r}, not {identity!r})"
        )
    state = content.get("state")
    if not isinstance(state, dict) or set(state) != set(fields):
        raise UnusableError(f"does not hold the fields of the format {FORMAT}")
    if type(state["iteration"]) is not int or state["iteration"] != iteration:
        raise UnusableError(f"holds iteration {state['iteration']!r}, which does not match its name")
    return None if content.get("shards") is None else _checked(content["shards"], iteration)


def _checked(shards: Any, iteration: int) -> Shards:
    """A description of sharded tensors whose names are names of files in the checkpoint's folder.

    Raises:
        UnusableError: It is none, or its pieces are not in its files or do not make up the tensors.
    """
    try:
        folder, sums, tensors = (dict.__getitem__(shards, key) for key in Shards.__annotations__)
        if (
            iteration_of(folder) != iteration
            or not SHARDS.fullmatch(folder)
            or not all(map(_PART.fullmatch, sums))
        ):
            raise UnusableError("names files that are not parts of its tensors")
        pieces_fit = all(
            sum(prod(sizes) for *_, sizes in pieces) == prod(shape)
            and all(_fits(piece, shape) and piece[0] in sums for piece in pieces)
            for shape, pieces in tensors.values()
        )
        if not pieces_fit or not all(isinstance(text, str) for text in (*sums.values(), *tensors)):
            raise UnusableError("its sharded tensors do not consist of the pieces that it lists")
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UnusableError("describes its sharded tensors in an unknown way") from error
    return {"folder": folder, "checksums": sums, "tensors": tensors}


def _fits(piece: Piece, shape: list[int]) -> bool:
    """Whether a piece has whole numbers and lies inside a tensor of this shape."""
    _, start, length, first, sizes = piece
    return all(
        type(number) is int and number >= 0 for number in (start, length, *first, *sizes, *shape)
    ) and all(begin + size <= whole for begin, size, whole in zip(first, sizes, shape, strict=True))


def damaged(folder: Path, checksums: Sequence[tuple[str, str]]) -> list[str]:
    """Names of the files that are missing, unreadable, or have another checksum."""
    found = []
    for name, checksum in checksums:
        try:
            intact = checksum_of(folder / name) == checksum
        except OSError:
            intact = False
        found += [] if intact else [name]
    return found
