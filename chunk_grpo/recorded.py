"""Records of the base model, of saved policies and of a training's settings, and the check that they are as recorded.

The stage `inputs` writes them. A stage depends on a record, and checks that what it reads is what was recorded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chunk_grpo.artifacts import read_json
from chunk_grpo.config import Params
from chunk_grpo.config.families import is_own
from chunk_grpo.config.models import ModelParams
from chunk_grpo.config.policies import AnyPolicy, ComparedImages
from chunk_grpo.digests import Digests
from chunk_grpo.errors import DataError
from chunk_grpo.families.weights.records import checkpoint_record, policy_record
from chunk_grpo.scorers.running.source_files import source_digest


def require_unchanged(now: Mapping[str, Any], location: str) -> None:
    """Check that records made after a stage has read the user's files equal the records of the stage `inputs`.

    Both are by key of params.yaml; `location` is the stage's JSON file. A difference: a file was edited in the run.
    """
    recorded, now = read_json(location), json.loads(json.dumps(now))  # tuples are lists in JSON
    if changed := [name for name in {**recorded, **now} if recorded.get(name) != now.get(name)]:
        raise DataError(
            f"{', '.join(changed)}: must have the content that {location} records, and was edited since this run "
            "began; run `dvc repro` again to use the edited one"
        )


def model_record(model: ModelParams, digests: Digests) -> dict[str, str | None]:
    """Content of the base model's files, and of the code of a family that is not in this package."""
    record = checkpoint_record(model.checkpoint, model.revision, digests)
    if is_own(model.family):
        record["family"] = source_digest(model.family, (), digests.of)
    return record


def require_model(model: ModelParams, location: str) -> None:
    """Check that the base model is the one that is recorded in the JSON file `location`."""
    if model_record(model, Digests()) != read_json(location):
        raise DataError(
            f"model.checkpoint: the files of {model.checkpoint} differ from those recorded in {location}. They "
            "have changed since, or this machine has other files. Run `dvc repro` to start from the current files."
        )


def training_settings(params: Params, variant: str) -> dict[str, Any]:
    """The settings of a variant's training in `train`, `variants` and `chunks`, for each training seed."""
    own = params.variants[variant]
    return {
        "train": params.train.model_dump(mode="json", exclude={"seeds"}),
        "variant": own.model_dump(mode="json"),
        "plan": params.chunks.plans[own.plan].model_dump(mode="json"),
    }


def start_record(params: Params, digests: Digests) -> dict[str, str | None] | None:
    """Content of the policy with which training starts; None for the base model."""
    start = params.train.start_from
    return None if start is None else policy_record(start, "train.start_from", digests)


def require_training(params: Params, variant: str, location: str) -> None:
    """Check that a training's settings, and the policy with which it starts, are those in the JSON file `location`."""
    recorded, start = read_json(location), params.train.start_from
    record = recorded.pop("start")
    if recorded != training_settings(params, variant):
        raise DataError(
            f"{location}: must have the settings of params.yaml for variant {variant}, got others; run `dvc repro`"
        )
    if start is not None and start_record(params, Digests()) != record:
        raise DataError(
            f"train.start_from: the files of {start.path} differ from those recorded in {location}; run "
            "`dvc repro` to start from the current ones"
        )


def compared_record(params: Params, name: str, digests: Digests) -> dict[str, Any]:
    """Settings of a compared policy, and content of its files. The revision of a hub id must be a commit."""
    policy, key = params.policies[name], f"policies.{name}"
    if isinstance(policy, ComparedImages):
        content: Mapping[str, str | None] = {"files": digests.of(policy.path)}
        if not Path(policy.path).is_dir():
            raise DataError(f"{key}.path: must be a folder with images, got {policy.path}, which is none")
    else:
        content = policy_record(policy, key, digests)
    return {"settings": policy.model_dump(mode="json"), "content": dict(content)}


def recorded_policy(params: Params, name: str, location: str) -> AnyPolicy:
    """The compared policy `name`, if it is the one that is recorded in the JSON file `location`."""
    if name not in params.policies or compared_record(params, name, Digests()) != read_json(location):
        raise DataError(
            f"policies.{name}: settings or files differ from those recorded in {location}; run `dvc repro` to start "
            "from the current ones"
        )
    return params.policies[name]
