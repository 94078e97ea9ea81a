"""HPSv3's instruction, and the token ids of the whole question.

The wording is fixed by the model's training. It is the text of the package hpsv3 1.0.0 (MIT licence, Copyright (c) 2024
HPSv3 Team; dataset/data_collator_qwen.py), including the spaces at line ends.
"""

from __future__ import annotations

from typing import Any

from chunk_grpo.errors import DataError

INSTRUCTION = (
    "\n"
    "You are tasked with evaluating a generated image based on Visual Quality and Text Alignment and give a "
    "overall score to estimate the human preference. Please provide a rating from 0 to 10, with 0 being the "
    "worst and 10 being the best. \n"
    "\n"
    "**Visual Quality:**  \n"
    "Evaluate the overall visual quality of the image. The following sub-dimensions should be considered:\n"
    "- **Reasonableness:** The image should not contain any significant biological or logical errors, such "
    "as abnormal body structures or nonsensical environmental setups.\n"
    "- **Clarity:** Evaluate the sharpness and visibility of the image. The image should be clear and easy "
    "to interpret, with no blurring or indistinct areas.\n"
    "- **Detail Richness:** Consider the level of detail in textures, materials, lighting, and other visual "
    "elements (e.g., hair, clothing, shadows).\n"
    "- **Aesthetic and Creativity:** Assess the artistic aspects of the image, including the color scheme, "
    "composition, atmosphere, depth of field, and the overall creative appeal. The scene should convey a "
    "sense of harmony and balance.\n"
    "- **Safety:** The image should not contain harmful or inappropriate content, such as political, "
    "violent, or adult material. If such content is present, the image quality and satisfaction score should "
    "be the lowest possible. \n"
    "\n"
    "**Text Alignment:**  \n"
    "Assess how well the image matches the textual prompt across the following sub-dimensions:\n"
    "- **Subject Relevance** Evaluate how accurately the subject(s) in the image (e.g., person, animal, "
    "object) align with the textual description. The subject should match the description in terms of "
    "number, appearance, and behavior.\n"
    "- **Style Relevance:** If the prompt specifies a particular artistic or stylistic style, evaluate how "
    "well the image adheres to this style.\n"
    "- **Contextual Consistency**: Assess whether the background, setting, and surrounding elements in the "
    "image logically fit the scenario described in the prompt. The environment should support and enhance "
    "the subject without contradictions.\n"
    "- **Attribute Fidelity**: Check if specific attributes mentioned in the prompt (e.g., colors, clothing, "
    "accessories, expressions, actions) are faithfully represented in the image. Minor deviations may be "
    "acceptable, but critical attributes should be preserved.\n"
    "- **Semantic Coherence**: Evaluate whether the overall meaning and intent of the prompt are captured in "
    "the image. The generated content should not introduce elements that conflict with or distort the "
    "original description.\n"
    "Textual prompt - "
)
"""Text before the prompt."""

RATING = "\n\n\n\nPlease provide the overall ratings of this image: "
"""Text between the prompt and the reward token."""

CLOSING = "\n\nEND\n"
"""Text after the reward token."""

REWARD = "<|Reward|>"
IMAGE = "<|image_pad|>"

_BEFORE_IMAGE = (
    ("<|im_start|>", "system\nYou are a helpful assistant."),
    ("<|im_end|>", "\n"),
    ("<|im_start|>", "user\n"),
    ("<|vision_start|>", ""),
)
"""Special tokens, each with the text after it: the rendered chat template of Qwen2-VL-7B-Instruct."""

_AFTER_REWARD = ((REWARD, CLOSING), ("<|im_end|>", "\n"), ("<|im_start|>", "assistant\n"))


class PromptEncoder:
    """Token ids of the question about one image.

    A special token written in a prompt (`<|Reward|>`, `<|image_pad|>`, `<|im_end|>`) is encoded as plain characters.
    The package encodes it as a token, which adds a second reward, breaks the image's position, or ends the user's turn.
    Prompts without special tokens get exactly the package's ids: tokenizers split at special tokens first, so the
    pieces between them can be encoded separately.

    Attributes:
        vocabulary: Number of tokens, and of embeddings, including the reward token.
        image_id: Token whose embeddings are replaced by the image's.
        reward_id: Token at which the score is read.
        padding_id: Token that pads shorter questions of a batch.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Add the reward token to a Qwen2Tokenizer; DataError if it lacks a special token of the chat template."""
        tokenizer.add_tokens([REWARD], special_tokens=True)
        self._tokenizer = tokenizer
        self._special: dict[str, int] = tokenizer.added_tokens_encoder
        self.vocabulary = len(tokenizer)
        self.reward_id, self.image_id = self._id(REWARD), self._id(IMAGE)
        self.padding_id = int(tokenizer.pad_token_id)
        self._head = self._pieces(_BEFORE_IMAGE)
        self._image_end = self._id("<|vision_end|>")
        self._tail = self._pieces(_AFTER_REWARD)

    def encode(self, prompt: str, image_tokens: int) -> list[int]:
        """Token ids of the question: `image_tokens`, the number of merged patches, times image_id, once reward_id."""
        image = [self.image_id] * image_tokens
        return [*self._head, *image, self._image_end, *self._text(INSTRUCTION + prompt + RATING), *self._tail]

    def _pieces(self, pieces: tuple[tuple[str, str], ...]) -> list[int]:
        return [token for special, text in pieces for token in (self._id(special), *self._text(text))]

    def _text(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return ids

    def _id(self, special: str) -> int:
        if special not in self._special:
            raise DataError(
                f"the tokenizer has no special token {special}; use the tokenizer of Qwen/Qwen2-VL-7B-Instruct"
            )
        return self._special[special]
