"""Sentences about comparisons: the answer, differences from the base, and the order of the policies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

from chunk_grpo.reporting.comparisons import (
    Comparison,
    PairComparison,
    difference_text,
    interval_text,
    prompts_text,
    signed,
)
from chunk_grpo.reporting.evidence import REWARD
from chunk_grpo.reporting.palette import MANY
from chunk_grpo.reporting.statistics import MIN_SEEDS, Interval

_WORDS = {"above": "higher", "below": "lower", "none": "no difference shown", "unknown": "undecided"}


def size_text(found: Comparison) -> str:
    """Format a shown difference in spreads; empty if it is not shown, or the base's images are all equal."""
    if found.difference.verdict not in ("above", "below") or math.isinf(found.size):
        return ""
    warning = "too small to see: " if found.verdict == "unseen" else ""
    return f"{warning}{_spreads(found)} of the base’s spread"


def _spreads(found: Comparison) -> str:
    size = f"{abs(found.size):.2f}"
    return "less than 0.01" if float(size) == 0 else size


def effects_text(found: Sequence[Comparison]) -> str:
    """Describe differences from the base: variant by variant, or as a summary if there are many."""
    if len(found) > MANY:
        return _summed_up([(c.variant, c.difference) for c in found])
    return "; ".join(map(_effect, found))


def _effect(found: Comparison) -> str:
    interval = found.difference
    text = f"{found.variant} {_WORDS[interval.verdict]}, {difference_text(interval)} ({interval_text(interval)})"
    return ", ".join(filter(None, (text, size_text(found))))


def verdicts_text(found: Sequence[Comparison]) -> str:
    """Say for which variants a measure is higher or lower; with numbers if there is one variant or many."""
    if len(found) == 1 or len(found) > MANY:
        return effects_text(found)
    groups: dict[str, list[str]] = {}
    for c in found:
        unseen = ", but too little to see," if c.verdict == "unseen" else ""
        groups.setdefault(f"{_WORDS[c.difference.verdict]}{unseen}", []).append(c.variant)
    return "; ".join(f"{word} for {_listed(names)}" for word, names in groups.items())


def _summed_up(found: Sequence[tuple[str, Interval]]) -> str:
    """Number of variants that are higher, lower or neither, with the smallest and the largest difference."""
    parts = []
    for verdict in ("above", "below", "none", "unknown"):
        those = sorted(((name, i.mean) for name, i in found if i.verdict == verdict), key=lambda one: abs(one[1]))
        if not those:
            continue
        count = f"all {len(found)}" if len(those) == len(found) else f"{len(those)} of {len(found)}"
        text = f"{_WORDS[verdict]} for {count}"
        if verdict in ("above", "below"):
            ends = [
                f"{signed(mean)} ({name})" for name, mean in (those if len(those) == 1 else those[:: len(those) - 1])
            ]
            text += f", by {' to '.join(ends)}"
        parts.append(text)
    return "; ".join(parts)


def headline(tuned: Sequence[Comparison], reward: str = REWARD, *, is_visible: bool = True) -> tuple[str, str]:
    """Answer "Does it help?" from the differences in the training reward: a short answer, and one sentence.

    One training of a variant cannot tell its method from its luck, so that "Yes" and "No" need two, and a difference
    of at least `SEEN`. `is_visible` is whether any of the shown images differs visibly from the base's.
    """
    reach = tuned[0].difference
    seeds = f"{reach.num_seeds} training seed{'s' if reach.num_seeds > 1 else ''} per variant"
    answer = _answer(tuned, reward, is_visible)
    return answer[0].upper() + answer[1:], (
        f"{reward[0].upper()}{reward[1:]} on {prompts_text(reach)}, tuned against base, {seeds}; mean paired "
        "difference, 95 % interval, and size in the spread (standard deviation) of the base’s images: "
        f"{effects_text(tuned)}."
    )


def _answer(tuned: Sequence[Comparison], reward: str, is_visible: bool) -> str:
    if all(c.difference.verdict == "unknown" for c in tuned):
        return "Too few prompts to tell."
    raised, lowered, unseen = ([c for c in tuned if c.verdict == v] for v in ("above", "below", "unseen"))
    hidden = "" if is_visible or not raised else ", but the images below do not show it"
    scope = _scope(tuned)
    if len(raised) == len(tuned):
        return f"{scope or ('the' if hidden else 'Yes: the')} {reward} rises{hidden}."
    if len(lowered) == len(tuned):
        return f"{scope or 'No: the'} {reward} falls."
    scope = scope or "the"
    if len(unseen) == len(tuned):
        return f"{scope} {reward} {_moves(unseen)}, but {_too_little(unseen)}."
    start = f"{scope} {reward} rises for {_named(raised, tuned)}{hidden}" if raised else "No improvement is shown"
    it = "it" if raised else f"{scope} {reward}"
    parts = [start]
    if lowered:
        parts.append(f"{it} falls for {_named(lowered, tuned)}")
    if unseen:
        parts.append(f"{it} {_moves(unseen)} for {_named(unseen, tuned)}, but {_too_little(unseen)}")
    return f"{'; '.join(parts)}."


def _scope(tuned: Sequence[Comparison]) -> str:
    """What a single training of each variant can speak for; empty with several."""
    if tuned[0].difference.num_seeds > 1:
        return ""
    return "in this one training the" if len(tuned) == 1 else "in these trainings, one of each variant, the"


def _moves(unseen: Sequence[Comparison]) -> str:
    return " or ".join(
        word
        for word, verdict in (("rises", "above"), ("falls", "below"))
        if verdict in {c.difference.verdict for c in unseen}
    )


def _too_little(unseen: Sequence[Comparison]) -> str:
    """The largest of the differences that are too small to see."""
    largest = max(unseen, key=lambda c: abs(c.size))
    most = "at most " if len(unseen) > 1 and abs(largest.size) >= 0.005 else ""
    return f"too little to see: {most}{_spreads(largest)} of the spread of the base’s images"


def _named(found: Sequence[Comparison], tuned: Sequence[Comparison]) -> str:
    """The names, or their number if there are many variants."""
    names = [c.variant for c in found]
    return f"{len(names)} of {len(tuned)} variants" if len(tuned) > MANY else _listed(names)


def order_sentences(pairs: Mapping[str, Sequence[PairComparison]]) -> list[str]:
    """Describe which policies differ, measure by measure, with the correction for all pairs.

    With many policies, only the first is compared with the others. Its place does not depend on the scores; comparing
    with the best variant would be biased, since it is selected by its scores.
    """
    short = [p for found in pairs.values() for p in found if p.lacks_seeds]
    sentences = [_too_few_seeds(short[0].difference.num_seeds)] if short else []
    tested = {m: [p for p in found if not p.lacks_seeds] for m, found in pairs.items()}
    if not any(tested.values()):
        return sentences
    if max(map(len, pairs.values())) > len(list(combinations(range(MANY), 2))):
        return sentences + [_order_of_many(measure, found) for measure, found in tested.items() if found]
    quiet = []
    for measure, found in tested.items():
        shown = [p for p in found if p.is_shown]
        if not shown:
            quiet.append(measure)
            continue
        parts = [f"{p.ordered[0]} above {p.ordered[1]}" for p in shown]
        rest = "" if len(shown) == len(found) else " For the other pairs no difference is shown."
        sentences.append(f"Tuned, {measure}: {_listed(parts)}.{rest}")
    if quiet:
        sentences.append(f"Tuned, {_listed(quiet)}: no difference between them is shown.")
    return sentences


def _too_few_seeds(seeds: int) -> str:
    return (
        f"No two tuned variants are claimed to differ, because they have {seeds} training seed{'s' * (seeds > 1)}: "
        f"below {MIN_SEEDS} their intervals are too narrow for a correction for all pairs. By them one in four "
        "simulated reports with 3 seeds and six equal variants would have named a pair. The table of pairs has them."
    )


def with_first(pairs: Sequence[PairComparison]) -> list[PairComparison]:
    """The pairs that contain the first variant."""
    return [p for p in pairs if p.second == pairs[0].second]


def _order_of_many(measure: str, pairs: Sequence[PairComparison]) -> str:
    against = [(p.first, p.difference) for p in with_first(pairs)]
    apart = sum(p.is_shown for p in pairs)
    return (
        f"Tuned policies compared with {pairs[0].second}, the first one, {measure}: {_summed_up(against)}. "
        f"Of all {len(pairs)} pairs, {apart} differ with the correction for all pairs."
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
