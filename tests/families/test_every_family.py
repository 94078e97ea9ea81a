"""Each family on a small random checkpoint in the real layout, against diffusers' own call of its pipeline."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from chunk_grpo.config.families import family_names
from chunk_grpo.errors import ConfigError
from chunk_grpo.families.base import Conditioning, TuningOptions
from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.families.registry import check_edits, family_class
from chunk_grpo.families.tokens import token_limits
from chunk_grpo.image_files import AWAY
from tests.families.parity import PROMPTS, as_images, as_loaded, differences, encoded, module_of, pictures

NAMES = family_names()
TOYS = Path(__file__).parents[2] / "assets"
GUIDED = [(name, scale) for name in NAMES for scale in module_of(name).CASE.scales]
ONLY_EDITING = [name for name in NAMES if family_class(name).only_edits]
EDITING = [(name, scale) for name, scale in GUIDED if module_of(name).CASE.sources]


def counts_itself(name: str) -> bool:
    """Whether a family counts a prompt's tokens in another way than most."""
    return family_class(name).token_count.__func__ is not DiffusersFamily.token_count.__func__


@pytest.mark.parametrize(("name", "scale"), GUIDED)
def test_latents_and_pictures_equal_those_of_diffusers_pipeline(name, scale, checkpoints):
    """Encoding, velocity, grid, guidance and decoding; the prompts have unequal lengths."""
    for kind, size, batch in zip(("sharded", "bf16"), module_of(name).CASE.sizes, (4, 1), strict=True):
        assert max(differences(name, checkpoints(name)[kind], size, batch, scale)) < 1e-5


@pytest.mark.parametrize(("name", "scale"), EDITING)
def test_edited_pictures_equal_those_of_diffusers_pipeline(name, scale, checkpoints):
    """The source pictures have another size than the images, and equal ones."""
    case = module_of(name).CASE
    for kind, size, source, batch in zip(("sharded", "bf16"), case.sizes, case.sources, (2, 1), strict=True):
        assert max(differences(name, checkpoints(name)[kind], size, batch, scale, source=source)) < 1e-5


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in EDITING))
def test_source_pictures_move_the_velocity(name, checkpoints):
    """With guidance too: both of its velocities are of the row's picture."""
    size = module_of(name).CASE.sources[0]
    for scale in (1.0, 3.0):
        family = as_loaded(name, checkpoints(name)["sharded"], cfg_scale=scale)
        first, second = (
            encoded(family, PROMPTS[:2], edited[::step], PROMPTS[3])
            for edited in [pictures(2, *size)]
            for step in (1, -1)
        )
        x, t = torch.randn(2, *family.latent_shape), torch.tensor([0.9, 0.9])
        with torch.no_grad():
            moved = family.velocity(x, t, first) - family.velocity(x, t, second)
        assert moved.abs().amax(dim=(1, 2)).min() > 1e-4


@pytest.mark.parametrize("name", [name for name in NAMES if not module_of(name).CASE.sources])
def test_a_family_that_edits_nothing_says_so(name, checkpoints):
    family = as_loaded(name, checkpoints(name)["sharded"])
    with pytest.raises(ConfigError, match=f"model.family: {name} edits no pictures; choose a family that does"):
        family.encode(PROMPTS[:1], pictures(1, 32, 32))


@pytest.mark.parametrize("name", ONLY_EDITING)
def test_a_family_that_only_edits_says_so(name, checkpoints):
    check_edits(name, edits=True)
    for call in (
        lambda: check_edits(name, edits=False),
        lambda: as_loaded(name, checkpoints(name)["sharded"]).encode(PROMPTS[:1]),
    ):
        with pytest.raises(ConfigError, match=rf"^model\.family: {name} only edits pictures, got prompts without"):
            call()


@pytest.mark.parametrize("name", ONLY_EDITING)
def test_each_row_has_the_negative_prompt_with_its_own_picture(name, checkpoints):
    """Chosen and repeated rows keep theirs, and its tensors alone are those of a prompt with that picture."""
    family = as_loaded(name, checkpoints(name)["sharded"], cfg_scale=3.0)
    edited = pictures(2, 32, 64)
    text = family.encode(PROMPTS[:2], edited, PROMPTS[3])
    own = {n.removeprefix(AWAY): each for n, each in text.tensors.items() if n.startswith(AWAY)}
    alone = family.encode([PROMPTS[3]] * 2, edited)
    assert own.keys() < alone.tensors.keys()
    assert all(torch.equal(each, alone[n]) for n, each in own.items())
    assert any(not torch.equal(each[0], each[1]) for each in own.values())
    x, t = torch.randn(2, *family.latent_shape), torch.tensor([0.9, 0.2])
    with torch.no_grad():
        both, second = family.velocity(x, t, text), family.velocity(x[1:], t[1:], text.rows([1]))
        assert (both[1:] - second).abs().max() < 1e-5
        swapped = Conditioning({**text.tensors, **{AWAY + n: each.flip(0) for n, each in own.items()}})
        assert (family.velocity(x, t, swapped) - both).abs().max() > 1e-4
        with pytest.raises(ValueError, match="needs a negative prompt's tensors, got none"):
            family.velocity(x, t, alone)


@pytest.mark.parametrize("size", [(24, 64), (40, 16)])
@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("name", ["flux", "sd3"])
def test_the_toys_equal_diffusers_pipeline(name, scale, size):
    """By as many passes as their pipelines make: trained weights enlarge the rounding of another batch size."""
    passes = {"flux": 2, "sd3": 1}[name]
    assert max(differences(name, TOYS / f"tiny-{name}", size, 4, scale, passes)) < 1e-5


@pytest.mark.parametrize("name", [name for name, scale in GUIDED if scale > 1])
def test_guidance_in_two_passes_matches_one_pass(name, checkpoints):
    case, folder = module_of(name).CASE, checkpoints(name)["sharded"]
    one, two = (as_loaded(name, folder, cfg_scale=case.scales[-1], cfg_passes=passes) for passes in (1, 2))
    text = encoded(one, PROMPTS, away=case.away)
    x, t = torch.randn(4, *one.latent_shape), torch.tensor([0.9, 0.6, 0.4, 0.1])
    with torch.no_grad():
        assert (two.velocity(x, t, text) - one.velocity(x, t, text)).abs().max() < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_prompts_and_guidance_move_the_velocity(name, checkpoints):
    """Or the comparisons above would say nothing about them."""
    family = as_loaded(name, checkpoints(name)["sharded"])
    text = encoded(family, PROMPTS[:2], away=PROMPTS[3])
    x, t = torch.randn(2, *family.latent_shape), torch.tensor([0.9, 0.9])
    with torch.no_grad():
        velocity = family.velocity(x, t, text)
        assert (family.velocity(x, t, text.rows([1, 0])) - velocity).abs().max() > 1e-4
        guided = as_loaded(name, checkpoints(name)["sharded"], cfg_scale=4.0).velocity(x, t, text)
        assert (guided - velocity).abs().max() > 1e-4
        later = family.velocity(x, t / 2, text)
        assert (later - velocity).abs().max() > 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_the_network_gets_the_noise_level_as_precisely_as_from_the_pipeline(name, checkpoints):
    """In bfloat16: some pipelines round it to the type of the latents, others do not."""
    case = module_of(name).CASE
    family = as_loaded(name, checkpoints(name)["bf16"], dtype=torch.bfloat16)
    seen: list[Tensor] = []

    def record(module: object, given: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        seen.append(keywords["timestep"] if "timestep" in keywords else given[1])

    family.transformer.register_forward_pre_hook(record, with_kwargs=True)
    edited = pictures(1, 32, 32) if family.only_edits else None
    with case.given_sources(32, 32):
        family._pipeline(
            prompt=PROMPTS[:1], height=32, width=32, num_inference_steps=7, output_type="latent",
            **case.limit, **case.keywords(1.0, [case.away]), **case.of_size(32, 32), **as_images(edited),
        )  # fmt: skip
    theirs, text = seen.copy(), encoded(family, PROMPTS[:1], edited)
    seen.clear()
    for t in family.pipeline_times(7)[:-1].tolist():
        family.velocity(torch.randn(1, *family.latent_shape), torch.tensor([t]), text)
    assert len(seen) == len(theirs) == 7
    for ours, expected in zip(seen, theirs, strict=True):
        assert ours.dtype == expected.dtype
        assert float(ours) == pytest.approx(float(expected), rel=torch.finfo(ours.dtype).eps, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_prompt_is_like_a_prompt(name, checkpoints):
    family = as_loaded(name, checkpoints(name)["bf16"], dtype=torch.bfloat16)
    text, example = family.text_tensors(PROMPTS[:1]), family.text_example(module_of(name).CASE.tokens)
    assert {key: (value.shape, value.dtype) for key, value in example.items()} == {
        key: (value.shape, value.dtype) for key, value in text.items()
    }


@pytest.mark.parametrize("name", [name for name in NAMES if counts_itself(name)])
def test_tokens_are_counted_with_the_template(name, checkpoints):
    """A character is a token here; the limit is that of the case."""
    tokens = module_of(name).CASE.tokens
    ((count, limit),) = token_limits(name, str(checkpoints(name)["sharded"]), None, tokens).values()
    assert limit == tokens
    family, long = as_loaded(name, checkpoints(name)["sharded"]), "x" * tokens
    fits = long[: tokens - (count(long) - tokens)]
    assert count(fits) == tokens
    of = family_class(name)
    ((folder, _),) = of.tokenizers.values()
    tokenizer = AutoTokenizer.from_pretrained(checkpoints(name)["sharded"], subfolder=folder)
    text = family.text_tensors([PROMPTS[0]])
    if "length" in text:
        assert of.token_count(tokenizer, PROMPTS[0]) == int(text["length"])
    if "mask" in text:
        assert of.token_count(tokenizer, PROMPTS[0]) == int(text["mask"].sum())


@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize("name", NAMES)
def test_a_trained_policy_is_saved_and_loads_in_diffusers(name, rank, checkpoints, tmp_path):
    """Two updates, with the activations computed again; the reference stays the base."""
    family = as_loaded(name, checkpoints(name)["sharded"])
    text = encoded(family, PROMPTS[:2])
    x, t = torch.randn(2, *family.latent_shape), torch.tensor([0.9, 0.2])
    base = family.velocity(x, t, text).detach()
    family.prepare_training(TuningOptions(rank, 8.0, ("to_q", "to_out.0"), True, None), 0)
    reference = family.reference()
    # An adapter starts at 0, where its first gradients are small.
    optimizer = torch.optim.SGD(list(family.trainable_parameters()), lr=0.1 if rank is None else 30)
    for _ in range(2):
        family.velocity(x, t, text).square().mean().backward()
        optimizer.step()
    tuned = family.velocity(x, t, text).detach()
    assert torch.equal(reference.velocity(x, t, text), base)
    assert (tuned - base).abs().max() > 1e-4
    family.save_transformer(family.policy_state(), tmp_path / "policy")
    again = as_loaded(name, checkpoints(name)["sharded"]).with_transformer(tmp_path / "policy")
    assert torch.equal(again.velocity(x, t, text), tuned)
    pipeline = family.pipeline_class.from_pretrained(checkpoints(name)["sharded"], dtype=torch.float32)
    if rank is None:
        pipeline.transformer = family.network_class.from_pretrained(tmp_path / "policy", dtype=torch.float32)
    else:
        pipeline.load_lora_weights(tmp_path / "policy")
    theirs = type(family)(pipeline, family._options)
    assert (theirs.velocity(x, t, text) - tuned).abs().max() < 1e-6


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_its_blocks_are_compiled(name, checkpoints):
    """Those that `train.shard_weights` shards, whether or not diffusers names them as repeated."""
    family = as_loaded(name, checkpoints(name)["sharded"])
    family.prepare_training(TuningOptions(None, 1.0, (), False, None, compiles=True), 0)
    compiled = [module for module in family.transformer.modules() if module._compiled_call_impl is not None]
    blocks = family.transformer._no_split_modules
    assert compiled == [m for m in family.transformer.modules() if type(m).__name__ in blocks] != []
