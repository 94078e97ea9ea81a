"""Results of an unfinished run for the Prefect UI, each as soon as its inputs exist."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

from chunk_grpo.config import load_params
from chunk_grpo.reporting import highlight_parts as parts
from chunk_grpo.reporting.evidence import BASE
from chunk_grpo.reporting.highlight import Highlight
from chunk_grpo.reporting.highlight_parts import Key
from chunk_grpo.reporting.inputs import settings_from

_Part = tuple[str, Callable[[], Highlight], Collection[Path]]
"""Key of a highlight, the function that creates it, and the existing files that it reads."""


class Highlights:
    """Highlights of a workspace, the folder of params.yaml and artifacts/, in which any number of stages has run."""

    def __init__(self, workspace: Path) -> None:
        self._root = workspace
        self._shown: dict[str, object] = {}

    def new(self) -> list[Highlight]:
        """Highlights whose inputs are new or changed since the last call; all available ones at the first call.

        Stages may run meanwhile: they write each table in one step.
        """
        made = []
        for key, make, inputs in self._parts():
            state = [(file, _state(file)) for file in inputs]
            if self._shown.get(key) != state:
                made.append(make())
                self._shown[key] = state
        return made

    def _parts(self) -> Iterator[_Part]:
        """All highlights whose inputs exist."""
        at = self._root / "artifacts"
        profile, prompts = at / "profile/l1_profile.parquet", at / "prompts/evaluation.parquet"
        if not profile.is_file() and not prompts.is_file():
            return  # params.yaml may belong to another pipeline
        params = load_params(self._root / "params.yaml")
        settings = settings_from(params)
        policies = (BASE, *settings.variants)
        plans = _all_of({plan: at / f"chunks/{plan}.parquet" for plan in params.chunks.plans})
        seeds = settings.train_seeds
        ended = {
            v: _there({s: at / f"train/{v}/seed-{s}/metrics.parquet" for s in seeds})
            for v in settings.variants
        }
        trained = {variant: files for variant, files in ended.items() if files}
        of_first = {v: at / f"images/{v}/seed-{min(seeds)}/images.parquet" for v in settings.variants}
        drawn = _there({BASE: at / f"images/{BASE}/images.parquet", **of_first})
        of_base, *of_variants = (
            _all_of({(p, s): at / f"scores/{p}/{s}.parquet" for s in settings.scorers}) for p in policies
        )
        scored = {key: file for files in of_variants for key, file in files.items()}
        if profile.is_file():
            make = partial(parts.profile_highlight, settings, profile, plans)
            yield "l1-profile", make, (profile, *plans.values())
        if plans:
            yield "chunks", partial(parts.chunks_highlight, params, plans), plans.values()
        if trained:
            files = [file for of_variant in trained.values() for file in of_variant.values()]
            yield "rewards", partial(parts.rewards_highlight, settings, trained), files
        if prompts.is_file() and BASE in drawn and len(drawn) > 1:
            make = partial(parts.images_highlight, settings, prompts, drawn)
            yield "images", make, (prompts, *drawn.values())
        if prompts.is_file() and of_base and scored:
            make = partial(parts.scores_highlight, settings, prompts, of_base | scored)
            yield "scores", make, (prompts, *of_base.values(), *scored.values())


def _there(files: dict[Key, Path]) -> dict[Key, Path]:
    """The files that exist."""
    return {key: file for key, file in files.items() if file.is_file()}


def _all_of(files: dict[Key, Path]) -> dict[Key, Path]:
    """The files if all of them exist; else none."""
    return files if _there(files) == files else {}


def _state(file: Path) -> tuple[int, int, int]:
    """Values that change when a file is replaced, including by a link from DVC."""
    stat = file.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
