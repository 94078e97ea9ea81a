"""Chunk-level GRPO for flow-matching text-to-image models.

Shape letters: B trajectories, G images of a group, P prompts, S steps, K chunks, L latent tokens, D token channels,
C H W image. `t` is the noise level: 1 is noise, 0 is data.

The functions of docs/library.md are imported at their first use: torch and diffusers take seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chunk_grpo.library.export import export
    from chunk_grpo.library.images import Images, compare, sample, score
    from chunk_grpo.library.model import Model, load
    from chunk_grpo.library.settings import method
    from chunk_grpo.library.toy import toy_checkpoint
    from chunk_grpo.library.training import Policy, train

__version__ = "0.1.0"

_MODULES = {
    "export": "export",
    **dict.fromkeys(("Images", "compare", "sample", "score"), "images"),
    **dict.fromkeys(("Model", "load"), "model"),
    "method": "settings",
    "toy_checkpoint": "toy",
    **dict.fromkeys(("Policy", "train"), "training"),
}
"""Public name to its module in chunk_grpo.library."""

__all__ = [
    "Images",
    "Model",
    "Policy",
    "compare",
    "export",
    "load",
    "method",
    "sample",
    "score",
    "toy_checkpoint",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'chunk_grpo' has no attribute {name!r}")
    return getattr(importlib.import_module(f"chunk_grpo.library.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
