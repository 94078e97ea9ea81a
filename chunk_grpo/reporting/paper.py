"""Numbers printed in the paper. They come from the authors' run and are not comparable with those of the report.

Source: "Chunk-GRPO", arXiv:2510.21583v1. FLUX.1-dev, 50 steps, hybrid inference (30 tuned, 20 base).
"""

from __future__ import annotations

from dataclasses import dataclass

ANOTHER_RUN = (
    "Numbers of the authors’ run (arXiv:2510.21583v1): FLUX.1-dev with hybrid inference. Prompts, images, scorer code "
    "and possibly models differ, so these numbers are not comparable with those of this report."
)


@dataclass(frozen=True)
class PaperTable:
    """A table as printed.

    Attributes:
        name: Number and title of the table in the paper.
        columns: Heads of the value columns.
        rows: (model, values); None where the paper prints a dash.
        digits: Number of decimals printed.
        note: Remark on the table.
    """

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float | str | None, ...]], ...]
    digits: int
    note: str = ""


PREFERENCE = PaperTable(
    name="Table 1, preference alignment",
    columns=("HPSv3", "ImageReward"),
    rows=(
        ("FLUX.1-dev", (13.804, 1.086)),
        ("Dance-GRPO", (15.080, 1.141)),
        ("Chunk-GRPO w/o ws", (15.236, 1.147)),
        ("Chunk-GRPO w/ ws", (15.373, 1.149)),
    ),
    digits=3,
    note="Trained on HPSv3 over HPDv2.1. ws: weighted sampling of chunks, Eq. (16). The paper gives neither "
    "intervals nor the number of training seeds.",
)

WISE = PaperTable(
    name="Table 2, WISE, rewritten prompts",
    columns=("Cultural", "Time", "Space", "Biology", "Physics", "Chemistry", "Overall"),
    rows=(
        ("FLUX.1-dev", (0.75, 0.70, 0.76, 0.69, 0.71, 0.68, 0.73)),
        ("Dance-GRPO", (0.82, 0.75, 0.78, 0.66, 0.69, 0.64, 0.75)),
        ("Chunk-GRPO w/o ws", (0.82, 0.76, 0.77, 0.68, 0.69, 0.68, 0.76)),
        ("Chunk-GRPO w/ ws", (0.80, 0.73, 0.76, 0.64, 0.65, 0.62, 0.73)),
    ),
    digits=2,
)

CHUNK_SETTINGS = PaperTable(
    name="Table 3, chunk settings, without weighted sampling",
    columns=("Steps", "Chunks", "HPSv3"),
    rows=(
        ("FLUX.1-dev", (None, None, 13.804)),
        ("Dance-GRPO", ("17", None, 15.080)),
        ("Dance-GRPO", ("25", None, 15.015)),
        ("Equal chunks", ("17", "[2, 2, …, 2]", 15.115)),
        ("Equal chunks", ("17", "[4, 4, 4, 4]", 15.078)),
        ("Equal chunks", ("17", "[8, 8]", 15.173)),
        ("Single chunk", ("17", "[16]", 15.142)),
        ("Equal chunks", ("25", "[2, 2, …, 2]", 15.057)),
        ("Equal chunks", ("25", "[4, 4, …, 4]", 15.136)),
        ("Equal chunks", ("25", "[12, 12]", 15.111)),
        ("Single chunk", ("25", "[24]", 15.100)),
        ("Temporal dynamics", ("17", "[2, 3, 4, 7]", 15.236)),
    ),
    digits=3,
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
    name="Table 5, GenEval, trained on CLIP",
    columns=(
        "Single object",
        "Two objects",
        "Counting",
        "Colors",
        "Position",
        "Color attribution",
        "Overall",
    ),
    rows=(
        ("FLUX.1-dev", (0.99, 0.83, 0.71, 0.75, 0.24, 0.44, 0.66)),
        ("Dance-GRPO", (1.00, 0.86, 0.71, 0.78, 0.22, 0.46, 0.67)),
        ("Chunk-GRPO w/o ws", (0.99, 0.85, 0.75, 0.81, 0.21, 0.51, 0.69)),
        ("Chunk-GRPO w/ ws", (0.98, 0.82, 0.73, 0.76, 0.27, 0.48, 0.67)),
    ),
    digits=2,
)
