"""Remove results that nothing names any more from the DVC cache, and list the checkpoints of unfinished trainings.

python -m infra.gc [--delete] [--checkpoints DAYS] [--with FOLDER ...] [--alone]      (make gc DELETE=1 CHECKPOINTS=30)

Without --delete it only says what it would remove. Results stay that one of these names:
the checkout, its commits with a dvc.lock, the clones of flow runs, and published runs.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal

from chunk_grpo import environment
from chunk_grpo.errors import ChunkGrpoError, ConfigError
from chunk_grpo.orchestration.cache_use import cache_of
from chunk_grpo.orchestration.unfinished import Unfinished, unfinished
from chunk_grpo.orchestration.unused import (
    Keepers,
    by_output,
    cache_for_removal,
    remove_unused,
    unused_files,
)

ROOT = Path(__file__).resolve().parents[1]
_DAY = 86400


def main(argv: Sequence[str] | None = None) -> int:
    """Report or remove; return the exit code: 0, or that of the error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--delete", action="store_true", help="remove (default: say what would be removed)")
    parser.add_argument(
        "--checkpoints",
        type=float,
        default=math.inf,
        metavar="DAYS",
        help="unfinished trainings too that did not change for so many days (default: none)",
    )
    parser.add_argument(
        "--with",
        dest="others",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="another checkout that uses the cache; may be repeated",
    )
    parser.add_argument("--alone", action="store_true", help="no other checkout uses the cache")
    parser.add_argument(
        "--checkout", type=Path, default=ROOT, help="checkout that has the cache (default: this one)"
    )
    options = parser.parse_args(argv)
    try:
        collect(options)
    except ChunkGrpoError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def collect(options: argparse.Namespace) -> None:
    """Report what may be removed, and remove it with `delete`.

    Refused while a run is active, and if the cache may have other users, or what names results is missing or
    unreadable.
    """
    checkout = options.checkout.resolve()
    home = Path(os.environ.get("PREFECT_HOME") or checkout / ".prefect").resolve()
    others = [_repository(folder) for folder in options.others]
    if options.checkpoints < 1:
        raise ConfigError(
            f"--checkpoints: must be at least 1 day, got {options.checkpoints:g}; newer ones may be in use"
        )
    keepers = Keepers.of(checkout, home, os.environ.get(environment.PUBLISH), others)
    cache = cache_of(checkout)
    if options.delete and not (others or options.alone or cache.resolve().is_relative_to(checkout)):
        raise ConfigError(
            f"{cache}: is not in the checkout, so other checkouts may use it, and their results would be removed; name "
            "each with --with FOLDER, or add --alone (make gc OPTIONS=--alone)"
        )
    with cache_for_removal(keepers, delete=options.delete) as is_free:
        kept = keepers.named()
        unused = unused_files(keepers, kept)
        groups = {name: _size(files) for name, files in by_output(cache, unused).items()}
        oldest = time.time() - _DAY * options.checkpoints
        states = [checkout / ".ckpt", *(each / "state" / ".ckpt" for each in keepers.homes)]
        stopped = unfinished(states, keepers.workspaces)
        if options.delete:
            remove_unused(keepers, kept)
            for each in stopped:
                if each.time < oldest:
                    each.remove()
    console = Console(highlight=False, soft_wrap=True)
    for line in _report(cache, groups, len(unused), stopped, oldest, deleted=options.delete):
        console.print(line, markup=False)
    if not options.delete:
        console.print(
            "`make gc DELETE=1` removes this." if is_free else "A run is active: nothing can be removed now."
        )


def _report(
    cache: Path,
    groups: Mapping[str, int],
    count: int,
    stopped: Sequence[Unfinished],
    oldest: float,
    *,
    deleted: bool,
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


def _size(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files)


if __name__ == "__main__":
    sys.exit(main())
