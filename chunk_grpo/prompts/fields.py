"""Fields of a record: which one holds the prompt, and which one its category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fields:
    """Fields of a record.

    Attributes:
        prompt: Field with the prompt.
        category: Field with the category, or None.
        ignored: Fields that are not read.
    """

    prompt: str
    category: str | None
    ignored: tuple[str, ...]


@dataclass(frozen=True)
class FieldNames:
    """Names of the fields to read.

    Attributes:
        prompt: Field with the prompt; None: the field named prompt or prompts, in any case.
        category: Field with the category; None: the field named category, in any case, if there is one.
    """

    prompt: str | None = None
    category: str | None = None

    def among(self, names: Sequence[str]) -> Fields:
        """Select the fields of a record with these names.

        Raises:
            ValueError: A required field is missing or ambiguous; the message lists the names.
        """
        named = [name for name in names if name.strip()]
        prompts = _matching(named, self.prompt, ("prompt", "prompts"))
        categories = _matching(named, self.category, ("category",))
        there = ", ".join(map(repr, named)) or "none"
        if len(prompts) != 1:
            raise ValueError(
                f"needs one field {self.prompt or 'prompt'!r} with the prompt, got {len(prompts) or 'none'} among the "
                f"fields {there}; name it by `prompt_field`"
            )
        if len(categories) > 1 or (self.category is not None and not categories):
            raise ValueError(
                f"needs one field {self.category or 'category'!r}, got {len(categories) or 'none'} among the fields "
                f"{there}; name it by `category_field`"
            )
        chosen = (*prompts, *categories)
        return Fields(
            prompts[0],
            categories[0] if categories else None,
            tuple(name for name in named if name not in chosen),
        )


def _matching(names: Sequence[str], wanted: str | None, usual: Sequence[str]) -> list[str]:
    return [name for name in names if (name.strip().lower() in usual if wanted is None else name == wanted)]
