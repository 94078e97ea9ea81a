"""The recipe of the toy that edits: what it takes over from the toy FLUX, and its steps in small."""

import json
from pathlib import Path

import numpy as np
import torch
from diffusers import FluxKontextPipeline, FluxTransformer2DModel
from PIL import Image
from transformers import CLIPTextModel, CLIPTokenizer, T5EncoderModel, T5Tokenizer

from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.shapes.edits import EDIT_KINDS, all_instructions
from chunk_grpo.shapes.render import render
from pretraining import edit_encoders, initial, transformer
from pretraining.common import EditStream
from pretraining.evaluate import evaluation_edits
from pretraining.text_encoders import build_encoders, build_tokenizers, captions
from pretraining.toys import KONTEXT, SHIPPED, load_toy
from tests.pretraining.conftest import small

SIZES = {"height": 32, "width": 32, "max_sequence_length": 8}


def test_shared_words_keep_their_vectors_and_every_other_weight_is_the_shipped_one() -> None:
    settings = load_toy(KONTEXT).params["text"]
    words = [*captions(), *(instruction.prompt for instruction in all_instructions())]
    kinds = (
        ("text_encoder", CLIPTextModel, CLIPTokenizer, "text_model.embeddings.token_embedding.weight"),
        ("text_encoder_2", T5EncoderModel, T5Tokenizer, "shared.weight"),
    )
    tokenizers = build_tokenizers(settings, words)
    models = build_encoders(settings, *tokenizers)
    for (folder, kind, tokens, table), new, model in zip(kinds, tokenizers, models, strict=True):
        old = tokens.from_pretrained(SHIPPED / folder.replace("text_encoder", "tokenizer"))
        shipped = kind.from_pretrained(SHIPPED / folder, dtype=torch.float32)
        edit_encoders.start_from(shipped, model, old, new)
        before, after = shipped.state_dict(), model.state_dict()
        grown = [name for name, value in after.items() if value.shape != before[name].shape]
        assert any(name.endswith(table.rpartition("text_model.")[2]) for name in grown)
        assert all(torch.equal(after[name], before[name]) for name in after if name not in grown)
        for text in captions()[::50]:
            ids, others = new(text).input_ids, old(text).input_ids
            assert len(ids) == len(others)
            for name in grown:
                assert torch.equal(after[name][ids], before[name][others])


def test_the_first_network_is_the_toy_flux_with_one_pooled_vector_for_all_texts() -> None:
    network = initial.build(load_toy(KONTEXT))
    shipped = FluxTransformer2DModel.from_pretrained(SHIPPED / "transformer", dtype=torch.float32)
    before = shipped.state_dict()
    changed = [name for name, value in network.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == [f"time_text_embed.text_embedder.linear_2.{name}" for name in ("weight", "bias")]
    family = FluxFamily.load(LoadOptions(str(SHIPPED), **SIZES), parts=("text",))
    pooled = family.encode([spec for spec in captions() if "shape" not in spec and "like" not in spec])["pooled"]
    with torch.no_grad():
        own, theirs = (each.time_text_embed.text_embedder(pooled) for each in (network, shipped))
    assert torch.equal(own, own[:1].expand_as(own))
    torch.testing.assert_close(own[0], theirs.mean(dim=0), rtol=1e-4, atol=1e-4)


def test_a_stream_of_edits_shows_sources_and_results_of_each_kind() -> None:
    specs, images, sources = EditStream(0, torch.device("cpu")).batch(60)
    assert sources is not None and images.shape == sources.shape == (60, 3, 32, 32)
    changed = (images != sources).any(dim=1)  # [60, 32, 32]
    for edit, where in zip(specs, changed, strict=True):
        thing = edit.source.things[0]
        rows, columns = np.nonzero(where.numpy())
        away = max(np.abs(rows + 0.5 - thing.y).max(), np.abs(columns + 0.5 - thing.x).max())
        assert where.any() and away <= thing.radius + 1
    assert {edit.kind for edit in specs} == set(EDIT_KINDS)
    only = EditStream(0, torch.device("cpu"), {"recolour": 0, "remove": 0}).batch(20)
    assert {edit.kind for edit in only.specs} == {"replace"}
    assert [edit.kind for edit in evaluation_edits(2, 0)] == [kind for kind in EDIT_KINDS for _ in range(2)]


def test_a_mistake_is_the_picture_as_it_was() -> None:
    specs, images, sources = EditStream(0, torch.device("cpu"), mistakes=0.4).batch(300)
    assert sources is not None
    unedited = (images == sources).flatten(1).all(dim=1)
    assert 0.3 < unedited.float().mean() < 0.5
    right = images == render([edit.result for edit in specs]) * 2 - 1
    assert torch.equal(right.flatten(1).all(dim=1), ~unedited)


def test_the_steps_make_a_pipeline_that_edits(tmp_path: Path) -> None:
    toy = small(KONTEXT, "edits", 2, tmp_path)
    edit_encoders.train(toy)
    initial.save_network(initial.build(toy), toy.phase_folder("initial"))
    initial.write_pipeline_index(toy)
    transformer.train(toy, "edits")
    (row,) = map(json.loads, toy.curve("transformer-edits").read_text().splitlines())
    assert row["step"] == 2 and {*EDIT_KINDS, "exact", "graded", "asked", "kept"} <= row.keys()
    toy.phase_folder("edits").rename(toy.checkpoint / "transformer")
    for name in ("vae/config.json", "vae/diffusion_pytorch_model.safetensors"):
        assert (toy.checkpoint / name).read_bytes() == (SHIPPED / name).read_bytes()
    pipeline = FluxKontextPipeline.from_pretrained(toy.checkpoint, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    source = Image.new("RGB", (32, 32), "white")
    picture = pipeline(
        source, "make the circle red", num_inference_steps=2, max_area=32 * 32, _auto_resize=False, **SIZES
    ).images[0]
    assert picture.size == (32, 32)
