"""HPSv3 on a small random checkpoint: values of the original package, pixels, positions, prompts, what is refused."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load_file, save_file
from transformers import Qwen2Tokenizer

from chunk_grpo.errors import DataError
from chunk_grpo.scorers.hpsv3 import HPSv3Model
from chunk_grpo.scorers.hpsv3_prompt import CLOSING, INSTRUCTION, RATING, REWARD
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
    return scorer(folder).models


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkpoint to spoil."""
    return make_hpsv3(tmp_path)


def test_score_matches_original_package(folder):
    made = scorer(folder)
    scores = made.score(FOUR)
    made.close()
    assert scores.values == pytest.approx(GOLDEN[:, 0], **CLOSE)
    assert scores.details["log_sigma"] == pytest.approx(GOLDEN[:, 1], **CLOSE)
    assert scores.values.dtype == np.float64


# Pixels


@pytest.mark.parametrize(
    ("height", "width", "rows", "columns"),
    # Multiples of 28 with about 200,704 pixels, by hand: 512 x 256 grows by sqrt(200704 / 131072) = 1.2374 to
    # 633.6 x 316.8, and so up to 644 x 336; 720 x 720 shrinks to 448 x 448; 333 x 517 grows to 359.5 x 558.2.
    [(1024, 1024, 32, 32), (720, 720, 32, 32), (64, 64, 32, 32), (512, 256, 46, 24), (333, 517, 26, 40)],
)
def test_pixels_are_pillows_bicubic_ones_in_merged_patches(model, height, width, rows, columns):
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


def test_an_image_200_times_as_long_as_wide_is_refused(model):
    with pytest.raises(DataError, match="1 x 201 pixels"):
        model.inputs(pictures(1, 1, 201), ["a"])


# Prompts


def test_the_question_is_worded_as_in_the_package():
    """SHA-256 of INSTRUCTION + prompt_with_special_token of hpsv3 1.0.0's dataset/data_collator_qwen.py."""
    question = INSTRUCTION + "{text_prompt}" + RATING + REWARD + CLOSING
    digest = hashlib.sha256(question.encode()).hexdigest()
    assert digest == "f6ee57479d4e9eee76b49c00dc962e1e696a5a2b3cc32cebd9b1fa76fe27502c"


@pytest.mark.parametrize("prompt", ALL_PROMPTS)
def test_token_ids_match_encoding_of_whole_text(folder, model, prompt):
    """Inputs as the package makes them: render the chat template, repeat the image token, encode all at once."""
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
def test_special_tokens_in_a_prompt_are_text(model, special):
    tokenizer = model.questions._tokenizer
    prompt = f"a cat {special} and{special}{special} a dog"
    ids, plain = model.questions.encode(prompt, 5), model.questions.encode("a cat", 5)
    for token in (*SPECIAL, REWARD):
        number = tokenizer.convert_tokens_to_ids(token)
        assert ids.count(number) == plain.count(number)
    assert f"Textual prompt - {prompt}\n" in tokenizer.decode(ids)
    # Negative control: a plain call makes them tokens.
    assert tokenizer(prompt)["input_ids"].count(tokenizer.convert_tokens_to_ids(special)) == 3


def test_a_long_prompt_pads_the_others_and_moves_no_score(folder):
    made = scorer(folder)
    long = "a very long prompt about a red circle in the style of the image, " * 15
    scores = made.score(batch_of(pictures(4), [*PROMPTS[:3], long]))
    made.close()
    assert scores.values[:3] == pytest.approx(GOLDEN[:3, 0], **CLOSE)
    assert scores.details["log_sigma"][:3] == pytest.approx(GOLDEN[:3, 1], **CLOSE)


# bfloat16


def test_bfloat16_is_near_float32(folder):
    """Its weights have 8 bits, and so have the angles of positions, as in the package; the head has float32."""
    images = pictures(8, 8, 8, seed=2)
    prompts = [ALL_PROMPTS[row % 4] for row in range(8)]
    values = {}
    for dtype in ("float32", "bfloat16"):
        made = scorer(folder, dtype)
        values[dtype] = made.score(batch_of(images, prompts)).values
        network = made.models.network
        assert {weight.dtype for weight in network.backbone.parameters()} == {getattr(torch, dtype)}
        assert {weight.dtype for weight in network.rm_head.parameters()} == {torch.float32}
        made.close()
    spread = values["float32"].std()
    assert 0 < np.abs(values["bfloat16"] - values["float32"]).mean() < 0.15 * spread
    assert np.corrcoef(values["bfloat16"], values["float32"])[0, 1] > 0.98


def test_angles_in_bfloat16_by_hand(folder):
    """The second frequency of heads of 16, at row 31 and column 0 of the patches.

    Text: 10^(-6 * 2 / 16) = 0.17783; near it bfloat16 counts in 2^-10, so 182 / 1024. Image: 0.1 is 0.10009765625,
    times 31 is 3.10303, near which it counts in 2^-6, so 199 / 64 = 3.109375; its sine, 0.032212, counts in 2^-12.
    """
    made = scorer(folder, "bfloat16")
    backbone = made.models.network.backbone
    made.close()
    assert backbone.language_model.rotary_emb.inv_freq[1].item() == 182 / 1024
    cos, sin = backbone.visual.rotary_pos_emb(torch.zeros(1), torch.tensor([[31, 0]]))
    assert (cos[0, 1].item(), sin[0, 1].item()) == (-1, 132 / 4096)
    assert (cos[0, 4:8].tolist(), sin[0, 4:8].tolist()) == ([1] * 4, [0] * 4)


# Files


def test_the_language_head_is_not_needed(copy):
    path = copy / "model" / "HPSv3.safetensors"
    save_file({name: value for name, value in load_file(path).items() if name != "lm_head.weight"}, path)
    made = scorer(copy)
    assert made.score(FOUR).values == pytest.approx(GOLDEN[:, 0], **CLOSE)
    made.close()


def test_a_tokenizer_without_the_templates_tokens_is_refused(copy):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = copy / "backbone" / name
        path.write_text(path.read_text().replace("<|vision_start|>", "<|other|>"))
    with pytest.raises(DataError, match=r"no special token <\|vision_start\|>"):
        scorer(copy).score(FOUR)
