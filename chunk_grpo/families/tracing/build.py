"""Families and text encoders on fake tensors, from the content of config.json files."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from chunk_grpo.errors import DataError
from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.families.registry import family_class
from chunk_grpo.families.tracing.sizes import Checkpoint, Traced


class _Mode(FakeTensorMode):
    """A mode that a copy of a fake tensor shares; a copied mode corrupts the memory of the process."""

    def __deepcopy__(self, memo: object) -> _Mode:
        return self


@cache
def fake_tensors() -> FakeTensorMode:
    """The one mode of this process: fake tensors of different modes do not mix."""
    return _Mode(allow_non_fake_inputs=True)


@contextmanager
def faked() -> Iterator[None]:
    """Context in which new tensors are fake, and modules that hold fake tensors can be cast."""
    with fake_tensors(), patch("torch.utils.swap_tensors", _set_data):
        yield


def _set_data(target: Tensor, value: Tensor) -> None:
    """Replacement for `torch.utils.swap_tensors`, by which modules are cast: fake tensors refuse to be swapped."""
    target.data = value.data


def check_class(family: str, where: str, config: Mapping[str, Any]) -> None:
    """Require that a network's configuration is of the family's class.

    Args:
        family: `model.family`.
        where: File of the configuration, for the message.
        config: Its content.

    Raises:
        ConfigError: There is no such family.
        DataError: The configuration is of another class.
    """
    wanted, found = family_class(family).network_class.__name__, config.get("_class_name")
    if found != wanted:
        raise DataError(
            f"{where}: _class_name must be {wanted} for model.family {family}, got {found}. Set model.family to the "
            "family of the checkpoint, or choose another checkpoint."
        )


@cache
def network_of(checkpoint: Checkpoint) -> nn.Module:
    """The velocity network; copy it before you change it. DataError if its class does not take the values."""
    of = family_class(checkpoint.family).network_class
    return _made(checkpoint, "transformer", lambda: of.from_config(_config(checkpoint, "transformer")))


@cache
def vae_of(checkpoint: Checkpoint) -> nn.Module:
    """The VAE.

    Raises:
        DataError: diffusers has no such class, or it does not take the values.
    """
    import diffusers

    config = _config(checkpoint, "vae")
    wanted = getattr(diffusers, str(config.get("_class_name")), None)
    if wanted is None:
        raise DataError(
            f"{place(checkpoint, 'vae')}: _class_name must be a class of diffusers, got {config.get('_class_name')}; "
            "give the checkpoint's own file"
        )
    return _made(checkpoint, "vae", lambda: wanted.from_config(config))


@cache
def text_encoders_of(checkpoint: Checkpoint) -> tuple[nn.Module, ...]:
    """The text encoders.

    Raises:
        DataError: transformers has no such class, or it does not take the values.
    """
    import transformers

    found = []
    for name in text_encoders(checkpoint.family):
        config = _config(checkpoint, name)
        architecture = str((config.get("architectures") or [None])[0])
        wanted = getattr(transformers, architecture, None)
        if wanted is None:
            raise DataError(
                f"{place(checkpoint, name)}: architectures must name a class of transformers, got {architecture}; give "
                "the checkpoint's own file"
            )
        make = partial(_text_encoder, wanted, config)
        found.append(_made(checkpoint, name, make))
    return tuple(found)


def _text_encoder(of: Any, config: Mapping[str, Any]) -> nn.Module:
    return cast(nn.Module, of(of.config_class.from_dict(dict(config))))


def component_names(family: str) -> list[str]:
    """Components whose config.json is read.

    Raises:
        ConfigError: There is no such family.
    """
    return ["transformer", "vae", *text_encoders(family)]


def text_encoders(family: str) -> list[str]:
    """Components of a family's part "text" that are networks.

    Raises:
        ConfigError: There is no such family.
    """
    of = family_class(family)
    tokenizers = {folder for folder, _ in of.tokenizers.values()}
    return [name for name in of.components["text"] if name not in tokenizers]


def family_around(what: Traced, network: nn.Module | None, vae: nn.Module | None) -> DiffusersFamily:
    """The family of these networks, without its other parts; call it within `faked`.

    Raises:
        ConfigError: The image size is not a multiple of the token size.
    """
    of = family_class(what.checkpoint.family)
    parts = dict.fromkeys(
        name
        for name, parameter in inspect.signature(of.pipeline_class).parameters.items()
        if parameter.default is inspect.Parameter.empty
    )
    parts |= {"transformer": network, "vae": vae}
    options = LoadOptions(
        what.checkpoint.name,
        dtype=getattr(torch, what.element),
        height=what.height,
        width=what.width,
        cfg_scale=what.cfg_scale,
        cfg_passes=what.cfg_passes,
        max_sequence_length=what.tokens,
    )
    return of(of.pipeline_class(**parts), options)


def retyped(network: nn.Module, dtype: torch.dtype) -> None:
    """Give a network new fake weights and constants of a type; call it within `faked`."""
    for module in network.modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None:
                wide = dtype if weight.is_floating_point() else weight.dtype
                made = torch.empty(weight.shape, dtype=wide)
                module._parameters[name] = nn.Parameter(made, requires_grad=weight.requires_grad)
        for name, value in list(module._buffers.items()):
            if value is not None:
                module._buffers[name] = torch.empty(
                    value.shape, dtype=dtype if value.is_floating_point() else value.dtype
                )


def place(checkpoint: Checkpoint, component: str) -> str:
    """File of a configuration, for messages."""
    return f"{checkpoint.name}/{component}/config.json"


def _config(checkpoint: Checkpoint, component: str) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(checkpoint.configs)[component])


def _made(checkpoint: Checkpoint, component: str, make: Callable[[], nn.Module]) -> nn.Module:
    try:
        with faked():
            return make().requires_grad_(False).eval()
    except Exception as error:  # each class has checks of its own
        raise DataError(
            f"{place(checkpoint, component)}: its class cannot be built ({type(error).__name__}: {error}); give the "
            "checkpoint's own file"
        ) from error
