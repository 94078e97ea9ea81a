"""Tables about training: statistics of each variant, chunks drawn, plans recomputed, and last iterations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from chunk_grpo.reporting.comparisons import NO_BREAK, number
from chunk_grpo.reporting.evidence import TrainingSettings
from chunk_grpo.reporting.reward_hacking import Ending
from chunk_grpo.reporting.tables import Cell, Row, Table, text_row
from chunk_grpo.reporting.trained import FIDELITY_LIMIT, ChunkUse, PlanMoment, StepUse, Trained
from chunk_grpo.reporting.variant_summary import short

FEW_CHUNKS = 8
"""Largest number of chunks that the table of draws shows; larger plans are in the CSV only."""

NOTHING = Cell("–")

TRAINED_COLUMNS: tuple[tuple[str, Callable[[Trained], Cell]], ...] = (
    ("images per iteration", lambda t: Cell(f"{t.images:,}")),
    ("(sample, step) pairs trained per iteration", lambda t: _cell(t.trained_items, "{:,.0f}".format)),
    ("clip range", lambda t: Cell(" to ".join(dict.fromkeys(map(short, (t.clip_range_min, t.clip_range_max)))))),
    ("clipped terms", lambda t: _cell(t.clip_fraction, "{:.1%}".format)),
    (f"largest |ratio{NO_BREAK}−{NO_BREAK}1|", lambda t: _cell(t.max_ratio_distance, small)),
    ("distance from the base", lambda t: _cell(t.distance, small)),
    ("gradient norm", lambda t: _cell(t.grad_norm, "{:.3g}".format)),
    ("degenerate groups per iteration", lambda t: _cell(t.degenerate_groups, lambda v: number(v, 1))),
    ("ratio fidelity, first update", lambda t: _first_fidelity(t)),
    ("ratio fidelity, later updates", lambda t: _later_fidelity(t)),
    ("time per iteration", lambda t: _cell(t.seconds, "{:.1f} s".format)),
)


def trained_table(found: Sequence[Trained]) -> Table:
    """One row per variant, without the columns that are empty for all."""
    columns = [(head, [cell(line) for line in found]) for head, cell in TRAINED_COLUMNS]
    kept = [(head, cells) for head, cells in columns if any(cell != NOTHING for cell in cells)]
    rows = (
        Row(line.variant, tuple(cells[place] for _, cells in kept), line.variant) for place, line in enumerate(found)
    )
    return Table(("variant", *(head for head, _ in kept)), tuple(rows))


def draws_table(uses: Mapping[str, Sequence[ChunkUse]]) -> Table | None:
    """Share of the draws by chunk, for variants with few chunks; None if there are none."""
    few = {
        (variant, ""): {use.chunk: Cell(f"{use.share:.0%}", heat=use.share) for use in found}
        for variant, found in uses.items()
        if 0 < 1 + max((use.chunk for use in found), default=-1) <= FEW_CHUNKS
    }
    return _numbered(few, "chunk {}", "variant")


def clipping_table(uses: Mapping[str, Sequence[StepUse]]) -> Table | None:
    """Clipped share and mean |log-ratio| by step, a row for each update; None if they were not recorded."""
    everything = [use for found in uses.values() for use in found]
    largest = max((use.clip_fraction for use in everything), default=0.0) or 1.0
    power = math.floor(math.log10(max((use.log_ratio for use in everything), default=0.0) or 1.0))
    rows: dict[tuple[str, str], dict[int, Cell]] = {}
    for variant, found in uses.items():
        for use in found:
            note, heat = f"{use.log_ratio / 10**power:.2g}", use.clip_fraction / largest
            cell = Cell(f"{use.clip_fraction:.0%}", note=note, heat=heat)
            rows.setdefault((variant, f"update {use.update}"), {})[use.step] = cell
    return _numbered(rows, "{}", f"clipped; |log-ratio| in 1e{power}")


def plan_table(moments: Mapping[str, Sequence[PlanMoment]]) -> Table | None:
    """Plans recomputed during training, at the first, the middle and the last iteration; None if there are none."""
    rows = [_plan_row(variant, moment) for variant, found in moments.items() for moment in found]
    return Table(("variant", "chunk sizes", "profile drift", "boundary shift, steps"), tuple(rows)) if rows else None


def endings_table(found: Sequence[Ending], training: TrainingSettings) -> Table | None:
    """Last and best iterations, one number per training seed; None without endings."""

    def numbers(values: Sequence[int | None]) -> str:
        return ", ".join("–" if value is None else str(value) for value in values)

    best = f"best by {training.decisive}{', kept' if training.keeps_best else ''}"
    heads = ("variant", f"last iteration, of {training.iterations}", best)
    rows = [text_row(e.variant, numbers(e.last), numbers(e.best), variant=e.variant) for e in found]
    return Table(heads, tuple(rows)) if rows else None


def small(value: float) -> str:
    """Format a small number with two significant digits: 0.00031, 5.2e-5, 0."""
    return "0" if value == 0 else short(float(f"{value:.1e}"))


def _cell(value: float | None, text: Callable[[float], str]) -> Cell:
    return NOTHING if value is None else Cell(text(value))


def _first_fidelity(line: Trained) -> Cell:
    """A large error is marked unless that of later updates is known: the first one takes its ratios as 1."""
    shares = (line.fidelity_p50_of_clip_range, line.fidelity_p99_of_clip_range, line.fidelity_max_of_clip_range)
    return _fidelity(*shares, marked=line.fidelity_later_p99_of_clip_range is None)


def _later_fidelity(line: Trained) -> Cell:
    return _fidelity(
        line.fidelity_later_p50_of_clip_range,
        line.fidelity_later_p99_of_clip_range,
        line.fidelity_later_max_of_clip_range,
        marked=True,
    )


def _fidelity(median: float | None, p99: float | None, largest: float | None, *, marked: bool) -> Cell:
    if p99 is None:
        return NOTHING
    note = "" if median is None or largest is None else f"{median:.1%} to {largest:.1%}"
    if marked and p99 > FIDELITY_LIMIT:
        return Cell(f"⚠ {p99:.0%}", verdict="warn", note=note)
    return Cell(f"{p99:.1%}", note=note)


def _numbered(found: Mapping[tuple[str, str], Mapping[int, Cell]], head: str, first: str) -> Table | None:
    """A column for each chunk or step, blank where a row has none; a row for (variant, text); None without rows."""
    if not found:
        return None
    numbers = range(1 + max(max(cells) for cells in found.values()))
    rows = (
        Row(
            ", ".join(filter(None, (variant, text))),
            tuple(cells.get(number, Cell("")) for number in numbers),
            variant,
            text,
        )
        for (variant, text), cells in found.items()
    )
    return Table((first, *(head.format(number) for number in numbers)), tuple(rows))


def _plan_row(variant: str, moment: PlanMoment) -> Row:
    at = f"iteration {moment.iteration}"
    plans = " or ".join(str(list(sizes)) for sizes in moment.plans if sizes)
    shift = _cell(moment.boundary_shift, lambda v: number(v, 2))
    return Row(f"{variant}, {at}", (Cell(plans or "–"), Cell(number(moment.profile_drift)), shift), variant, at)
