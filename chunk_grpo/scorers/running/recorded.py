"""Records of the scorers, by which the stage `inputs` sees an edit."""

from __future__ import annotations

from typing import Any

from chunk_grpo.config import Params
from chunk_grpo.config.judges import JudgeSettings
from chunk_grpo.config.scorer_settings import Weights
from chunk_grpo.config.scorers import AnyExecutor, AnyScorer, ExternalScorer, InSubprocess
from chunk_grpo.digests import Digests, hub_commit
from chunk_grpo.scorers.running.source_files import source_digest


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


def _scorer_content(settings: AnyScorer, executor: AnyExecutor | None, digests: Digests) -> dict[str, str | None]:
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
    return hub_commit("models", weights.checkpoint, weights.revision) if files is None else files
