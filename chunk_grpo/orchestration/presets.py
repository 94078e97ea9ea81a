"""Presets of conf/: compose one into params.yaml, override parameters, and list the edits of a params.yaml."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from hydra import compose as compose_by_hydra
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field

from chunk_grpo.artifacts.io import write_text
from chunk_grpo.config import Params, parse_params, read_raw_params
from chunk_grpo.config.forbidden import texts
from chunk_grpo.config.load import require_allowed
from chunk_grpo.config.problems import Problem, nearest, show
from chunk_grpo.errors import ConfigError
from chunk_grpo.orchestration.dvc_internals import (
    InvalidArgumentError,
    apply_overrides,
    dump_yaml,
    get_hydra_sweeps,
    load_yaml,
    parse_yaml,
    to_hydra_overrides,
)

_CONF, _CONFIG = "conf", "config"
_MISSING = object()
_CALL = re.compile(r"\$\{(?![\s.\w\[\]-]*\})")
"""What is more than a reference to another key: ${NAME:...}, or nested."""
_SECTIONS = "|".join(name for name in Params.model_fields if name != "composed_from")

Override: TypeAlias = Annotated[str, Field(pattern=rf"^(~|\+\+?)?({_SECTIONS})(\.|=|$)")]
"""Override in Hydra's grammar, as `dvc exp run -S` takes it: `train.iterations=20`, `+variants.b.plan=step`,
`~variants.a`. The first word is a section of params.yaml; what follows is checked once it is applied."""


def preset_names(root: Path) -> list[str]:
    """Names of the presets of a repository, sorted."""
    return _names(root, "preset")


def preset_text(root: Path, preset: str, variants: str | None = None) -> str:
    """The parameters of a preset, a file in conf/preset/ without suffix, as YAML.

    `variants` names a file in conf/variants/ in place of the preset's own; None: its own.
    """
    choices = {"preset": preset} if variants is None else {"preset": preset, "variants": variants}
    for group, name in choices.items():
        if name not in (known := _names(root, group)):
            guess = nearest(name, known)
            hint = f"; did you mean {guess!r}?" if guess else ""
            raise ConfigError(
                f"{group}: must be one of {', '.join(known)} (files of conf/{group}/), got {name!r}{hint}"
            )
    return composed_text(root / _CONF, _CONFIG, choices, f"conf/preset/{preset}.yaml")


def composed_text(conf: Path, config: str, choices: Mapping[str, str], source: str) -> str:
    """Compose a configuration as YAML, as DVC does; `choices` has the file of each group in the defaults.

    A resolver, such as ${oc.env:NAME}, is refused: the result would hold values of the environment, which may be
    secret. `source` names the result in messages.
    """
    try:
        with initialize_config_dir(str(conf.resolve()), version_base=None):
            made = compose_by_hydra(config, [f"{group}={name}" for group, name in choices.items()])
        for path, text, _ in texts(OmegaConf.to_container(made, resolve=False)):
            if _CALL.search(text):
                raise ConfigError(f"{source}: {_refused_call(Problem(path, text))}")
        OmegaConf.resolve(made)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"{source}: cannot be composed: {error}") from error
    return OmegaConf.to_yaml(made)


def _refused_call(what: object) -> str:
    return (
        f"{what}: must not call a resolver (${{NAME:...}}): the value would be taken from the environment, the time or "
        "a decoder, may be secret, and would stand in params.yaml and reports; write the value itself"
    )


def composed(root: Path, preset: str) -> dict[str, Any]:
    """The parameters of a preset; raises as `preset_text`."""
    return dict(parse_yaml(preset_text(root, preset), preset))


def overridden(
    params: Mapping[str, Any], overrides: Sequence[str], variants: Sequence[str] | None, source: str
) -> dict[str, Any]:
    """Return parameters with overrides applied, and with the variants named (None: all).

    The error lists all rules that the result breaks; `source` names it in messages.
    """
    changed = dict(params)
    require_allowed(changed, source)  # before OmegaConf replaces anything
    for override in overrides:
        if len(_values(override, f"{source}: ")) > 1:
            raise ConfigError(
                f"{source}: overrides: {override}: has several values, and a run has one setting; "
                "`chunk-grpo/ablations` runs a setting for each"
            )
    if overrides:
        with tempfile.TemporaryDirectory(prefix="overrides-") as folder:
            file = Path(folder, "params.yaml")
            dump_yaml(str(file), changed)
            try:
                apply_overrides(file, list(overrides))
            except (InvalidArgumentError, OmegaConfBaseException) as error:
                raise ConfigError(f"{source}: overrides: {error.__cause__ or error}") from error
            changed = dict(load_yaml(str(file)))
    known = parse_params(changed, source).variants
    if variants is not None:
        if unknown := [name for name in variants if name not in known]:
            raise ConfigError(f"{source}: variants must be of {', '.join(known)}, got {', '.join(unknown)}")
        changed["variants"] = {name: changed["variants"][name] for name in variants}
        parse_params(changed, source)
    return changed


def combinations(overrides: Sequence[str]) -> list[tuple[str, ...]]:
    """Settings that overrides describe: `train.iterations=10,20` two, several of that kind each combination.

    The grammar is Hydra's, as for `dvc exp run --queue -S`. In a setting, each override has one value.
    """
    return list(product(*map(_values, overrides)))


def _values(override: str, source: str = "") -> list[str]:
    """An override for each of its values; unchanged if it has one. `source` is the start of the message of an error."""
    try:
        (parsed,) = to_hydra_overrides([override])
        if not parsed.is_delete() and _CALL.search(repr(parsed.value())):  # escapes of the grammar are resolved here
            raise ConfigError(f"{source}overrides: {_refused_call(override)}")
        found = [one for (one,) in (sweep[""] for sweep in get_hydra_sweeps({"": [override]}))]
    except (HydraException, InvalidArgumentError) as error:
        raise ConfigError(f"{source}overrides: {override}: {error}") from error
    return found if len(found) > 1 else [override]


def replace_params(root: Path, preset: str, *, force: bool, variants: str | None = None) -> None:
    """Compose a preset into params.yaml, unless edits of the existing file would be lost; `force` overwrites them.

    `variants` as in `preset_text`.
    """
    params, text = root / "params.yaml", preset_text(root, preset, variants)
    source = f"conf/preset/{preset}.yaml" + (f" with conf/variants/{variants}.yaml" if variants else "")
    parse_params(parse_yaml(text, source), source)
    if params.exists() and not force and params.read_bytes() != text.encode():
        _refuse_to_lose_edits(root, params)
    write_text(text, params)


def edits(root: Path, params: Mapping[str, Any]) -> list[Problem]:
    """Differences between parameters and the preset that they were composed from, one per key."""
    preset = params.get("composed_from")
    if not isinstance(preset, str):
        raise ConfigError(f"composed_from: must be the name of a preset, got {show(preset)}")
    return list(_differences(composed(root, preset), params))


def _names(root: Path, group: str) -> list[str]:
    """Names of the files of a group of conf/, sorted."""
    return sorted(path.stem for path in (root / _CONF / group).glob("*.yaml"))


def _refuse_to_lose_edits(root: Path, params: Path) -> None:
    try:
        found = [str(edit) for edit in edits(root, read_raw_params(params))]
    except ConfigError as error:
        found = [f"its edits cannot be listed: {error}"]
    if found:
        raise ConfigError(
            "\n  ".join([f"{params.name}: holds edits, which would be lost:", *found])
            + f"\n{params.name}: holds the edits above, and was left as it is. Copy the file, or move the edits to a "
            f"new preset in {_CONF}/preset/; `chunk-grpo params compose --force` (make params FORCE=1) overwrites it."
        )


def _differences(preset: Any, params: Any, path: tuple[str | int, ...] = ()) -> Iterator[Problem]:
    if isinstance(preset, Mapping) and isinstance(params, Mapping):
        for key in {**preset, **params}:
            there, here = preset.get(key, _MISSING), params.get(key, _MISSING)
            yield from _differences(there, here, (*path, key))
    elif preset is _MISSING:
        yield Problem(path, f"added: {show(params)}")
    elif params is _MISSING:
        yield Problem(path, f"removed; the preset has {show(preset)}")
    elif preset != params:
        yield Problem(path, f"{show(params)}; the preset has {show(preset)}")
