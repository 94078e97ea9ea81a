"""The section `prompts` of params.yaml: sources of the prompts, and checks of their text."""

from typing import Annotated, Literal

from pydantic import Field

from chunk_grpo.config.section import Name, PromptCount, Section, Seed, Text


class PromptFile(Section):
    """A file of prompts: .txt, .csv, .tsv, .jsonl, .json, .parquet; with `source: geneval` .jsonl of GenEval."""

    path: Text
    """Path or URL; with `hub_file`, the id of a data set on the hub."""
    hub_file: Text | None = None
    """File within the data set; null: `path` is the file itself."""
    revision: Text | None = None
    """Revision of the data set; null: main. Must be null without `hub_file`."""
    prompt_field: Text | None = None
    """Column or key of the prompt; null: `prompt` or `prompts`, in any case."""
    category_field: Text | None = None
    """Column or key of the category; null: `category`, in any case, if there is one."""
    metadata_fields: tuple[Text, ...] | None = None
    """Columns or keys that scorers get as metadata; null: all but prompt and category."""
    limit: PromptCount | None = None
    """Number of records read from the beginning of the file; null: all."""


class PromptChecks(Section):
    """Actions for suspicious prompts. Every action is reported."""

    records: Literal["refuse", "drop"] = "refuse"
    """Action for records that cannot be read: without a prompt, of another form, too long for a prompt."""
    characters: Literal["refuse", "drop", "keep"] = "refuse"
    """Action for prompts with control characters, signs of a wrong encoding or invisible characters."""
    duplicates: Literal["refuse", "keep", "drop"] = "drop"
    """Action for prompts that are equal after Unicode NFC and collapsing of whitespace; `drop` keeps the first."""
    empty: Literal["refuse", "drop"] = "refuse"
    """Action for prompts that are missing or only whitespace."""
    spaces: Literal["refuse", "drop", "strip", "keep"] = "strip"
    """Action for whitespace before or after the prompt."""
    too_long: Literal["refuse", "drop", "keep"] = "keep"
    """Action for prompts with more tokens than a text encoder takes; with `keep` the encoder truncates them. Applies
    to all prompts that are used, from any source; `drop` to all that are read."""
    shared: Literal["refuse", "drop", "keep"] = "refuse"
    """Action for train prompts that are in the file of the eval split too; `drop` takes them out of the train split.
    GenEval's prompts are the same if they ask for the same."""


class CocoPrompts(Section):
    """Prompts in GenEval's form about COCO's objects, generated without a download."""

    kind: Literal["coco"]
    count: PromptCount
    """Number of prompts; the six tags alternate."""
    seed: Seed
    """Seed of the random draw."""


class GenEvalPrompts(Section):
    """GenEval's own prompts."""

    kind: Literal["geneval"]
    path: Text
    """Path or URL of evaluation_metadata.jsonl."""
    count: PromptCount | None
    """Number of prompts taken from the beginning; null: all 553."""


class WisePrompts(Section):
    """WISE's prompts."""

    kind: Literal["wise"]
    version: Literal["legacy", "verified"]
    """Version of the benchmark: `legacy`, which papers report, or `verified` (2026)."""
    paths: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Paths or URLs of the JSON files."""
    rewritten: tuple[Text, ...]
    """Paths or URLs of files with rewritten prompts, which replace the original text; empty: none."""
    missing_ids: Literal["refuse", "report"]
    """Action when ids of the benchmark are missing; `report` scores the ones present."""
    count: PromptCount | None
    """Number of prompts taken from the beginning; null: all."""


class DpgPrompts(Section):
    """DPG-Bench's prompts, with its questions."""

    kind: Literal["dpg"]
    path: Text
    """Path or URL of dpg_bench.csv."""
    count: PromptCount | None
    """Number of prompts taken from the beginning; null: all 1,065."""


class FilePrompts(Section):
    """A file's prompts, in its order."""

    kind: Literal["file"]
    file: PromptFile
    """File of prompts."""
    count: PromptCount | None
    """Number of prompts taken from the beginning; null: all."""


AnyBenchmark = Annotated[
    CocoPrompts | GenEvalPrompts | WisePrompts | DpgPrompts | FilePrompts, Field(discriminator="kind")
]


class PromptsParams(Section):
    """Where the prompts come from, and how many go into each split."""

    source: Literal["shapes", "coco", "file", "geneval"]
    """Source of the train and eval splits: `shapes` generates captions of the toy world, `coco` generates prompts in
    GenEval's form, `file` reads files, `geneval` files in GenEval's format."""
    train_file: PromptFile | None = None
    """File of the train split; null unless `source` is `file` or `geneval`."""
    eval_file: PromptFile | None = None
    """File of the eval split; null: the eval split also comes from `train_file`."""
    train_count: PromptCount
    """Number of prompts of the train split."""
    eval_count: PromptCount
    """Number of prompts of the eval split; none of them is in the train split."""
    wise_count: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Number of indirect (knowledge) prompts; toy world only."""
    seed: Seed = 0
    """Seed of the random draw."""
    checks: PromptChecks = PromptChecks()
    """Checks of prompts from files, and of the length of all prompts."""
    benchmarks: dict[Name, AnyBenchmark] = Field(default_factory=dict)
    """Further prompts by name of split; generated and scored as the eval split is."""

    @property
    def drawn_splits(self) -> tuple[str, ...]:
        """Splits with evaluation images: all but train."""
        return ("eval", *(("wise",) if self.wise_count else ()), *self.benchmarks)
