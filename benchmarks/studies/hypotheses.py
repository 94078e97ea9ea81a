"""The hypotheses of docs/study.md: each compares two policies of a block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Policy = tuple[str, str]
"""(variant, mode)."""


Pair = tuple[Policy, Policy]


@dataclass(frozen=True)
class Hypothesis:
    """`first` has the higher mean, or with `less` a larger difference."""

    name: str
    """Name in docs/study.md."""
    first: Policy
    second: Policy
    less: Pair | None = None
    """Two policies whose difference is the smaller one."""

    @property
    def policies(self) -> tuple[Policy, ...]:
        """All policies that it compares."""
        return (self.first, self.second, *(self.less or ()))


def _tuned(name: str, first: str, second: str, less: tuple[str, str] | None = None) -> Hypothesis:
    pair = None if less is None else ((less[0], "tuned"), (less[1], "tuned"))
    return Hypothesis(name, (first, "tuned"), (second, "tuned"), pair)


CONTRASTS = (
    _tuned("H1 chunk level", "chunk", "dance"),
    _tuned("H2 weighted sampling", "chunk-ws", "chunk"),
    _tuned("H3 listed sizes", "chunk", "equal-4"),
    _tuned("H4 several chunks", "chunk", "single"),
    _tuned("H5 more than re-weighting", "chunk", "control"),
    _tuned("H6 not the mirrored sizes", "chunk", "mirror"),
    Hypothesis("H7 hybrid inference", ("chunk-ws", "hybrid"), ("chunk-ws", "tuned")),
)
LEVELS = (
    _tuned("L1 without clipping", "chunk-free", "dance-free"),
    _tuned("L2 clipping", "chunk", "dance", less=("chunk-free", "dance-free")),
    _tuned("L3 tight ranges", "chunk-tight", "control-tight"),
    _tuned("L4 one chunk, without clipping", "single-free", "chunk-free"),
    _tuned("L5 equal work", "chunk-all", "single"),
    _tuned("L6 rates, dance", "dance-fast", "dance"),
    _tuned("L6 rates, chunk", "chunk-fast", "chunk"),
)
LATE = (_tuned("L8 late reward, mirror", "mirror", "equal-4"), _tuned("L8 late reward, chunk", "equal-4", "chunk"))
PARTS = (
    _tuned("S1 sizes, 2", "chunk", "equal-2"),
    _tuned("S2 sizes, 8", "chunk", "equal-8"),
    _tuned("S3 one chunk, third and second", "only-2", "only-1"),
    _tuned("S4 one chunk, second and first", "only-1", "only-0"),
    _tuned("S5 one chunk, third and fourth", "only-2", "only-3"),
    _tuned("S6 draw by trajectory", "trajectory", "chunk"),
    _tuned("S6 draw, tempered", "tempered", "chunk"),
    _tuned("S6 draw, annealed", "annealed", "chunk"),
    _tuned("S6 draw, unbiased", "unbiased", "chunk"),
    _tuned("S7 gains of steps", "step-gains", "dance"),
    _tuned("S8 gains of chunks", "chunk-gains", "chunk"),
    _tuned("S8 gains of equal chunks", "gains-equal-4", "equal-4"),
)
ELBO = (
    _tuned("B1 ratio of a chunk", "matching-chunk", "matching-step"),
    _tuned("B2 ratio of a chunk, shared pairs", "matching-chunk-both", "matching-step-both"),
    _tuned("B3 ratio of an image, shared pairs", "matching-single-both", "matching-chunk-both"),
    _tuned("B4 shared pairs", "matching-step-group", "matching-step"),
    _tuned("B5 stratified times", "matching-step-stratified", "matching-step"),
    _tuned("B6 images noised again", "matching-step", "dance"),
)
COMPARED = ("dance-grpo", "chunk", "chunk-ws", "chunk-gains", "tempflow", "mixgrpo", "nft", "awm", "elbo-grpo")
COMPARISON = tuple(_tuned(f"{name} - flow-grpo", name, "flow-grpo") for name in COMPARED)
BLOCKS: Mapping[str, tuple[Hypothesis, ...]] = {
    **dict.fromkeys(("vivid", "vivid-ratios", "exact", "exact-ratios"), CONTRASTS),
    "levels": LEVELS,
    "late": LATE,
    "parts": PARTS,
    "elbo": ELBO,
    "comparison": COMPARISON,
}
"""Blocks of the study and their hypotheses."""
BESIDE = {"levels": "vivid", "parts": "vivid", "elbo": "vivid"}
"""Block that has the other policies of a block's hypotheses, trained with the same seeds, prompts and noise."""
