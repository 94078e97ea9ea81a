"""Remove results that nothing names any more from the DVC cache, and list the checkpoints of unfinished trainings.

chunk-grpo gc [--delete] [--checkpoints DAYS] [--with FOLDER ...] [--alone]      (make gc DELETE=1 CHECKPOINTS=30)

Without --delete it only says what it would remove. The checkout, branches, tags and experiments keep the results that
they name. Each run of the flows full and ablations is an experiment, which `dvc exp remove NAME` removes.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.filesize import decimal

from chunk_grpo.errors import ConfigError
from chunk_grpo.orchestration.cache import by_output, cache_for_removal, cache_of, remove_unused, unused_files
from chunk_grpo.orchestration.commands import require_clone
from chunk_grpo.orchestration.unfinished import Unfinished, unfinished
from infra.command_line import command_parser

ROOT = Path(__file__).resolve().parents[1]
_DAY = 86400


def main(argv: Sequence[str] | None = None) -> int:
    """Report what may be removed, and remove it with --delete; return 0.

    Refused while a run is active, and if the cache may have other users, or what names results is unreadable.
    """
    options = parser().parse_args(argv)
    checkout = options.checkout.resolve()
    require_clone(checkout)
    home = Path(os.environ.get("PREFECT_HOME") or checkout / ".prefect").resolve()
    checkouts = [checkout, *map(_repository, options.others)]
    if options.checkpoints < 1:
        raise ConfigError(
            f"--checkpoints: must be at least 1 day, got {options.checkpoints:g}; newer ones may be in use"
        )
    cache = cache_of(checkout)
    if options.delete and not (options.others or options.alone or cache.resolve().is_relative_to(checkout)):
        raise ConfigError(
            f"{cache}: is not in the checkout, so other checkouts may use it, and their results would be removed; name "
            "each with --with FOLDER, or add --alone (make gc OPTIONS=--alone)"
        )
    with cache_for_removal(checkouts, delete=options.delete) as is_free:
        unused = unused_files(checkouts)
        groups = {name: sum(file.stat().st_size for file in files) for name, files in by_output(cache, unused).items()}
        oldest = time.time() - _DAY * options.checkpoints
        states = [checkout / ".ckpt", home / "state" / ".ckpt"]
        stopped = unfinished(states, [*checkouts, *(home / "runs").glob("*")])
        if options.delete:
            remove_unused(checkouts)
            for each in stopped:
                if each.time < oldest:
                    each.remove()
    lines = [*_report(cache, groups, len(unused), stopped, oldest, deleted=options.delete)]
    if not options.delete:
        lines.append("`make gc DELETE=1` removes this." if is_free else "A run is active: nothing can be removed now.")
    sys.stdout.write("\n".join([*lines, ""]))
    return 0


def parser() -> argparse.ArgumentParser:
    own = command_parser("gc", __doc__)
    own.add_argument("--delete", action="store_true", help="remove (default: say what would be removed)")
    own.add_argument(
        "--checkpoints",
        type=float,
        default=math.inf,
        metavar="DAYS",
        help="unfinished trainings too that did not change for so many days (default: none)",
    )
    own.add_argument(
        "--with",
        dest="others",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="another checkout that uses the cache; may be repeated",
    )
    own.add_argument("--alone", action="store_true", help="no other checkout uses the cache")
    own.add_argument("--checkout", type=Path, default=ROOT, help="checkout that has the cache (default: this one)")
    return own


def _report(
    cache: Path, groups: Mapping[str, int], count: int, stopped: Sequence[Unfinished], oldest: float, *, deleted: bool
) -> Iterator[str]:
    verb = "removed" if deleted else "would be removed"
    yield f"{cache}: {count} files, {decimal(sum(groups.values()))}, {verb}"
    for name, size in groups.items():
        yield f"  {decimal(size):>10}  {name}"
    if stopped:
        yield "Unfinished trainings and scores (CHECKPOINTS=DAYS removes those older than so many days):"
    for each in stopped:
        date = time.strftime("%Y-%m-%d", time.localtime(each.time))
        end = f", {verb}" if each.time < oldest else ""
        yield f"  {decimal(each.size):>10}  {date}  {each.name}  {each.folder}{end}"


def _repository(folder: Path) -> Path:
    if not (folder / ".git").exists():
        raise ConfigError(f"--with: must be a checkout, got {folder}, which has no .git")
    return folder.resolve()
