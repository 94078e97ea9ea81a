"""Read params.yaml: text to YAML to Params. All problems are reported in one message."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, DuplicateKeyError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from chunk_grpo.config.forbidden import forbidden_texts, hidden_names
from chunk_grpo.config.models import Params
from chunk_grpo.config.problems import Problem, listed, schema_problems, show
from chunk_grpo.config.rules import broken_rules
from chunk_grpo.errors import ConfigError

NEXT_STEP = "conf/preset/tiny.yaml describes every key."

CONFLICT = re.compile(r"^(<{7}|>{7})( |$)", re.MULTILINE)
"""Markers of git around a conflict."""

MAX_VALUES = 100_000
MAX_DEPTH = 50
"""Limits of values and nesting levels with aliases expanded: a few lines of nested aliases can expand to billions."""


def load_params(path: str | Path = "params.yaml") -> Params:
    """Read and check a parameter file; ConfigError if it cannot be read or parsed, or lists all broken rules.

    The parser is the one DVC uses (YAML 1.2), so that both read the same values.
    """
    return parse_params(read_raw_params(path), str(path))


def read_raw_params(path: str | Path = "params.yaml") -> Mapping[str, Any]:
    """Read a parameter file without checking the rules; ConfigError if it cannot be read or parsed."""
    return parse_yaml(_read_text(Path(path)), str(path))


def parse_params(raw: Mapping[str, Any], source: str = "params") -> Params:
    """Check parsed parameters; ConfigError lists all broken rules, and `source` names the file in it."""
    values = tuples(raw)
    refused = [*hidden_names(values), *forbidden_texts(values)]
    named = {problem.path for problem in refused}
    problems: list[Problem] = []
    try:
        params = Params.model_validate(values)
    except ValidationError as error:
        found = schema_problems(error, values, Params)
        problems = [problem for problem in found if problem.path not in named]
        invalid = {detail["loc"][0] for detail in error.errors(include_url=False) if detail["loc"]}
        sections = {  # those that are valid on their own, for the rules over several keys
            name: _adapter(name).validate_python(values[name], strict=True)
            for name in Params.model_fields
            if name in values and name not in invalid
        }
    else:
        sections = {name: getattr(params, name) for name in Params.model_fields}
    problems += [*refused, *broken_rules(sections)]
    if problems:
        raise ConfigError(listed(source, problems, NEXT_STEP))
    return params


@cache
def _adapter(section: str) -> TypeAdapter[Any]:
    return TypeAdapter(Params.model_fields[section].rebuild_annotation())


def require_allowed(values: Any, source: str) -> None:
    """Require that all texts are allowed; ConfigError lists the places where they are not."""
    if refused := list(forbidden_texts(values)):
        raise ConfigError(listed(source, refused, NEXT_STEP))


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file. Run from the repository's root, where `make params` writes it, or name the file "
            "with --params."
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from error
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{path}, line {line}: must be UTF-8, got the byte 0x{content[error.start]:02x}. Save the file as UTF-8."
        ) from None


class _Constructor(SafeConstructor):
    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Construct a value; Python's own errors, of dates and numbers, become errors of YAML with the line."""
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            problem = f"{show(node.value)} cannot be read ({error}); put quotes around it, or remove its !!tag"
            raise ConstructorError(None, None, problem, node.start_mark) from error


def parse_yaml(text: str, source: str) -> Mapping[str, Any]:
    """Parse the text of a parameter file; ConfigError if it is not YAML, holds a key twice, or is too deep or large."""
    try:
        yaml = YAML(typ="safe", pure=True)
        yaml.Constructor = _Constructor
        raw = yaml.load(text)
    except DuplicateKeyError as error:
        key = re.search(r'found duplicate key "(.*?)"', error.problem or "")
        name = f"the key {key.group(1)!r}" if key else "a key"
        raise ConfigError(
            f"{source}{_line(error)}: {name} appears twice in one mapping; "
            "the second would silently replace the first. Rename or remove one, or move its entries under the first."
        ) from None
    except YAMLError as error:
        detail = error.problem if isinstance(error, MarkedYAMLError) else str(error)
        raise ConfigError(f"{source}{_line(error)}: not YAML: {detail}. {_remedy(text)}") from None
    except RecursionError:
        raise ConfigError(f"{source}: {_TOO_DEEP}") from None
    except ValueError as error:  # of an escape such as "\U00110000"
        raise ConfigError(f"{source}: not YAML: {error}; fix the text with a backslash.") from None
    _check_extent(raw, source)
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{source}: must be a mapping of sections, got {show(raw)}. {NEXT_STEP}")
    return raw


def _remedy(text: str) -> str:
    if CONFLICT.search(text):
        return "The file has conflict markers of git (<<<<<<<): keep one side of each conflict, and remove the markers."
    return f"Mend this line or the one above it; {NEXT_STEP}"


_TOO_DEEP = f"must have at most {MAX_DEPTH} levels, got more; an alias must not be inside its own anchor"


def _check_extent(value: Any, source: str) -> None:
    """Reject content that is too large or too deep with all aliases expanded."""
    count, waiting = 0, [(value, 0)]
    while waiting:
        inner, depth = waiting.pop()
        count += 1
        if depth > MAX_DEPTH:
            raise ConfigError(f"{source}: {_TOO_DEEP}")
        if count > MAX_VALUES:
            raise ConfigError(
                f"{source}: must have at most {MAX_VALUES} values with aliases expanded, got more; use fewer aliases"
            )
        if isinstance(inner, Mapping):
            waiting += [(item, depth + 1) for item in inner.values()]
        elif isinstance(inner, list):
            waiting += [(item, depth + 1) for item in inner]


def _line(error: YAMLError) -> str:
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    return f", line {mark.line + 1}" if mark else ""


def tuples(value: Any) -> Any:
    """Convert lists to tuples: the models hold tuples, and strict validation does not convert."""
    if isinstance(value, Mapping):
        return {key: tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(tuples(item) for item in value)
    return value
