"""Numbers printed in the paper. They come from the authors' run and are not comparable with those of the report.

Source: "Chunk-GRPO", arXiv:2510.21583v1. FLUX.1-dev, 50 steps, hybrid inference (30 tuned, 20 base).
"""

from __future__ import annotations

from dataclasses import dataclass

from chunk_grpo.reporting.tables import GENEVAL_CATEGORIES, WISE_CATEGORIES, Table, text_row

ANOTHER_RUN = (
    "Numbers of the authors’ run (arXiv:2510.21583v1): FLUX.1-dev with hybrid inference. Prompts, images, scorer code "
    "and possibly models differ, so these numbers are not comparable with those of this report."
)


@dataclass(frozen=True)
class PaperTable:
    """A table as printed, with its number and title in the paper, and a remark."""

    name: str
    table: Table
    note: str = ""


def _table(heads: tuple[str, ...], *lines: str) -> Table:
    """A table from lines "model: value value ..."."""
    named = (line.split(":") for line in lines)
    return Table(("model", *heads), tuple(text_row(model, *values.split()) for model, values in named))


PREFERENCE = PaperTable(
    "Table 1, preference alignment",
    _table(
        ("HPSv3", "ImageReward"),
        "FLUX.1-dev: 13.804 1.086",
        "Dance-GRPO: 15.080 1.141",
        "Chunk-GRPO w/o ws: 15.236 1.147",
        "Chunk-GRPO w/ ws: 15.373 1.149",
    ),
    "Trained on HPSv3 over HPDv2.1. ws: weighted sampling of chunks, Eq. (16). The paper gives neither "
    "intervals nor the number of training seeds.",
)

WISE = PaperTable(
    "Table 2, WISE, rewritten prompts",
    _table(
        (*WISE_CATEGORIES.values(), "Overall"),
        "FLUX.1-dev: 0.75 0.70 0.76 0.69 0.71 0.68 0.73",
        "Dance-GRPO: 0.82 0.75 0.78 0.66 0.69 0.64 0.75",
        "Chunk-GRPO w/o ws: 0.82 0.76 0.77 0.68 0.69 0.68 0.76",
        "Chunk-GRPO w/ ws: 0.80 0.73 0.76 0.64 0.65 0.62 0.73",
    ),
)

CHUNK_SETTINGS = PaperTable(
    "Table 3, chunk settings, without weighted sampling",
    Table(
        ("model", "Steps", "Chunks", "HPSv3"),
        (
            text_row("FLUX.1-dev", "–", "–", "13.804"),
            text_row("Dance-GRPO", "17", "–", "15.080"),
            text_row("Dance-GRPO", "25", "–", "15.015"),
            text_row("Equal chunks", "17", "[2, 2, …, 2]", "15.115"),
            text_row("Equal chunks", "17", "[4, 4, 4, 4]", "15.078"),
            text_row("Equal chunks", "17", "[8, 8]", "15.173"),
            text_row("Single chunk", "17", "[16]", "15.142"),
            text_row("Equal chunks", "25", "[2, 2, …, 2]", "15.057"),
            text_row("Equal chunks", "25", "[4, 4, …, 4]", "15.136"),
            text_row("Equal chunks", "25", "[12, 12]", "15.111"),
            text_row("Single chunk", "25", "[24]", "15.100"),
            text_row("Temporal dynamics", "17", "[2, 3, 4, 7]", "15.236"),
        ),
    ),
)

DEVIATIONS = (
    "The last step has no noise and is not trained, so the chunks cover T − 1 steps: [2, 3, 4, 7] "
    "sums to 16 for T = 17. Eq. (12) says T.",
    "A transition’s log-probability is the mean over latent dimensions, as in the released code; Eq. "
    "(6) read literally is the sum. Clip ranges such as 5e-5 only fit the mean.",
    "Chunks are drawn without replacement, as in the released code. The probability that a chunk is "
    "trained is therefore not proportional to its weight of Eq. (16).",
    "The profile is measured under the SDE used in training. The profile under the ODE has another shape "
    "and would reverse the order of the weights; both curves are shown.",
    "KL is computed in closed form against the base model; the released code estimates it against the "
    "old policy, with coefficient 0.",
)
"""Differences that matter for reading the report; docs/deviations.md has the full list."""

GENEVAL = PaperTable(
    "Table 5, GenEval, trained on CLIP",
    _table(
        (*GENEVAL_CATEGORIES.values(), "Overall"),
        "FLUX.1-dev: 0.99 0.83 0.71 0.75 0.24 0.44 0.66",
        "Dance-GRPO: 1.00 0.86 0.71 0.78 0.22 0.46 0.67",
        "Chunk-GRPO w/o ws: 0.99 0.85 0.75 0.81 0.21 0.51 0.69",
        "Chunk-GRPO w/ ws: 0.98 0.82 0.73 0.76 0.27 0.48 0.67",
    ),
)
