"""A small synthetic run on disk, in the schemas of the artifacts. No number here was measured."""

import io
import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image, ImageDraw

from chunk_grpo.artifacts import SchemaName, table_from_rows, write_json, write_table
from chunk_grpo.artifacts.layout import Layout
from chunk_grpo.artifacts.pictures import write_pictures
from chunk_grpo.config import load_params
from chunk_grpo.reporting.content import SECTIONS, Content
from chunk_grpo.reporting.evidence import ScoreBook, Source, TrainingSettings
from chunk_grpo.reporting.inputs import read_evidence, settings_from
from chunk_grpo.reporting.page import render
from stages import report
from stages._stage import run_stage

CATEGORIES = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
VARIANTS = ("dance", "chunk", "chunk-ws")
SETTINGS: dict[str, dict[str, object]] = {
    "dance": {"objective": "step", "plan": "step"},
    "chunk": {"objective": "chunk", "plan": "listed"},
    "chunk-ws": {"objective": "chunk", "plan": "listed", "selection": "weighted"},
}
SCORERS = ("shapes-exact", "shapes-graded", "shapes-vivid")
SEEDS = (0, 1, 2)
LIFT = {"dance": 0.10, "chunk": 0.14, "chunk-ws": 0.02}
COLOURS = {"red": "#d33", "blue": "#36c", "green": "#2a4", "yellow": "#dc2"}
SHAPES = ("circle", "square", "triangle", "cross")
PROMPTS, PROFILE = "prompts/evaluation.parquet", "profile/l1_profile.parquet"


@dataclass(frozen=True)
class Run:
    """Location of the synthetic run: the folder artifacts/ of its workspace."""

    root: Path

    @property
    def params(self) -> Path:
        return self.root.parent / "params.yaml"

    @property
    def options(self) -> list[str]:
        """The stage's command line."""
        at = Layout.below(self.root.parent)
        given = [(field.name, getattr(at, field.name)) for field in fields(report.Arguments)]
        named = [("params", self.params), ("manifest", at.manifest("report")), *given]
        return [word for name, path in named for word in (f"--{name}", str(path))]

    def build(self) -> dict[str, bytes]:
        """Run the stage; the files of the report by path."""
        assert run_stage(report.main, report.Arguments, self.options) == 0
        return self.report()

    def content(self) -> Content:
        """Content of the report, without its plots, which take most of the time."""
        settings = settings_from(load_params(self.params))
        return Content(read_evidence(Layout.below(self.root.parent), settings), settings)

    def markdown(self) -> str:
        """The text of report.md."""
        return render("report.md.j2", self.content(), SECTIONS)

    def page(self) -> str:
        """The text of index.html without its plots."""
        return render("index.html.j2", self.content(), SECTIONS, defaultdict(list))

    def report(self) -> dict[str, bytes]:
        """The files of the report by path."""
        folder = self.root / "report"
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    def copy(self, place: Path) -> "Run":
        """A copy in another folder, without the report."""
        shutil.copy(self.params, place)
        shutil.copytree(self.root, place / self.root.name, ignore=shutil.ignore_patterns("report*"))
        return Run(place / self.root.name)

    def change_params(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change params.yaml in place."""
        params = json.loads(self.params.read_text())
        change(params)
        self.params.write_text(json.dumps(params))


def images_of(policy: str) -> Iterator[tuple[str, int]]:
    """(mode, train_seed) of a policy's images."""
    if policy == "base":
        yield "base", -1
        return
    for mode in ("tuned", "hybrid"):
        for seed in SEEDS:
            yield mode, seed


def prompt_rows(per_category: int) -> list[dict[str, object]]:
    rows: list[tuple[str, str, str, str, str]] = []
    for index in range(per_category * len(CATEGORIES)):
        category = CATEGORIES[index % len(CATEGORIES)]
        colour, shape = list(COLOURS)[index % 4], SHAPES[(index // 4) % 4]
        text = f"a {colour} {shape}" + (" left of a blue square" if category == "position" else "")
        demand = {"class": shape, "count": 1, "color": colour}
        metadata = json.dumps({"tag": category, "include": [demand], "prompt": text})
        rows.append((f"eval-{index:03d}", "eval", text, category, metadata))
    text = "a shape with no corners, the colour of a ripe banana"
    rows += [(f"wise-{index}", "wise", text, "wise", "{}") for index in range(8)]
    names = ("prompt_id", "split", "prompt", "category", "metadata")
    return [dict(zip(names, row, strict=True)) for row in rows]


def score_rows(
    policy: str, place: int, scorer: str, prompts: list[dict[str, object]], samples: int
) -> list[dict[str, object]]:
    """Scores with an effect per variant, noise per seed, and noise per prompt that the base shares."""
    rows = []
    for mode, seed in images_of(policy):
        lift = LIFT.get(policy, 0.0) * (0.6 if mode == "hybrid" else 1.0)
        of_seed = np.random.default_rng([seed + 1, place]).normal(0, 0.008)
        for index, prompt in enumerate(prompts):
            for sample in range(samples):
                common = np.random.default_rng([index, sample, 7]).normal(0, 0.2)
                own = np.random.default_rng([index, sample, seed + 1, place, len(mode)]).normal(0, 0.12)
                change = 0.0 if policy == "base" else lift + of_seed + own
                value = float(np.clip(0.52 + common + change, 0, 1))
                if scorer == "shapes-exact":
                    value = float(value > 0.55)
                rows.append(
                    {
                        "policy": policy, "mode": mode, "train_seed": seed, "prompt_id": prompt["prompt_id"],
                        "sample": sample, "scorer": scorer, "metric": "score", "value": value,
                    }
                )  # fmt: skip
    return rows


def picture(prompt: str, jitter: int, size: int) -> bytes:
    image = Image.new("RGB", (size, size), "#e9e4d8")
    pen = ImageDraw.Draw(image)
    colour = next(c for name, c in {**COLOURS, "banana": "#dc2"}.items() if name in prompt)
    scale = size / 48
    box = [(10 + jitter) * scale, (12 - jitter) * scale, (30 + jitter) * scale, (34 - jitter) * scale]
    if "square" in prompt:
        pen.rectangle(box, fill=colour)
    elif "triangle" in prompt:
        pen.polygon([(box[0], box[3]), (box[2], box[3]), ((box[0] + box[2]) / 2, box[1])], fill=colour)
    else:
        pen.ellipse(box, fill=colour)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def image_row(
    policy: str, mode: str, train_seed: int, prompt_id: object, data: bytes, seed: int, sample: int = 0
) -> dict[str, object]:
    return {
        "policy": policy, "mode": mode, "train_seed": train_seed, "prompt_id": prompt_id, "sample": sample,
        "seed": seed, "image": {"bytes": data, "path": f"{prompt_id}-{sample}.png"},
    }  # fmt: skip


def image_rows(policy: str, seed: int, prompts: list[dict[str, object]], size: int) -> list[dict[str, object]]:
    def data(text: object, mode: str) -> bytes:
        return picture(str(text), (seed + 1 + len(mode) + len(policy)) % 4, size)

    return [
        image_row(policy, mode, seed, prompt["prompt_id"], data(prompt["prompt"], mode), 2000 + index)
        for mode, of in images_of(policy)
        if of == seed
        for index, prompt in enumerate(prompts)
    ]


def profile_rows(num_steps: int = 17) -> list[dict[str, object]]:
    rows = []
    times = np.linspace(1, 0, num_steps + 1)
    times = 3 * times / (1 + 2 * times)
    for sampler in ("sde", "ode"):
        for prompt in range(6):
            for step in range(num_steps):
                level = 0.35 + 0.42 * np.exp(-step / 2.2) if sampler == "sde" else 0.02 + 0.016 * step
                level *= 1 + np.random.default_rng([prompt, step]).normal(0, 0.05)
                rows.append(
                    {
                        "sampler": sampler, "prompt_id": f"train-{prompt}", "seed": 0, "step": step,
                        "t": times[step], "t_next": times[step + 1], "l1_rel": float(level),
                    }
                )  # fmt: skip
    return rows


def plan_rows(plan: str, sizes: tuple[int, ...]) -> list[dict[str, object]]:
    means = np.linspace(0.7, 0.4, len(sizes)) if len(sizes) > 1 else np.array([0.7])
    firsts = np.cumsum([0, *sizes[:-1]])
    return [
        {
            "plan": plan, "chunk": k, "first_step": int(firsts[k]), "num_steps": size, "mean_l1": m,
            "weight": m / 0.5,
        }
        for k, (size, m) in enumerate(zip(sizes, means.tolist(), strict=True))
    ]  # fmt: skip


def metric_rows(variant: str, place: int, seed: int) -> list[dict[str, object]]:
    rows = []
    scatter = np.random.default_rng([seed, place])
    for iteration in range(31):
        rise = LIFT.get(variant, 0.0) * iteration / 30
        values: Mapping[str, float] = {
            "reward_mean": 0.85 + rise + scatter.normal(0, 0.03),
            "ratio_min": 1 - abs(scatter.normal(8e-5, 2e-5)),
            "ratio_max": 1 + abs(scatter.normal(9e-5, 2e-5)),
            "clip_fraction": abs(scatter.normal(0.08, 0.02)),
            "grad_norm": abs(scatter.normal(0.4, 0.05)),
            **({"heldout_reward": 0.84 + rise + scatter.normal(0, 0.01)} if iteration % 5 == 0 else {}),
        }
        rows += [
            {"variant": variant, "train_seed": seed, "iteration": iteration, "metric": m, "value": float(v)}
            for m, v in values.items()
        ]
    return rows


def manifest(stage: str, minute: int, seconds: float) -> dict[str, object]:
    return {
        "manifest_version": 1, "stage": stage, "started_at": f"2001-01-01T10:{minute:02d}:00+00:00",
        "seconds": seconds,
        "peak_memory_mib": 912.5, "python": "3.11.2", "packages": {"torch": "2.13.0", "diffusers": "0.42.1"},
        "system": "Linux x86_64", "cpu": "Synthetic CPU @ 2.0 GHz", "cpu_count": 2, "accelerator": None,
        "commit": "0123456789abcdef0123456789abcdef01234567", "notes": {},
    }  # fmt: skip


def write_run(
    root: Path, per_category: int = 8, samples: int = 2, image_size: int = 48, variants: tuple[str, ...] = VARIANTS
) -> Run:
    """Write a synthetic workspace; variants other than `VARIANTS` train like the first of them."""
    root, params_file = root / "artifacts", root / "params.yaml"

    def save(rows: list[dict[str, object]], schema: SchemaName, path: str) -> None:
        write_table(table_from_rows(rows, schema), root / path, schema)

    prompts = prompt_rows(per_category)
    save(prompts, "prompts", PROMPTS)
    write_pictures({}, lambda path: np.zeros(0, dtype=np.uint8), root / "prompts" / "pictures")
    save(profile_rows(), "l1_profile", PROFILE)
    for plan, sizes in (("listed", (2, 3, 4, 7)), ("guided", (2, 3, 5, 6))):
        save(plan_rows(plan, sizes), "chunk_plan", f"chunks/{plan}.parquet")
    for place, variant in enumerate(variants):
        for seed in SEEDS:
            save(metric_rows(variant, place, seed), "train_metrics", f"train/{variant}/seed-{seed}/metrics.parquet")
    for place, policy in enumerate((*variants, "base")):
        for seed in (-1,) if policy == "base" else SEEDS:
            folder = policy if policy == "base" else f"{policy}/seed-{seed}"
            save(image_rows(policy, seed, prompts, image_size), "images", f"images/{folder}/images.parquet")
        for scorer in SCORERS:
            rows = score_rows(policy, place, scorer, prompts, samples)
            save(rows, "scores", f"scores/{policy}/{scorer}.parquet")
    stages = ("prepare_prompts", "encode_prompts@profile", "encode_training@0", "profile_l1")
    stages += ("train@dance-0", "train@chunk-0", "generate@chunk-0")
    for minute, stage in enumerate((*stages, "train@of-earlier-parameters")):
        write_json(manifest(stage, minute, 3.2 + 41.7 * minute), root / "runs" / f"{stage}.json")
    params = yaml.safe_load((Path(__file__).parents[2] / "params.yaml").read_text())
    title = "Synthetic data, to test the report"
    params["report"] |= {"title": title, "grid_prompts": 4}
    params["train"] |= {"iterations": 30, "clip_range": 1e-4}
    params["variants"] = {v: SETTINGS.get(v, SETTINGS["dance"]) for v in variants}
    params["rewards"] = {"shapes-graded": 1.0, "shapes-vivid": 0.6}
    params["train"]["heldout"]["scorers"] = ["shapes-exact"]
    params_file.write_text(json.dumps(params))
    return Run(root)


def training_settings(**changes: Any) -> TrainingSettings:
    """Settings of the training of a variant v, with changes."""
    values = {"iterations": 2, "images": {"v": 32}, "clip_ranges": {"v": (1e-4, 4e-4)}, "unseen": ()}
    values |= {
        "decisive": "heldout_reward",
        "keeps_best": False,
        "single_chunks": False,
        "chunk_rewards": False,
        "heldout_prompts": 8,
        "heldout_images": 2,
        "num_steps": 17,
    }
    return TrainingSettings(**values | changes)


def metrics_source(*rows: tuple[int, int, str, float]) -> Source:
    """Training metrics of a variant, from (training seed, iteration, metric, value)."""
    names = ("train_seed", "iteration", "metric", "value")
    found = [{"variant": "v", **dict(zip(names, row, strict=True))} for row in rows]
    return Source("train/v/metrics.parquet", table_from_rows(found, "train_metrics"))


Values = Mapping[tuple[int, str, int], float | None]
"""(training seed, prompt, sample) to score; None: the scorer refused the image."""


def scores(policy: str, mode: str, values: Values, scorer: str = "x") -> Source:
    """Scores of a policy's images, each but a refused one with a detail that counts nowhere."""
    rows = [
        {
            "policy": policy, "mode": mode, "train_seed": seed, "prompt_id": prompt_id, "sample": sample,
            "scorer": scorer, "metric": metric, "value": value if metric == "score" else -9.0,
            "refusal": "no answer" if value is None else None,
        }
        for (seed, prompt_id, sample), value in values.items()
        for metric in ("score", *(() if value is None else ("some detail",)))
    ]  # fmt: skip
    return Source(f"scores/{policy}/{scorer}.parquet", table_from_rows(rows, "scores"))


def score_book(base: Values, *, scorer: str = "x", weight: float = 1.0, **tuned: Values) -> ScoreBook:
    """Scores of the base and of tuned policies by one scorer, which alone is the reward."""
    sources = {("base", scorer): scores("base", "base", base, scorer)}
    sources |= {(name, scorer): scores(name, "tuned", values, scorer) for name, values in tuned.items()}
    return ScoreBook(sources, {scorer: weight})


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose report exists; read only."""
    made = write_run(tmp_path_factory.mktemp("finished"))
    made.build()
    return made


@pytest.fixture(scope="session")
def files(finished: Run) -> dict[str, bytes]:
    """The files of its report by path."""
    return finished.report()


@pytest.fixture
def run(finished: Run, tmp_path: Path) -> Run:
    """A copy of it without the report."""
    return finished.copy(tmp_path)


@pytest.fixture(scope="session")
def _small(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_run(tmp_path_factory.mktemp("small"), 2, 1, 16)


@pytest.fixture
def small(_small: Run, tmp_path: Path) -> Run:
    """A run with few, small images."""
    return _small.copy(tmp_path)
