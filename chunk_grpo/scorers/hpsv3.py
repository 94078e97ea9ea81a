"""HPSv3: the human preference score of Ma et al., ICCV 2025 (MizzenAI/HPSv3), on transformers 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen2Tokenizer, Qwen2VLConfig, Qwen2VLImageProcessorPil

from chunk_grpo.config.scorers import HPSv3Scorer
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import FloatArray, Pictures, ScoreBatch, Scores
from chunk_grpo.scorers.hpsv3_model import WEIGHTS, HPSv3Network, load_network
from chunk_grpo.scorers.hpsv3_prompt import PromptEncoder
from chunk_grpo.scorers.running.checkpoints import readable
from chunk_grpo.scorers.running.configured import ConfiguredScorer, chosen_device

PIXELS = 256 * 28 * 28
"""Approximate number of pixels of resized images: hpsv3/inference.py, prepare_batch, min_pixels = max_pixels."""

_BACKBONE_FILES = ("config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class HPSv3Model:
    """Network, tokenizer and image processor; `load_model` loads them from files."""

    network: HPSv3Network
    questions: PromptEncoder
    processor: Qwen2VLImageProcessorPil
    device: torch.device

    def inputs(self, images: Pictures, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
        """Inputs of the network.

        Pillow resizes images bicubically to multiples of 28 pixels with about `PIXELS` in total (1024 x 1024 to
        448 x 448). They are normalised with CLIP's means and deviations. The package resizes twice, but its second
        resize keeps the size.

        Args:
            images: uint8 [B, H, W, 3].
            prompts: B captions.

        Returns:
            Arguments of HPSv3Network.forward, on the CPU.

        Raises:
            DataError: The aspect ratio of an image exceeds 200.
        """
        try:
            pixels = self.processor(
                list(images),
                size={"shortest_edge": PIXELS, "longest_edge": PIXELS},
                do_convert_rgb=False,
                input_data_format="channels_last",
                return_tensors="pt",
            )
        except ValueError as error:
            raise DataError(f"images of {images.shape[1]} x {images.shape[2]} pixels: {error}") from error
        grids = pixels["image_grid_thw"]
        tokens = int(grids[0].prod()) // self.processor.merge_size**2  # of each image: all have one size
        rows = {prompt: torch.tensor(self.questions.encode(prompt, tokens)) for prompt in set(prompts)}
        input_ids = pad_sequence(
            [rows[prompt] for prompt in prompts], batch_first=True, padding_value=self.questions.padding_id
        )
        return {
            "input_ids": input_ids,
            "reward_at": (input_ids == self.questions.reward_id).int().argmax(dim=1),
            "pixel_values": pixels["pixel_values"],
            "image_grid_thw": grids,
        }

    @torch.inference_mode()
    def judge(self, images: Pictures, prompts: Sequence[str]) -> FloatArray:
        """Mean and logarithm of the standard deviation of each image's score.

        Returns:
            float64 [B, 2].
        """
        inputs = {name: value.to(self.device) for name, value in self.inputs(images, prompts).items()}
        numbers: FloatArray = self.network(**inputs).double().cpu().numpy()
        return numbers


def load_model(key: str, weights: Path, backbone: Path, dtype: torch.dtype, device: torch.device) -> HPSv3Model:
    """Load HPSv3 from a folder with HPSv3.safetensors, and one with the small files of Qwen2-VL-7B-Instruct.

    The backbone has the dtype, the head float32. DataError if a file cannot be read, or the files do not match.
    """
    with readable(f"{key}.backbone: a file in {backbone} cannot be read"):
        config = Qwen2VLConfig.from_pretrained(backbone, local_files_only=True)
        questions = PromptEncoder(Qwen2Tokenizer.from_pretrained(backbone, local_files_only=True))
        processor = Qwen2VLImageProcessorPil.from_pretrained(backbone, local_files_only=True)
    if config.image_token_id != questions.image_id:
        raise DataError(
            f"{key}.backbone: in {backbone}, config.json has image_token_id {config.image_token_id}, but the "
            f"tokenizer's <|image_pad|> is {questions.image_id}; both must be from one checkpoint."
        )
    network = load_network(f"{key}.model", weights / WEIGHTS, config, questions.vocabulary, dtype, device)
    return HPSv3Model(network, questions, processor, device)


class HPSv3(ConfiguredScorer[HPSv3Scorer]):
    """Mean of the preference score: unbounded, about 10 for good images (FLUX.1-dev has 10.4 on HPDv3's benchmark)."""

    version = 1

    @property
    def files(self) -> Mapping[str, Sequence[str]]:
        """File patterns of HPSv3's weights, and of the backbone without weights."""
        return {"model": (WEIGHTS,), "backbone": _BACKBONE_FILES}

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Means, with the logarithm of the standard deviation as a detail.

        The training loss draws scores from a normal distribution with this mean and deviation
        (hpsv3/model/qwen2vl_trainer.py, loss_type uncertainty). Sigma is the exponential of the second output, which
        the package returns without the exponential.
        """
        numbers = self.models.judge(batch.images, batch.prompts)
        return Scores(numbers[:, 0], {"log_sigma": numbers[:, 1]})

    @cached_property
    def models(self) -> HPSv3Model:
        """Network, tokenizer and image processor."""
        weights, backbone = self.folder("model"), self.folder("backbone")
        device = torch.device(chosen_device(self.device))
        dtype: torch.dtype = getattr(torch, self.settings.dtype)
        return self.take_model(
            ("hpsv3", weights, backbone, dtype, device),
            lambda: load_model(f"scorers.{self.key}", weights, backbone, dtype, device),
        )
