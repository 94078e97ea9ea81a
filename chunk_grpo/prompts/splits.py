"""The prompts of each split, from the sources set in params.yaml."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from chunk_grpo.config.prompts import (
    AnyBenchmark,
    CocoPrompts,
    DpgPrompts,
    FilePrompts,
    GenEvalPrompts,
    PromptFile,
    PromptsParams,
)
from chunk_grpo.errors import DataError
from chunk_grpo.families.tokens import TokenLimits
from chunk_grpo.prompts.checks import drop_long, shared_prompts, text_key
from chunk_grpo.prompts.coco import coco_prompts
from chunk_grpo.prompts.dpg import read_dpg
from chunk_grpo.prompts.findings import Findings, beginning, dropped
from chunk_grpo.prompts.geneval import content_key, read_geneval, read_geneval_benchmark
from chunk_grpo.prompts.pictures import check_pictures
from chunk_grpo.prompts.read import local_file, read_prompt_file
from chunk_grpo.prompts.rows import CheckedPrompts, PromptReport, PromptRow
from chunk_grpo.prompts.wise import read_wise
from chunk_grpo.seeding import derive_seed
from chunk_grpo.shapes.edits import EDIT_KINDS, all_instructions, draw_edit
from chunk_grpo.shapes.prompts import CATEGORIES, PromptSpec, all_prompts, knowledge_prompts

Limits: TypeAlias = Callable[[], TokenLimits]
"""Function that returns the token limits of the text encoders, which needs the model's tokenizers."""

Content: TypeAlias = Callable[[PromptRow], Hashable]
"""Function that returns what a prompt asks for."""


Drawn = TypeVar("Drawn")


@dataclass(frozen=True)
class Split:
    """Prompts of one split."""

    name: str
    """Name of the split."""
    rows: Sequence[PromptRow]
    """Prompts in order."""
    report: PromptReport | None = None
    """Findings while reading the file and number of prompts used; None for generated prompts. If two splits come from
    one file, the findings are in the first one's report."""


def splits_of(settings: PromptsParams, limits: Limits, shape: tuple[int, int]) -> Iterator[Split]:
    """Yield train, eval and every other split; prompts that the checks reject are a DataError.

    `limits` returns the token limits of the text encoders; it is called if long prompts are dropped. `shape` is height
    and width of the images, for the pictures that prompts edit.
    """
    read = partial(_read, settings, limits, shape)
    if settings.source == "shapes":
        yield from _shapes(settings)
    elif settings.source == "shapes-edits":
        yield from _edits(settings)
    elif settings.source == "coco":
        yield Split("train", coco_prompts(settings.train_count, settings.seed, "train"))
        yield Split("eval", coco_prompts(settings.eval_count, settings.seed, "eval"))
    else:
        yield from _files(settings, read)
    for name, benchmark in settings.benchmarks.items():
        yield _benchmark(name, benchmark, settings, read)


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


def _edits(settings: PromptsParams) -> Iterator[Split]:
    """Train prompts (instructions not held out) and eval prompts (held-out ones), each with a scene of its own.

    The kinds of edits are equally frequent. A scene depends on the prompt's split and number, not on the counts.
    """
    for name, held_out in (("train", False), ("eval", True)):
        pools = [[i for i in all_instructions() if i.kind == kind and i.held_out is held_out] for kind in EDIT_KINDS]
        rng = random.Random(derive_seed("shapes-edits", settings.seed, name))
        count = settings.eval_count if held_out else settings.train_count
        edits = [draw_edit(instruction, rng) for instruction in _in_turn(pools, count, rng)]
        rows = [
            PromptRow(e.prompt, e.kind, e.metadata(), n, "shapes-edits", scene=e.source) for n, e in enumerate(edits, 1)
        ]
        yield Split(name, rows)


def _balanced(pools: Sequence[Sequence[PromptSpec]], count: int, rng: random.Random) -> list[PromptRow]:
    """Rows of captions drawn from the pools in turn."""
    return [
        PromptRow(spec.prompt, spec.category, spec.metadata(), number, "shapes")
        for number, spec in enumerate(_in_turn(pools, count, rng), 1)
    ]


def _in_turn(pools: Sequence[Sequence[Drawn]], count: int, rng: random.Random) -> Iterator[Drawn]:
    """Draw `count` texts from the pools in turn; a text repeats only when its pool is exhausted."""
    piles: list[list[Drawn]] = [[] for _ in pools]
    for number in range(count):
        pile = piles[number % len(pools)]
        if not pile:
            pile += rng.sample(list(pools[number % len(pools)]), len(pools[number % len(pools)]))
        yield pile.pop()


def _files(settings: PromptsParams, read_file: Callable[..., CheckedPrompts]) -> Iterator[Split]:
    """Train and eval prompts with different contents, from one file in seeded order or from one file each."""
    if settings.train_file is None:
        raise ValueError("prompts.train_file: required")  # for mypy: params.yaml is rejected before this
    content = content_key if settings.source == "geneval" else text_key
    read = read_file(settings.train_file, "prompts.train_file")
    drawn = CheckedPrompts(tuple(random.Random(settings.seed).sample(read.rows, len(read.rows))), read.report)
    if settings.eval_file is None:
        train, evaluated = _of_one_file(drawn, settings, content)
    else:
        _require(drawn, settings.train_count, "prompts.train_count", "train_file", settings)
        held_out = read_file(settings.eval_file, "prompts.eval_file")
        _require(held_out, settings.eval_count, "prompts.eval_count", "eval_file", settings)
        evaluated = held_out.first(settings.eval_count)
        train = _without_shared(drawn, evaluated, settings, content)
        _require(train, settings.train_count, "prompts.train_count", "train_file", settings)
        train = train.first(settings.train_count)
    yield Split("train", train.rows, train.report)
    yield Split("eval", evaluated.rows, evaluated.report)


def _of_one_file(
    drawn: CheckedPrompts, settings: PromptsParams, content: Content
) -> tuple[CheckedPrompts, CheckedPrompts]:
    """The first prompts are trained on; those after them with other contents are evaluated on."""
    train = drawn.first(settings.train_count)
    known = {content(row) for row in train.rows}
    after = drawn.rows[settings.train_count :]
    others = tuple(row for row in after if content(row) not in known)
    if len(others) < settings.eval_count and settings.train_file is not None:
        needed = settings.train_count + settings.eval_count
        _require(drawn, needed, "prompts.train_count + prompts.eval_count", "train_file", settings)
        raise DataError(
            f"{settings.train_file.path}: must hold prompts.eval_count = {settings.eval_count} prompts that are not "
            f"trained on, got {len(others)}: {len(after) - len(others)} of the other {len(after)} ask for the same as "
            "a train prompt; lower the counts or add prompts"
        )
    rows = others[: settings.eval_count]
    return train, CheckedPrompts(rows, replace(drawn.report, used=len(rows), findings=(), notes=()))


def _without_shared(
    drawn: CheckedPrompts, evaluated: CheckedPrompts, settings: PromptsParams, content: Content
) -> CheckedPrompts:
    """Train prompts after the check of those that are in the eval split too; DataError if they are refused."""
    checks, report = settings.checks, drawn.report
    candidates = drawn.rows if checks.shared == "drop" else drawn.rows[: settings.train_count]
    shared = sorted(shared_prompts(candidates, evaluated.rows, content), key=lambda pair: pair[0].line)
    findings = Findings(report.sources, report.unit)
    for row, other in shared:
        message = f"in the eval split too ({other.source}, {evaluated.report.unit} {other.line}): {beginning(row.text)}"
        findings.add("shared", "prompts of the eval split", row.source, row.line, message)
    findings.refuse(checks)
    found = replace(report, findings=(*report.findings, *findings.reported(checks)))
    if checks.shared != "drop":
        return CheckedPrompts(drawn.rows, found)
    taken = {row.line for row, _ in shared}
    rows = tuple(row for row in drawn.rows if row.line not in taken)
    return CheckedPrompts(rows, replace(found, kept=len(rows), used=len(rows)))


def _require(
    checked: CheckedPrompts, count: int, name: str, key: Literal["train_file", "eval_file"], settings: PromptsParams
) -> None:
    """DataError unless the file has `count` prompts, the value of `name` in params.yaml."""
    report, file = checked.report, getattr(settings, key)
    if report.kept >= count:
        return
    lost = report.read - report.kept
    got = f"{report.kept} ({report.read} were read and {lost} dropped)" if lost else f"{report.kept}"
    bound = file.limit is not None and report.read >= file.limit
    steps = f"raise `prompts.{key}.limit`, which ends reading after {file.limit}, " if bound else ""
    raise DataError(
        f"{file.path}: must hold {name} = {count} prompts, got {got}; {steps}lower the counts or add prompts"
        f"{dropped(report.findings, report.unit)}"
    )


def _read(
    settings: PromptsParams, limits: Limits, shape: tuple[int, int], file: PromptFile, key: str, *, plain: bool = False
) -> CheckedPrompts:
    """Prompts of a file, `key` in params.yaml; `plain`: of the kind `file`, whatever the source is."""
    checks = settings.checks
    if settings.source == "geneval" and not plain:
        checked = read_geneval(local_file(file), checks, file.limit)
    else:
        checked = read_prompt_file(file, checks, key)
    if file.picture_field is not None:
        checked = check_pictures(checked, Path(file.path).parent, shape, checks)
    return drop_long(checked, checks, limits()) if checks.too_long == "drop" else checked


def _benchmark(
    name: str, benchmark: AnyBenchmark, settings: PromptsParams, read_file: Callable[..., CheckedPrompts]
) -> Split:
    if isinstance(benchmark, CocoPrompts):
        # exclude train prompts
        part: Literal["eval", "all"] = "eval" if settings.source == "coco" else "all"
        return Split(name, coco_prompts(benchmark.count, benchmark.seed, part))
    if isinstance(benchmark, FilePrompts):
        key = f"prompts.benchmarks.{name}.file"
        checked = read_file(benchmark.file, key, plain=True).first(benchmark.count)
    elif isinstance(benchmark, GenEvalPrompts):
        checked = read_geneval_benchmark(benchmark.path, settings.checks, benchmark.count)
    elif isinstance(benchmark, DpgPrompts):
        checked = read_dpg(benchmark.path, settings.checks, benchmark.count)
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
