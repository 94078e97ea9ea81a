"""Train a policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from chunk_grpo.artifacts import read_json, write_json
from chunk_grpo.config.load import tuples
from chunk_grpo.config.models import ChunksParams, ModelParams, SamplingParams
from chunk_grpo.config.scorers import ExternalScorer
from chunk_grpo.config.training import TrainParams
from chunk_grpo.config.variants import VariantParams
from chunk_grpo.core.chunk_sampling import chunk_weights
from chunk_grpo.digests import Digests
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.base import release_memory
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.families.weights.policy import local_policy
from chunk_grpo.families.weights.records import checkpoint_record
from chunk_grpo.library.model import Model
from chunk_grpo.library.runs import moving_settings, resume_key, trained, training_data
from chunk_grpo.library.settings import METHOD, MethodSettings, checked, require_rules
from chunk_grpo.scorers.base import Scorer
from chunk_grpo.scorers.running.external import External
from chunk_grpo.training.method import make_method
from chunk_grpo.training.metrics import MetricRow
from chunk_grpo.training.plans import build_plan
from chunk_grpo.training.run import RunPaths

REWARD = "reward"
"""Name of the training reward in the metrics."""

RewardFunction = Callable[..., Any]
"""`function(images, prompts, metadata)`: a number for each image, higher is better.

Images are uint8 [B, H, W, 3]; prompts are B texts, metadata B records. A class is made once, and its `score` is called.
"""


@dataclass(frozen=True)
class Policy:
    """A trained policy."""

    folder: Path
    """Folder of the trained transformer, or of the adapter with `lora`, in the diffusers layout."""
    metrics: Sequence[MetricRow]
    """(iteration, metric, value), as docs/artifacts.md describes them."""


class TrainingRecord(BaseModel):
    """What a training in a folder was: `training.json` there."""

    model: ModelParams
    """Base model."""
    sampling: SamplingParams
    """Sampler of the rollouts."""
    variant: VariantParams
    """The method."""
    chunks: ChunksParams
    """Its plan."""
    train: TrainParams
    """Sizes and rates."""
    reward: str
    """Name of the reward function."""
    num_prompts: int
    """Number of training prompts."""

    @classmethod
    def of(cls, trained: Path) -> TrainingRecord:
        """The record of a trained policy.

        Args:
            trained: Folder of the transformer, `Policy.folder`.

        Raises:
            DataError: There is none, or not of this version.
        """
        path = trained.parent / "training.json"
        if not (trained.is_dir() and path.exists()):
            raise DataError(
                f"{trained}: must be the folder `transformer` of a policy, with {path.name} beside it; the same call "
                "of `train` writes it"
            )
        content = read_json(str(path))
        try:
            return cls.model_validate(tuples(content))
        except ValidationError as error:
            raise DataError(f"{path}: not of this version of chunk-grpo ({error.errors()[0]['msg']})") from error


def train(
    model: Model,
    prompts: PromptSet,
    held_out: PromptSet,
    reward: RewardFunction,
    method: MethodSettings,
    sampling: SamplingParams,
    profile: Sequence[float],
    folder: str | Path,
    *,
    unseen: Mapping[str, RewardFunction] | None = None,
    seed: int = 0,
    **settings: Any,
) -> Policy:
    """Train a policy from the model, which stays as it is.

    The same call again goes on from the last checkpoint in `folder`; so does a call with more `iterations` after the
    training has ended. With other arguments, files of the model, source of the reward or version of
    this package the folder is refused.

    Args:
        model: The base model.
        prompts: Training prompts.
        held_out: Prompts on which the policy is measured in between.
        reward: Reward that training raises.
        method: The method.
        sampling: Sampler of the rollouts.
        profile: Result of `Model.profile` with the same sampler.
        folder: Folder of the policy, of checkpoints and of logs.
        unseen: Scorers of the held-out images that training does not raise, by name.
        seed: Training seed.
        **settings: Keys of the section `train` of params.yaml, such as `iterations`; those of docs/parameters.md that
            are needed, but `seeds`. `start_from={"path": ...}` names a policy to start from.

    Raises:
        ConfigError: A setting is unknown or wrong, or the reward takes other arguments.
        DataError: A latent, a reward or a gradient is not finite, or the folder holds checkpoints of another training.
        TransientError: The reward does not answer; the same call goes on.
    """
    watched = dict(unseen or {})
    if REWARD in watched:
        raise ConfigError(f"unseen: {REWARD!r} is the name of the training reward; choose another name")
    held = {"scorers": tuple(watched), "num_prompts": len(held_out), **settings.pop("heldout", {})}
    # A later call with more iterations needs the optimiser's state of the last one.
    train = checked(TrainParams, {"seeds": (seed,), "heldout": held, "keep_state": True, **settings}, "train")
    variants = {METHOD: method.variant}
    require_rules(
        model=model.settings,
        variants=variants,
        chunks=method.chunks,
        sampling=sampling,
        train=train,
        rewards={REWARD: 1.0},
    )
    if sampling.cfg_scale != model.cfg_scale:
        raise ConfigError(
            f"sampling.cfg_scale: must be that of the model, {model.cfg_scale:g}, got {sampling.cfg_scale:g}; "
            "use `Model.sampling`"
        )
    if len(profile) != sampling.num_sde_steps:
        raise ConfigError(
            f"profile: must have num_steps - 1 = {sampling.num_sde_steps} values, one for each noisy step, "
            f"got {len(profile)}; measure it with the same sampler"
        )
    if train.prompts_per_iteration > len(prompts):
        raise ConfigError(
            f"prompts_per_iteration: must be <= the number of prompts, {len(prompts)}, "
            f"got {train.prompts_per_iteration}"
        )
    scorers = {
        name: scorer_of(name, each, train.micro_batch_size) for name, each in {REWARD: reward, **watched}.items()
    }
    place = Path(folder)
    times = model.times(sampling.num_steps, sampling.shift)
    plan = build_plan(method.plan, profile)
    chosen = make_method(method.variant, method.plan, sampling, train, plan, chunk_weights(profile, plan), times)
    start = None if train.start_from is None else local_policy(train.start_from, "start_from")
    sections = [model.settings, sampling, method.variant, method.chunks]
    key = resume_key(
        [
            [each.model_dump(mode="json") for each in sections],
            [moving_settings(train, method.variant), seed],
            [_contents(model, start, Digests(place / "checkpoints" / "digests.json")), list(profile)],
            [[each.ids, each.texts, each.metadata] for each in (prompts, held_out)],
            [_source(each) for each in (reward, *watched.values())],
        ]
    )
    paths = RunPaths(place / "checkpoints", key, place / "logs", "policy", start=start)
    data = training_data(prompts, held_out, scorers, {REWARD: 1.0}, train)
    model.release()
    metrics = trained(model, data, chosen, train, seed, paths, place)
    record = TrainingRecord(
        model=model.settings,
        sampling=sampling,
        variant=method.variant,
        chunks=method.chunks,
        train=train,
        reward=reward.__name__,
        num_prompts=len(prompts),
    )
    write_json(record.model_dump(mode="json"), str(place / "training.json"))
    release_memory()
    return Policy(place / "transformer", metrics)


def scorer_of(name: str, function: RewardFunction, batch_size: int) -> Scorer:
    """A function or class of the user as a scorer.

    Raises:
        ConfigError: It takes other arguments.
    """
    settings = ExternalScorer(
        kind="external",
        source=f"{function.__module__}:{function.__qualname__}",
        version=1,
        splits=("eval",),
        batch_size=batch_size,
        options={},
    )
    return External(name, settings, function)


def _contents(model: Model, start: Path | None, digests: Digests) -> list[Any]:
    """Digests of the local files of the base model and of the policy to start from."""
    base, revision = model.settings.checkpoint, model.settings.revision
    found = [
        checkpoint_record(base, revision, digests) if Path(base).exists() else None,
        None if start is None else digests.of(start),
    ]
    digests.save()
    return found


def _source(function: RewardFunction) -> str:
    """Code of a reward."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # made by exec, or written in C
        return function.__qualname__
