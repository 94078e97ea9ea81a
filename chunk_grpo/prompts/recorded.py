"""Records of the prompt files, by which the stage `inputs` sees an edit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chunk_grpo.artifacts.storage import filesystem, is_remote, storage_errors
from chunk_grpo.config import Params
from chunk_grpo.config.prompt_rules import prompt_files
from chunk_grpo.config.prompts import AnyBenchmark, CocoPrompts, FilePrompts, PromptFile, WisePrompts
from chunk_grpo.digests import Digests, hub_commit
from chunk_grpo.prompts.read import read_prompt_file
from chunk_grpo.prompts.scorer_data import data_needs

_VERSION = ("ETag", "etag", "LastModified", "last_modified", "mtime", "size")
"""Fields of an object's metadata that change with its content; stores name them differently."""


def prompt_records(params: Params, digests: Digests) -> dict[str, Any]:
    """Content digests of the prompt files, by their key in params.yaml, and the data that scorers need."""
    files = {"train_file": params.prompts.train_file, "eval_file": params.prompts.eval_file}
    named: dict[str, Any] = {name: _file(file, digests) for name, file in files.items() if file is not None}
    named |= {name: _benchmark(benchmark, digests) for name, benchmark in params.prompts.benchmarks.items()}
    needed = data_needs(params)
    for path, file in prompt_files(params.prompts):
        if file.picture_field is not None:
            named[f"pictures of {'.'.join(path)}"] = _pictures(file, ".".join(path), params, digests)
    return named | ({"data for scorers": needed} if needed else {})  # with spaces: no name of a benchmark


def _benchmark(benchmark: AnyBenchmark, digests: Digests) -> list[str | None]:
    if isinstance(benchmark, CocoPrompts):
        return []
    if isinstance(benchmark, FilePrompts):
        return [_file(benchmark.file, digests)]
    if isinstance(benchmark, WisePrompts):
        return [_content(path, digests) for path in (*benchmark.paths, *benchmark.rewritten)]
    return [_content(benchmark.path, digests)]


def _file(file: PromptFile, digests: Digests) -> str | None:
    if file.hub_file is None:
        return _content(file.path, digests)
    return hub_commit("datasets", file.path, file.revision)


def _pictures(file: PromptFile, key: str, params: Params, digests: Digests) -> dict[str, str | None]:
    """Digest of each picture by its name in the file."""
    rows = read_prompt_file(file, params.prompts.checks, key).rows
    folder = Path(file.path).parent
    return {name: digests.of(folder / name) for name in dict.fromkeys(str(row.picture) for row in rows)}


def _content(location: str, digests: Digests) -> str | None:
    """Digest of a local file, or of a remote object's version metadata: reading the object could take long."""
    if not is_remote(location):
        return digests.of(location)
    with storage_errors("read", location):
        try:
            info: Mapping[str, Any] = filesystem(location).info(location)
        except FileNotFoundError:
            return None
    version = {name: str(info[name]) for name in _VERSION if info.get(name) is not None}
    return hashlib.sha256(json.dumps(version, sort_keys=True).encode()).hexdigest()
