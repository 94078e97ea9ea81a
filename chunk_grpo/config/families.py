"""Names of the model families, found without importing them."""

from __future__ import annotations

from pathlib import Path

from pydantic_core import PydanticCustomError

PACKAGE = "chunk_grpo.families.models"
_FOLDER = Path(__file__).parents[1] / "families" / "models"


def family_names() -> list[str]:
    """Families of this package, a module each."""
    return sorted(path.stem for path in _FOLDER.glob("[a-z]*.py"))


def module_of(name: str) -> str:
    """Module of a family: one of this package, or with a dot in its name a module of the user's."""
    return name if "." in name else f"{PACKAGE}.{name}"


def known_family(name: str) -> str:
    """Return a name that may be a family's; PydanticCustomError if it is neither in this package nor a module's."""
    if name not in family_names() and not is_own(name):
        raise PydanticCustomError(
            "family",
            "must be one of {names}, or a module of yours, such as package.module",
            {"names": ", ".join(family_names())},
        )
    return name


def is_own(name: str) -> bool:
    """Whether the name is that of a user's module."""
    return "." in name and all(part.isidentifier() for part in name.split("."))
