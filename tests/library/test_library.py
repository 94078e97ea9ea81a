"""chunk_grpo as a library: a training from Python, and what it refuses."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chunk_grpo as cg
from chunk_grpo.core.dynamics import relative_l1
from chunk_grpo.core.rollout import rollout_sde, sample_noise
from chunk_grpo.core.sde import step_noise
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.base import velocity_function
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.library.settings import MethodSettings
from chunk_grpo.seeding import generator
from chunk_grpo.training.method import Method
from tests.conftest import ROOT

TEXTS = ["a red circle", "a blue square", "a red circle", "a green cross"]
SETTINGS: dict[str, Any] = {
    "iterations": 2,
    "prompts_per_iteration": 2,
    "group_size": 2,
    "updates_per_iteration": 1,
    "learning_rate": 1e-3,
    "clip_range": 1e-3,
    "micro_batch_size": 8,
    "checkpoint_every": 1,
}


def brightness(images: Any, prompts: Any, metadata: Any) -> Any:
    """Mean of all channels."""
    return images.mean(axis=(1, 2, 3)) / 255


@pytest.fixture(scope="module")
def prompts(model: cg.Model) -> PromptSet:
    return model.encode(TEXTS, [{"number": number} for number in range(4)], batch_size=3)


@pytest.fixture(scope="module")
def method() -> MethodSettings:
    return cg.method({"kind": "listed", "sizes": [1, 2]}, selection="weighted")


@pytest.fixture(scope="module")
def train(model: cg.Model, prompts: PromptSet, method: MethodSettings) -> Callable[..., cg.Policy]:
    sampling = model.sampling(num_steps=4, shift=3.0)
    profile = model.profile(prompts, sampling, seeds=1)

    def run(folder: Path, reward: Any = brightness, **changes: Any) -> cg.Policy:
        chosen = sampling.model_copy(update=changes.pop("sampling", {}))
        return cg.train(
            model, prompts, prompts.rows([1]), reward, changes.pop("method", method), chosen,
            changes.pop("profile", profile), folder, **{**SETTINGS, **changes},
        )  # fmt: skip

    return run


def bytes_of(policy: cg.Policy) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in policy.folder.iterdir()}


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, chunk_grpo; print('torch' in sys.modules, hasattr(chunk_grpo, 'lod'), chunk_grpo.__all__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == f"False False {cg.__all__}\n"
    assert all(getattr(cg, name).__name__ == name for name in cg.__all__)


def test_the_documented_example_is_short() -> None:
    """tests/docs runs it."""
    example = (ROOT / "docs" / "library.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
    assert len(example.splitlines()) <= 30
    lines = re.search(r"from Python, in (\d+) lines", (ROOT / "README.md").read_text("utf-8"))
    assert lines
    assert int(lines[1]) == len(example.splitlines())


def test_prompts_keep_their_order_their_records_and_their_embeddings(model, prompts):
    assert list(prompts.texts) == TEXTS
    assert len(set(prompts.ids)) == 4  # equal texts have noise of their own
    assert [dict(each) for each in prompts.metadata] == [{"number": number} for number in range(4)]
    found = prompts.conditioning.to("cpu")
    alone = model.encode(TEXTS[3:], batch_size=3).conditioning.to("cpu")
    for name, tensor in found.tensors.items():
        assert torch.equal(tensor[0], tensor[2])
        assert torch.equal(tensor[3:], alone[name])


def test_the_profile_is_the_mean_distance_of_noisy_trajectories(model: cg.Model, prompts: PromptSet) -> None:
    sampling = model.sampling(num_steps=4, shift=3.0, eta=0.5)
    times = model.times(4, 3.0)
    strengths, sampler = step_noise("flow", times, 0.5)
    means = []
    with torch.no_grad():
        for name, row in (("00000", 0), ("00001", 1)):
            start = sample_noise((1, *model.base.latent_shape), [generator("profile", name, 0)])
            velocity = velocity_function(model.base, prompts.conditioning.rows([row]).to("cpu"))
            noise = [generator("profile-steps", name, 0)]
            states = rollout_sde(velocity, start, times, strengths, noise, sampler=sampler).states
            means.append(relative_l1(states)[0, :3])
    expected = torch.stack(means).mean(dim=0).tolist()
    found = model.profile(prompts.rows([0, 1]), sampling, seeds=1)
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_training_that_was_interrupted_goes_on_to_the_same_bytes(train, tmp_path):
    class Reward:
        """Ends at a call, as a power cut would."""

        calls, last = 0, 99

        def score(self, images: Any, prompts: Any, metadata: Any) -> Any:
            Reward.calls += 1
            if Reward.calls == Reward.last:
                raise RuntimeError("power cut")
            return brightness(images, prompts, metadata)

    whole, calls = train(tmp_path / "whole", Reward), Reward.calls
    Reward.calls, Reward.last = 0, calls - 1
    with pytest.raises(DataError, match="raised RuntimeError: power cut"):
        train(tmp_path / "part", Reward)
    Reward.calls = 0
    assert bytes_of(train(tmp_path / "part", Reward)) == bytes_of(whole)
    assert 0 < Reward.calls <= calls / 2
    with pytest.raises(DataError, match=r"of another computation .*delete .*part/checkpoints"):
        train(tmp_path / "part", Reward, seed=1)
    with pytest.raises(DataError, match="of another computation"):
        train(tmp_path / "part", Reward, profile=[0.8, 0.1, 0.1])
    assert bytes_of(whole) == {path.name: path.read_bytes() for path in (tmp_path / "part/transformer").iterdir()}


def test_chunks_are_drawn_by_the_weights_of_the_profile(train, tmp_path, monkeypatch):
    """Eq. (16): means 0.8 and 0.1 of the chunks [1, 2], over the mean of all steps, 1/3."""
    seen: list[Method] = []

    def trained(model: Any, data: Any, method: Method, *rest: Any) -> None:
        seen.append(method)
        raise InterruptedError

    monkeypatch.setattr("chunk_grpo.library.training.trained", trained)
    with pytest.raises(InterruptedError):
        train(tmp_path, profile=[0.8, 0.1, 0.1])
    assert seen[0].chunk_weights.tolist() == pytest.approx([2.4, 0.3])


def test_a_finished_training_goes_on_with_more_iterations(train, tmp_path):
    calls = 0

    def counted(images: Any, prompts: Any, metadata: Any) -> Any:
        nonlocal calls
        calls += 1
        return brightness(images, prompts, metadata)

    whole, of_whole = train(tmp_path / "whole", counted), calls
    train(tmp_path / "part", counted, iterations=1)
    calls = 0
    assert bytes_of(train(tmp_path / "part", counted)) == bytes_of(whole)
    assert 0 < calls < of_whole


def test_the_policy_learns_the_reward_and_leaves_the_base_as_it_is(model, prompts, train, tmp_path):
    drawn: dict[str, Any] = {"num_steps": 4, "shift": 3.0, "images_per_prompt": 2}
    before = cg.sample(model, prompts, **drawn)
    policy = train(tmp_path, unseen={"dark": lambda images, *_: 1 - brightness(images, None, None)})
    assert {"heldout/dark", "heldout_reward"} <= {name for _, name, _ in policy.metrics}
    after, tuned = cg.sample(model, prompts, **drawn), cg.sample(model, prompts, policy, **drawn)
    assert before.pictures.shape == (4, 2, 32, 32, 3)
    assert np.array_equal(before.pictures, after.pictures)
    assert not np.array_equal(before.pictures, tuned.pictures)
    only_base = cg.sample(model, prompts, policy.folder, base_steps=4, **drawn)
    assert np.array_equal(before.pictures, only_base.pictures)
    hybrid = cg.sample(model, prompts, policy, base_steps=2, **drawn).pictures
    assert not np.array_equal(hybrid, tuned.pictures)
    assert not np.array_equal(hybrid, before.pictures)
    tuned.save_grid(tmp_path / "grid.png")
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


def test_scores_and_their_comparison_by_hand(model: cg.Model, prompts: PromptSet) -> None:
    pictures = np.arange(4 * 2, dtype=np.uint8).reshape(4, 2, 1, 1, 1).repeat(3, axis=4)
    images = cg.Images(pictures, prompts)

    def value(images: Any, texts: Any, metadata: Any) -> Any:
        return [
            image.mean() + 100 * record["number"] * len(text)
            for image, text, record in zip(images, texts, metadata, strict=True)
        ]

    found = cg.score(images, value, batch_size=3)
    assert found.tolist() == [
        [2 * row + sample + 100 * row * len(TEXTS[row]) for sample in range(2)] for row in range(4)
    ]
    rise = np.array([[1.0, 3.0], [2.0, 4.0], [0.0, 0.0], [5.0, 7.0]])
    assert cg.compare(found + rise, found).mean == pytest.approx(rise.mean())
    two = cg.compare([found + rise, found + 3 * rise], found, captions=TEXTS)
    assert (two.mean, two.num_seeds, two.num_captions) == (pytest.approx(2 * rise.mean()), 2, 3)
    with pytest.raises(ValueError, match="same prompts and seeds"):
        cg.compare([found, found], [found, found, found])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iteration": 3}, "train.iteration: unknown key; did you mean 'iterations'?"),
        ({"learning_rate": None}, "train.learning_rate: must be a number, got null"),
        ({"heldout": {"every": 0}}, "train.heldout.every: must be > 0, got 0"),
        ({"sampling": {"cfg_scale": 2.0}}, "sampling.cfg_scale: must be that of the model, 1, got 2"),
        ({"profile": [0.5, 0.5]}, "profile: must have num_steps - 1 = 3 values"),
        ({"prompts_per_iteration": 5}, "prompts_per_iteration: must be <= the number of prompts, 4, got 5"),
        ({"unseen": {"reward": brightness}}, "unseen: 'reward' is the name of the training reward"),
        ({"reward": lambda images, prompts: 0}, "is called with (images, prompts, metadata), but takes"),
        (
            {"method": cg.method({"kind": "listed", "sizes": [2, 2]})},
            "chunks.plans.method.sizes: must sum to sampling.num_steps - 1 = 3",
        ),
        (
            {"method": cg.method("single")},
            "variants.method.fraction: int(chunks * fraction) must be >= 1, got int(1 * 0.5) = 0",
        ),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_loaded(changes, message, train, tmp_path):
    with pytest.raises(ConfigError) as caught:
        train(tmp_path, **changes)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_method_and_model_errors_name_the_setting(prompts: PromptSet) -> None:
    with pytest.raises(ConfigError, match=r"method.selction: unknown key; did you mean 'selection'"):
        cg.method("step", selction="weighted")
    with pytest.raises(ConfigError, match=r"chunks.plans.method.kind: must be one of"):
        cg.method("steps")
    with pytest.raises(ConfigError, match=r"model.height: must be a multiple of 8, got 33"):
        cg.load("assets/tiny-flux", height=33, width=32, max_sequence_length=8)
    with pytest.raises(DataError, match="no-such-folder"):
        cg.load("./no-such-folder", height=32, width=32, max_sequence_length=8).encode(["a"])
    with pytest.raises(ValueError, match="needs prompts and a record for each, got 1 and 2"):
        cg.load("assets/tiny-flux", height=32, width=32, max_sequence_length=8).encode(["a"], [{}, {}])
    scores = cg.Images(np.zeros((4, 1, 1, 1, 3), dtype=np.uint8), prompts)
    with pytest.raises(DataError, match=r"must return a number for each image|scores must be finite"):
        cg.score(scores, lambda images, prompts, metadata: [float("nan")] * len(images))
