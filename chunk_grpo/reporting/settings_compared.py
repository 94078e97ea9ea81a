"""Settings of one run: what each changed against its base model, and settings of a preset against each other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from chunk_grpo.artifacts.layout import PARAMS, Layout
from chunk_grpo.config import load_params
from chunk_grpo.reporting.benchmarks import EVAL
from chunk_grpo.reporting.comparisons import NO_BREAK, difference_text, digits_of, interval_text, signed
from chunk_grpo.reporting.evidence import BASE, MODES, REWARD, ReportSettings, ScoreBook, ScoredPrompts
from chunk_grpo.reporting.inputs import read_evidence, settings_from
from chunk_grpo.reporting.statistics import LEVEL, MIN_SEEDS, Interval, crossed_interval, holm
from chunk_grpo.reporting.tables import Cell, Row, Table, text_row, to_markdown

_AGAINST_BASE = """\
# Presets and variants of this run

Mean difference from the base model of the same preset, on the same prompts and seeds, with 95 % intervals. \
Differences of variants within a preset are in its report; presets may have other prompts or rewards."""
_AGAINST_EACH_OTHER = f"""\
## Settings against each other

Mean difference of the tuned models, the first setting minus the second, paired by prompt and training seed, with 95 %
intervals. Bold: the two have at least {MIN_SEEDS} training seeds, and differ also with Holm's correction for all rows
of the column."""


@dataclass(frozen=True)
class Setting:
    """Scores of one setting."""

    name: str
    """The preset, and after it the setting's changes of it."""
    settings: ReportSettings
    book: ScoreBook
    prompts: ScoredPrompts
    """Held-out prompts that were scored."""


def comparison(workspaces: Sequence[tuple[str, Path]]) -> str:
    """Markdown with the tables of all settings of a run; empty if none has a report.

    `workspaces` has the name of each setting, and its folder of params.yaml.
    """
    files = {name: Path(Layout.below(root).summary) for name, root in workspaces}
    summaries = {name: json.loads(file.read_text("utf-8")) for name, file in files.items() if file.is_file()}
    if not summaries:
        return ""
    read = (setting_of(name, root) for name, root in workspaces)
    pairs = settings_compared([setting for setting in read if setting is not None])
    return f"{_AGAINST_BASE}\n\n{to_markdown(against_base(summaries))}\n\n{pairs}"


def against_base(summaries: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row for each setting, policy and way of inference; `summaries` has the summary.json of each setting."""
    rows = [
        ((setting, policy, mode), modes[mode])
        for setting, summary in summaries.items()
        for policy, modes in summary.items()
        if isinstance(modes, Mapping)
        for mode in MODES
        if isinstance(modes.get(mode), Mapping)
    ]
    measures = list(dict.fromkeys(measure for _, found in rows for measure in found))
    lines = [text_row(", ".join(names), *(_text(found.get(m)) for m in measures)) for names, found in rows]
    heads = (measure.replace("_", " ") for measure in measures)
    return Table(("preset and changes, policy, inference", *heads), tuple(lines))


def _text(value: Mapping[str, float | None] | None) -> str:
    """Difference and interval as in summary.json."""
    difference, low, high = (None if value is None else value[key] for key in ("difference", "low", "high"))
    if difference is None:
        return ""
    if low is None or high is None:
        return signed(difference)
    digits = digits_of(low, high)
    ends = NO_BREAK.join((signed(low, digits), "to", signed(high, digits)))
    return f"{signed(difference, digits)} ({ends})"


def setting_of(name: str, root: Path) -> Setting | None:
    """Read the scores of a finished workspace; None if some are missing."""
    at = Layout.below(root)
    if not Path(at.prompts).is_file():
        return None
    settings = settings_from(load_params(root / PARAMS))
    evidence = read_evidence(at, settings, partial=True)
    if not evidence.scored.issuperset((BASE, *settings.variants)):
        return None
    book = ScoreBook(evidence.scores, settings.rewards)
    found = book.prompt_set(evidence.prompts, EVAL, settings.scorers[0])
    own = name.removeprefix(settings.preset).strip() or settings.preset
    return None if found is None else Setting(own, settings, book, found)


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
    return f"{_AGAINST_EACH_OTHER}\n\n{to_markdown(Table(('variant: settings', *map(label, measures)), tuple(rows)))}\n"


def _differences(first: Setting, second: Setting, variant: str) -> Mapping[str, Interval]:
    """Differences on the measures that mean the same in both, of trainings with the same seeds."""
    same_reward = first.settings.rewards == second.settings.rewards
    return {
        measure: _difference(first, second, variant, measure)
        for measure in first.settings.measures
        if measure in second.settings.measures and (measure != REWARD or same_reward)
        if first.book.train_seeds(variant, "tuned", measure) == second.book.train_seeds(variant, "tuned", measure)
    }


def _difference(first: Setting, second: Setting, variant: str, measure: str) -> Interval:
    answered = [each.book.answered(measure, each.prompts).ids for each in (first, second)]
    captions = dict(zip(first.prompts.ids, first.prompts.captions, strict=True))
    ids = [each for each in answered[0] if each in set(answered[1])]
    one, other = (each.book.values(variant, "tuned", measure, ids) for each in (first, second))
    return crossed_interval(one - other, None, [captions[each] for each in ids])


def _cells(intervals: Sequence[Interval | None]) -> list[Cell]:
    """Cells of a column; bold where the corrected p-value shows a difference."""
    p_values = iter(holm([each.pair_p_value for each in intervals if each is not None]))
    return [
        Cell("")
        if each is None
        else Cell(f"{difference_text(each)} ({interval_text(each)})", strong=next(p_values) <= 1 - LEVEL)
        for each in intervals
    ]
