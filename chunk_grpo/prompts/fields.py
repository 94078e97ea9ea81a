"""Names of a record's fields: which one holds the prompt, and which one its category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FieldNames:
    """Names of the fields to read.

    Attributes:
        prompt: Field with the prompt; None: the field named prompt or prompts, in any case.
        category: Field with the category; None: the field named category, in any case, if there is one.
    """

    prompt: str | None = None
    category: str | None = None

    def among(self, names: Sequence[str]) -> tuple[str, str | None]:
        """Select the fields of the prompt and of the category, or None, of a record with these names.

        Raises:
            ValueError: A required field is missing or ambiguous; the message lists the names.
        """
        prompts = _matching(names, self.prompt, ("prompt", "prompts"))
        categories = _matching(names, self.category, ("category",))
        there = ", ".join(repr(name) for name in names if name.strip()) or "none"
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
        return prompts[0], categories[0] if categories else None


def _matching(names: Sequence[str], wanted: str | None, usual: Sequence[str]) -> list[str]:
    return [name for name in names if (name.strip().lower() in usual if wanted is None else name == wanted)]
