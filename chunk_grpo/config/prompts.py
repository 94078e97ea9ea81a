"""The section `prompts` of params.yaml: sources of the prompts, and checks of their text."""

from typing import Annotated, Literal

from pydantic import Field

from chunk_grpo.config.section import Name, PromptCount, Section, Seed, Text


class PromptFile(Section):
    """A file of prompts: .txt, .csv, .tsv, .jsonl, .json, .parquet; with `source: geneval` .jsonl of GenEval."""

    path: Text
    """Path or URL (s3:// too) of .txt (a prompt a line), .csv, .tsv, .jsonl, .json or .parquet, with `source: geneval`
    of .jsonl; with `hub_file`, the id of a data set on the hub. Prompts have at most 10,000 characters."""
    hub_file: Text | None = None
    """File within the data set on the hub that `path` names; null: `path` is the file itself."""
    revision: Text | None = None
    """Revision of the data set; null: main. Null without `hub_file`."""
    prompt_field: Text | None = None
    """Column or key of the prompt; null: `prompt` or `prompts`, in any case. Null with `source: geneval`."""
    category_field: Text | None = None
    """Column or key of the category; null: `category`, in any case, if it is there and text. Null with `source:
    geneval`."""
    metadata_fields: tuple[Text, ...] | None = None
    """Columns or keys that scorers get as `metadata`; null: all but prompt and category. Null with `source:
    geneval`."""
    picture_field: Text | None = None
    """Column or key with the picture that the prompt says how to edit: a path below the folder of the file; null: the
    prompts draw new images. All prompt files have it, or none; the file is on a local disk, and the family one that
    edits."""
    limit: PromptCount | None = None
    """Number of records read from the beginning of the file; null: all. Source: ours; DanceGRPO's code: 50,000 for
    training."""

    @property
    def source(self) -> str:
        """Name of the file in messages."""
        if self.hub_file is None:
            return self.path
        return f"{self.path}/{self.hub_file}" + (f"@{self.revision}" if self.revision else "")


class PromptChecks(Section):
    """Actions for suspicious prompts. Every action is reported."""

    records: Literal["refuse", "drop"] = "refuse"
    """Action for records that cannot be read: without a prompt, of another form, or longer than 10,000 characters."""
    characters: Literal["refuse", "drop", "keep"] = "refuse"
    """Action for prompts with control characters, signs of a wrong encoding or invisible characters."""
    duplicates: Literal["refuse", "keep", "drop"] = "drop"
    """Action for prompts from files that are equal after Unicode NFC and collapsing of whitespace; `drop` keeps the
    first."""
    empty: Literal["refuse", "drop"] = "refuse"
    """Action for prompts that are missing or only whitespace."""
    spaces: Literal["refuse", "drop", "strip", "keep"] = "strip"
    """Action for whitespace before or after the prompt."""
    too_long: Literal["refuse", "drop", "keep"] = "keep"
    """Action for prompts with more tokens than a text encoder takes: CLIP 77, T5 `model.max_sequence_length`; with
    `keep` the encoder truncates them. Applies to all prompts that are used, from any source; `drop` to all that are
    read from files."""
    pictures: Literal["refuse", "drop", "crop"] = "refuse"
    """Action for pictures to edit whose ratio of the sides differs by more than 2 % from that of `model.width` and
    `model.height`; `crop` cuts both ends of the longer side. Pictures that cannot be read are `records`."""
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
    """Path or URL of evaluation_metadata.jsonl. Source: GenEval."""
    count: PromptCount | None
    """Number of prompts taken from the beginning; null: all 553. Source: GenEval."""


class WisePrompts(Section):
    """WISE's prompts."""

    kind: Literal["wise"]
    version: Literal["legacy", "verified"]
    """Version of the benchmark: `legacy`, which papers report, or `verified` (2026). Source: WISE."""
    paths: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Paths or URLs of the JSON files. Source: WISE."""
    rewritten: tuple[Text, ...]
    """Paths or URLs of files with the prompts said directly, which replace the original text; empty: none. Source:
    WISE."""
    missing_ids: Literal["refuse", "report"]
    """Action when ids of the benchmark are missing; `report` scores the ones present."""
    count: PromptCount | None
    """Number of prompts taken from the beginning; null: all 1,000. Source: WISE."""


class DpgPrompts(Section):
    """DPG-Bench's prompts, with its questions."""

    kind: Literal["dpg"]
    path: Text
    """Path or URL of dpg_bench.csv. Source: DPG-Bench."""
    count: PromptCount | None
    """Number of prompts taken from the beginning; null: all 1,065. Source: DPG-Bench."""


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

    source: Literal["shapes", "shapes-edits", "coco", "file", "geneval"]
    """Source of the train and eval splits: `shapes` generates captions of the toy world, `shapes-edits` edits of its
    pictures, for a family that edits and images of 32 x 32 pixels; `coco` generates prompts in GenEval's form, `file`
    reads files, `geneval` files in GenEval's format."""
    train_file: PromptFile | None = None
    """File of the train split; null unless `source` is `file` or `geneval`."""
    eval_file: PromptFile | None = None
    """File of the eval split; null: the eval split also comes from `train_file`."""
    train_count: PromptCount
    """Number of prompts of the train split; only those that training and profile use are encoded. Source: toy;
    DanceGRPO's code: 50,000."""
    eval_count: PromptCount
    """Number of prompts of the eval split; none of them is in the train split. Source: toy; HPDv2.1's test split:
    400."""
    wise_count: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Number of indirect (knowledge) prompts; 0 but with `source: shapes`. Source: toy."""
    seed: Seed = 0
    """Seed of the random draw."""
    checks: PromptChecks = PromptChecks()
    """Checks of prompts from files, and of the length of all prompts."""
    benchmarks: dict[Name, AnyBenchmark] = Field(default_factory=dict)
    """A further split of prompts, by its name; generated and scored as the eval split is."""

    @property
    def drawn_splits(self) -> tuple[str, ...]:
        """Splits with evaluation images: all but train."""
        return ("eval", *(("wise",) if self.wise_count else ()), *self.benchmarks)
