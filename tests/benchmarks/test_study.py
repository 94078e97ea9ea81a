"""The study's results: added run by run, and analysed."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from dvc.utils.serialize import dump_yaml

from benchmarks import study
from benchmarks.study import BASE, HYPOTHESES, hypothesis_rows, main, read_block, settings_digest
from chunk_grpo.artifacts import SchemaName, table_from_rows, write_table
from chunk_grpo.config import load_params, parse_params
from chunk_grpo.orchestration.presets import composed
from chunk_grpo.reporting.statistics import MIN_SEEDS, crossed_interval, holm

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = ("eval-00000", "eval-00001", "eval-00002")
CAPTIONS = dict(zip(PROMPTS, ("a red circle", "a red circle", "a blue square"), strict=True))


def value(variant: str, mode: str, seed: int, prompt: str, sample: int) -> float:
    """A score with effects of all that names it."""
    source = np.random.default_rng([len(variant), len(mode), seed + 1, PROMPTS.index(prompt), sample])
    return float(source.normal())


@pytest.fixture
def checkout(tmp_path: Path) -> Callable[..., Path]:
    """A checkout with a finished run of a preset."""

    def make(*seeds: int, preset: str = "study-vivid", **changes: object) -> Path:
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        raw = composed(ROOT, preset)
        raw["train"]["seeds"] = list(seeds)
        raw["train"] |= changes
        folder.mkdir()
        dump_yaml(str(folder / "params.yaml"), raw)
        rows = [
            {"prompt_id": name, "split": split, "prompt": CAPTIONS[name], "category": "", "metadata": "{}"}
            for name, split in zip(PROMPTS, ("eval",) * 3, strict=True)
        ]
        rows.append({**rows[0], "prompt_id": "wise-00000", "split": "wise"})
        save(rows, folder / "artifacts/prompts/evaluation.parquet", "prompts")
        for scorer in raw["scorers"]:
            for variant in ("base", *raw["variants"]):
                modes = ("base",) if variant == "base" else ("tuned", "hybrid")
                of = (-1,) if variant == "base" else seeds
                scores = [
                    {
                        "policy": variant,
                        "mode": mode,
                        "train_seed": seed,
                        "prompt_id": prompt,
                        "sample": sample,
                        "scorer": scorer,
                        "metric": metric,
                        "value": value(variant, mode, seed, prompt, sample) if metric == "score" else 9.0,
                        "refusal": None,
                    }
                    for mode in modes
                    for seed in of
                    for prompt in PROMPTS
                    for sample in range(2)
                    for metric in ("score", "detections")
                ]
                save(scores, folder / f"artifacts/scores/{variant}/{scorer}.parquet", "scores")
        for variant in raw["variants"]:
            manifest = {
                "commit": "abc",
                "cpu": "X",
                "cpu_count": 2,
                "packages": {"torch": "2"},
                "seconds": 60,
            }
            metrics = ("reward_mean", "heldout_reward", "heldout/shapes-exact", "grad_norm")
            parts = ("seconds_rollout", "seconds_update", "seconds_waiting_for_reward", "seconds_checkpoint")
            for seed in seeds:
                path = folder / f"artifacts/runs/train@{variant}-{seed}.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(manifest), encoding="utf-8")
                for names, table in (
                    (metrics, f"train/{variant}/seed-{seed}/metrics.parquet"),
                    (parts, f"timings/{variant}/seed-{seed}.parquet"),
                ):
                    save(curve(variant, seed, names), folder / "artifacts" / table, "train_metrics")
        return folder

    return make


def save(rows: Sequence[Mapping[str, object]], path: Path, schema: SchemaName) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(table_from_rows(rows, schema), str(path), schema)


def curve(variant: str, seed: int, metrics: Sequence[str]) -> list[dict[str, object]]:
    """Two iterations; a value is the seed, the iteration and the number of the metric as digits."""
    return [
        {
            "variant": variant,
            "train_seed": seed,
            "iteration": i,
            "metric": metric,
            "value": 100.0 * seed + 10 * i + n,
        }
        for i in (1, 2)
        for n, metric in enumerate(metrics)
    ]


def test_curves_are_kept_with_the_seconds_of_an_iteration(
    checkout: Callable[..., Path], tmp_path: Path
) -> None:
    results = tmp_path / "results"
    main(["--results", str(results), "add", str(checkout(4)), str(checkout(1))])
    rows = pq.read_table(results / "vivid-curves.parquet").to_pylist()
    found = {
        (row["train_seed"], row["metric"], row["iteration"]): row["value"]
        for row in rows
        if row["variant"] == "mirror"
    }
    assert len(rows) == 7 * 2 * 4 * 2
    for seed in (1, 4):
        for i in (1, 2):
            digits = 100.0 * seed + 10 * i
            expected = {"reward_mean": 0, "heldout_reward": 1, "heldout/shapes-exact": 2}
            assert {name: found[seed, name, i] - digits for name in expected} == expected
            assert found[seed, "seconds", i] == 3 * digits + 0 + 1 + 2  # without the checkpoint


def test_seeds_of_several_runs_are_one_block(checkout: Callable[..., Path], tmp_path: Path) -> None:
    results = tmp_path / "results"
    assert main(["--results", str(results), "add", str(checkout(4, 5)), str(checkout(1))]) == 0
    block = read_block("vivid", results)
    assert (block.reward, block.seeds, block.captions) == (
        "shapes-vivid",
        (1, 4, 5),
        tuple(CAPTIONS.values()),
    )
    for (variant, mode), seeds in ((BASE, (-1,)), (("chunk", "hybrid"), (1, 4, 5))):
        expected = [
            [np.mean([value(variant, mode, s, p, i) for i in range(2)]) for p in PROMPTS] for s in seeds
        ]
        np.testing.assert_allclose(block.values[(variant, mode), "shapes-exact"], expected)
    runs = json.loads((results / "vivid.json").read_text())["runs"]
    assert [run["seeds"] for run in runs] == [[4, 5], [1]]
    assert runs[0]["commit"] == "abc"
    assert runs[0]["training minutes"] == 14.0


def test_hypotheses_are_paired_and_corrected_together(checkout: Callable[..., Path], tmp_path: Path) -> None:
    results = tmp_path / "results"
    main(["--results", str(results), "add", str(checkout(*range(6)))])
    block = read_block("vivid", results)
    found = [
        crossed_interval(
            block.values[h.first, "shapes-vivid"] - block.values[h.second, "shapes-vivid"],
            captions=block.captions,
        )
        for h in HYPOTHESES
    ]
    rows = hypothesis_rows(block)
    assert [row[0] for row in rows] == [h.name for h in HYPOTHESES]
    assert [float(row[1].replace("−", "-")) for row in rows] == pytest.approx(
        [f.mean for f in found], abs=6e-4
    )
    assert [float(row[3]) for row in rows] == pytest.approx(holm([f.p_value for f in found]), abs=6e-4)


def test_hypotheses_are_not_tested_with_few_training_seeds(
    checkout: Callable[..., Path], tmp_path: Path
) -> None:
    results = tmp_path / "results"
    main(["--results", str(results), "add", str(checkout(0, 1, 2))])
    assert {row[3] for row in hypothesis_rows(read_block("vivid", results))} == {"not tested"}


def test_every_hypothesis_names_policies_of_the_presets() -> None:
    for path in (ROOT / "conf/preset").glob("study-*.yaml"):
        variants = composed(ROOT, path.stem)["variants"]
        assert {name for h in HYPOTHESES for name, _ in (h.first, h.second)} == set(variants)


def test_the_smallest_difference_is_seen_with_its_power() -> None:
    source, R, P = np.random.default_rng(5), 8, 60
    seen = []
    for _ in range(400):
        values = 0.05 * source.normal(size=(R, 1)) + 0.1 * source.normal(size=(R, P))
        found = crossed_interval(values)
        seen.append(crossed_interval(values + study.detectable(found)).verdict == "above")
    # Three standard errors of a share in 400 runs.
    assert np.mean(seen) == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"seeds": (1, 2)}, "has the training seeds [1] already"),
        ({"seeds": (3,), "learning_rate": 1e-3}, "its settings differ from those of"),
    ],
)
def test_other_runs_are_refused_and_change_nothing(
    second: dict[str, object],
    message: str,
    checkout: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results, seeds = tmp_path / "results", second.pop("seeds")
    main(["--results", str(results), "add", str(checkout(0, 1))])
    before = {path.name: path.read_bytes() for path in results.iterdir()}
    assert isinstance(seeds, tuple)
    assert main(["--results", str(results), "add", str(checkout(*seeds, **second))]) == 3
    assert message in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in results.iterdir()} == before


def test_a_run_of_another_preset_is_refused(
    checkout: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkout(0)
    raw = load_params(folder / "params.yaml").model_dump(mode="json") | {"composed_from": "tiny"}
    dump_yaml(str(folder / "params.yaml"), raw)
    assert main(["--results", str(tmp_path / "results"), "add", str(folder)]) == 2
    assert "composed_from: must start with 'study-', got 'tiny'" in capsys.readouterr().err


def test_results_of_the_repository_are_whole() -> None:
    for path in study.RESULTS.glob("*.json"):
        block = read_block(path.stem, study.RESULTS)
        for row in hypothesis_rows(block):
            tested = row[3] != "not tested" and math.isfinite(float(row[3].removeprefix("< ")))
            assert tested is (len(block.seeds) >= MIN_SEEDS)


def test_a_setting_that_a_later_version_adds_keeps_the_digest() -> None:
    """It has a default, as `train.kl_coef` has; an earlier file does not name it."""
    raw = composed(ROOT, "study-vivid")
    now = settings_digest(parse_params(raw))
    del raw["train"]["kl_coef"]
    assert settings_digest(parse_params(raw)) == now
    raw["train"]["kl_coef"] = 0.1
    assert settings_digest(parse_params(raw)) != now
