"""The shipped checkpoints are those that were measured: every byte, their size, and what their tokenizers say."""

import hashlib
from pathlib import Path

import pytest

from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.models.flux_kontext import FluxKontextFamily
from chunk_grpo.families.models.sd3 import SD3Family
from chunk_grpo.shapes.edits import all_instructions
from chunk_grpo.shapes.prompts import all_prompts, knowledge_prompts

ASSETS = Path(__file__).parents[1] / "assets"
TOYS: dict[str, type[DiffusersFamily]] = {
    "tiny-flux": FluxFamily,
    "tiny-sd3": SD3Family,
    "tiny-kontext": FluxKontextFamily,
}
SHARED = {"vae": "vae", "text_encoder_3": "text_encoder_2", "tokenizer_3": "tokenizer_2"}
"""Folders of the toy SD3, and those of the toy FLUX with the same files."""


def test_every_shipped_checkpoint_is_listed_here() -> None:
    assert {path.name for path in ASSETS.iterdir() if path.is_dir()} == set(TOYS)


@pytest.mark.parametrize("name", TOYS)
def test_every_file_has_its_hash(name: str) -> None:
    """The list has lines of `sha256sum`, as `cd assets && find NAME -type f | sort | xargs sha256sum` prints them."""
    lines = (ASSETS / f"{name}.sha256").read_text(encoding="utf-8").splitlines()
    listed = dict(line.split("  ")[::-1] for line in lines)
    found = {
        path.relative_to(ASSETS).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (ASSETS / name).rglob("*")
        if path.is_file()
    }
    assert found == listed
    assert sum(path.stat().st_size for path in (ASSETS / name).rglob("*")) < 8_000_000


@pytest.mark.parametrize("name", TOYS)
def test_every_word_of_every_caption_is_one_token(name: str) -> None:
    family = TOYS[name].load(LoadOptions(str(ASSETS / name), height=32, width=32), parts=("text",))
    captions = [spec.prompt for spec in all_prompts() + knowledge_prompts()]
    texts = {**dict.fromkeys(TOYS, captions), "tiny-kontext": [each.prompt for each in all_instructions()]}
    for encoder, (folder, _) in family.tokenizers.items():
        tokens, is_t5 = getattr(family._pipeline, folder), encoder == "T5"
        for text in texts[name]:
            words = text.split()
            ids = tokens(text).input_ids
            assert len(ids) == len(words) + (1 if is_t5 else 2) <= tokens.model_max_length  # end; start and end
            assert not is_t5 or tokens.unk_token_id not in ids


@pytest.mark.parametrize("folder", SHARED)
def test_the_toys_share_parts(folder: str) -> None:
    mine, flux = ASSETS / "tiny-sd3" / folder, ASSETS / "tiny-flux" / SHARED[folder]
    files = {path.name: path.read_bytes() for path in mine.iterdir()}
    assert files and files == {path.name: path.read_bytes() for path in flux.iterdir()}
