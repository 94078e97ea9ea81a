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


def _schema(name: SchemaName, version: int, **columns: pa.DataType) -> TableSchema:
    fields = [pa.field(column, kind, nullable=False) for column, kind in columns.items()]
    return TableSchema(name, version, pa.schema(fields))


_COUNT, _NUMBER, _SEED, _LEVEL = (0, inf), (1, inf), (-1, inf), (0, 1)
_MODES = {"mode": ("base", "tuned", "hybrid")}
_OF_IMAGE = ("policy", "mode", "train_seed", "prompt_id", "sample")

_RULES: Mapping[SchemaName, Mapping[str, Any]] = {
    "prompts": {"key": ("prompt_id",), "records": ("metadata",)},
    "embeddings": {"key": ("prompt_id",), "ranges": {"shard": _COUNT, "row": _COUNT}},
    "l1_profile": {
        "key": ("sampler", "prompt_id", "seed", "step"),
        "ranges": {"step": _COUNT, "t": _LEVEL, "t_next": _LEVEL, "l1_rel": _COUNT},
        "choices": {"sampler": ("sde", "ode")},
    },
    "chunk_plan": {
        "key": ("plan", "chunk"),
        "ranges": {
            "chunk": _COUNT,
            "first_step": _COUNT,
            "num_steps": _NUMBER,
            "mean_l1": _COUNT,
            "weight": _COUNT,
        },
    },
    "train_metrics": {
        "key": ("variant", "train_seed", "iteration", "metric"),
        "ranges": {"train_seed": _COUNT, "iteration": _COUNT},
    },
    "images": {"key": _OF_IMAGE, "ranges": {"train_seed": _SEED, "sample": _COUNT}, "choices": _MODES},
    "scores": {
        "key": (*_OF_IMAGE, "scorer", "metric"),
        "ranges": {"train_seed": _SEED, "sample": _COUNT},
        "choices": _MODES,
        "reasons": {"value": "refusal"},
    },
    "evaluation_history": {
        "key": ("evaluation", "policy", "mode", "split", "scorer"),
        "ranges": dict.fromkeys(("num_seeds", "num_prompts", "num_captions", "num_images"), _NUMBER),
        "choices": _MODES | {"change": ("first", "scorer", "prompts", "same", "unknown", "none", "moved")},
        "undefined": (
            *("low", "high", "standard_error", "degrees_of_freedom"),
            *("difference", "band", "p_value"),
        ),
    },
    "evaluation_prompts": {
        "key": ("evaluation", "policy", "mode", "split", "scorer", "prompt_id"),
        "ranges": {"num_images": _NUMBER},
        "choices": _MODES,
    },
}
"""Rules for the rows of each table."""


def _images() -> TableSchema:
    plain = _schema(
        "images",
        1,
        policy=pa.string(),
        mode=pa.string(),  # base | tuned | hybrid
        train_seed=pa.int64(),  # -1 for base
        prompt_id=pa.string(),
        sample=pa.int64(),  # 0.. within the prompt
        seed=pa.int64(),  # seed of its noise
        image=IMAGE,
    )
    return TableSchema(
        plain.name, plain.version, plain.columns.with_metadata({b"huggingface": _DATASETS_IMAGES})
    )


def _scores() -> TableSchema:
    plain = _schema(
        "scores",
        2,
        policy=pa.string(),
        mode=pa.string(),
        train_seed=pa.int64(),
        prompt_id=pa.string(),
        sample=pa.int64(),
        scorer=pa.string(),
        metric=pa.string(),  # "score" is the scorer's value, the others are its details
    )
    of_refused = [
        pa.field("value", pa.float64()),  # null where the scorer refused the image
        pa.field("refusal", pa.string()),  # its reason; null where there is a value
    ]
    return TableSchema(plain.name, plain.version, pa.schema([*plain.columns, *of_refused]))


SCHEMAS: dict[SchemaName, TableSchema] = {
    schema.name: replace(schema, **_RULES[schema.name])
    for schema in (
        _schema(
            "prompts",
            1,
            prompt_id=pa.string(),
            split=pa.string(),  # train | eval | wise
            prompt=pa.string(),
            category=pa.string(),
            metadata=pa.string(),  # JSON
        ),
        _schema(
            "embeddings",
            2,
            prompt_id=pa.string(),
            prompt=pa.string(),
            shard=pa.int64(),  # number of the file shard-NNNNN.safetensors beside the table
            row=pa.int64(),  # row in the tensors of that file
        ),
        _schema(
            "l1_profile",
            1,
            sampler=pa.string(),  # sde | ode
            prompt_id=pa.string(),
            seed=pa.int64(),
            step=pa.int64(),  # 0.. from noise to image
            t=pa.float64(),  # noise level before the step
            t_next=pa.float64(),  # noise level after the step
            l1_rel=pa.float64(),  # Eq. (15)
        ),
        _schema(
            "chunk_plan",
            1,
            plan=pa.string(),
            chunk=pa.int64(),  # 0.. from noise to image
            first_step=pa.int64(),
            num_steps=pa.int64(),
            mean_l1=pa.float64(),
            weight=pa.float64(),  # Eq. (16)
        ),
        _schema(
            "train_metrics",
            1,
            variant=pa.string(),
            train_seed=pa.int64(),
            iteration=pa.int64(),
            metric=pa.string(),
            value=pa.float64(),
        ),
        _images(),
        _scores(),
        _schema(
            "evaluation_history",
            1,
            evaluation=pa.string(),
            evaluated_at=pa.timestamp("us", tz="UTC"),
            preset=pa.string(),
            model_commit=pa.string(),
            code_commit=pa.string(),
            image_seed=pa.int64(),
            policy=pa.string(),
            mode=pa.string(),  # base | tuned | hybrid
            split=pa.string(),
            scorer=pa.string(),
            scorer_hash=pa.string(),
            mean=pa.float64(),
            low=pa.float64(),  # NaN with too few captions, as in the next three columns
            high=pa.float64(),
            standard_error=pa.float64(),
            degrees_of_freedom=pa.float64(),
            num_seeds=pa.int64(),
            num_prompts=pa.int64(),
            num_captions=pa.int64(),
            num_images=pa.int64(),
            change=pa.string(),  # first | scorer | prompts | same | unknown | none | moved
            reference=pa.string(),  # the evaluation compared with; empty where there is none
            difference=pa.float64(),  # NaN where nothing was compared, as the two below
            band=pa.float64(),
            p_value=pa.float64(),
        ),
        _schema(
            "evaluation_prompts",
            1,
            evaluation=pa.string(),
            policy=pa.string(),
            mode=pa.string(),
            split=pa.string(),
            scorer=pa.string(),
            prompt_id=pa.string(),
            prompt=pa.string(),
            mean=pa.float64(),  # over samples and training seeds
            num_images=pa.int64(),
        ),
    )
}
"""Every schema by name, at its present version."""
