"""The study's results: added run by run, and analysed."""

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dvc.utils.serialize import dump_yaml

from benchmarks.studies.blocks import BASE, RESULTS, Block, read_block
from benchmarks.studies.equal_reward import at_equal_reward, curve_rows
from benchmarks.studies.hypotheses import BESIDE, BLOCKS, LEVELS
from benchmarks.studies.study import PREFIX, hypothesis_rows, main, settings_digest
from chunk_grpo.artifacts import table_from_rows, write_table
from chunk_grpo.config import load_params, parse_params
from chunk_grpo.orchestration import presets
from chunk_grpo.reporting.statistics import MIN_SEEDS, crossed_interval, holm
from tests.conftest import ROOT

CAPTIONS = {"eval-00000": "a red circle", "eval-00001": "a red circle", "eval-00002": "a blue square"}
METRICS = {"reward_mean": 1.0, "heldout_reward": 2.0, "grad_norm": 9.0}
TIMES = {"seconds_rollout": 1.0, "seconds_update": 2.0, "seconds_waiting_for_reward": 4.0, "seconds_checkpoint": 8.0}


def save(rows: list[dict[str, Any]], path: Path, schema: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(table_from_rows(rows, schema), str(path), schema)


@cache
def composed(preset: str) -> dict[str, Any]:
    return presets.composed(ROOT, preset)


def params_in(folder: Path, *seeds: int, preset: str = "study-vivid", **changes: object) -> str:
    """A checkout with the parameters of a preset."""
    raw = composed(preset)
    folder.mkdir()
    dump_yaml(str(folder / "params.yaml"), raw | {"train": raw["train"] | {"seeds": list(seeds), **changes}})
    return str(folder)


def checkout(folder: Path, *seeds: int, preset: str = "study-vivid") -> str:
    """A checkout with a finished run of a preset. A score is 100 times the seed, and the number of the prompt."""
    raw, artifacts = composed(preset), Path(params_in(folder, *seeds, preset=preset)) / "artifacts"
    eval_prompts = [
        {"prompt_id": name, "split": "eval", "prompt": text, "category": "", "metadata": "{}"}
        for name, text in CAPTIONS.items()
    ]
    of_wise = {**eval_prompts[0], "prompt_id": "wise-00000", "split": "wise"}
    save([*eval_prompts, of_wise], artifacts / "prompts/evaluation.parquet", "prompts")
    for variant in ("base", *raw["variants"]):
        policies = [(mode, seed) for mode in ("tuned", "hybrid") for seed in seeds]
        for scorer in raw["scorers"]:
            scores = [
                {"policy": variant, "mode": mode, "train_seed": seed, "prompt_id": name, "sample": sample}
                | {"scorer": scorer, "metric": metric, "refusal": None}
                | {"value": 100.0 * seed + number + sample if metric == "score" else 9.0}
                for mode, seed in ([("base", -1)] if variant == "base" else policies)
                for number, name in enumerate([*CAPTIONS, "wise-00000"])
                for sample in range(2)
                for metric in ("score", "detections")
            ]
            save(scores, artifacts / f"scores/{variant}/{scorer}.parquet", "scores")
    manifest = {"commit": "abc", "cpu": "X", "cpu_count": 2, "packages": {"torch": "2"}, "seconds": 60}
    (artifacts / "runs").mkdir()
    for variant in raw["variants"]:
        for seed in seeds:
            (artifacts / f"runs/train@{variant}-{seed}.json").write_text(json.dumps(manifest))
            for values, table in (
                (METRICS, f"train/{variant}/seed-{seed}/metrics.parquet"),
                (TIMES, f"timings/{variant}/seed-{seed}.parquet"),
            ):
                about = {"variant": variant, "train_seed": seed, "iteration": 1}
                rows = [{**about, "metric": name, "value": value} for name, value in values.items()]
                save(rows, artifacts / table, "train_metrics")
    return str(folder)


def test_runs_of_one_study_are_put_together_and_others_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    add = ["--results", str(results), "add"]
    assert main([*add, checkout(tmp_path / "a", 4, 5), checkout(tmp_path / "b", 1)]) == 0
    block = read_block("vivid", results)
    assert (block.reward, block.seeds) == ("shapes-vivid", (1, 4, 5))
    assert block.captions == tuple(CAPTIONS.values())
    for policy, seeds in ((BASE, (-1,)), (("chunk", "hybrid"), (1, 4, 5))):
        expected = [[100 * seed + number + 0.5 for number in range(3)] for seed in seeds]
        np.testing.assert_allclose(block.values[policy, "shapes-exact"], expected)
    runs = json.loads((results / "vivid.json").read_text())["runs"]
    assert [run["seeds"] for run in runs] == [[4, 5], [1]]
    assert (runs[0]["commit"], runs[0]["training minutes"]) == ("abc", 14.0)  # 7 variants, 2 seeds
    curves = pq.read_table(results / "vivid-curves.parquet").to_pylist()
    found = {row["metric"]: row["value"] for row in curves if row["variant"] == "mirror"}
    assert found == {"reward_mean": 1, "heldout_reward": 2, "seconds": 1 + 2 + 4}  # without the checkpoint
    assert len(curves) == 7 * 3 * 3

    before = {path.name: path.read_bytes() for path in results.iterdir()}
    for run, message in (
        (params_in(tmp_path / "c", 1), "has the training seeds [1] already"),
        (params_in(tmp_path / "d", 3, learning_rate=1e-3), "its settings differ from those of"),
    ):
        assert main([*add, run]) == 3
        assert message in capsys.readouterr().err
    other = Path(params_in(tmp_path / "e", 6)) / "params.yaml"
    dump_yaml(str(other), load_params(other).model_dump(mode="json") | {"composed_from": "tiny"})
    assert main([*add, str(other.parent)]) == 2
    assert "composed_from: must start with 'study-', got 'tiny'" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in results.iterdir()} == before


@pytest.mark.parametrize("seeds", [3, MIN_SEEDS])
def test_hypotheses_are_paired_and_corrected_together(seeds: int) -> None:
    """With few training seeds they are not tested."""
    source = np.random.default_rng(3)
    policies = {policy for h in LEVELS for policy in h.policies}
    values = {(policy, "reward"): source.normal(size=(seeds, 3)) for policy in sorted(policies)}
    captions = tuple(CAPTIONS.values())
    rows = hypothesis_rows(Block("reward", ("reward",), tuple(range(seeds)), captions, values), LEVELS)
    pairs = [values[h.first, "reward"] - values[h.second, "reward"] for h in LEVELS]
    of = {name: values[(name, "tuned"), "reward"] for name in ("chunk", "dance", "chunk-free", "dance-free")}
    pairs[1] = of["chunk"] - of["dance"] - of["chunk-free"] + of["dance-free"]  # L2 compares two differences
    found = [crossed_interval(pair, captions=captions) for pair in pairs]
    assert [row[0] for row in rows] == [h.name for h in LEVELS]
    means = [float(row[1].replace("\N{MINUS SIGN}", "-")) for row in rows]
    assert means == pytest.approx([each.mean for each in found], abs=6e-4)
    if seeds < MIN_SEEDS:
        assert {row[3] for row in rows} == {"not tested"}
    else:
        corrected = holm([each.p_value for each in found])
        assert [float(row[3]) for row in rows] == pytest.approx(corrected, abs=6e-4)


def test_every_hypothesis_names_policies_of_the_presets() -> None:
    names_of = {path.stem.removeprefix(PREFIX) for path in (ROOT / "conf/preset").glob(f"{PREFIX}*.yaml")}
    assert names_of == set(BLOCKS)
    for block, hypotheses in BLOCKS.items():
        names = [block, BESIDE[block]] if block in BESIDE else [block]
        variants = {name for each in names for name in composed(PREFIX + each)["variants"]}
        assert {name for h in hypotheses for name, _ in h.policies} <= variants


def test_results_of_the_repository_are_whole() -> None:
    for path in RESULTS.glob("*.json"):
        block = read_block(path.stem, RESULTS)
        for row in hypothesis_rows(block, BLOCKS[path.stem]):
            tested = row[3] != "not tested" and math.isfinite(float(row[3].removeprefix("< ")))
            assert tested is (len(block.seeds) >= MIN_SEEDS)


def test_policies_beside_a_block_have_its_training_seeds(tmp_path: Path) -> None:
    results = tmp_path / "results"
    add = ["--results", str(results), "add"]
    runs = [checkout(tmp_path / "a", 4, 2), checkout(tmp_path / "b", 1, 4, preset="study-levels")]
    assert main([*add, *runs]) == 0
    block = read_block("levels", results)
    assert block.seeds == (4,)
    for policy in ("mirror", "chunk-free"):  # of the other block, and of this one
        means = block.values[(policy, "tuned"), "shapes-vivid"].mean(axis=1)
        assert means.tolist() == [401.5]


@pytest.mark.parametrize("step", ["dance", "flow-grpo"])
def test_scores_are_compared_at_equal_reward(step: str) -> None:
    """The other score is 2 x + 3 x^2 of the reward's change x, and 0.1 and 0.3 above that with chunk."""
    gains = {step: [0.1, 0.2], "control": [0.3, 0.5], "chunk": [0.2, 0.4]}
    above = {"chunk": np.array([[0.1], [0.3]])}
    values = {(BASE, name): np.full((1, 2), 0.5) for name in ("reward", "other")}
    for policy, gain in gains.items():
        change = np.array(gain)[:, None] + np.array([[-0.01, 0.01]])
        mean = np.array(gain)[:, None]
        values[(policy, "tuned"), "reward"] = 0.5 + change
        curve = 0.5 + 2 * mean + 3 * mean**2 + above.get(policy, 0.0)
        values[(policy, "tuned"), "other"] = np.repeat(curve, 2, axis=1)
    exact = {place: matrix for place, matrix in values.items() if place[0][0] != "chunk"}
    for given, lowest in ((exact, 0.9999), (values, 0.8)):
        fit, rows = at_equal_reward(Block("reward", ("reward", "other"), (0, 1), ("a", "b"), given), "other")
        assert lowest < fit <= 1
    assert rows[2][:3] == [step, "+0.150", "+0.375"]
    assert rows[2][3] == ""
    x, y = (np.array([gains[p] for p in ("chunk", "control", step)]).ravel() for _ in range(2))
    y = 2 * x + 3 * x**2 + np.array([0.1, 0.3, 0, 0, 0, 0])
    fitted, *_ = np.linalg.lstsq(np.stack([x, x**2], axis=1), y, rcond=None)
    residual = y - np.stack([x, x**2], axis=1) @ fitted
    beyond = residual[:2] - residual[4:]
    half = 12.7062 * np.std(beyond, ddof=1) / math.sqrt(2)  # Student's t of one degree of freedom
    numbers = [
        float(part)
        for part in rows[0][3].replace("\N{MINUS SIGN}", "-").replace("(", "").replace(")", "").split()
        if part != "to"
    ]
    assert numbers == pytest.approx([beyond.mean(), beyond.mean() - half, beyond.mean() + half], abs=1e-3)


def test_curves_are_means_over_training_seeds(tmp_path: Path) -> None:
    rows = [
        {"variant": "chunk", "train_seed": seed, "iteration": iteration, "metric": metric, "value": value}
        for metric, factor in (("heldout_reward", 1.0), ("reward_mean", 9.0))
        for seed, values in ((0, (0.1, 0.2, 0.4)), (1, (0.1, 0.3, 0.6)))
        for iteration, value in zip((0, 10, 20), np.array(values) * factor, strict=True)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "levels-curves.parquet")
    columns, table = curve_rows("levels", tmp_path)
    assert columns == ("variant", "0", "10", "20", "mean after the first")
    assert table == [["chunk", "0.100", "0.250", "0.500", "0.375"]]


def test_a_setting_that_a_later_version_adds_keeps_the_digest() -> None:
    """It has a default, as `train.kl_coef` has; an earlier file does not name it."""
    raw = composed("study-vivid")
    earlier = {name: value for name, value in raw["train"].items() if name != "kl_coef"}
    now = settings_digest(parse_params(raw))
    assert settings_digest(parse_params(raw | {"train": earlier})) == now
    assert settings_digest(parse_params(raw | {"train": earlier | {"kl_coef": 0.1}})) != now
