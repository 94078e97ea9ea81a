"""Saved policies that params.yaml names: where training starts, and what the report compares beside the variants."""

from typing import Annotated, Literal

from pydantic import Field

from chunk_grpo.config.section import Section, Text


class PolicyFiles(Section):
    """A saved policy: an adapter (LoRA), or a transformer in the layout of diffusers."""

    path: Text
    """Folder, file of an adapter, or hub id. In a folder: `transformer/`, as training and pipelines have it, a
    transformer, or an adapter in the layout of diffusers or PEFT."""
    revision: str | None = None
    """Hub commit; null for local files."""
    file: Text | None = None
    """Name of the adapter's file, for a folder or hub id with several; null: the only one."""


class ComparedPolicy(PolicyFiles):
    """A saved policy that draws evaluation images."""

    kind: Literal["weights"]


class ComparedImages(Section):
    """Images that were made elsewhere."""

    kind: Literal["images"]
    path: Text
    """Folder with image files and `metadata.jsonl`, a line for each image with `file_name` and `prompt`. Each prompt
    with evaluation images needs `generate.images_per_prompt` of them; the first ones count."""


AnyPolicy = Annotated[ComparedPolicy | ComparedImages, Field(discriminator="kind")]
