"""Differences between the settings of a run with several values of a parameter: each variant, with two of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from chunk_grpo.config import load_params
from chunk_grpo.reporting.benchmarks import EVAL
from chunk_grpo.reporting.comparisons import difference_text, interval_text
from chunk_grpo.reporting.evidence import BASE, REWARD, ReportSettings, ScoreBook, ScoredPrompts
from chunk_grpo.reporting.inputs import read_scores, read_source, settings_from
from chunk_grpo.reporting.statistics import LEVEL, MIN_SEEDS, Interval, crossed_interval, holm
from chunk_grpo.reporting.tables import Cell, Row, Table, to_markdown

_TEXT = f"""\
## Settings against each other

Mean difference of the tuned models, the first setting minus the second, paired by prompt and training seed, with 95 %
intervals. Bold: the two have at least {MIN_SEEDS} training seeds, and differ also with Holm's correction for all rows
of the column."""


@dataclass(frozen=True)
class Setting:
    """Scores of one setting."""

    name: str
    """Name of the setting in the table."""
    settings: ReportSettings
    """Variants, scorers and rewards."""
    book: ScoreBook
    """The scores."""
    prompts: ScoredPrompts
    """Held-out prompts that were scored."""


def setting_of(name: str, root: Path) -> Setting | None:
    """Read the scores of a finished workspace, the folder of params.yaml and artifacts/; None if some are missing."""
    at = root / "artifacts"
    prompts = at / "prompts" / "evaluation.parquet"
    if not prompts.is_file():
        return None
    settings = settings_from(load_params(root / "params.yaml"))
    policies = (BASE, *settings.variants)
    uses = {use.name: use for use in settings.measured}
    files = {(p, s): at / "scores" / p / f"{s}.parquet" for p in policies for s in settings.scorers}
    if not all(file.is_file() for file in files.values()):
        return None
    scores = {(p, s): read_scores(p, uses[s], file) for (p, s), file in files.items()}
    book = ScoreBook(scores, settings.rewards)
    found = book.prompt_set(read_source(prompts, "prompts"), EVAL, settings.scorers[0])
    return None if found is None else Setting(name, settings, book, found)


def settings_compared(settings: Sequence[Setting]) -> str:
    """Markdown with a table of the variants that two settings of a preset both trained; empty if there are none.

    Settings are compared if their prompts and training seeds are the same, on the measures that both have.
    """
    found = [
        (f"{variant}: {first.name} − {second.name}", _differences(first, second, variant))
        for second, first in combinations(settings, 2)
        if first.settings.preset == second.settings.preset and first.prompts == second.prompts
        for variant in first.settings.variants
        if variant in second.settings.variants
    ]
    measures = list(dict.fromkeys(measure for _, row in found for measure in row))
    if not measures:
        return ""
    label = settings[0].settings.label
    shown = {measure: _cells([row.get(measure) for _, row in found]) for measure in measures}
    rows = [
        Row(name, tuple(shown[measure][number] for measure in measures))
        for number, (name, row) in enumerate(found)
        if row
    ]
    return f"{_TEXT}\n\n{to_markdown(Table(('variant: settings', *map(label, measures)), tuple(rows)))}\n"


def _differences(first: Setting, second: Setting, variant: str) -> Mapping[str, Interval]:
    return {
        measure: _difference(first, second, variant, measure)
        for measure in _measures(first, second)
        if first.book.train_seeds(variant, "tuned", measure)
        == second.book.train_seeds(variant, "tuned", measure)
    }


def _measures(first: Setting, second: Setting) -> Iterator[str]:
    """Measures that mean the same in both."""
    same_reward = first.settings.rewards == second.settings.rewards
    for measure in first.settings.measures:
        if measure in second.settings.measures and (measure != REWARD or same_reward):
            yield measure


def _difference(first: Setting, second: Setting, variant: str, measure: str) -> Interval:
    answered = [each.book.answered(measure, each.prompts).ids for each in (first, second)]
    captions = dict(zip(first.prompts.ids, first.prompts.captions, strict=True))
    ids = [each for each in answered[0] if each in set(answered[1])]
    one, other = (each.book.values(variant, "tuned", measure, ids) for each in (first, second))
    return crossed_interval(one - other, None, [captions[each] for each in ids])


def _cells(intervals: Sequence[Interval | None]) -> list[Cell]:
    """Cells of a column; bold where the corrected p-value shows a difference."""
    p_values = iter(holm([each.pair_p_value for each in intervals if each is not None]))
    return [Cell("") if each is None else _cell(each, next(p_values)) for each in intervals]


def _cell(interval: Interval, p_value: float) -> Cell:
    text = f"{difference_text(interval)} ({interval_text(interval)})"
    return Cell(text, strong=p_value <= 1 - LEVEL)
