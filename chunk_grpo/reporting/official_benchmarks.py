"""Whether scores follow a published benchmark, with all its prompts and its rules, and the differences if not.

The kind of scorer does not decide this: GenEval's rules can judge other prompts, and WISE's rules a part of WISE.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from chunk_grpo.config.judges import WiseScorer
from chunk_grpo.reporting.evidence import PromptKind, ReportSettings, ScorerUse, Source
from chunk_grpo.scorers.geneval.records import OFFICIAL_COUNTS
from chunk_grpo.scorers.wise.protocols import NUM_PROMPTS, ProtocolName

PAPER_BENCHMARKS = {"geneval": "GenEval", "wise": "WISE"}
"""Kind of scorer to the name of the benchmark that the paper reports."""

GENEVAL_IMAGES = 4
"""Images per prompt in GenEval's protocol."""

PUBLISHED_JUDGES: dict[ProtocolName, str] = {"legacy": "gpt-4o-2024-05-13", "verified": "Qwen3.5-35B-A3B"}
"""Protocol to the judge model whose results WISE's repository lists."""


@dataclass(frozen=True)
class Benchmark:
    """Description of a split's scores by GenEval's or WISE's rules."""

    kind: str
    """Kind of the scorer, a key of `PAPER_BENCHMARKS`."""
    split: str
    complete: bool
    """Whether the prompts are all prompts of the benchmark."""
    what: str
    """Prompts, rules and judge, in one sentence."""
    differs: tuple[str, ...]
    """Known differences from the benchmark as the paper runs it, a few words each."""


def benchmark_of(use: ScorerUse, split: str, prompts: Source, settings: ReportSettings) -> Benchmark | None:
    """Describe a scorer's scores of one of its splits; None if no published benchmark has its rules.

    `prompts` has schema prompts; their sources are in the settings.
    """
    columns = (prompts.table.column(name).to_pylist() for name in ("split", "category", "metadata"))
    rows = [row for row_split, *row in zip(*columns, strict=True) if row_split == split]
    source = settings.prompt_kinds.get(split, PromptKind("unknown"))
    if use.kind == "geneval":
        return _geneval(split, source, [category for category, _ in rows], settings.images_per_prompt)
    if use.judge is not None:
        ids = [json.loads(metadata).get("wise_id") for _, metadata in rows]
        return _wise(split, source, ids, use.judge)
    return None


def benchmarks_not_run(found: Sequence[Benchmark]) -> str:
    """The paper's benchmarks that were not run as in the paper, with what was run instead; empty if all were."""
    parts = []
    for kind, name in PAPER_BENCHMARKS.items():
        near = [one for one in found if one.kind == kind]
        if all(one.differs for one in near):
            differences = "; ".join(f"{one.split}: {', '.join(one.differs)}" for one in near)
            parts.append(f"{name} ({differences})" if differences else name)
    return f"The paper’s benchmarks: {', '.join(parts)}. Tables here may have their layout." if parts else ""


def _geneval(split: str, source: PromptKind, categories: Sequence[str], images: int) -> Benchmark:
    total, count = sum(OFFICIAL_COUNTS.values()), len(categories)
    rules = "judged by GenEval’s rules with a detector whose weights are not the original’s"
    if source.kind == "geneval" and Counter(categories) == Counter(OFFICIAL_COUNTS):
        number = [] if images == GENEVAL_IMAGES else [f"images per prompt: {images}, not {GENEVAL_IMAGES}"]
        what = f"GenEval’s official {total} prompts, images per prompt: {images}, {rules}"
        return Benchmark("geneval", split, True, what, ("another detector", *number))
    whose = "prompts in GenEval’s format" if source.kind == "geneval" else "prompts of this package"
    what = f"Not GenEval: {count} {whose}, not the official {total}, {rules}; no published number compares"
    return Benchmark("geneval", split, False, what, (f"its rules on {count} other prompts",))


def _wise(split: str, source: PromptKind, ids: Sequence[object], scorer: WiseScorer) -> Benchmark:
    count = len(set(range(1, NUM_PROMPTS + 1)).intersection(ids))
    complete, original_words = count == NUM_PROMPTS, scorer.instructions is not None
    part = "" if complete else f"{count:,} of "
    published = PUBLISHED_JUDGES[scorer.protocol]
    incomparable = [
        *([] if complete else [f"{part}its {NUM_PROMPTS:,} prompts"]),
        *([] if original_words else ["asked in this package’s own words"]),
        *([] if published in scorer.judge else [f"judged by {scorer.judge}, not {published}"]),
    ]
    otherwise = [
        *([] if scorer.protocol == "legacy" else [f"protocol {scorer.protocol}, not legacy"]),
        *([] if source.rewritten else ["prompts not rewritten"]),
    ]
    what = (
        f"{part}WISE’s {NUM_PROMPTS:,} prompts, {'rewritten' if source.rewritten else 'not rewritten'}; protocol "
        f"{scorer.protocol}, judged by {scorer.judge}, asked in "
        f"{'the original evaluator’s words' if original_words else 'this package’s own words'}"
        + ("; no published number compares" if incomparable else "")
    )
    return Benchmark("wise", split, complete, what, tuple(incomparable + otherwise))
