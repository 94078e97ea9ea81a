"""Records of the section `policies`: settings and content of each policy, compared with params.yaml."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chunk_grpo.artifacts import read_json
from chunk_grpo.config import Params
from chunk_grpo.config.policies import AnyPolicy, ComparedImages
from chunk_grpo.digests import Digests
from chunk_grpo.errors import DataError
from chunk_grpo.families.weights.records import policy_record


def compared_record(params: Params, name: str, digests: Digests) -> dict[str, Any]:
    """Settings of a compared policy, and content of its files. The revision of a hub id must be a commit."""
    policy = params.policies[name]
    content: Mapping[str, str | None] = (
        {"files": _folder(policy.path, name, digests)}
        if isinstance(policy, ComparedImages)
        else policy_record(policy, f"policies.{name}", digests)
    )
    return {"settings": policy.model_dump(mode="json"), "content": dict(content)}


def _folder(path: str, name: str, digests: Digests) -> str | None:
    found = digests.of(path)
    if not Path(path).is_dir():
        raise DataError(f"policies.{name}.path: must be a folder with images, got {path}, which is none")
    return found


def recorded_policy(params: Params, name: str, location: str) -> AnyPolicy:
    """The compared policy `name`, if it is the one that the stage `inputs` recorded in the JSON file `location`.

    Other settings or files are a DataError.
    """
    if name not in params.policies or compared_record(params, name, Digests()) != read_json(location):
        raise DataError(
            f"policies.{name}: settings or files differ from those recorded in {location}; run `dvc repro` to start "
            "from the current ones"
        )
    return params.policies[name]
