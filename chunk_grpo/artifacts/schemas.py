"""One Arrow schema per table exchanged between stages: long form, one fact per row.

The Parquet metadata has name and version. Raise the version when columns or their meaning change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal, TypeAlias

import pyarrow as pa

SCHEMA_KEY = b"chunk_grpo.schema"
VERSION_KEY = b"chunk_grpo.version"
SCORER_KEY = b"chunk_grpo.scorer"
"""Metadata key of scores: spec of the scorer, as JSON."""

SchemaName: TypeAlias = Literal[
    "prompts",
    "pictures",
    "embeddings",
    "l1_profile",
    "chunk_plan",
    "train_metrics",
    "images",
    "scores",
    "evaluation_history",
    "evaluation_prompts",
]

IMAGE = pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])
"""Encoded image and file name: the image column of Hugging Face datasets."""

_DATASETS_IMAGES = b'{"info": {"features": {"image": {"_type": "Image"}}}}'


@dataclass(frozen=True)
class TableSchema:
    """Name, version and columns of a table, and the rules for its rows."""

    name: SchemaName
    """Name of the schema."""
    version: int
    """Version of the schema, from 1."""
    columns: pa.Schema
    """Names, types and nullability of the columns, without name and version in the metadata."""
    key: tuple[str, ...] = ()
    """Columns that together differ from row to row."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Column to its least and largest value."""
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Column to its values."""
    undefined: tuple[str, ...] = ()
    """Columns of floats that may be NaN or infinite."""
    records: tuple[str, ...] = ()
    """Columns of JSON objects."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Nullable column to the column with a text exactly where it is null."""

    @property
    def plain_columns(self) -> list[str]:
        """Columns that are not nested: all but images."""
        return [column.name for column in self.columns if not pa.types.is_nested(column.type)]

    @property
    def metadata(self) -> dict[bytes, bytes]:
        """Metadata of the Parquet file."""
        own = {SCHEMA_KEY: self.name.encode(), VERSION_KEY: str(self.version).encode()}
        return {**(self.columns.metadata or {}), **own}


_TEXT, _WHOLE, _FLOAT = pa.string(), pa.int64(), pa.float64()
_COUNT, _NUMBER, _SEED, _LEVEL = (0, inf), (1, inf), (-1, inf), (0, 1)
_MODES = {"mode": ("base", "tuned", "hybrid")}
_OF_IMAGE = {"policy": _TEXT, "mode": _TEXT, "train_seed": _WHOLE, "prompt_id": _TEXT, "sample": _WHOLE}
"""Key of an image: train_seed is -1 for the base, sample counts from 0 within the prompt."""
_IMAGE_RANGES = {"train_seed": _SEED, "sample": _COUNT}
_OF_SCORE = {"policy": _TEXT, "mode": _TEXT, "split": _TEXT, "scorer": _TEXT}
_INTERVAL = ("low", "high", "standard_error", "degrees_of_freedom")
_COUNTS = ("num_seeds", "num_prompts", "num_captions", "num_images")
_COMPARED = ("difference", "band", "p_value")


def _schema(name: SchemaName, version: int, columns: Mapping[str, pa.DataType], **rules: Any) -> TableSchema:
    nullable = rules.get("reasons", {}).items()
    fields = [
        pa.field(column, kind, nullable=any(column in pair for pair in nullable)) for column, kind in columns.items()
    ]
    return TableSchema(name, version, pa.schema(fields), **rules)


_PLAIN_IMAGES = _schema(
    "images",
    1,
    {**_OF_IMAGE, "seed": _WHOLE, "image": IMAGE},  # seed of its noise
    key=tuple(_OF_IMAGE),
    ranges=_IMAGE_RANGES,
    choices=_MODES,
)

SCHEMAS: dict[SchemaName, TableSchema] = {
    schema.name: schema
    for schema in (
        _schema(
            "prompts",
            1,
            {
                "prompt_id": _TEXT,
                "split": _TEXT,  # train | eval | wise
                "prompt": _TEXT,
                "category": _TEXT,
                "metadata": _TEXT,
            },
            key=("prompt_id",),
            records=("metadata",),
        ),
        # `picture` is the name of the file beside it.
        _schema("pictures", 1, {"prompt_id": _TEXT, "picture": _TEXT}, key=("prompt_id",)),
        _schema(
            "embeddings",
            2,
            {
                "prompt_id": _TEXT,
                "prompt": _TEXT,
                "shard": _WHOLE,  # number of the file shard-NNNNN.safetensors beside the table
                "row": _WHOLE,  # row in the tensors of that file
            },
            key=("prompt_id",),
            ranges={"shard": _COUNT, "row": _COUNT},
        ),
        _schema(
            "l1_profile",
            1,
            {
                "sampler": _TEXT,
                "prompt_id": _TEXT,
                "seed": _WHOLE,
                "step": _WHOLE,  # 0.. from noise to image
                "t": _FLOAT,  # noise level before the step
                "t_next": _FLOAT,  # noise level after the step
                "l1_rel": _FLOAT,  # Eq. (15)
            },
            key=("sampler", "prompt_id", "seed", "step"),
            ranges={"step": _COUNT, "t": _LEVEL, "t_next": _LEVEL, "l1_rel": _COUNT},
            choices={"sampler": ("sde", "ode")},
        ),
        _schema(
            "chunk_plan",
            1,
            {
                "plan": _TEXT,
                "chunk": _WHOLE,  # 0.. from noise to image
                "first_step": _WHOLE,
                "num_steps": _WHOLE,
                "mean_l1": _FLOAT,
                "weight": _FLOAT,  # Eq. (16)
            },
            key=("plan", "chunk"),
            ranges=dict.fromkeys(("chunk", "first_step", "mean_l1", "weight"), _COUNT) | {"num_steps": _NUMBER},
        ),
        _schema(
            "train_metrics",
            1,
            {"variant": _TEXT, "train_seed": _WHOLE, "iteration": _WHOLE, "metric": _TEXT, "value": _FLOAT},
            key=("variant", "train_seed", "iteration", "metric"),
            ranges={"train_seed": _COUNT, "iteration": _COUNT},
        ),
        replace(_PLAIN_IMAGES, columns=_PLAIN_IMAGES.columns.with_metadata({b"huggingface": _DATASETS_IMAGES})),
        _schema(
            "scores",
            2,
            {
                **_OF_IMAGE,
                "scorer": _TEXT,
                "metric": _TEXT,  # "score" is the scorer's value, the others are its details
                "value": _FLOAT,  # null where the scorer refused the image
                "refusal": _TEXT,  # its reason; null where there is a value
            },
            key=(*_OF_IMAGE, "scorer", "metric"),
            ranges=_IMAGE_RANGES,
            choices=_MODES,
            reasons={"value": "refusal"},
        ),
        _schema(
            "evaluation_history",
            1,
            {
                "evaluation": _TEXT,
                "evaluated_at": pa.timestamp("us", tz="UTC"),
                **dict.fromkeys(("preset", "model_commit", "code_commit"), _TEXT),
                "image_seed": _WHOLE,
                **_OF_SCORE,
                "scorer_hash": _TEXT,
                "mean": _FLOAT,
                **dict.fromkeys(_INTERVAL, _FLOAT),  # NaN with too few captions
                **dict.fromkeys(_COUNTS, _WHOLE),
                "change": _TEXT,
                "reference": _TEXT,  # the evaluation compared with; empty where there is none
                **dict.fromkeys(_COMPARED, _FLOAT),  # NaN where nothing was compared
            },
            key=("evaluation", *_OF_SCORE),
            ranges=dict.fromkeys(_COUNTS, _NUMBER),
            choices=_MODES | {"change": ("first", "scorer", "prompts", "same", "unknown", "none", "moved")},
            undefined=(*_INTERVAL, *_COMPARED),
        ),
        _schema(
            "evaluation_prompts",
            1,
            {
                "evaluation": _TEXT,
                **_OF_SCORE,
                "prompt_id": _TEXT,
                "prompt": _TEXT,
                "mean": _FLOAT,  # over samples and training seeds
                "num_images": _WHOLE,
            },
            key=("evaluation", *_OF_SCORE, "prompt_id"),
            ranges={"num_images": _NUMBER},
            choices=_MODES,
        ),
    )
}
"""Every schema by name, at its present version."""
