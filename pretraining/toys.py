"""The checkpoints that the recipe makes: their classes, folders and parameters."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from chunk_grpo.families.base import LoadOptions, Part
from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.models.flux_kontext import FluxKontextFamily
from chunk_grpo.families.models.sd3 import SD3Family
from chunk_grpo.shapes.scene import SIZE

FOLDER = Path(__file__).parent
FLUX, SD3, KONTEXT = "tiny-flux", "tiny-sd3", "tiny-kontext"
SHIPPED = FOLDER.parent / "assets" / FLUX
"""The checkpoint of which the other toys take over parts, or whose weights they start from."""

_OTHERS: dict[str, tuple[str, type[DiffusersFamily]]] = {
    SD3: ("sd3", SD3Family),
    KONTEXT: ("kontext", FluxKontextFamily),
}
"""Toys besides the toy FLUX: their block of the parameters, which is their folder too, and their family."""


@dataclass(frozen=True)
class Toy:
    """A checkpoint of the recipe."""

    name: str
    """Name of its folder."""
    family: type[DiffusersFamily]
    folder: Path
    """Everything that the recipe writes for it."""
    params: dict[str, Any]
    """Parameters of the recipe, as they are for this checkpoint."""

    @property
    def checkpoint(self) -> Path:
        return self.folder / self.name

    def curve(self, step: str) -> Path:
        return self.folder / "curves" / f"{step}.jsonl"

    def phase_folder(self, phase: str) -> Path:
        """Folder of the averaged network of a phase."""
        return self.folder / "phases" / phase

    @property
    def device(self) -> torch.device:
        """Device of the recipe; `auto` is a GPU if there is one, else the CPU."""
        auto = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.device(auto if self.params["device"] == "auto" else self.params["device"])

    def load(self, parts: tuple[Part, ...] = ("text", "transformer", "vae"), *, guided: bool) -> DiffusersFamily:
        """Load parts of the checkpoint; `guided`: velocities have the classifier-free guidance of the evaluation."""
        options = LoadOptions(
            str(self.checkpoint),
            height=SIZE,
            width=SIZE,
            max_sequence_length=self.params["text"]["max_length"],
            guidance_scale=self.params["transformer"]["guidance_scale"],
            cfg_scale=self.params["evaluate"]["cfg_scale"] if guided else 1.0,
            device=self.device,
        )
        return self.family.load(options, parts=parts)


def load_toy(name: str) -> Toy:
    """The checkpoint of a name; a block of the parameters replaces values of each but the toy FLUX."""
    params = yaml.safe_load((FOLDER / "params.yaml").read_text(encoding="utf-8"))
    changes = {block: params.pop(block) for block, _ in _OTHERS.values()}
    if name == FLUX:
        return Toy(name, FluxFamily, FOLDER / "work", params)
    block, family = _OTHERS[name]
    changed = {part: params[part] | values for part, values in changes[block].items()}
    return Toy(name, family, FOLDER / "work" / block, params | changed)


def command_line(description: str | None) -> argparse.ArgumentParser:
    """Parser of a step's command line, `python -m pretraining.STEP TOY`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("toy", choices=(FLUX, *_OTHERS), help="checkpoint to make")
    return parser
