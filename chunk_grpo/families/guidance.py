"""The two velocities of classifier-free guidance: the negative prompt's and the prompts'."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor

from chunk_grpo.families.compiling import graphs_of_training
from chunk_grpo.image_files import AWAY, SOURCE

Text = Mapping[str, Tensor]
"""Tensors of B prompts by name, each [B, ...]."""

Pass = Callable[[Tensor, Tensor, Text], Tensor]
"""(states [B, L, D], noise levels [B], text of B prompts) -> velocity [B, L, D]."""


def away_and_towards(
    run: Pass,
    x: Tensor,
    t: Tensor,
    text: Text,
    negative: Text,
    passes: Literal[1, 2],
    constant: AbstractContextManager[None] | None,
) -> tuple[Tensor, Tensor]:
    """Velocities of the negative prompt and of the prompts, each [B, L, D].

    Args:
        run: A pass of the network.
        x: States [B, L, D].
        t: Noise levels [B].
        text: The B prompts. Tensors whose names begin with `AWAY` are the negative prompt's in each row.
        negative: The negative prompt, B = 1, unless the rows have their own. Its pass reads the pictures to edit of
            `text`.
        passes: One pass for both, of twice as many states, or a pass for each.
        constant: Context of a pass for a velocity that is a constant, as the negative prompt's then is; None: both
            velocities have a gradient.

    Raises:
        ValueError: There is no negative prompt.
    """
    always = {name.removeprefix(AWAY): tensor for name, tensor in text.items() if name.startswith(AWAY)}
    text = {name: tensor for name, tensor in text.items() if not name.startswith(AWAY)}
    if not always:
        always = {name: tensor.expand(len(x), *tensor.shape[1:]) for name, tensor in negative.items()}
    if not always:
        raise ValueError("classifier-free guidance needs a negative prompt's tensors, got none")
    always |= {name: tensor for name, tensor in text.items() if name.startswith(SOURCE)}
    if passes == 1:
        both = {name: torch.cat([always[name], text[name]]) for name in text}
        away, towards = run(x.repeat(2, 1, 1), t.repeat(2), both).chunk(2)
    else:
        with constant or nullcontext():
            away = run(x, t, always)
        towards = run(x, t, text)
    return (away if constant is None else away.detach()), towards


def without_backward(*, compiles: bool) -> AbstractContextManager[None]:
    """Context of a pass whose result is a constant: it keeps no activations, and rounds as a pass with a gradient."""
    return graphs_of_training() if compiles else torch.no_grad()
