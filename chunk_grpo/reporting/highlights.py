"""Results of an unfinished run for the Prefect UI, each as soon as its inputs exist.

Numbers and pictures come from the same functions as those of the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from chunk_grpo.artifacts import SchemaName, read_table
from chunk_grpo.config import Params, load_params
from chunk_grpo.reporting.evidence import BASE, ReportSettings, Source
from chunk_grpo.reporting.highlight import Highlight
from chunk_grpo.reporting.highlights_plans import chunks_highlight, profile_highlight
from chunk_grpo.reporting.highlights_policies import (
    chosen_prompts,
    images_highlight,
    rewards_highlight,
    scores_highlight,
)
from chunk_grpo.reporting.inputs import settings_from

_State = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True)
class _Part:
    """A highlight whose inputs exist.

    Attributes:
        key: Key of the highlight.
        inputs: Input files.
        make: Creates the highlight.
    """

    key: str
    inputs: tuple[Path, ...]
    make: Callable[[], Highlight]


class Highlights:
    """Highlights of a workspace in which any number of stages has run."""

    def __init__(self, workspace: Path) -> None:
        """Set the folders; reads no files.

        Args:
            workspace: Folder with params.yaml and artifacts/.
        """
        self._root, self._artifacts = workspace, workspace / "artifacts"
        self._shown: dict[str, _State] = {}
        self._images: dict[str, tuple[_State, Source]] = {}

    def new(self) -> list[Highlight]:
        """Highlights whose inputs are new or changed since the last call; all available ones at the first call.

        Stages may run meanwhile: they write each table in one step.

        Raises:
            ConfigError: There are artifacts, but params.yaml is missing or invalid.
            DataError: A file is damaged or inconsistent with the others.
        """
        made = []
        for part in self._parts():
            state = _state(part.inputs)
            if self._shown.get(part.key) != state:
                made.append(part.make())
                self._shown[part.key] = state
        return made

    def _parts(self) -> Iterator[_Part]:
        """All highlights whose inputs exist."""
        profile = self._artifacts / "profile" / "l1_profile.parquet"
        prompts = self._artifacts / "prompts" / "evaluation.parquet"
        if not profile.is_file() and not prompts.is_file():
            return  # params.yaml may belong to another pipeline
        params = load_params(self._root / "params.yaml")
        settings = settings_from(params)
        if profile.is_file():
            yield from self._plans(params, profile)
        yield from self._rewards(settings)
        if prompts.is_file():
            yield from self._compared(settings, prompts)

    def _plans(self, params: Params, profile: Path) -> Iterator[_Part]:
        files = {plan: self._artifacts / "chunks" / f"{plan}.parquet" for plan in params.chunks.plans}
        there = files if all(file.is_file() for file in files.values()) else {}
        inputs = tuple(there.values())

        def sources() -> dict[str, Source]:
            return {plan: _read(file, "chunk_plan") for plan, file in there.items()}

        yield _Part(
            "l1-profile",
            (profile, *inputs),
            lambda: profile_highlight(params, _read(profile, "l1_profile"), sources()),
        )
        if there:
            yield _Part("chunks", inputs, lambda: chunks_highlight(params, sources()))

    def _rewards(self, settings: ReportSettings) -> Iterator[_Part]:
        files = {v: self._artifacts / "train" / v / "metrics.parquet" for v in settings.variants}
        there = {variant: file for variant, file in files.items() if file.is_file()}
        if there:
            yield _Part(
                "rewards",
                tuple(there.values()),
                lambda: rewards_highlight(settings, {v: _read(f, "train_metrics") for v, f in there.items()}),
            )

    def _compared(self, settings: ReportSettings, prompts: Path) -> Iterator[_Part]:
        policies = (BASE, *settings.variants)
        images = {p: self._artifacts / "images" / p / "images.parquet" for p in policies}
        drawn = {policy: file for policy, file in images.items() if file.is_file()}
        scores = {
            policy: {s: self._artifacts / "scores" / policy / f"{s}.parquet" for s in settings.scorers}
            for policy in policies
        }
        scored = {p: of for p, of in scores.items() if all(file.is_file() for file in of.values())}

        def scores_there() -> dict[tuple[str, str], Source]:
            return {(p, s): _read(file, "scores") for p, of in scored.items() for s, file in of.items()}

        def images_there() -> dict[str, Source]:
            _, chosen = chosen_prompts(settings, _read(prompts, "prompts"))
            return {policy: self._few(policy, file, chosen) for policy, file in drawn.items()}

        if BASE in drawn and len(drawn) > 1:
            yield _Part(
                "images",
                (prompts, *drawn.values()),
                lambda: images_highlight(settings, _read(prompts, "prompts"), images_there()),
            )
        if BASE in scored and len(scored) > 1:
            yield _Part(
                "scores",
                (prompts, *(file for of in scored.values() for file in of.values())),
                lambda: scores_highlight(settings, _read(prompts, "prompts"), scores_there()),
            )

    def _few(self, policy: str, file: Path, chosen: tuple[str, ...]) -> Source:
        """The grid's images of a policy; cached, since the file may be large."""
        state = _state((file,))
        kept = self._images.get(policy)
        if kept is None or kept[0] != state:
            table = read_table(file, "images")
            of_grid = pc.and_(pc.equal(table["sample"], 0), pc.is_in(table["prompt_id"], pa.array(chosen)))
            kept = (state, Source(str(file), table.filter(of_grid)))
            self._images[policy] = kept
        return kept[1]


def _read(file: Path, schema: SchemaName) -> Source:
    return Source(str(file), read_table(file, schema))


def _state(files: tuple[Path, ...]) -> _State:
    """Values that change when a file is replaced, including by a link from DVC."""
    found = ((file, file.stat()) for file in files)
    return tuple((str(file), stat.st_ino, stat.st_size, stat.st_mtime_ns) for file, stat in found)
