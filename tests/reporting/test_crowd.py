"""More variants than colours: dashed lines, summaries instead of lists, tables and grids in parts."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chunk_grpo.reporting import palette, plots
from chunk_grpo.reporting.comparisons import Comparison, PairComparison
from chunk_grpo.reporting.evidence import REWARD
from chunk_grpo.reporting.gallery import grid_variants
from chunk_grpo.reporting.sentences import effects_text, headline, order_sentences, with_first
from chunk_grpo.reporting.series import Curve
from tests.reporting.test_comparisons import comparison

NAMES = tuple(f"v{i}" for i in range(27))


def around(mean: float) -> Comparison:
    return comparison("", mean - 0.1, mean + 0.1)


def comparisons(means: Sequence[float]) -> list[Comparison]:
    return [replace(around(mean), variant=name) for name, mean in zip(NAMES, means, strict=False)]


def pairs(count: int) -> list[PairComparison]:
    """Pairs of `count` variants: number i is 0.05 x (i - j) above number j, with intervals of +-0.1."""
    names = NAMES[:count]
    return [
        PairComparison(names[i], names[j], REWARD, around(0.05 * (i - j)).difference, 0.04 if i - j > 2 else 0.2)
        for j in range(count)
        for i in range(j + 1, count)
    ]


def curve(*values: float) -> Curve:
    found = np.array(values)
    return Curve(np.arange(len(found)), found, found - 1, found + 1)


def axes() -> Axes:
    return Figure().add_subplot()


def test_colour_and_dash_tell_36_variants_apart() -> None:
    names = [str(i) for i in range(37)]
    looks = [(palette.variant_colour(names, n), palette.line_style(names, n)) for n in names]
    assert len(set(looks)) == 36
    assert looks[36] == looks[0]
    assert {style for _, style in looks[:6]} == {"-"}


def test_many_curves_have_dashes_and_no_bands() -> None:
    crowded, few = axes(), axes()
    curves = {name: curve(1.0, 2.0) for name in NAMES}
    plots.draw_curves(crowded, curves, NAMES, "title")
    plots.draw_curves(few, {name: curves[name] for name in NAMES[:6]}, NAMES[:6], "title")
    assert (len(crowded.lines), len(crowded.collections)) == (27, 0)
    assert (len(few.lines), len(few.collections)) == (6, 6)
    assert crowded.lines[5].get_linestyle() == "-"
    assert crowded.lines[6].get_linestyle() == "--"  # matplotlib's word for any pattern


def test_differences_of_many_label_a_variant_once() -> None:
    rows = [c for c in comparisons([0.1] * 8) for _ in ("tuned", "hybrid")]
    found = axes()
    plots.draw_differences(found, rows, NAMES[:8], "title")
    assert [label.get_text() for label in found.get_yticklabels()] == list(NAMES[:8])
    assert found.get_yticks().tolist() == [0.5, 2.5, 4.5, 6.5, 8.5, 10.5, 12.5, 14.5]


def test_grids_of_many_take_four_variants_each() -> None:
    assert grid_variants(NAMES[:6]) == (NAMES[:6],)
    found = grid_variants(NAMES)
    assert [len(part) for part in found] == [4, 4, 4, 4, 4, 4, 3]
    assert tuple(name for part in found for name in part) == NAMES


def test_many_effects_are_counted() -> None:
    found = comparisons([0.3, 0.2, 0.05, -0.2, -0.05, 0.0, 0.5])
    assert re.findall(r"\d of 7|[+−]0\.\d+ \(v\d\)", effects_text(found)) == [
        *("3 of 7", "+0.200 (v1)", "+0.500 (v6)"),  # higher
        *("1 of 7", "−0.200 (v3)"),  # lower
        "3 of 7",
    ]
    assert "all 7" in effects_text(comparisons([0.2] * 7))
    assert re.findall(r"\d of 7", headline(found)[0]) == ["3 of 7", "1 of 7"]


def test_many_pairs_are_reduced_to_pairs_with_first_variant() -> None:
    found = pairs(7)
    assert [p.first for p in with_first(found)] == list(NAMES[1:7])
    # Above zero from a distance of 3 on: 4 + 3 + 2 + 1 pairs.
    (sentence,) = order_sentences({REWARD: found})
    assert re.findall(r"\d of 6|all 21|, 10 differ", sentence) == ["4 of 6", "2 of 6", "all 21", ", 10 differ"]
    assert "v3 above v0" in order_sentences({REWARD: pairs(6)})[0]
