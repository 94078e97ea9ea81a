"""Artifacts of the stages: schemas, reading and writing, run manifests.

Embeddings are in chunk_grpo.artifacts.embeddings, which imports torch.
"""

from chunk_grpo.artifacts.io import (
    read_json,
    read_parts,
    read_table,
    read_text,
    table_from_rows,
    write_bytes,
    write_csv,
    write_json,
    write_rows,
    write_table,
    write_text,
)
from chunk_grpo.artifacts.manifest import RunManifest, measured_run, read_manifest
from chunk_grpo.artifacts.schemas import SCHEMAS, SchemaName, TableSchema
from chunk_grpo.artifacts.storage import (
    Location,
    check_writable,
    find_files,
    input_dir,
    input_file,
    join,
    output_dir,
    output_file,
)

__all__ = [
    "SCHEMAS",
    "Location",
    "RunManifest",
    "SchemaName",
    "TableSchema",
    "check_writable",
    "find_files",
    "input_dir",
    "input_file",
    "join",
    "measured_run",
    "output_dir",
    "output_file",
    "read_json",
    "read_manifest",
    "read_parts",
    "read_table",
    "read_text",
    "table_from_rows",
    "write_bytes",
    "write_csv",
    "write_json",
    "write_rows",
    "write_table",
    "write_text",
]
