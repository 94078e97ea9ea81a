"""The study of docs/study.md: its results by training seed and prompt, and their analysis.

    python -m benchmarks.studies.study add CHECKOUT      # a checkout with a finished run of a preset study-*
    python -m benchmarks.studies.study table [BLOCK ...]
    python -m benchmarks.studies.study plot BLOCK FILE.png

`add` adds the seeds of a run to docs/study/BLOCK.parquet, their curves to BLOCK-curves.parquet, and to BLOCK.json where
they come from. Runs of other settings or of seeds that are there already are refused. `table` prints the hypotheses
with their intervals and p-values in Markdown. `plot` draws the scores outside the reward over the reward, a line for
each variant, on the held-out images of training.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.studies.blocks import BASE, CURVES, RESULTS, Block, read_block
from benchmarks.studies.equal_reward import at_equal_reward, curve_rows
from benchmarks.studies.hypotheses import BLOCKS, Hypothesis
from benchmarks.tables import parser_of, print_table
from chunk_grpo.artifacts import read_table
from chunk_grpo.artifacts.layout import Layout
from chunk_grpo.config import Params, load_params
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.reporting.comparisons import interval_text, p_text, signed
from chunk_grpo.reporting.evidence import Source
from chunk_grpo.reporting.inputs import read_metrics
from chunk_grpo.reporting.panels import plot_picture, tradeoff_figure
from chunk_grpo.reporting.series import metric_curve
from chunk_grpo.reporting.statistics import POWER, holm

PREFIX = "study-"
"""Start of the names of the study's presets; the rest is the name of the block."""

DRAWN = ("reward_mean", "heldout")
"""Starts of the names of the metrics that are kept."""
HELDOUT = "heldout/"
"""Start of the names of the scorers' metrics on held-out images."""
SECONDS = ("seconds_rollout", "seconds_waiting_for_reward", "seconds_update")


def main(options: Sequence[str] | None = None) -> int:
    """Add results or print tables; return the exit status."""
    parser = parser_of(__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add", help="add a finished run")
    adding.add_argument("checkouts", nargs="+", type=Path, help="checkouts with finished runs")
    showing = commands.add_parser("table", help="print the analysis")
    showing.add_argument("blocks", nargs="*", help="names of blocks (default: all)")
    drawing = commands.add_parser("plot", help="draw scores outside the reward over the reward")
    drawing.add_argument("block", help="name of the block")
    drawing.add_argument("picture", type=Path, help="PNG file to write")
    arguments = parser.parse_args(options)
    try:
        if arguments.command == "add":
            for checkout in arguments.checkouts:
                add(checkout, arguments.results)
        elif arguments.command == "plot":
            arguments.picture.write_bytes(tradeoff_picture(arguments.block, arguments.results))
        else:
            blocks = arguments.blocks or sorted(path.stem for path in arguments.results.glob("*.json"))
            for block in blocks:
                show(block, arguments.results)
    except (ConfigError, DataError) as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def add(checkout: Path, results: Path) -> None:
    """Add the scores of a finished run to the results of its block.

    The run must be of a preset of the study; results with other settings, or with one of its seeds, are refused.
    """
    params = load_params(checkout / "params.yaml")
    if not params.composed_from.startswith(PREFIX):
        raise ConfigError(
            f"{checkout / 'params.yaml'}: composed_from: must start with {PREFIX!r}, got {params.composed_from!r}; "
            f"run `make params PRESET={PREFIX}vivid && make run` there"
        )
    block = params.composed_from.removeprefix(PREFIX)
    table, about = results / f"{block}.parquet", results / f"{block}.json"
    known = json.loads(about.read_text(encoding="utf-8")) if about.exists() else _start(params)
    if known["settings"] != settings_digest(params):
        raise DataError(f"{checkout}: its settings differ from those of {about}; only train.seeds may differ")
    if both := {seed for run in known["runs"] for seed in run["seeds"]} & set(params.train.seeds):
        raise DataError(f"{checkout}: {about} has the training seeds {sorted(both)} already")
    new, old = scores_of(checkout, params), pq.read_table(table) if table.exists() else None
    if old is not None:  # the base's scores are there
        new = new.filter(pc.field("train_seed") >= 0)
    tables = [new] if old is None else [old, new]
    curves = results / f"{block}{CURVES}.parquet"
    drawn = [*([pq.read_table(curves)] if curves.exists() else []), curves_of(checkout, params)]
    known["runs"].append({"seeds": list(params.train.seeds), **_provenance(checkout)})
    results.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.concat_tables(drawn), curves, compression="zstd")
    pq.write_table(pa.concat_tables(tables), table, compression="zstd")
    about.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def settings_digest(params: Params) -> str:
    """Digest of all settings but the training seeds and those that affect no result.

    Values that are the defaults do not count, so that a setting that a later version adds changes no digest.
    """
    ignored = {"executors", "pools", "trackers", "report"}
    content = params.model_dump(mode="json", exclude=ignored, exclude_defaults=True)
    del content["train"]["seeds"]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def scores_of(checkout: Path, params: Params) -> pa.Table:
    """Scores of a run: variant, mode, train_seed, prompt_id, caption, scorer, and the mean value of the samples."""
    at = Layout.below(checkout)
    prompts = read_table(at.prompts, "prompts").to_pylist()
    captions = {row["prompt_id"]: row["prompt"] for row in prompts if row["split"] == "eval"}
    sums: dict[tuple[str, str, int, str, str], list[float]] = {}
    for policy in (BASE[0], *params.variants):
        for scorer in params.scorers:
            for row in read_table(at.scored(policy, scorer), "scores").to_pylist():
                if row["metric"] == "score" and row["prompt_id"] in captions:
                    place = (policy, row["mode"], row["train_seed"], row["prompt_id"], scorer)
                    sums.setdefault(place, []).append(row["value"])
    names = ("variant", "mode", "train_seed", "prompt_id", "scorer")
    columns: dict[str, list[Any]] = {name: [key[i] for key in sums] for i, name in enumerate(names)}
    columns["caption"] = [captions[prompt] for prompt in columns["prompt_id"]]
    columns["value"] = [float(np.mean(values)) for values in sums.values()]
    return pa.table(columns)


def curves_of(checkout: Path, params: Params) -> pa.Table:
    """Curves of a run: variant, train_seed, iteration, metric and value.

    Metrics: `reward_mean` of the rollouts, all of the held-out images, and `seconds`, the time of rollouts, reward and
    updates.
    """
    rows: list[dict[str, Any]] = []
    at, seeds = Layout.below(checkout), params.train.seeds
    for variant in params.variants:
        metrics = read_metrics(variant, {s: at.metrics(variant, s) for s in seeds})
        rows += [row for row in metrics.table.to_pylist() if row["metric"].startswith(DRAWN)]
        seconds: dict[tuple[str, int, int], float] = {}
        timed = read_metrics(variant, {s: at.times(variant, s) for s in seeds})
        for row in timed.table.to_pylist():
            if row["metric"] in SECONDS:
                place = (variant, row["train_seed"], row["iteration"])
                seconds[place] = seconds.get(place, 0.0) + row["value"]
        columns = ("variant", "train_seed", "iteration")
        rows += [
            {**dict(zip(columns, place, strict=True)), "metric": "seconds", "value": value}
            for place, value in seconds.items()
        ]
    return pa.Table.from_pylist(rows)


def show(block: str, results: Path) -> None:
    found = read_block(block, results)
    title = f"{block}: {len(found.seeds)} seeds, {len(found.captions)} prompts, primary outcome {found.reward}"
    print_table(title, ("policy", *found.scorers), list(_means(found)))
    columns = ("hypothesis", "difference", "95 % interval", "p, by Holm", f"smallest seen with power {POWER}")
    print_table(f"{block}: hypotheses on {found.reward}", columns, hypothesis_rows(found, BLOCKS[block]))
    others = ("hypothesis", *found.scorers[1:])
    print_table(f"{block}: the same on other scores", others, _on_others(found, BLOCKS[block]))
    for scorer in found.scorers[1:]:
        fit, distances = at_equal_reward(found, scorer)
        changes = (f"change in {found.reward}", f"change in {scorer}")
        title = f"{block}: {scorer} at equal {found.reward} (R2 of the curve {fit:.2f})"
        print_table(title, ("policy", *changes, "above the curve, less the step level's"), distances)
    iterations, curves = curve_rows(block, results)
    print_table(f"{block}: {found.reward} of the held-out images of training", iterations, curves)


def tradeoff_picture(block: str, results: Path) -> bytes:
    """A PNG of the scores outside the reward over the reward on the held-out images, a line for each variant."""
    table = pq.read_table(results / f"{block}{CURVES}.parquet")
    variants = list(dict.fromkeys(table["variant"].to_pylist()))
    reward = json.loads((results / f"{block}.json").read_text(encoding="utf-8"))["reward"]
    sources = {v: Source(block, table.filter(pc.field("variant") == v)) for v in variants}
    metrics = {row for row in table["metric"].unique().to_pylist() if row.startswith(HELDOUT)}
    found = {
        metric.removeprefix(HELDOUT): {
            variant: (metric_curve(source, "heldout_reward"), metric_curve(source, metric))
            for variant, source in sources.items()
        }
        for metric in sorted(metrics - {HELDOUT + reward})
    }
    return plot_picture(tradeoff_figure(found, {}, variants), variants)


def hypothesis_rows(block: Block, hypotheses: Sequence[Hypothesis]) -> list[list[str]]:
    """Rows of the hypotheses on the primary outcome, corrected by Holm's method for all of them.

    With too few training seeds they have no p-values.
    """
    found = [block.tested(hypothesis, block.reward) for hypothesis in hypotheses]
    corrected = holm([interval.pair_p_value for interval in found])
    return [
        [h.name, signed(interval.mean), interval_text(interval), p_text(p), f"{interval.detectable:.3f}"]
        for h, interval, p in zip(hypotheses, found, corrected, strict=True)
    ]


def _means(block: Block) -> list[list[str]]:
    policies = sorted({policy for policy, _ in block.values}, key=lambda policy: (policy != BASE, policy))
    rows = []
    for policy in policies:
        cells = []
        for scorer in block.scorers:
            mean = f"{block.values[policy, scorer].mean():.3f}"
            if policy != BASE:
                rise = block.difference(policy, BASE, scorer)
                mean += f" ({signed(rise.mean)}: {interval_text(rise)})"
            cells.append(mean)
        rows.append(["base" if policy == BASE else ", ".join(policy), *cells])
    return rows


def _on_others(block: Block, hypotheses: Sequence[Hypothesis]) -> list[list[str]]:
    rows = []
    for hypothesis in hypotheses:
        found = [block.tested(hypothesis, scorer) for scorer in block.scorers[1:]]
        rows.append([hypothesis.name, *(f"{signed(each.mean)} ({interval_text(each)})" for each in found)])
    return rows


def _start(params: Params) -> dict[str, Any]:
    return {"settings": settings_digest(params), "reward": next(iter(params.rewards)), "runs": []}


def _provenance(checkout: Path) -> dict[str, Any]:
    manifests = sorted(Path(Layout.below(checkout).runs).glob("train@*.json"))
    found = [json.loads(path.read_text(encoding="utf-8")) for path in manifests]
    return {
        "commit": ", ".join(sorted({str(each["commit"]) for each in found})),
        "cpu": ", ".join(sorted({f"{each['cpu']} ({each['cpu_count']} cores)" for each in found})),
        "torch": ", ".join(sorted({str(each["packages"]["torch"]) for each in found})),
        "training minutes": round(sum(each["seconds"] for each in found) / 60, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
