"""The base model against params.yaml, before any other work: from configurations and the headers of files alone."""

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from chunk_grpo.artifacts.io import write_text
from chunk_grpo.config import Params
from chunk_grpo.config.policies import PolicyFiles
from chunk_grpo.config.prompt_rules import edits
from chunk_grpo.families.weights.records import may_be_hub_id

MEMORY = Path(".inputs/checked-model")
"""Digest of what was last found right. Deleting it costs only time."""


def check_model(params: Params, record: Mapping[str, str | None], start: Mapping[str, str | None] | None) -> None:
    """Check that files, networks and settings fit each other. What was found right is not checked again.

    `record` is the content of the base model's files, `start` that of the policy with which training starts. Of a hub
    id, sizes and layers are checked if its configurations are here; else, as its policies, by the stages that load it.
    But the hub is asked here whether it gives them, since a licence that nobody accepted would end the run only there.
    """
    lora = params.train.lora
    given = [
        dict(record),
        None if start is None else dict(start),
        params.model.model_dump(mode="json"),
        [params.generate.height, params.generate.width, params.sampling.cfg_scale, params.generate.cfg_scale],
        None if lora is None else list(lora.targets),
        edits(params.prompts),
        None if params.train.start_from is None else params.train.start_from.model_dump(mode="json"),
        _of_the_hub(params),
        [version(name) for name in ("chunk-grpo", "diffusers", "transformers", "peft")],
    ]
    digest = hashlib.sha256(json.dumps(given).encode()).hexdigest()
    if MEMORY.is_file() and MEMORY.read_bytes() == digest.encode():
        return
    _check(params)
    MEMORY.parent.mkdir(parents=True, exist_ok=True)
    write_text(digest, str(MEMORY))


def _check(params: Params) -> None:
    # Here, because torch and diffusers take seconds.
    from chunk_grpo.families.base import TuningOptions
    from chunk_grpo.families.options import options_of
    from chunk_grpo.families.quantised import quantiser
    from chunk_grpo.families.registry import check_checkpoint, check_edits
    from chunk_grpo.families.tracing import Traced, network_sizes
    from chunk_grpo.families.weights.checkpoint import warn_of_distilled
    from chunk_grpo.families.weights.hub import require_access
    from chunk_grpo.families.weights.policy import local_policy
    from chunk_grpo.planning.models import read_checkpoint

    model, lora = params.model, params.train.lora
    check_edits(model.family, edits=edits(params.prompts))
    if model.base_precision is not None:
        quantiser(model.base_precision, "model.base_precision")
    if model.text_precision is not None:
        quantiser(model.text_precision, "model.text_precision")
    for key, (repository, revision) in _of_the_hub(params).items():
        require_access(key, repository, revision)
    sizes = [(part.height, part.width) for part in (model, params.generate)]
    if not may_be_hub_id(model.checkpoint):
        guidance = max(params.sampling.cfg_scale, params.generate.cfg_scale)
        options = options_of(model, guidance, model)
        policy = params.train.start_from
        start = local_policy(policy, "train.start_from") if policy and Path(policy.path).exists() else None
        check_checkpoint(model.family, options, sizes, None if lora is None else lora.targets, start)
    elif place := _with_configurations(model.checkpoint, model.revision):
        checkpoint = read_checkpoint(model.family, place)
        warn_of_distilled(model.checkpoint, json.loads(checkpoint.configs)["transformer"])
        tuning = None if lora is None else TuningOptions(lora.rank, lora.alpha, lora.targets, False, None)
        for height, width in sizes:
            source = (height, width) if edits(params.prompts) else None
            length = model.max_sequence_length
            network_sizes(Traced(checkpoint, model.dtype, height, width, length, source=source, tuning=tuning))
    else:
        warn_of_distilled(model.checkpoint)


def _of_the_hub(params: Params) -> dict[str, tuple[str, str | None]]:
    """Hub ids of the base model and of saved policies with their revisions, by key of params.yaml."""
    policies = {"train.start_from": params.train.start_from} | {
        f"policies.{name}": policy for name, policy in params.policies.items()
    }
    places = {"model.checkpoint": (params.model.checkpoint, params.model.revision)} | {
        f"{key}.path": (policy.path, policy.revision)
        for key, policy in policies.items()
        if isinstance(policy, PolicyFiles)
    }
    return {key: place for key, place in places.items() if may_be_hub_id(place[0])}


def _with_configurations(hub_id: str, revision: str | None) -> str | None:
    """The hub id if its configurations are known, or its folder in the hub's cache; None: they are not here."""
    from huggingface_hub import try_to_load_from_cache

    from chunk_grpo.planning.models import known_file

    if known_file(hub_id).is_file():
        return hub_id
    found = try_to_load_from_cache(hub_id, "transformer/config.json", revision=revision)
    return str(Path(found).parents[1]) if isinstance(found, str) else None
