"""Tables about training: statistics of each variant, chunks drawn, plans recomputed, and last iterations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from chunk_grpo.reporting.comparisons import NO_BREAK, number
from chunk_grpo.reporting.evidence import TrainingSettings
from chunk_grpo.reporting.reward_hacking import Ending
from chunk_grpo.reporting.tables import Cell, Row, Table
from chunk_grpo.reporting.trained import FIDELITY_LIMIT, ChunkUse, PlanMoment, Trained
from chunk_grpo.reporting.variant_summary import short

FEW_CHUNKS = 8
"""Largest number of chunks for which a cell shows draws and clipping."""

MANY_CHUNKS = 24
"""Largest number of chunks for which a cell shows clipping; larger plans are in the CSV only."""

NOTHING = Cell("–")

TRAINED_COLUMNS: tuple[tuple[str, Callable[[Trained], Cell]], ...] = (
    ("images per iteration", lambda t: Cell(f"{t.images:,}")),
    ("(sample, step) pairs trained per iteration", lambda t: _cell(t.items, lambda v: f"{v:,.0f}")),
    ("clip range", lambda t: Cell(_range(t.clip_ranges))),
    ("clipped terms", lambda t: _cell(t.clip_fraction, lambda v: f"{v:.1%}")),
    (f"largest |ratio{NO_BREAK}−{NO_BREAK}1|", lambda t: _cell(t.ratio_distance, small)),
    ("KL", lambda t: _cell(t.kl, small)),
    ("gradient norm", lambda t: _cell(t.grad_norm, lambda v: f"{v:.3g}")),
    ("degenerate groups per iteration", lambda t: _cell(t.degenerate_groups, lambda v: number(v, 1))),
    ("ratio fidelity", lambda t: _fidelity(t.fidelity)),
    ("time per iteration", lambda t: _cell(t.seconds, lambda v: f"{v:.1f} s")),
)


def trained_table(found: Sequence[Trained]) -> Table:
    """One row per variant, without the columns that are empty for all."""
    columns = [(head, [cell(line) for line in found]) for head, cell in TRAINED_COLUMNS]
    kept = [(head, cells) for head, cells in columns if any(cell != NOTHING for cell in cells)]
    rows = (
        Row(line.variant, tuple(cells[place] for _, cells in kept), line.variant)
        for place, line in enumerate(found)
    )
    return Table(("variant", *(head for head, _ in kept)), tuple(rows))


def draws_table(uses: Mapping[str, Sequence[ChunkUse]]) -> Table | None:
    """Share of draws and clipping by chunk, for variants with few chunks; None if there are none."""
    few = {variant: found for variant, found in uses.items() if 0 < _size(found) <= FEW_CHUNKS}
    return _by_chunk(few, "chunk {}", _draws_cell)


def clipping_table(uses: Mapping[str, Sequence[ChunkUse]]) -> Table | None:
    """Clipping by chunk, for variants with more chunks; None if there are none."""
    more = {variant: found for variant, found in uses.items() if FEW_CHUNKS < _size(found) <= MANY_CHUNKS}
    fractions = [use.clip_fraction or 0.0 for found in more.values() for use in found]
    largest = max(fractions, default=0.0) or 1.0

    def cell(use: ChunkUse) -> Cell:
        if use.clip_fraction is None:
            return NOTHING
        return Cell(f"{use.clip_fraction:.0%}", heat=use.clip_fraction / largest)

    return _by_chunk(more, "{}", cell)


def plan_table(moments: Mapping[str, Sequence[PlanMoment]]) -> Table | None:
    """Plans recomputed during training, at the first, the middle and the last iteration; None if there are none."""
    rows = [
        Row(
            f"{variant}, iteration {moment.iteration}",
            _plan_cells(moment),
            variant,
            f"iteration {moment.iteration}",
        )
        for variant, found in moments.items()
        for moment in found
    ]
    return (
        Table(("variant", "chunk sizes", "profile drift", "boundary shift, steps"), tuple(rows))
        if rows
        else None
    )


def endings_table(found: Sequence[Ending], training: TrainingSettings) -> Table | None:
    """Last and best iterations, one number per training seed; None without endings."""
    rows = [Row(e.variant, (Cell(_numbers(e.last)), Cell(_numbers(e.best))), e.variant) for e in found]
    best = f"best by {training.decisive}{', kept' if training.keeps_best else ''}"
    return (
        Table(("variant", f"last iteration, of {training.iterations}", best), tuple(rows)) if rows else None
    )


def small(value: float) -> str:
    """Format a small number with two significant digits: 0.00031, 5.2e-5, 0."""
    return "0" if value == 0 else short(float(f"{value:.1e}"))


def flat_trained(found: Sequence[Trained]) -> list[tuple[object, ...]]:
    """Rows of plots/how_trained.csv; values that were not recorded are empty."""
    return [
        (
            t.variant, t.images, t.items, min(t.clip_ranges), max(t.clip_ranges), t.clip_fraction,
            t.ratio_distance, t.kl, t.grad_norm, t.degenerate_groups, t.fidelity, t.seconds,
        )
        for t in found
    ]  # fmt: skip


TRAINED_HEADER = (
    "variant", "images", "trained_items", "clip_range_min", "clip_range_max", "clip_fraction",
    "max_ratio_distance", "kl", "grad_norm", "degenerate_groups", "fidelity_of_clip_range", "seconds",
)  # fmt: skip


def flat_uses(uses: Mapping[str, Sequence[ChunkUse]]) -> list[tuple[object, ...]]:
    """Rows of plots/chunk_draws.csv."""
    return [
        (variant, use.chunk, use.draws, use.share, use.clip_fraction)
        for variant, found in uses.items()
        for use in found
    ]


def _cell(value: float | None, text: Callable[[float], str]) -> Cell:
    return NOTHING if value is None else Cell(text(value))


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return short(low) if low == high else f"{short(low)} to {short(high)}"


def _fidelity(share: float | None) -> Cell:
    if share is None:
        return NOTHING
    if share > FIDELITY_LIMIT:
        return Cell(f"⚠ {share:.0%}", verdict="warn")
    return Cell(f"{share:.1%}")


def _size(found: Sequence[ChunkUse]) -> int:
    return 1 + max((use.chunk for use in found), default=-1)


def _draws_cell(use: ChunkUse) -> Cell:
    clipped = "" if use.clip_fraction is None else f"clipped {use.clip_fraction:.0%}"
    return Cell(f"{use.share:.0%}", note=clipped, heat=use.share)


def _by_chunk(
    uses: Mapping[str, Sequence[ChunkUse]], head: str, cell: Callable[[ChunkUse], Cell]
) -> Table | None:
    """One column per chunk, blank for variants with fewer chunks; None without variants."""
    if not uses:
        return None
    chunks = range(max(_size(found) for found in uses.values()))
    rows = []
    for variant, found in uses.items():
        by_chunk = {use.chunk: cell(use) for use in found}
        rows.append(Row(variant, tuple(by_chunk.get(chunk, Cell("")) for chunk in chunks), variant))
    return Table(("variant", *(head.format(chunk) for chunk in chunks)), tuple(rows))


def _plan_cells(moment: PlanMoment) -> tuple[Cell, ...]:
    plans = " or ".join(str(list(sizes)) for sizes in moment.plans if sizes)
    return (
        Cell(plans or "–"),
        Cell(number(moment.profile_drift)),
        _cell(moment.boundary_shift, lambda v: number(v, 2)),
    )


def _numbers(values: Sequence[int | None]) -> str:
    return ", ".join("–" if value is None else str(value) for value in values)
