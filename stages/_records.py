"""Records of the user's checkpoint, prompt files and scorers, and the check that they are as recorded."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chunk_grpo.artifacts import read_json
from chunk_grpo.artifacts.storage import filesystem, is_remote, storage_errors
from chunk_grpo.config import Params
from chunk_grpo.config.families import is_own
from chunk_grpo.config.judges import JudgeSettings
from chunk_grpo.config.prompts import (
    AnyBenchmark,
    CocoPrompts,
    DpgPrompts,
    FilePrompts,
    GenEvalPrompts,
    PromptFile,
)
from chunk_grpo.config.scorer_settings import Weights
from chunk_grpo.config.scorers import AnyExecutor, AnyScorer, ExternalScorer, InSubprocess
from chunk_grpo.digests import Digests
from chunk_grpo.errors import DataError
from chunk_grpo.families.weights.records import checkpoint_record
from chunk_grpo.scorers.running.source_files import source_digest
from stages._scorer_data import data_needs

_VERSION = ("ETag", "etag", "LastModified", "last_modified", "mtime", "size")
"""Fields of an object's metadata that change with its content; stores name them differently."""


def require_unchanged(now: Mapping[str, Any], location: str) -> None:
    """Check that records made after a stage has read the user's files equal those of the stage `inputs`.

    They are by key of params.yaml, in the JSON file `location` too. A difference: a file was edited during the run.
    """
    recorded, now = read_json(location), json.loads(json.dumps(now))  # tuples are lists in JSON
    if changed := [name for name in {**recorded, **now} if recorded.get(name) != now.get(name)]:
        raise DataError(
            f"{', '.join(changed)}: must have the content that {location} records, and was edited since this run "
            "began; run `dvc repro` again to use the edited one"
        )


def model_record(params: Params, digests: Digests) -> dict[str, str | None]:
    """Content of the base model's files, and of the code of a family that is not in this package."""
    model = params.model
    record = checkpoint_record(model.checkpoint, model.revision, digests)
    if is_own(model.family):
        record["family"] = source_digest(model.family, (), digests.of)
    return record


def require_model(params: Params, location: str) -> None:
    """Check that the base model is the one that the stage `inputs` recorded in the JSON file `location`.

    The record has its files, and the code of a family that is not in this package.
    """
    if model_record(params, Digests()) != read_json(location):
        raise DataError(
            f"model.checkpoint: the files of {params.model.checkpoint} differ from those recorded in {location}. They "
            "have changed since, or this machine has other files. Run `dvc repro` to start from the current files."
        )


def prompt_records(params: Params, digests: Digests) -> dict[str, Any]:
    """Content digests of the prompt files, by their key in params.yaml, and the data that scorers need."""
    prompts = params.prompts
    files = {"train_file": prompts.train_file, "eval_file": prompts.eval_file}
    named: dict[str, Any] = {
        name: _content_of(file, digests) for name, file in files.items() if file is not None
    }
    named |= {name: _benchmark(benchmark, digests) for name, benchmark in prompts.benchmarks.items()}
    needed = data_needs(params)
    return named | ({"data for scorers": needed} if needed else {})  # with spaces: no name of a benchmark


def _benchmark(benchmark: AnyBenchmark, digests: Digests) -> list[str | None]:
    if isinstance(benchmark, CocoPrompts):
        return []
    if isinstance(benchmark, FilePrompts):
        return [_content_of(benchmark.file, digests)]
    paths = (
        [benchmark.path]
        if isinstance(benchmark, (GenEvalPrompts, DpgPrompts))
        else [*benchmark.paths, *benchmark.rewritten]
    )
    return [_content(path, digests) for path in paths]


def _content_of(file: PromptFile, digests: Digests) -> str | None:
    if file.hub_file is None:
        return _content(file.path, digests)
    return _hub_commit("datasets", file.path, file.revision)


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


def scorer_records(params: Params, digests: Digests) -> dict[str, Any]:
    """Settings of each scorer, with content digests of the files that they name.

    They are a JSON file because DVC treats 1, 1.0 and true in params.yaml as the same value.
    """
    return {
        name: {
            "settings": settings.model_dump(mode="json"),
            "content": _scorer_content(settings, params.executors.get(name), digests),
        }
        for name, settings in params.scorers.items()
    }


def _scorer_content(
    settings: AnyScorer, executor: AnyExecutor | None, digests: Digests
) -> dict[str, str | None]:
    content = {
        field: _weights(value, digests)
        for field in type(settings).model_fields
        if isinstance(value := getattr(settings, field), Weights)
    }
    if isinstance(settings, JudgeSettings):
        content |= {name: digests.of(path) for name, path in settings.wording_files.items()}
    if isinstance(settings, ExternalScorer):
        content["source"] = source_digest(settings.source, settings.files, digests.of)
    if isinstance(executor, InSubprocess) and executor.script is not None:
        content["script"] = digests.of(executor.script)
    return content


def _weights(weights: Weights, digests: Digests) -> str | None:
    files = digests.of(weights.checkpoint)
    return _hub_commit("models", weights.checkpoint, weights.revision) if files is None else files


def _hub_commit(kind: str, repository: str, revision: str | None) -> str | None:
    """The commit of a revision in the hub's local cache; without a download, the revision itself."""
    from huggingface_hub.constants import HF_HUB_CACHE  # here: only inputs of the hub need the package

    reference = Path(HF_HUB_CACHE, f"{kind}--{repository.replace('/', '--')}", "refs", revision or "main")
    return reference.read_text().strip() if reference.is_file() else revision
