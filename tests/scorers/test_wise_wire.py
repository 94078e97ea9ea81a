"""WISE over the wire: `transformers serve` with a tiny random vision-language model is the judge."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from transformers import AutoProcessor, LlavaForConditionalGeneration

from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.wise.instructions import OWN
from tests.s3_server import free_port
from tests.scorers.checkpoints_wise import make_judge
from tests.scorers.judge_cases import wise
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SIZE = 10


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_judge(tmp_path_factory.mktemp("judge") / "tiny-judge", seed=2)


@pytest.fixture(scope="module")
def url(judge: Path) -> Iterator[str]:
    port = free_port()
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(judge)]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    try:
        wait_for(partial(answers, f"http://127.0.0.1:{port}/health", process), 300.0, "an answer of the server")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def answers(address: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the server has ended"
    with suppress(httpx.TransportError):
        return httpx.get(address, timeout=5).is_success
    return False


def plain_colours() -> ScoreBatch:
    colours = np.random.default_rng(0).integers(0, 256, (SIZE, 1, 1, 3), dtype=np.uint8)
    images = np.broadcast_to(colours, (SIZE, 40, 36, 3)).copy()
    records = [{"wise_id": i, "explanation": f"meaning {i}"} for i in range(1, SIZE + 1)]
    return ScoreBatch(images, [f"prompt {i}" for i in range(1, SIZE + 1)], records, [0] * SIZE)


def answers_here(folder: Path, batch: ScoreBatch) -> list[str]:
    """Answers of the model for each image, without a server."""
    processor = AutoProcessor.from_pretrained(folder)
    model = LlavaForConditionalGeneration.from_pretrained(folder)
    own, said = OWN["verified"], []
    for image, prompt, record in zip(batch.images, batch.prompts, batch.metadata, strict=True):
        user = [
            {"type": "text", "text": own.fill(prompt, str(record["explanation"]))},
            {"type": "image", "image": Image.fromarray(image)},
        ]
        messages = [
            {"role": "system", "content": [{"type": "text", "text": own.system}]},
            {"role": "user", "content": user},
        ]
        inputs = processor.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        )
        tokens = model.generate(**inputs, max_new_tokens=20, do_sample=False)
        said.append(processor.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip())
    return said


def test_the_server_judges_as_its_model_does(judge, url, tmp_path):
    batch = plain_colours()
    said = answers_here(judge, batch)
    assert set(said) == {"Score: 0", "Score: 1"}
    scorer = wise(url, tmp_path, protocol="verified", judge=str(judge), concurrency=3, timeout_seconds=120.0)
    scorer.check()
    assert [f"Score: {value:.0f}" for value in scorer.score(batch).values] == said


def test_refuses_model_without_well_formed_answers(judge, url, tmp_path):
    scorer = wise(url, tmp_path, protocol="legacy", judge=str(judge), timeout_seconds=120.0, attempts=2)
    refused = scorer.score(plain_colours().rows([0])).refused
    assert re.search(r"2 attempts\. WISE prompt 1: .* the answer begins 'Score: [01]'", refused[0])
