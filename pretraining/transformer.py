"""Step 4: the velocity network, by flow matching on the frozen encoders' outputs.

Training has phases, each with its own learning-rate schedule and mix of categories. A phase starts with the averaged
weights of the phase named in `after`. `python -m pretraining.transformer TOY PHASE` runs a phase, or
resumes it after a kill.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from diffusers import AutoencoderKL, FluxPipeline
from torch import Tensor, nn

from chunk_grpo.core.flow import flow_matching_loss, interpolate
from chunk_grpo.families.base import Conditioning
from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.seeding import derive_seed
from chunk_grpo.shapes.edits import all_instructions
from chunk_grpo.shapes.prompts import all_prompts
from pretraining.common import Curve, EditStream, SceneStream, cosine_with_warmup
from pretraining.evaluate import evaluate
from pretraining.initial import save_network
from pretraining.toys import KONTEXT, Toy, command_line, load_toy

DATASET_BATCH = 500


class Pictures(NamedTuple):
    """N pictures to learn from."""

    latents: Tensor
    """Normalised packed latents [N, L, D]."""
    texts: Tensor
    """Index of each picture's caption or instruction [N]."""
    sources: Mapping[str, Tensor]
    """Tensors [N, ...] of the pictures that the instructions edit, as the network takes them; none for captions."""


@torch.no_grad()
def encode_pictures(
    family: DiffusersFamily, vae: AutoencoderKL, stream: SceneStream | EditStream, prompts: Sequence[str], count: int
) -> Pictures:
    """Encode new images, and the pictures that they edit."""
    number = {prompt: index for index, prompt in enumerate(prompts)}
    latents, texts, sources = [], [], []
    for _ in range(0, count, DATASET_BATCH):
        specs, images, edited = stream.batch(DATASET_BATCH)
        codes = vae.encode(images).latent_dist.mode()
        codes = (codes - vae.config.shift_factor) * vae.config.scaling_factor
        latents.append(FluxPipeline._pack_latents(codes, *codes.shape))
        texts += [number[spec.prompt] for spec in specs]
        sources.append({} if edited is None else family.source_tensors(edited))
    read = {name: torch.cat([part[name] for part in sources]) for name in sources[0]}
    return Pictures(torch.cat(latents), torch.tensor(texts, device=latents[0].device), read)


def stream_of(toy: Toy, phase: str) -> tuple[list[str], SceneStream | EditStream]:
    """All texts that a toy learns, and the stream of a phase's pictures."""
    settings = toy.params["transformer"]["phases"][phase]
    seed, categories = derive_seed("pictures", toy.params["seed"], phase), settings["categories"]
    if toy.name == KONTEXT:
        stream = EditStream(seed, toy.device, categories, mistakes=settings["mistakes"])
        return [i.prompt for i in all_instructions()], stream
    captions = [spec.prompt for spec in all_prompts()]
    return captions, SceneStream(seed, toy.device, categories, left_to_right=settings["left_to_right"])


def sample_noise_levels(count: int, shift: float, device: torch.device) -> Tensor:
    """Draw noise levels [count]: half uniform, half logit-normal with the time shift."""
    uniform = torch.rand(count, device=device)
    normal = torch.randn(count, device=device).sigmoid()
    shifted = shift * normal / (1 + (shift - 1) * normal)
    return torch.where(torch.rand(count, device=device) < 0.5, uniform, shifted)


class Run:
    """One phase: network, average of its weights, optimiser and schedule, with a checkpoint to resume from."""

    def __init__(self, toy: Toy, phase: str) -> None:
        """Start the phase, or resume from its checkpoint."""
        settings = toy.params["transformer"]
        self.phase = settings["phases"][phase]
        self._path = toy.folder / f"{phase}.ckpt"
        start = toy.phase_folder(self.phase["after"])
        network = toy.family.network_class.from_pretrained(start, dtype=torch.float32)
        self.network = network.to(toy.device).train()
        self.average = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(),
            self.phase["learning_rate"],
            betas=(0.9, 0.95),
            weight_decay=settings["weight_decay"],
            fused=True,
        )
        planned = self.phase.get("cosine_steps", self.phase["steps"])
        self.schedule = cosine_with_warmup(self.optimizer, settings["warmup_steps"], planned)
        self.step, self.loss = 0, 0.0
        if self._path.exists():
            self._restore(torch.load(self._path, map_location=toy.device, weights_only=True))

    def _parts(self) -> dict[str, Any]:
        return {
            "network": self.network,
            "average": self.average,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self.step, self.loss = state["step"], state["loss"]

    def save(self) -> None:
        state = {name: part.state_dict() for name, part in self._parts().items()}
        partial = self._path.with_suffix(".partial")
        torch.save({**state, "step": self.step, "loss": self.loss}, partial)
        partial.replace(self._path)

    def finish(self) -> None:
        self._path.unlink(missing_ok=True)

    def learn(self, loss: Tensor, ema_decay: float) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.step += 1
        decay = min(ema_decay, self.step / (self.step + 100))
        torch._foreach_lerp_(list(self.average.parameters()), list(self.network.parameters()), 1 - decay)
        self.loss += (float(loss.detach()) - self.loss) / min(self.step, 200)


def train(toy: Toy, phase: str) -> None:
    """Train one phase; save and score the averaged network at intervals."""
    params, device = toy.params, toy.device
    settings = params["transformer"]
    torch.set_float32_matmul_precision("high")
    run = Run(toy, phase)
    family = toy.load(("text", "vae"), guided=False).using(run.network)
    measured = toy.load(("text", "vae"), guided=True).using(run.average)
    prompts, stream = stream_of(toy, phase)
    known = family.encode([*prompts, ""])
    vae = AutoencoderKL.from_pretrained(toy.checkpoint / "vae", dtype=torch.float32).to(device)
    pictures = encode_pictures(family, vae, stream, prompts, settings["pictures"])
    curve = Curve(toy.curve(f"transformer-{phase}"), keep=run.step > 0)
    while run.step < run.phase["steps"]:
        # Each step has its own random stream, so a resumed run equals an uninterrupted one.
        torch.manual_seed(derive_seed("pretrain", params["seed"], phase, run.step))
        rows = torch.randint(len(pictures.latents), (settings["batch_size"],), device=device)
        x0, who = pictures.latents[rows], pictures.texts[rows]
        x1, t = torch.randn_like(x0), sample_noise_levels(len(rows), settings["shift"], device)
        # Guidance needs the velocity of the empty prompt.
        forgotten = torch.rand(len(rows), device=device) < settings["empty_captions"]
        who = torch.where(forgotten, len(prompts), who)
        edited = {name: tensor[rows] for name, tensor in pictures.sources.items()}
        conditioning = Conditioning({**known.rows(who).tensors, **edited})
        velocity = family.velocity(interpolate(x0, x1, t), t, conditioning)
        run.learn(flow_matching_loss(velocity, x0, x1), settings["ema_decay"])
        if run.step % settings["evaluate_every"] == 0 or run.step == run.phase["steps"]:
            scores = evaluate(toy, measured, settings["watch_prompts"])
            curve.add(run.step, loss=run.loss, **scores)
            run.save()
    save_network(run.average, toy.phase_folder(phase))
    run.finish()


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("phase", help="name of a phase in params.yaml")
    arguments = parser.parse_args()
    train(load_toy(arguments.toy), arguments.phase)
