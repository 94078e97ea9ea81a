"""The toy FLUX that the package carries, so that examples need no download."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def toy_checkpoint() -> str:
    """Folder of the toy FLUX, 32 x 32 pixels, in the layout of diffusers: the wheel's copy, or assets/ in a clone."""
    in_wheel = _PACKAGE / "assets" / "tiny-flux"
    return str(in_wheel if in_wheel.is_dir() else _PACKAGE.parent / "assets" / "tiny-flux")
