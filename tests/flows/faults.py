"""The small pipeline as `make serve` serves it, to be broken on purpose."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infra.local_prefect import LocalPrefect, free_port
from tests.drills.watch import Run, Watch, watching
from tests.waiting import wait_for

REPOSITORY = Path(__file__).resolve().parents[2]


@contextmanager
def served(
    root: Path, make_pipeline: Callable[[Path], Path] | None = None, gpu_workers: int = 1, publish: str | None = None
) -> Iterator[Watch]:
    """A server and workers of the small pipeline, which is made there unless it is there already."""
    if make_pipeline is not None:
        make_pipeline(root)
    home, port = root / ".prefect", free_port()
    server = LocalPrefect(root=root, home=home, port=port, gpu_workers=gpu_workers, publish=publish)
    with watching(server) as watch:
        yield watch


def slow_prepare(root: Path, seconds: int) -> None:
    """Let the first stage take its time."""
    work, begin = root / "stages" / "work.py", 'if kind == "prepare":\n'
    assert begin in work.read_text()
    work.write_text(work.read_text().replace(begin, f"{begin}    time.sleep({seconds})\n"))


def fail_once(root: Path) -> None:
    """Let the first attempt at each training end with exit code 75."""
    work, begin = root / "stages" / "work.py", "    begin = time.time()\n"
    assert begin in work.read_text()
    tried = '    if not Path("tried").exists():\n        Path("tried").touch()\n        sys.exit(75)\n'
    work.write_text(work.read_text().replace(begin, f"{tried}{begin}"))


def with_journal(root: Path) -> None:
    """Let trainings write a journal, one iteration a second; a second attempt needs no time."""
    work, sleep = root / "stages" / "work.py", '    time.sleep(60 * variant.get("eta", 0))\n'
    assert sleep in work.read_text()
    iterations = (
        "    from chunk_grpo.training.journal import Heading, Journal\n"
        '    seconds = 0 if Path("tried").exists() else round(60 * variant.get("eta", 0))\n'
        '    Path("tried").touch()\n'
        '    journal = Journal(Path("logs/seed-a"), Heading("small", 0, seconds, 0), [])\n'
        "    for iteration in range(1, seconds + 1):\n"
        "        time.sleep(1)\n"
        '        journal.log(iteration, {"reward_mean": 0.5})\n'
        "    journal.close(is_finished=True)\n"
    )
    work.write_text(work.read_text().replace(sleep, iterations))


def training(seconds: float) -> dict[str, Any]:
    """Let variant a train for so long; another number is another computation."""
    return {"variants": {"a": {"eta": seconds / 60}}}


def child_of(watch: Watch, run: str, name: str = "train@a") -> str:
    """The newest flow run that this one has started for a stage, once its stage has begun its work."""
    variant = name.partition("@")[2]

    def found() -> Run | None:
        children = watch.children(run, name)
        running = children and watch.stage(children[-1]["id"], f"train models/{variant}.txt")
        return children[-1] if running and trainings(watch, children[-1:], variant) else None

    return str(wait_for(found, 120, f"{name} runs")["id"])


def trainings(watch: Watch, runs: Sequence[Run], variant: str) -> list[Path]:
    """Marks of the processes that began to train a variant, in the clones of these flow runs."""
    clones = [clone for run in runs for clone in watch.prefect.home.glob(f"runs/*-{run['id']}-*")]
    return [file for clone in clones for file in clone.glob(f"{variant}.pid")]
