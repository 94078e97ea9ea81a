"""The shipped checkpoint is the one that was measured: every byte, its size, and what its tokenizers say."""

import hashlib
from pathlib import Path

from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.shapes.prompts import all_prompts, knowledge_prompts

ASSETS = Path(__file__).parents[1] / "assets"
LISTED = ASSETS / "tiny-flux.sha256"
"""Lines of `sha256sum`, as `cd assets && find tiny-flux -type f | sort | xargs sha256sum` prints them."""


def test_every_file_has_its_hash() -> None:
    listed = dict(line.split("  ")[::-1] for line in LISTED.read_text(encoding="utf-8").splitlines())
    found = {
        path.relative_to(ASSETS).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (ASSETS / "tiny-flux").rglob("*")
        if path.is_file()
    }
    assert found == listed
    assert sum(path.stat().st_size for path in (ASSETS / "tiny-flux").rglob("*")) < 8_000_000


def test_every_word_of_every_caption_is_one_token() -> None:
    family = FluxFamily.load(LoadOptions(str(ASSETS / "tiny-flux"), height=32, width=32), parts=("text",))
    clip, t5 = family._pipeline.tokenizer, family._pipeline.tokenizer_2
    for spec in all_prompts() + knowledge_prompts():
        words = spec.prompt.split()
        assert len(clip(spec.prompt).input_ids) == len(words) + 2  # start and end
        ids = t5(spec.prompt).input_ids
        assert len(ids) == len(words) + 1 <= 8  # end
        assert t5.unk_token_id not in ids
