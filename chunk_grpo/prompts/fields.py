"""Names of a record's fields: those of the prompt, of its category, and of the metadata."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from chunk_grpo.prompts.findings import listed


@dataclass(frozen=True)
class ChosenFields:
    """Fields to read."""

    prompt: str
    """Field of the prompt."""
    category: str | None
    """Field of its category; None: it has none."""
    metadata: tuple[str, ...]
    """Fields that scorers get."""
    picture: str | None = None
    """Field with the path of the picture to edit; None: there is none."""


@dataclass(frozen=True)
class FieldNames:
    """Names of the fields to read."""

    prompt: str | None = None
    """Field with the prompt; None: the field named prompt or prompts, in any case."""
    category: str | None = None
    """Field with the category; None: the field named category, in any case, if there is one."""
    metadata: tuple[str, ...] | None = None
    """Fields that scorers get; None: all others."""
    picture: str | None = None
    """Field with the path of the picture to edit; None: the prompts edit none."""
    key: str = ""
    """Key of the file in params.yaml, for messages; "": it has none."""

    def setting(self, name: str) -> str:
        """A setting of the file, as messages name it."""
        return f"`{self.key}.{name}`" if self.key else f"`{name}`"

    def among(self, names: Sequence[str]) -> ChosenFields:
        """Select the fields of a record with these names; ValueError if a required one is missing or ambiguous."""
        prompts = _matching(names, self.prompt, ("prompt", "prompts"))
        categories = _matching(names, self.category, ("category",))
        if len(prompts) != 1:
            field = f"{self.prompt or 'prompt'!r} with the prompt"
            raise _not_one(field, len(prompts), names, f"name it by {self.setting('prompt_field')}")
        if len(categories) > 1 or (self.category is not None and not categories):
            field = repr(self.category or "category")
            raise _not_one(field, len(categories), names, f"name it by {self.setting('category_field')}")
        category, picture = (categories[0] if categories else None), self.picture
        if picture is not None and names.count(picture) != 1:
            remedy = f"name the field with the pictures by {self.setting('picture_field')}"
            raise _not_one(repr(picture), names.count(picture), names, remedy)
        others = [name for name in names if name.strip() and name not in (prompts[0], category, picture)]
        wanted = others if self.metadata is None else list(self.metadata)
        counts = Counter(names)
        for name in wanted:
            if counts[name] != 1:
                remedy = f"name the fields that scorers get by {self.setting('metadata_fields')} ([]: none)"
                raise _not_one(repr(name), counts[name], names, remedy)
        return ChosenFields(prompts[0], category, tuple(wanted), picture)


def _not_one(field: str, count: int, names: Sequence[str], remedy: str) -> ValueError:
    there = listed(name for name in names if name.strip())
    return ValueError(f"needs one field {field}, got {count or 'none'} among the fields {there}; {remedy}")


def _matching(names: Sequence[str], wanted: str | None, usual: Sequence[str]) -> list[str]:
    return [name for name in names if (name.strip().lower() in usual if wanted is None else name == wanted)]
