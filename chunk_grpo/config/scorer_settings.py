"""Settings common to scorers of params.yaml: the section's base classes and the types of its values."""

import re
from collections.abc import Mapping
from math import inf, isfinite
from typing import Annotated, Any, ClassVar, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from chunk_grpo.config.section import BatchSize, Name, Section, Text

Dtype = Literal["float32", "bfloat16"]


def _checked_url(url: str) -> str:
    if not re.fullmatch(r"https?://[^\s@?#]+", url) or not _has_a_possible_port(url):
        raise PydanticCustomError(
            "server_url",
            "must be http:// or https:// with a host, and no user, password, query or fragment (store secrets in an "
            "environment variable and name it with another key)",
        )
    return url


def _has_a_possible_port(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


Url = Annotated[str, AfterValidator(_checked_url)]


def _checked_variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise PydanticCustomError(
            "variable", "must be the name of an environment variable: letters, digits and _, no digit first"
        )
    return name


Variable = Annotated[str, AfterValidator(_checked_variable)]
"""Name of an environment variable."""


def _json(values: dict[str, Any]) -> dict[str, Any]:
    """Require values that JSON has: records and processes of scorers get them as JSON."""
    waiting: list[Any] = [values]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
        elif not (value is None or isinstance(value, str | int) or (isinstance(value, float) and isfinite(value))):
            raise PydanticCustomError(
                "json_value",
                "must hold text, finite numbers, true, false, null, lists and mappings with texts as keys (put quotes "
                "around a date)",
            )
    return values


JsonMapping = Annotated[dict[str, Any], AfterValidator(_json)]
"""Values that are passed on, by their names."""


class Weights(Section):
    """Location of a model's files."""

    checkpoint: Text
    """Local folder or hub id. Source: as the section."""
    revision: Text | None
    """Hub commit; null for a local folder."""


class Scale(NamedTuple):
    """Scale of a scorer's values: kind and range as text, and the least and largest value. Higher is always better."""

    text: str
    low: float = -inf
    high: float = inf


RIGHT_OR_NOT = Scale("1: right, 0: not", 0, 1)
UNIT = Scale("0 to 1", 0, 1)


class Network(NamedTuple):
    """A scorer's network on the card: number of weights, and operations an image, about."""

    weights: int
    flop: float


NO_NETWORK = Network(0, 0.0)
"""The scorer takes no GPU: rules, models on the CPU, or a judge elsewhere."""


class ScorerSettings(Section):
    """Settings common to all scorers, and what each kind declares: its class, its network and its scale."""

    SCORER: ClassVar[str]
    """`module:attribute` of the scorer's class, imported on use."""

    EXTRA: ClassVar[str] = "scoring"
    """Extra of this package with the packages that the scorer needs."""

    NETWORK: ClassVar[Network | None]
    """Network by which a run is planned; None: not known, which the plan says."""

    SCALE: ClassVar[Scale]
    """Scale of the values, of a kind whose settings do not change it; others have a `value_scale` of their own."""

    NON_SCORING_FIELDS: ClassVar[frozenset[str]] = frozenset({"splits", "batch_size"})
    """Settings that cannot change a score: the choice of images and the cost of scoring."""

    DATA_FIELDS: ClassVar[tuple[str, ...]] = ()
    """Settings on which `check_data` depends; none: it accepts every prompt."""

    splits: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Splits whose images are scored, each once: `eval`, `wise` (toy world), names of `prompts.benchmarks`; a scorer in
    `rewards` has `eval`."""
    batch_size: BatchSize
    """Images scored at a time; reduced when the device runs out of memory. The last digits apart, does not affect
    results."""

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Require the declarations of a kind where it is defined."""
        super().__pydantic_init_subclass__(**options)
        needed = {"SCORER", "NETWORK"} | ({"SCALE"} if cls.value_scale is ScorerSettings.value_scale else set())
        if "kind" in cls.model_fields and (missing := needed - set(dir(cls))):
            raise TypeError(f"{cls.__name__} must declare {', '.join(sorted(missing))} (CONTRIBUTING.md, Add a scorer)")

    @property
    def value_scale(self) -> Scale:
        """Scale of the values: a score outside of it is an error."""
        return self.SCALE

    @property
    def images_at_once(self) -> int:
        """Number of evaluation images passed to the scorer per call; their scores are stored together."""
        return self.batch_size

    def check_data(self, prompt: str, metadata: Mapping[str, object]) -> None:
        """Check that a prompt has the data that the scorer needs; ValueError names the field and the rule."""


class RefusingScorer(ScorerSettings):
    """Scorer that can fail to judge an image."""

    NON_SCORING_FIELDS: ClassVar[frozenset[str]] = ScorerSettings.NON_SCORING_FIELDS | {"refusals"}

    refusals: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Largest share of the evaluation images without a score; the stage fails above it. After a change images are
    scored again."""
