"""The prompts of each split, by where params.yaml takes them from."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from chunk_grpo.config.prompts import (
    AnyBenchmark,
    CocoPrompts,
    FilePrompts,
    GenEvalPrompts,
    PromptFile,
    PromptsParams,
)
from chunk_grpo.errors import DataError
from chunk_grpo.prompts import (
    CheckedPrompts,
    FieldNames,
    PromptReport,
    PromptRow,
    PromptSource,
    TokenCounts,
    coco_prompts,
    read_geneval,
    read_prompts,
    read_wise,
    shared_prompts,
)
from chunk_grpo.shapes.prompts import CATEGORIES, PromptSpec, all_prompts, knowledge_prompts


@dataclass(frozen=True)
class Split:
    """One split's prompts.

    Attributes:
        name: Of the split.
        rows: Its prompts in order.
        report: What was found while reading them; None for prompts that are drawn here.
    """

    name: str
    rows: Sequence[PromptRow]
    report: PromptReport | None = None


def splits_of(settings: PromptsParams, count_tokens: TokenCounts) -> Iterator[Split]:
    """Train, eval and every other split.

    Raises:
        DataError: A file is missing, too short, or has prompts that are to be refused.
    """
    if settings.source == "shapes":
        yield from _shapes(settings)
    elif settings.source == "coco":
        yield Split("train", coco_prompts(settings.train_count, settings.seed, "train"))
        yield Split("eval", coco_prompts(settings.eval_count, settings.seed, "eval"))
    else:
        yield from _files(settings, count_tokens)
    for name, benchmark in settings.benchmarks.items():
        yield _benchmark(name, benchmark, settings, count_tokens)


def _shapes(settings: PromptsParams) -> Iterator[Split]:
    """Train prompts of contents that are not held out, eval prompts of contents that are, and the WISE-like set.

    The six categories come equally often; a category with fewer captions than asked for repeats them, each time under
    another id and thus with another noise.
    """
    rng = random.Random(settings.seed)
    shown = [[p for p in all_prompts() if p.category == c and not p.held_out] for c in CATEGORIES]
    hidden = [[p for p in all_prompts() if p.category == c and p.held_out] for c in CATEGORIES]
    yield Split("train", _balanced(shown, settings.train_count, rng))
    yield Split("eval", _balanced(hidden, settings.eval_count, rng))
    if settings.wise_count:
        yield Split("wise", _balanced([knowledge_prompts()], settings.wise_count, rng))


def _balanced(pools: Sequence[Sequence[PromptSpec]], count: int, rng: random.Random) -> list[PromptRow]:
    """`count` captions, from each pool in turn; a pool is used up before any of its captions returns."""
    piles: list[list[PromptSpec]] = [[] for _ in pools]
    chosen = []
    for number in range(count):
        pile = piles[number % len(pools)]
        if not pile:
            pile += rng.sample(list(pools[number % len(pools)]), len(pools[number % len(pools)]))
        spec = pile.pop()
        chosen.append(PromptRow(spec.prompt, spec.category, spec.metadata(), number + 1, "shapes"))
    return chosen


def _files(settings: PromptsParams, count_tokens: TokenCounts) -> Iterator[Split]:
    """Train and eval prompts of a file in seeded order, or of a file each; none is in both."""
    if settings.train_file is None:
        raise ValueError(
            "prompts.train_file: required with source: file"
        )  # as a rule of the configuration says
    read = _read(settings.train_file, settings, count_tokens)
    rows = random.Random(settings.seed).sample(read.rows, len(read.rows))
    if settings.eval_file is None:
        needed, counts = (
            settings.train_count + settings.eval_count,
            "prompts.train_count + prompts.eval_count",
        )
        _require(rows, needed, counts, settings.train_file)
        train, evaluated = rows[: settings.train_count], rows[settings.train_count : needed]
        _refuse_shared(evaluated, train)
        yield Split("train", train, read.report)
        yield Split("eval", evaluated)
        return
    _require(rows, settings.train_count, "prompts.train_count", settings.train_file)
    held_out = _read(settings.eval_file, settings, count_tokens)
    _require(held_out.rows, settings.eval_count, "prompts.eval_count", settings.eval_file)
    train, evaluated = rows[: settings.train_count], list(held_out.rows[: settings.eval_count])
    _refuse_shared(evaluated, train)
    yield Split("train", train, read.report)
    yield Split("eval", evaluated, held_out.report)


def _refuse_shared(evaluated: Sequence[PromptRow], train: Sequence[PromptRow]) -> None:
    """What is trained on tells nothing when it is evaluated on."""
    shared = shared_prompts(evaluated, train)
    if shared:
        row, other = shared[0]
        raise DataError(
            f"{row.source}, line {row.line}: {row.text!r} is also trained on ({other.source}, line {other.line}); "
            f"prompts of the eval split that are: {len(shared)}. Take them out of one of the files, or set "
            "`prompts.checks.duplicates: drop`, which keeps the first of a file's equal prompts"
        )


def _require(rows: Sequence[PromptRow], count: int, name: str, file: PromptFile) -> None:
    if len(rows) < count:
        raise DataError(
            f"{file.path}: must hold {name} = {count} prompts, got {len(rows)}; lower the counts or add prompts"
        )


def _read(file: PromptFile, settings: PromptsParams, count_tokens: TokenCounts) -> CheckedPrompts:
    fields = FieldNames(file.prompt_field, file.category_field)
    source = PromptSource(file.path, file.hub_file, file.revision, fields=fields, limit=file.limit)
    return read_prompts(source, settings.checks, count_tokens)


def _benchmark(
    name: str, benchmark: AnyBenchmark, settings: PromptsParams, count_tokens: TokenCounts
) -> Split:
    if isinstance(benchmark, CocoPrompts):
        part: Literal["eval", "all"] = (
            "eval" if settings.source == "coco" else "all"
        )  # never what is trained on
        return Split(name, coco_prompts(benchmark.count, benchmark.seed, part))
    if isinstance(benchmark, FilePrompts):
        checked = _read(benchmark.file, settings, count_tokens)
    elif isinstance(benchmark, GenEvalPrompts):
        checked = read_geneval(benchmark.path, settings.checks, count_tokens)
    else:
        checked = read_wise(
            benchmark.paths,
            benchmark.version,
            settings.checks,
            count_tokens,
            benchmark.rewritten,
            benchmark.missing_ids,
        )
    return Split(name, checked.rows[: benchmark.count], checked.report)
