"""Validate params.yaml, and record the content of the user's files; the stages that read them depend on the records.

This stage always runs. Unchanged files give identical records, so that no other stage runs again.
"""

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chunk_grpo.artifacts import output_dir, write_json
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
from chunk_grpo.families.recorded import checkpoint_record, policy_record
from chunk_grpo.scorers.running.source_files import source_digest
from stages._compared import compared_record
from stages._scorer_data import data_needs
from stages._settings import training_settings
from stages._stage import argument, run_stage

_VERSION = ("ETag", "etag", "LastModified", "last_modified", "mtime", "size")
"""Fields of an object's metadata that change with its content; stores name them differently."""


@dataclass(frozen=True)
class Arguments:
    model: str = field(metadata=argument("JSON: content of the base model's files", writes=True))
    prompts: str = field(metadata=argument("JSON: content of the prompt files", writes=True))
    scorers: str = field(
        metadata=argument("JSON: settings of each scorer, and content of its code and files", writes=True)
    )
    variants: str = field(
        metadata=argument(
            "folder for VARIANT.json: settings of each variant's training, and content of the policy it starts from",
            writes=True,
        )
    )
    policies: str = field(
        metadata=argument("folder for NAME.json: each compared policy, and content of its files", writes=True)
    )
    names: str = field(
        metadata=argument("JSON: names in the order of params.yaml; DVC ignores that order", writes=True)
    )


def model_record(params: Params, digests: Digests) -> dict[str, str | None]:
    """Content of the base model's files, and of the code of a family that is not in this package."""
    model = params.model
    record = checkpoint_record(model.checkpoint, model.revision, digests)
    if is_own(model.family):
        record["family"] = source_digest(model.family, (), digests.of)
    return record


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
    if Path(weights.checkpoint).exists():
        return digests.of(weights.checkpoint)
    return _hub_commit("models", weights.checkpoint, weights.revision)


def _hub_commit(kind: str, repository: str, revision: str | None) -> str | None:
    """The commit of a revision in the hub's local cache; without a download, the revision itself."""
    from huggingface_hub.constants import HF_HUB_CACHE  # here: only inputs of the hub need the package

    reference = Path(HF_HUB_CACHE, f"{kind}--{repository.replace('/', '--')}", "refs", revision or "main")
    return reference.read_text().strip() if reference.is_file() else revision


def start_record(params: Params, digests: Digests) -> dict[str, str | None] | None:
    """Content of the policy with which training starts; None for the base model."""
    start = params.train.start_from
    return None if start is None else policy_record(start, "train.start_from", digests)


def name_records(params: Params) -> dict[str, list[str]]:
    """Names in the order of params.yaml, which is the order in the report."""
    mappings: dict[str, Mapping[str, object]] = {
        "variants": params.variants,
        "scorers": params.scorers,
        "plans": params.chunks.plans,
        "benchmarks": params.prompts.benchmarks,
        "policies": params.policies,
    }
    return {key: list(mapping) for key, mapping in mappings.items()}


def main(params: Params, arguments: Arguments) -> None:
    """Write one record per kind of file."""
    digests = Digests()
    write_json(model_record(params, digests), arguments.model)
    write_json(prompt_records(params, digests), arguments.prompts)
    write_json(scorer_records(params, digests), arguments.scorers)
    start = start_record(params, digests)
    with output_dir(arguments.variants) as folder:
        for name in params.variants:
            settings = training_settings(params, name)
            write_json({**settings, "start": start}, str(folder / f"{name}.json"))
    with output_dir(arguments.policies) as folder:
        for name in params.policies:
            write_json(compared_record(params, name, digests), str(folder / f"{name}.json"))
    write_json(name_records(params), arguments.names)
    digests.save()


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
