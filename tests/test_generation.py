"""Evaluation images: the same noise for every policy, whatever the order of work, and which model takes which step."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from chunk_grpo.core.flow import time_grid
from chunk_grpo.errors import DataError
from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.generation import GeneratedImage, GenerationSettings, generate, image_seed
from chunk_grpo.image_files import as_pictures, decode_image, encode_png, image_grid

TINY = Path(__file__).parents[1] / "assets" / "tiny-flux"
SETTINGS = GenerationSettings(time_grid(6, 3.0), base_steps=2, images_per_prompt=2, batch_size=4, seed=2000)
PROMPTS = ["a red circle", "two squares", "a cross above a circle"]
Key = tuple[str, str, int]


@pytest.fixture(scope="module")
def base() -> FluxFamily:
    return FluxFamily.load(LoadOptions(str(TINY), height=32, width=32, max_sequence_length=8))


@pytest.fixture(scope="module")
def tuned(base: FluxFamily) -> FluxFamily:
    """The base model after a random step of its weights, as training would leave it."""
    other = base.frozen_copy()
    stream = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in other.transformer.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=stream)
    return other


@pytest.fixture(scope="module")
def prompts(base: FluxFamily) -> PromptSet:
    return PromptSet(["a", "b", "c"], PROMPTS, [{}, {}, {}], base.encode(PROMPTS))


def images(base: FluxFamily, tuned: FluxFamily | None, prompts: PromptSet, **changes: int) -> dict[Key, GeneratedImage]:
    made = [
        image
        for batch in generate(
            base, None if tuned is None else lambda: nullcontext(tuned), prompts, replace(SETTINGS, **changes)
        )
        for image in batch
    ]
    found = {(image.mode, image.prompt_id, image.sample): image for image in made}
    assert len(found) == len(made)
    return found


def test_every_image_is_drawn_once_and_named(base: FluxFamily, tuned: FluxFamily, prompts: PromptSet) -> None:
    names = {(prompt, sample) for prompt in "abc" for sample in (0, 1)}
    assert images(base, None, prompts).keys() == {("base", *name) for name in names}
    both = images(base, tuned, prompts)
    assert both.keys() == {(mode, *name) for mode in ("tuned", "hybrid") for name in names}
    for image in both.values():
        assert image.picture.shape == (32, 32, 3)
        assert image.picture.dtype == np.uint8


def test_every_policy_starts_from_the_same_noise(base, tuned, prompts, monkeypatch):
    """Seen at the models' first step, not only in the seeds that are written down."""
    starts: list[torch.Tensor] = []
    for family in (base, tuned):
        original = family.velocity

        def spy(x: torch.Tensor, t: torch.Tensor, c: object, call: Callable[..., torch.Tensor] = original):  # type: ignore[no-untyped-def]
            if float(t[0]) == 1.0:
                starts.append(x.clone())
            return call(x, t, c)

        monkeypatch.setattr(family, "velocity", spy)
    seeds = {key[1:]: image.seed for key, image in images(base, None, prompts, batch_size=6).items()}
    both = images(base, tuned, prompts, batch_size=6)
    assert {key[1:]: image.seed for key, image in both.items()} == seeds
    assert len(starts) == 2  # base and tuned; hybrid goes on from the tuned run
    assert torch.equal(starts[0], starts[1])
    assert seeds == {(p, s): image_seed(SETTINGS.seed, p, s) for p in "abc" for s in (0, 1)}
    assert len(set(seeds.values())) == 6


def test_order_and_batch_size_do_not_matter(base: FluxFamily, tuned: FluxFamily, prompts: PromptSet) -> None:
    """Equal up to rounding: kernels sum in another order for another batch size, about 1e-6 in the latents.

    Then a pixel at a rounding boundary may move by one of 255 levels.
    """
    reference = images(base, tuned, prompts)
    for other in (
        images(base, tuned, prompts, batch_size=1),
        images(base, tuned, prompts, batch_size=100),
        images(base, tuned, prompts.rows([2, 0, 1])),
        images(base, tuned, prompts.rows([2, 1, 0]), batch_size=5),
    ):
        assert other.keys() == reference.keys()
        for key, image in other.items():
            difference = image.picture.astype(int) - reference[key].picture.astype(int)
            assert np.abs(difference).max() <= 1
            assert (difference != 0).mean() < 0.01


def pictures(of: dict[Key, GeneratedImage], mode: str) -> list[NDArray[np.uint8]]:
    return [image.picture for (m, *_), image in sorted(of.items()) if m == mode]


def test_hybrid_equals_tuned_or_base_at_its_limits(base, tuned, prompts):
    without, alone = (images(base, tuned, prompts, base_steps=steps) for steps in (0, SETTINGS.num_steps))
    assert np.array_equal(pictures(without, "hybrid"), pictures(without, "tuned"))
    assert np.array_equal(pictures(alone, "tuned"), pictures(without, "tuned"))  # the same bytes again
    assert np.array_equal(pictures(alone, "hybrid"), pictures(images(base, None, prompts), "base"))
    assert not np.array_equal(pictures(alone, "hybrid"), pictures(alone, "tuned"))


def test_the_base_model_takes_the_last_steps_of_hybrid(base, tuned, prompts, monkeypatch):
    calls: list[float] = []
    original = base.velocity

    def spy(x: torch.Tensor, t: torch.Tensor, c: object) -> torch.Tensor:
        calls.append(float(t[0]))
        return original(x, t, c)  # type: ignore[arg-type]

    monkeypatch.setattr(base, "velocity", spy)
    images(base, tuned, prompts.rows([0]), base_steps=2, batch_size=2)
    # The grid of 6 steps with shift 3 ends with the noise levels 3 * u / (1 + 2 * u) for u = 2/6, 1/6.
    assert calls == pytest.approx([3 / 5, 3 / 8])


def test_non_finite_latents_are_an_error(base, tuned, prompts, monkeypatch):
    broken = tuned.frozen_copy()
    with torch.no_grad():
        broken.transformer.proj_out.weight.fill_(float("nan"))
    with pytest.raises(DataError, match="mode tuned: the latents of prompt 'a red circle' are not finite"):
        images(base, broken, prompts)
    with pytest.raises(DataError, match=r"mode base: .* are not finite\. Check model\.checkpoint, or set"):
        images(broken, None, prompts)


def test_the_base_model_waits_until_the_trained_policy_is_gone(base, tuned, prompts, tmp_path, monkeypatch):
    """So that one network at a time need be on the device."""
    tuned.save_transformer(dict(tuned.transformer.state_dict()), tmp_path)
    alive: list[weakref.ref[torch.nn.Module]] = []
    original, moves = base.velocity, []

    def spy(x: torch.Tensor, t: torch.Tensor, c: object) -> torch.Tensor:
        assert [ref() for ref in alive] == [None]
        return original(x, t, c)  # type: ignore[arg-type]

    @contextmanager
    def policy() -> Iterator[FluxFamily]:
        with base.replaced_by(tmp_path) as trained:
            alive.append(weakref.ref(trained.transformer))
            assert moves == ["cpu"]
            yield trained
            del trained

    def move(place: object) -> None:
        moves.append(str(place))
        assert [ref() for ref in alive] in ([], [None])

    monkeypatch.setattr(base, "velocity", spy)
    monkeypatch.setattr(base.transformer, "to", move)
    counts: list[int] = []
    made = [image for batch in generate(base, policy, prompts, SETTINGS, counts.append) for image in batch]
    assert moves == ["cpu", "cpu"]  # to the CPU, and back to its own device
    assert sum(counts) == 6 * (6 + 2) and len(made) == 12
    expected = images(base, tuned, prompts)
    assert all(
        np.array_equal(image.picture, expected[image.mode, image.prompt_id, image.sample].picture) for image in made
    )


@pytest.mark.parametrize("policy", ["base", "tuned"])
def test_the_steps_of_a_batch_are_counted_before_its_images_are_handed_out(base, tuned, prompts, policy):
    """`stages.generate` takes as many batches as there are, and no further one: what came later was never counted.

    Batches of 4 and 2 images take 6 steps; the base model takes 2 more for the mode hybrid.
    """
    counted: list[int] = []
    context = (lambda: nullcontext(tuned)) if policy == "tuned" else None
    batches = generate(base, context, prompts, SETTINGS, counted.append)
    next(batches)
    assert counted == ([4] * 6 if context is None else [4] * 6 + [2] * 6 + [4] * 2)
    next(batches)
    assert sum(counted) == 6 * (6 if context is None else 6 + 2)


def test_decoded_values_are_rounded_to_bytes() -> None:
    """127.6 of 255 is 128, and 0.999 is 255."""
    values = np.broadcast_to(np.float32([127.6 / 255, 127.4 / 255, 0.999, 0.0]), (1, 3, 1, 4))
    assert as_pictures(values)[0, 0, :, 0].tolist() == [128, 127, 255, 0]


def test_a_picture_survives_png() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    again = decode_image(encode_png(picture), "a.png")
    assert again.dtype == np.uint8
    assert np.array_equal(again, picture)
    assert encode_png(picture) == encode_png(picture.copy())


def test_a_grid_by_hand() -> None:
    """Three pictures of 2 x 3 pixels in two columns, one white pixel around each."""
    shown = [np.full((2, 3, 3), value, dtype=np.uint8) for value in (10, 20, 30)]
    expected = np.array(
        [
            [255] * 9,
            [255, 10, 10, 10, 255, 20, 20, 20, 255],
            [255, 10, 10, 10, 255, 20, 20, 20, 255],
            [255] * 9,
            [255, 30, 30, 30, 255, 255, 255, 255, 255],
            [255, 30, 30, 30, 255, 255, 255, 255, 255],
            [255] * 9,
        ]
    )
    assert np.array_equal(image_grid(shown, columns=2, gap=1), np.repeat(expected[:, :, None], 3, axis=2))
