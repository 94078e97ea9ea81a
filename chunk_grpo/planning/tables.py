"""A plan as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from chunk_grpo.planning.cost import IterationCost
from chunk_grpo.planning.machines import Rates
from chunk_grpo.planning.plan import Plan
from chunk_grpo.progress import duration

TERA, PETA, GIGA, GIB = 1e12, 1e15, 1e9, 2**30
STYLES = {"cannot": "bold red", "costs": "yellow", "note": "dim"}


def show(plan: Plan, console: Console, *, whole: bool) -> None:
    """Print a plan, its answer last; `whole`: with the numbers behind it."""
    console.print(Group(*_parts(plan, whole=whole)))


def _parts(plan: Plan, *, whole: bool) -> Iterator[RenderableType]:
    if whole:
        yield _passes(plan)
        for names, cost in _alike(plan.iterations):
            yield _iteration(names, cost)
        yield _stages(plan)
        yield _memory(plan)
        yield _storage(plan)
    yield _cards(plan)
    yield _findings(plan)
    machine = plan.machine
    places = f" in {machine.machines} machines" if machine.machines > 1 else ""
    between = f" ({machine.network_gbs:.0f} from other machines)" if machine.machines > 1 else ""
    rates = _rates(machine.rates, compiles=plan.compiles)
    yield Text(
        f"{machine.gpus} x {machine.gpu}{places}, {machine.memory_gb:g} GB, at {rates} and "
        f"{machine.gbs:.0f} GB/s{between} a GPU, disk {machine.disk_gbs:g} GB/s"
        + ("" if whole else "; --all prints operations, stages, memory and files")
    )
    yield Text(summary(plan), style="bold")


def summary(plan: Plan) -> str:
    """One sentence: whether it fits, hours, disk, downloads and money."""
    machine = plan.machine
    cards = f"{machine.gpus} x {machine.gpu} of {machine.memory_gb:g} GB"
    each = ", ".join(
        f"{stage.name.removeprefix('train ')} {_time(stage.seconds.least, stage.seconds.most)}"
        for stage in plan.stages
        if stage.name.startswith("train ")
    )
    facts = [
        f"{_hours(plan.total.hours)} (training: {each})",
        f"{_number(plan.storage.disk / GIGA)} GB of disk",
        f"{_number(plan.downloads / GIGA)} GB of weights to download",
    ]
    if plan.total.money is not None:
        facts.append(f"{_range(*plan.total.money)} at {machine.price:g} a GPU and hour")
    if plan.fits:
        return f"{cards}: yes, {', '.join(facts)}."
    reason = next(finding.text for finding in plan.findings if finding.level == "cannot")
    return f"{cards}: no, {reason}. If it did: {', '.join(facts)}."


def _rates(rates: Rates, *, compiles: bool) -> str:
    if rates == Rates.equal(rates.forward):
        return f"{rates.forward:.0f} TFLOP/s"
    if compiles:
        return (
            f"{rates.forward:.0f} TFLOP/s, with compiled blocks {rates.compiled_forward:.0f} in training and "
            f"{rates.compiled_update:.0f} in its updates,"
        )
    return f"{rates.forward:.0f} TFLOP/s, {rates.update:.0f} in updates,"


def _cards(plan: Plan) -> Table:
    rows = []
    for card in plan.cards:
        fits, word = ("yes", "leaves") if card.left >= 0 else ("NO", "lacks")
        room = f"{card.fullest} {word} {abs(card.left) / GIB:.1f}"
        rows.append((card.gpu, f"{card.memory_gb:g}", fits, room, _hours(card.hours)))
    title = f"The same run on other cards, {plan.machine.gpus} of each"
    return _table(title, ("", "GB", "fits", "GiB", "time"), rows)


def _passes(plan: Plan) -> Table:
    one = plan.passes
    rows = [
        ("weights", f"{plan.weights:,}"),
        ("trained weights", f"{plan.trained_weights:,}"),
        ("tokens, training image and prompt", f"{one.train_tokens:,}"),
        ("tokens, evaluation image and prompt", f"{one.eval_tokens:,}"),
        ("TFLOP, velocity of a training image", _number(one.train_flop / TERA)),
        ("TFLOP, velocity of an evaluation image", _number(one.eval_flop / TERA)),
        ("TFLOP, an item of the update", _number(one.update_flop / TERA)),
    ]
    return _table("One image", ("", ""), rows)


def _iteration(names: Sequence[str], cost: IterationCost) -> Table:
    counts = cost.counts
    states = {
        "rollout": counts.rollout,
        "old log-probabilities": counts.old_log_probs,
        "ratios of large chunks": counts.ratio,
        "update, forward": counts.update,
        "update, backward": counts.update,
        "KL reference": counts.reference,
    }
    rows = [
        (
            name,
            _number(states[name].states) if name in states else "",
            _number(states[name].passes) if name in states else "",
            _number(flop / PETA),
        )
        for name, flop in cost.flop.items()
    ]
    rows.append(("in all", "", "", _number(cost.total_flop / PETA)))
    rows.append(("GB received", "", "", _number(cost.traffic.bytes / GIGA)))
    if cost.traffic.between:
        rows.append(("of them from other machines", "", "", _number(cost.traffic.between / GIGA)))
    rows.append(("seconds", "", "", _range(cost.seconds.least, cost.seconds.most)))
    title = f"An iteration on each GPU: {', '.join(names)}"
    return _table(title, ("", "states", "passes", "PFLOP"), rows)


def _alike(costs: Sequence[IterationCost]) -> Iterator[tuple[list[str], IterationCost]]:
    """Variants whose iterations cost the same, together."""
    groups: dict[str, tuple[list[str], IterationCost]] = {}
    for cost in costs:
        key = repr((cost.flop, cost.traffic, cost.counts.update, cost.counts.rollout))
        groups.setdefault(key, ([], cost))[0].append(cost.variant)
    yield from groups.values()


def _stages(plan: Plan) -> Table:
    rows = [
        (stage.name, str(stage.gpus), _number(stage.flop / PETA), _time(stage.seconds.least, stage.seconds.most))
        for stage in plan.stages
    ]
    rows.append(("in all", "", _number(sum(s.flop for s in plan.stages) / PETA), _hours(plan.total.hours)))
    if plan.total.money is not None:
        least, most = plan.total.money
        rows.append((f"money at {plan.machine.price:g} a GPU and hour", "", "", _range(least, most)))
    return _table("Stages, all variants and seeds", ("", "GPUs", "PFLOP", "time"), rows)


def _memory(plan: Plan) -> Table:
    """Parts by phase; a phase is a column."""
    parts = dict.fromkeys(name for phase in plan.memory for name in phase.parts)
    rows = [
        (name, *(f"{phase.parts[name] / GIB:.2f}" if name in phase.parts else "" for phase in plan.memory))
        for name in parts
    ]
    rows.append(("in all", *(f"{phase.bytes / GIB:.2f}" for phase in plan.memory)))
    room = [(plan.machine.memory_bytes - phase.bytes) / GIB for phase in plan.memory]
    rows.append(("fits", *("yes" if left >= 0 else "NO" for left in room)))
    rows.append(("left", *(f"{left:.1f}" for left in room)))
    title = f"Memory of a GPU of {plan.machine.memory_gb:g} GB, in GiB"
    return _table(title, ("", *(phase.name for phase in plan.memory)), rows)


def _storage(plan: Plan) -> Table:
    stored, shares = plan.storage, [100 * each.share for each in plan.savings]
    rows = [
        ("embeddings, training", _gigabytes(stored.training_embeddings)),
        ("embeddings, evaluation", _gigabytes(stored.evaluation_embeddings)),
        ("a checkpoint", _gigabytes(stored.checkpoint)),
        ("checkpoints, with one more being written", _gigabytes(stored.checkpoints)),
        ("checkpoints, of the time of a training", f"{_range(min(shares), max(shares))} %"),
        ("work that a lost machine costs, at most", duration(max(each.lost for each in plan.savings))),
        ("policies", _gigabytes(stored.policies)),
        (f"{stored.images:,} images", _gigabytes(stored.image_bytes)),
        ("embeddings, policies, images again in DVC's cache (no reflinks)", _gigabytes(stored.outputs)),
        ("disk in all, one training at a time", _gigabytes(stored.disk)),
        ("a bucket, after dvc push", _gigabytes(stored.outputs)),
        ("memory of a machine, training", _gigabytes(stored.host)),
        (f"stop, of {plan.machine.stop_seconds:.0f} s allowed", f"{_number(plan.stop_seconds)} s"),
    ]
    return _table("Disk, host, stop", ("", ""), rows)


def _findings(plan: Plan) -> Table:
    table = Table(title="What is off", title_justify="left", show_header=False)
    for finding in plan.findings:
        table.add_row(Text(finding.level, style=STYLES[finding.level]), Text(finding.text))
    if not plan.findings:
        table.add_row("nothing")
    return table


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=any(columns))
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _number(value: float) -> str:
    """Three digits of a small number, whole numbers of a large one."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _range(least: float, most: float) -> str:
    same = _number(least) == _number(most)
    return _number(least) if same else f"{_number(least)} to {_number(most)}"


def _hours(found: tuple[float, float]) -> str:
    """A range of hours."""
    return _time(*(3600 * each for each in found))


def _time(least: float, most: float) -> str:
    """A range of seconds."""
    from_, to = duration(least), duration(most)
    return from_ if from_ == to else f"{from_} to {to}"


def _gigabytes(size: float) -> str:
    return f"{size / GIGA:,.2f} GB" if size >= 1e7 else f"{size / 1e6:,.2f} MB"
