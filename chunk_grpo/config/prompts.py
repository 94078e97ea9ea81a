"""The prompts of params.yaml: where they come from, and what is done with those that look like mistakes."""

from typing import Annotated, Literal

from pydantic import Field

from chunk_grpo.config.section import Name, PromptCount, Section, Seed, Text


class PromptFile(Section):
    """A file of prompts: .txt, .csv, .jsonl, .json or .parquet.

    Attributes:
        path: path or URL; with `hub_file`, the id of a data set on the hub.
        hub_file: file of that data set; null: `path` is the file.
        revision: of that data set; null: main. Null without `hub_file`.
        prompt_field: column or key with the prompt; null: one of the usual names.
        category_field: the same of a category; null: one of the usual names, or none.
        limit: prompts read, from the beginning; null: all.
    """

    path: Text
    hub_file: Text | None
    revision: Text | None
    prompt_field: Text | None
    category_field: Text | None
    limit: PromptCount | None


class PromptChecks(Section):
    """What to do with prompts that may be meant, or may be a mistake. Whatever is done is told.

    Attributes:
        duplicates: equal after Unicode NFC and with each run of whitespace as one space; `drop`: all but the first.
        empty: nothing but whitespace, or no value.
        spaces: before or after the prompt.
        too_long: more tokens than a text encoder takes; `keep`: it cuts the rest off. Of prompts that are used, from
            whatever source.
    """

    duplicates: Literal["refuse", "keep", "drop"]
    empty: Literal["refuse", "drop"]
    spaces: Literal["refuse", "strip", "keep"]
    too_long: Literal["refuse", "keep"]


class CocoPrompts(Section):
    """Prompts in GenEval's form about COCO's things, drawn by this package: nothing is downloaded.

    Attributes:
        count: of prompts, the six tags in turn.
        seed: of the draw.
    """

    kind: Literal["coco"]
    count: PromptCount
    seed: Seed


class GenEvalPrompts(Section):
    """GenEval's own prompts.

    Attributes:
        path: of evaluation_metadata.jsonl.
        count: prompts, from the beginning; null: all 553.
    """

    kind: Literal["geneval"]
    path: Text
    count: PromptCount | None


class WisePrompts(Section):
    """WISE's prompts.

    Attributes:
        version: `legacy`, which papers report, or `verified` (2026).
        paths: the JSON files.
        rewritten: the same prompts said directly, in place of their text; empty: as they are.
        missing_ids: `report`: a part of the benchmark is scored all the same.
        count: prompts, from the beginning; null: all.
    """

    kind: Literal["wise"]
    version: Literal["legacy", "verified"]
    paths: Annotated[tuple[Text, ...], Field(min_length=1)]
    rewritten: tuple[Text, ...]
    missing_ids: Literal["refuse", "report"]
    count: PromptCount | None


class FilePrompts(Section):
    """A file's prompts, in its order.

    Attributes:
        file: which one.
        count: prompts, from the beginning; null: all.
    """

    kind: Literal["file"]
    file: PromptFile
    count: PromptCount | None


AnyBenchmark = Annotated[
    CocoPrompts | GenEvalPrompts | WisePrompts | FilePrompts, Field(discriminator="kind")
]


class PromptsParams(Section):
    """Where the prompts come from, and how many go into each split.

    Attributes:
        source: of train and eval split: `shapes` writes captions of the toy world, `coco` prompts in GenEval's form,
            `file` reads files.
        train_file: for source `file`, else null.
        eval_file: of the eval split; null: it comes from `train_file` too.
        train_count: prompts of the train split.
        eval_count: prompts of the eval split, none of them in the train split.
        wise_count: indirect (knowledge) prompts, toy world only.
        seed: of the draw.
        checks: of prompts from files, and of the length of all.
        benchmarks: split name to more prompts, which are drawn and scored beside the eval split.
    """

    source: Literal["shapes", "coco", "file"]
    train_file: PromptFile | None
    eval_file: PromptFile | None
    train_count: PromptCount
    eval_count: PromptCount
    wise_count: Annotated[int, Field(ge=0, le=1_000_000)]
    seed: Seed
    checks: PromptChecks
    benchmarks: dict[Name, AnyBenchmark]

    @property
    def drawn_splits(self) -> tuple[str, ...]:
        """Splits whose images are drawn: all but train."""
        return ("eval", *(("wise",) if self.wise_count else ()), *self.benchmarks)
