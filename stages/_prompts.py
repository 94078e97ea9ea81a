"""The prompts of each split, from the sources set in params.yaml."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
    coco_prompts,
    read_geneval,
    read_prompt_file,
    read_wise,
    shared_prompts,
)
from chunk_grpo.shapes.prompts import CATEGORIES, PromptSpec, all_prompts, knowledge_prompts


@dataclass(frozen=True)
class Split:
    """Prompts of one split.

    Attributes:
        name: Name of the split.
        rows: Prompts in order.
        report: Findings while reading the file and number of prompts used; None for generated prompts. If two splits
            come from one file, the findings are in the first one's report.
    """

    name: str
    rows: Sequence[PromptRow]
    report: PromptReport | None = None


def splits_of(settings: PromptsParams) -> Iterator[Split]:
    """Yield train, eval and every other split.

    Raises:
        DataError: A file is missing, too short, or has prompts that the checks reject.
    """
    if settings.source == "shapes":
        yield from _shapes(settings)
    elif settings.source == "coco":
        yield Split("train", coco_prompts(settings.train_count, settings.seed, "train"))
        yield Split("eval", coco_prompts(settings.eval_count, settings.seed, "eval"))
    else:
        yield from _files(settings)
    for name, benchmark in settings.benchmarks.items():
        yield _benchmark(name, benchmark, settings)


def _shapes(settings: PromptsParams) -> Iterator[Split]:
    """Train prompts (contents not held out), eval prompts (held-out contents) and the WISE-like set.

    The six categories are equally frequent. A category with too few captions repeats them; each repetition has its own
    prompt id and therefore its own noise.
    """
    rng = random.Random(settings.seed)
    shown = [[p for p in all_prompts() if p.category == c and not p.held_out] for c in CATEGORIES]
    hidden = [[p for p in all_prompts() if p.category == c and p.held_out] for c in CATEGORIES]
    yield Split("train", _balanced(shown, settings.train_count, rng))
    yield Split("eval", _balanced(hidden, settings.eval_count, rng))
    if settings.wise_count:
        yield Split("wise", _balanced([knowledge_prompts()], settings.wise_count, rng))


def _balanced(pools: Sequence[Sequence[PromptSpec]], count: int, rng: random.Random) -> list[PromptRow]:
    """Draw `count` captions from the pools in turn; a caption repeats only when its pool is exhausted."""
    piles: list[list[PromptSpec]] = [[] for _ in pools]
    chosen = []
    for number in range(count):
        pile = piles[number % len(pools)]
        if not pile:
            pile += rng.sample(list(pools[number % len(pools)]), len(pools[number % len(pools)]))
        spec = pile.pop()
        chosen.append(PromptRow(spec.prompt, spec.category, spec.metadata(), number + 1, "shapes"))
    return chosen


def _files(settings: PromptsParams) -> Iterator[Split]:
    """Train and eval prompts, disjoint, from one file in seeded order or from one file each."""
    if settings.train_file is None:
        raise ValueError(
            "prompts.train_file: required with source: file"
        )  # for mypy: params.yaml is rejected before this
    read = _read(settings.train_file, settings)
    drawn = CheckedPrompts(tuple(random.Random(settings.seed).sample(read.rows, len(read.rows))), read.report)
    train = drawn.part(0, settings.train_count)
    if settings.eval_file is None:
        needed = settings.train_count + settings.eval_count
        _require(drawn, needed, "prompts.train_count + prompts.eval_count", settings.train_file)
        evaluated = drawn.part(settings.train_count, needed)
        evaluated = replace(evaluated, report=replace(evaluated.report, findings=(), notes=()))
        remedy = (
            "Set `prompts.checks.duplicates: drop`, which keeps the first of the file's equal prompts, or take them "
            "out of it"
        )
    else:
        _require(drawn, settings.train_count, "prompts.train_count", settings.train_file)
        held_out = _read(settings.eval_file, settings)
        _require(held_out, settings.eval_count, "prompts.eval_count", settings.eval_file)
        evaluated = held_out.part(0, settings.eval_count)
        remedy = "Take them out of one of the two files"
    _refuse_shared(evaluated, train, remedy)
    yield Split("train", train.rows, train.report)
    yield Split("eval", evaluated.rows, evaluated.report)


def _refuse_shared(evaluated: CheckedPrompts, train: CheckedPrompts, remedy: str) -> None:
    """Reject eval prompts that are also train prompts."""
    shared = shared_prompts(evaluated.rows, train.rows)
    if shared:
        row, other = shared[0]
        raise DataError(
            f"{row.source}, {evaluated.report.unit} {row.line}: {row.text!r} is also trained on ({other.source}, "
            f"{train.report.unit} {other.line}); eval prompts that are also trained on: {len(shared)}. {remedy}"
        )


def _require(checked: CheckedPrompts, count: int, name: str, file: PromptFile) -> None:
    report = checked.report
    if report.kept >= count:
        return
    dropped = report.read - report.kept
    got = f"{report.kept} ({report.read} were read and {dropped} dropped)" if dropped else f"{report.kept}"
    bound = file.limit is not None and report.read >= file.limit
    steps = f"raise its `limit`, which ends reading after {file.limit}, " if bound else ""
    raise DataError(
        f"{file.path}: must hold {name} = {count} prompts, got {got}; {steps}lower the counts or add prompts"
    )


def _read(file: PromptFile, settings: PromptsParams) -> CheckedPrompts:
    fields = FieldNames(file.prompt_field, file.category_field)
    source = PromptSource(file.path, file.hub_file, file.revision, fields=fields, limit=file.limit)
    return read_prompt_file(source, settings.checks)


def _benchmark(name: str, benchmark: AnyBenchmark, settings: PromptsParams) -> Split:
    if isinstance(benchmark, CocoPrompts):
        # exclude train prompts
        part: Literal["eval", "all"] = "eval" if settings.source == "coco" else "all"
        return Split(name, coco_prompts(benchmark.count, benchmark.seed, part))
    if isinstance(benchmark, FilePrompts):
        checked = _read(benchmark.file, settings).part(0, benchmark.count)
    elif isinstance(benchmark, GenEvalPrompts):
        checked = read_geneval(benchmark.path, settings.checks, benchmark.count)
    else:
        checked = read_wise(
            benchmark.paths,
            benchmark.version,
            settings.checks,
            benchmark.rewritten,
            benchmark.missing_ids,
            benchmark.count,
        )
    return Split(name, checked.rows, checked.report)
