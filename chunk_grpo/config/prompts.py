"""The section `prompts` of params.yaml: sources of the prompts, and checks of their text."""

from typing import Annotated, Literal

from pydantic import Field

from chunk_grpo.config.section import Name, PromptCount, Section, Seed, Text


class PromptFile(Section):
    """A file of prompts: .txt, .csv, .tsv, .jsonl, .json or .parquet; with `source: geneval` GenEval's records, .jsonl.

    Attributes:
        path: path or URL; with `hub_file`, the id of a data set on the hub.
        hub_file: file within the data set; null: `path` is the file itself.
        revision: revision of the data set; null: main. Must be null without `hub_file`.
        prompt_field: column or key of the prompt; null: `prompt` or `prompts`, in any case.
        category_field: column or key of the category; null: `category`, in any case, if there is one.
        metadata_fields: columns or keys that scorers get as metadata; null: all but prompt and category.
        limit: number of records read from the beginning of the file; null: all.
    """

    path: Text
    hub_file: Text | None = None
    revision: Text | None = None
    prompt_field: Text | None = None
    category_field: Text | None = None
    metadata_fields: tuple[Text, ...] | None = None
    limit: PromptCount | None = None


class PromptChecks(Section):
    """Actions for suspicious prompts. Every action is reported.

    Attributes:
        records: action for records that cannot be read: without a prompt, of another form, too long for a prompt.
        characters: action for prompts with control characters, signs of a wrong encoding or invisible characters.
        duplicates: action for prompts that are equal after Unicode NFC and collapsing of whitespace; `drop` keeps the
            first.
        empty: action for prompts that are missing or only whitespace.
        spaces: action for whitespace before or after the prompt.
        too_long: action for prompts with more tokens than a text encoder takes; with `keep` the encoder truncates them.
            Applies to all prompts that are used, from any source; `drop` to all that are read.
        shared: action for train prompts that are in the file of the eval split too; `drop` takes them out of the train
            split. GenEval's prompts are the same if they ask for the same.
    """

    records: Literal["refuse", "drop"] = "refuse"
    characters: Literal["refuse", "drop", "keep"] = "refuse"
    duplicates: Literal["refuse", "keep", "drop"] = "drop"
    empty: Literal["refuse", "drop"] = "refuse"
    spaces: Literal["refuse", "drop", "strip", "keep"] = "strip"
    too_long: Literal["refuse", "drop", "keep"] = "keep"
    shared: Literal["refuse", "drop", "keep"] = "refuse"


class CocoPrompts(Section):
    """Prompts in GenEval's form about COCO's objects, generated without a download.

    Attributes:
        count: number of prompts; the six tags alternate.
        seed: seed of the random draw.
    """

    kind: Literal["coco"]
    count: PromptCount
    seed: Seed


class GenEvalPrompts(Section):
    """GenEval's own prompts.

    Attributes:
        path: path or URL of evaluation_metadata.jsonl.
        count: number of prompts taken from the beginning; null: all 553.
    """

    kind: Literal["geneval"]
    path: Text
    count: PromptCount | None


class WisePrompts(Section):
    """WISE's prompts.

    Attributes:
        version: version of the benchmark: `legacy`, which papers report, or `verified` (2026).
        paths: paths or URLs of the JSON files.
        rewritten: paths or URLs of files with rewritten prompts, which replace the original text; empty: none.
        missing_ids: action when ids of the benchmark are missing; `report` scores the ones present.
        count: number of prompts taken from the beginning; null: all.
    """

    kind: Literal["wise"]
    version: Literal["legacy", "verified"]
    paths: Annotated[tuple[Text, ...], Field(min_length=1)]
    rewritten: tuple[Text, ...]
    missing_ids: Literal["refuse", "report"]
    count: PromptCount | None


class DpgPrompts(Section):
    """DPG-Bench's prompts, with its questions.

    Attributes:
        path: path or URL of dpg_bench.csv.
        count: number of prompts taken from the beginning; null: all 1,065.
    """

    kind: Literal["dpg"]
    path: Text
    count: PromptCount | None


class FilePrompts(Section):
    """A file's prompts, in its order.

    Attributes:
        file: file of prompts.
        count: number of prompts taken from the beginning; null: all.
    """

    kind: Literal["file"]
    file: PromptFile
    count: PromptCount | None


AnyBenchmark = Annotated[
    CocoPrompts | GenEvalPrompts | WisePrompts | DpgPrompts | FilePrompts, Field(discriminator="kind")
]


class PromptsParams(Section):
    """Where the prompts come from, and how many go into each split.

    Attributes:
        source: source of the train and eval splits: `shapes` generates captions of the toy world, `coco` generates
            prompts in GenEval's form, `file` reads files, `geneval` files in GenEval's format.
        train_file: file of the train split; null unless `source` is `file` or `geneval`.
        eval_file: file of the eval split; null: the eval split also comes from `train_file`.
        train_count: number of prompts of the train split.
        eval_count: number of prompts of the eval split; none of them is in the train split.
        wise_count: number of indirect (knowledge) prompts; toy world only.
        seed: seed of the random draw.
        checks: checks of prompts from files, and of the length of all prompts.
        benchmarks: further prompts by name of split; generated and scored as the eval split is.
    """

    source: Literal["shapes", "coco", "file", "geneval"]
    train_file: PromptFile | None = None
    eval_file: PromptFile | None = None
    train_count: PromptCount
    eval_count: PromptCount
    wise_count: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    seed: Seed = 0
    checks: PromptChecks = PromptChecks()
    benchmarks: dict[Name, AnyBenchmark] = Field(default_factory=dict)

    @property
    def drawn_splits(self) -> tuple[str, ...]:
        """Splits with evaluation images: all but train."""
        return ("eval", *(("wise",) if self.wise_count else ()), *self.benchmarks)
