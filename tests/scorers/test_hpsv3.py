"""HPSv3 on a small random checkpoint: values of the original package, pixels, positions, prompts, what is refused."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load_file, save_file
from transformers import Qwen2Tokenizer

from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import Scores
from chunk_grpo.scorers.hpsv3 import HPSv3, HPSv3Model
from chunk_grpo.scorers.hpsv3_prompt import CLOSING, INSTRUCTION, RATING, REWARD
from chunk_grpo.scorers.running.configured import MODELS
from tests.scorers.checkpoints_hpsv3 import CHAT_TEMPLATE, PREPROCESSOR, SPECIAL, make_hpsv3
from tests.scorers.hpsv3_cases import CLOSE, GOLDEN, MORE, PROMPTS, pictures, scorer
from tests.scorers.samples import batch_of

ALL_PROMPTS = [*PROMPTS, *(prompt for _, _, prompt in MORE)]
FOUR = batch_of(pictures(4), PROMPTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hpsv3(tmp_path_factory.mktemp("hpsv3"))


@pytest.fixture(scope="module")
def model(folder: Path) -> HPSv3Model:
    return scorer(folder)._load()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkpoint to spoil."""
    return make_hpsv3(tmp_path)


def test_the_score_is_that_of_the_original_package(folder: Path) -> None:
    made = scorer(folder)
    scores = made.score(FOUR)
    made.close()
    assert scores.values == pytest.approx(GOLDEN[:, 0], **CLOSE)
    assert scores.details["log_sigma"] == pytest.approx(GOLDEN[:, 1], **CLOSE)
    assert scores.values.dtype == np.float64


def test_positions_on_a_grid_give_another_score(model: HPSv3Model) -> None:
    """Negative control: what transformers 5 does of itself when it is told where the image is."""
    inputs = model.inputs(FOUR.images, PROMPTS)
    is_image = (inputs["input_ids"] == model.questions.image_id).int()
    with torch.inference_mode():
        hidden = model.network.backbone(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["input_ids"] != model.questions.padding_id,
            pixel_values=inputs["pixel_values"],
            image_grid_thw=inputs["image_grid_thw"],
            mm_token_type_ids=is_image,
        ).last_hidden_state
        numbers = model.network.rm_head(hidden[torch.arange(4), inputs["reward_at"]]).numpy()
    difference = np.abs(numbers[:, 0] - GOLDEN[:, 0])
    assert difference.min() > 0.01
    assert difference.mean() > 0.3


# Pixels


@pytest.mark.parametrize(
    ("height", "width", "rows", "columns"),
    # Multiples of 28 with about 200,704 pixels, by hand: 512 x 256 grows by sqrt(200704 / 131072) = 1.2374 to
    # 633.6 x 316.8, and so up to 644 x 336; 720 x 720 shrinks to 448 x 448; 333 x 517 grows to 359.5 x 558.2.
    [(1024, 1024, 32, 32), (720, 720, 32, 32), (64, 64, 32, 32), (512, 256, 46, 24), (333, 517, 26, 40)],
)
def test_pixels_are_pillows_bicubic_ones_in_merged_patches(
    model: HPSv3Model, height: int, width: int, rows: int, columns: int
) -> None:
    images = pictures(2, height, width, seed=1)
    inputs = model.inputs(images, ["a", "b"])
    assert inputs["image_grid_thw"].tolist() == [[1, rows, columns]] * 2
    expected = [patches(image, rows, columns) for image in images]
    assert np.abs(inputs["pixel_values"].numpy() - np.concatenate(expected)).max() < 1e-6


def patches(image: NDArray[np.uint8], rows: int, columns: int) -> NDArray[np.float64]:
    """Patches of 14 x 14 pixels, four neighbours together, each twice in time: [rows * columns, 3 * 2 * 14 * 14]."""
    resized = Image.fromarray(image).resize((14 * columns, 14 * rows), Image.Resampling.BICUBIC)
    mean, std = (np.array(PREPROCESSOR[name]) for name in ("image_mean", "image_std"))
    normal = (np.asarray(resized) / 255 - mean) / std
    out = []
    for row in range(0, rows, 2):
        for column in range(0, columns, 2):
            for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
                y, x = 14 * (row + down), 14 * (column + right)
                patch = normal[y : y + 14, x : x + 14].transpose(2, 0, 1)
                out.append(np.stack([patch, patch], axis=1).ravel())
    return np.array(out)


def test_an_image_200_times_as_long_as_wide_is_refused(model: HPSv3Model) -> None:
    with pytest.raises(DataError, match="1 x 201 pixels"):
        model.inputs(pictures(1, 1, 201), ["a"])


# Prompts


def test_the_question_is_worded_as_in_the_package() -> None:
    """SHA-256 of INSTRUCTION + prompt_with_special_token of hpsv3 1.0.0's dataset/data_collator_qwen.py."""
    question = INSTRUCTION + "{text_prompt}" + RATING + REWARD + CLOSING
    digest = hashlib.sha256(question.encode()).hexdigest()
    assert digest == "f6ee57479d4e9eee76b49c00dc962e1e696a5a2b3cc32cebd9b1fa76fe27502c"


@pytest.mark.parametrize("prompt", ALL_PROMPTS)
def test_ids_are_those_of_the_whole_text(folder: Path, model: HPSv3Model, prompt: str) -> None:
    """As the package makes them: render the chat template, repeat the image's token, encode everything at once."""
    tokenizer = Qwen2Tokenizer.from_pretrained(folder / "backbone")
    tokenizer.add_special_tokens({"additional_special_tokens": [REWARD]})
    text = INSTRUCTION + prompt + RATING + REWARD + CLOSING
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}
    rendered = tokenizer.apply_chat_template(
        [message], chat_template=CHAT_TEMPLATE, tokenize=False, add_generation_prompt=True
    )
    whole = rendered.replace("<|image_pad|>", "<|image_pad|>" * 7)
    assert model.questions.encode(prompt, 7) == tokenizer(whole)["input_ids"]


@pytest.mark.parametrize("special", [*SPECIAL, REWARD])
def test_special_tokens_in_a_prompt_are_text(model: HPSv3Model, special: str) -> None:
    tokenizer = model.questions._tokenizer
    prompt = f"a cat {special} and{special}{special} a dog"
    ids, plain = model.questions.encode(prompt, 5), model.questions.encode("a cat", 5)
    for token in (*SPECIAL, REWARD):
        number = tokenizer.convert_tokens_to_ids(token)
        assert ids.count(number) == plain.count(number)
    assert f"Textual prompt - {prompt}\n" in tokenizer.decode(ids)
    # Negative control: a plain call makes them tokens.
    assert tokenizer(prompt)["input_ids"].count(tokenizer.convert_tokens_to_ids(special)) == 3


def test_a_prompt_with_special_tokens_has_a_score_of_its_own(folder: Path) -> None:
    made = scorer(folder)
    images = pictures(1).repeat(3, axis=0)
    values = made.score(
        batch_of(images, ["a cat", f"a cat {REWARD}", "a cat <|image_pad|><|im_end|>"])
    ).values
    made.close()
    assert np.isfinite(values).all()
    assert len(set(values.round(4))) == 3


def test_the_vocabulary_ends_with_the_reward_token(folder: Path, model: HPSv3Model) -> None:
    rows = load_file(folder / "model" / "HPSv3.safetensors")["model.embed_tokens.weight"].shape[0]
    assert model.questions.reward_id == model.questions.vocabulary - 1 == rows - 1


# Batches


def test_a_score_does_not_depend_on_the_batch(folder: Path) -> None:
    """A long prompt pads the others by hundreds of tokens."""
    prompts = [*PROMPTS[:3], "a very long prompt about a red circle in the style of the image, " * 15]
    batch = batch_of(pictures(4), prompts)
    made, by_three = scorer(folder), scorer(folder, batch_size=3)
    together = made.score(batch)
    backwards = made.score(batch.rows([3, 2, 1, 0]))
    alone = [made.score(batch.rows([row])) for row in range(4)]
    parts = by_three.score(batch)
    made.close()
    by_three.close()
    for name, values in (("values", together.values), ("log_sigma", together.details["log_sigma"])):
        assert values[::-1] == pytest.approx(number(backwards, name), **CLOSE)
        assert values == pytest.approx(number(parts, name), **CLOSE)
        assert values == pytest.approx(np.concatenate([number(each, name) for each in alone]), **CLOSE)
    assert together.values[:3] == pytest.approx(GOLDEN[:3, 0], **CLOSE)


def test_no_images_have_no_scores(folder: Path) -> None:
    scores = scorer(folder).score(batch_of(pictures(0), []))
    assert (scores.values.shape, scores.details["log_sigma"].shape) == ((0,), (0,))


def number(scores: Scores, name: str) -> NDArray[np.float64]:
    return scores.values if name == "values" else scores.details[name]


# bfloat16


def test_bfloat16_is_near_float32(folder: Path) -> None:
    """Its weights have 8 bits, and so have the angles of positions, as in the package; the head has float32."""
    images = pictures(8, 8, 8, seed=2)
    prompts = [ALL_PROMPTS[row % 4] for row in range(8)]
    values = {}
    for dtype in ("float32", "bfloat16"):
        made = scorer(folder, dtype)
        values[dtype] = made.score(batch_of(images, prompts)).values
        network = made._load().network
        assert {weight.dtype for weight in network.backbone.parameters()} == {getattr(torch, dtype)}
        assert {weight.dtype for weight in network.rm_head.parameters()} == {torch.float32}
        made.close()
    spread = values["float32"].std()
    assert 0 < np.abs(values["bfloat16"] - values["float32"]).mean() < 0.15 * spread
    assert np.corrcoef(values["bfloat16"], values["float32"])[0, 1] > 0.98


def test_angles_in_bfloat16_by_hand(folder: Path) -> None:
    """The second frequency of heads of 16, at row 31 and column 0 of the patches.

    Text: 10^(-6 * 2 / 16) = 0.17783; near it bfloat16 counts in 2^-10, so 182 / 1024. Image: 0.1 is 0.10009765625,
    times 31 is 3.10303, near which it counts in 2^-6, so 199 / 64 = 3.109375; its sine, 0.032212, counts in 2^-12.
    """
    made = scorer(folder, "bfloat16")
    backbone = made._load().network.backbone
    made.close()
    assert backbone.language_model.rotary_emb.inv_freq[1].item() == 182 / 1024
    cos, sin = backbone.visual.rotary_pos_emb(torch.zeros(1), torch.tensor([[31, 0]]))
    assert (cos[0, 1].item(), sin[0, 1].item()) == (-1, 132 / 4096)
    assert (cos[0, 4:8].tolist(), sin[0, 4:8].tolist()) == ([1] * 4, [0] * 4)


# Files


def spoil(copy: Path, change: Callable[[dict[str, NDArray[np.float32]]], object]) -> HPSv3:
    path = copy / "model" / "HPSv3.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)
    return scorer(copy)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.mlp.up_proj.weight",
        "visual.merger.ln_q.bias",
        "rm_head.3.bias",
        "model.embed_tokens.weight",
    ],
)
def test_weights_are_exactly_the_networks(tmp_path: Path, name: str) -> None:
    before = MODELS.users()
    missing = spoil(make_hpsv3(tmp_path / "missing"), lambda weights: weights.pop(name))
    surplus = spoil(
        make_hpsv3(tmp_path / "surplus"), lambda weights: weights.update({f"{name}.x": weights[name]})
    )
    other = spoil(
        make_hpsv3(tmp_path / "other"), lambda weights: weights.update({name: weights[name][:-1].copy()})
    )
    for made, words in (
        (missing, "is missing"),
        (surplus, "is unknown to the model"),
        (other, "in place of"),
    ):
        with pytest.raises(DataError, match=words) as caught:
            made.score(FOUR)
        assert name in str(caught.value)
        assert "scorers.hpsv3.model" in str(caught.value)
        assert MODELS.users() == before


def test_the_language_head_is_not_needed(copy: Path) -> None:
    made = spoil(copy, lambda weights: weights.pop("lm_head.weight"))
    assert made.score(FOUR).values == pytest.approx(GOLDEN[:, 0], **CLOSE)
    made.close()


def test_a_file_cut_short_is_refused(copy: Path) -> None:
    path = copy / "model" / "HPSv3.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"HPSv3\.safetensors is no complete safetensors file"):
        scorer(copy).score(FOUR)


@pytest.mark.parametrize(
    "name",
    [
        "model/HPSv3.safetensors",
        "backbone/config.json",
        "backbone/preprocessor_config.json",
        "backbone/tokenizer.json",
        "backbone/tokenizer_config.json",
    ],
)
def test_a_missing_file_is_named_before_anything_is_loaded(copy: Path, name: str) -> None:
    part, _, file = name.partition("/")
    (copy / name).unlink()
    with pytest.raises(DataError, match=rf"scorers\.hpsv3\.{part}: no file {file}"):
        scorer(copy).check()


def test_a_backbone_of_another_tokenizer_is_refused(copy: Path) -> None:
    path = copy / "backbone" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"image_token_id": 5}))
    with pytest.raises(DataError, match="image_token_id 5"):
        scorer(copy).score(FOUR)


def test_a_tokenizer_without_the_templates_tokens_is_refused(copy: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = copy / "backbone" / name
        path.write_text(path.read_text().replace("<|vision_start|>", "<|other|>"))
    with pytest.raises(DataError, match=r"no special token <\|vision_start\|>"):
        scorer(copy).score(FOUR)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{"),
        ("preprocessor_config.json", "[]"),
        ("tokenizer.json", "{"),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "["),
        ("tokenizer_config.json", '{"pad_token": 3}'),
    ],
)
def test_a_damaged_file_is_told(copy: Path, name: str, content: str) -> None:
    (copy / "backbone" / name).write_text(content)
    with pytest.raises(
        DataError, match=r"scorers\.hpsv3\.backbone: a file in .*backbone cannot be read \(\w+"
    ):
        scorer(copy).score(FOUR)


# One model for all


def test_equal_scorers_share_a_model_until_both_close(folder: Path) -> None:
    before = MODELS.users()
    first, second, other = scorer(folder), scorer(folder, batch_size=2), scorer(folder, "bfloat16")
    first.check()
    assert MODELS.users() == before
    assert first._load() is second._load()
    assert first._load() is not other._load()
    first.close()
    first.close()
    assert np.isfinite(second.score(FOUR).values).all()
    second.close()
    other.close()
    assert MODELS.users() == before
