"""Make random changes one after another; after each, results with DVC's cache must equal results without a cache.

    python -m tests.drills.cache --seed 0 --count 200
    python -m tests.drills.cache --seed 0 --count 20 --during

The pipeline is the preset smoke with the user's own prompts, scorer and checkpoint, at the cheapest settings. After
each change one checkout runs `dvc repro` with the cache of all earlier runs. A second checkout runs the commands of all
stages without DVC, in an empty folder. All artifacts must be byte-identical except manifests and timings, which contain
clock times; the second checkout uses the first one's for its report. If a stage fails, it must fail in both.

With --during two changes are made, the second one at a random moment of the first one's `dvc repro`. Then both states
are compared: neither may have a result of the other one.
"""

import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dvc.repo import Repo
from dvc.utils.serialize import dump_yaml
from rich.console import Console

from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.pipeline import Pipeline
from chunk_grpo.orchestration.presets import composed
from tests.drills.changes import USER_FILES, Changes, State, small
from tests.drills.command import DrillError, drill_parser, run_drill, stage_environment
from tests.drills.forked import forking

ROOT = Path(__file__).resolve().parents[2]
_CLOCKS = ("artifacts/runs", "artifacts/timings")
_REPORTS_OWN_CLOCK = "artifacts/report/report.json"
_CODE = ("chunk_grpo", "stages")
_NO_CODE = ("chunk_grpo/orchestration", "chunk_grpo/reporting/templates", "chunk_grpo/scorers/geneval")


@dataclass(frozen=True)
class Ended:
    """Result of a run."""

    failed: str | None
    ran: tuple[str, ...]
    text: str


def main() -> int:
    """Run the drill; return exit status 1 if two runs differ."""
    parser = drill_parser("cache", __doc__)
    parser.add_argument("--seed", type=int, default=0, help="random seed of the changes (default: 0)")
    parser.add_argument("--count", type=int, default=200, help="number of changes (default: 200)")
    parser.add_argument("--during", action="store_true", help="make changes while `dvc repro` runs")
    options = parser.parse_args()

    def run(folder: Path, console: Console) -> str:
        with forking(folder / "fork") as programs:
            drill = Drill(folder, programs, options.seed)
            lines = (drill.run_edited if options.during else drill.run)(options.count)
            for number, line in enumerate(lines):
                console.print(f"{number:4} {line}", markup=False)
        return f"{options.count} changes, seed {options.seed}: {drill.summary()}"

    return run_drill(run)


class Drill:
    """Two checkouts that receive the same changes."""

    def __init__(self, folder: Path, programs: Path, seed: int) -> None:
        """Clone both checkouts, and add the user's files; `programs` has the `python` that runs stages."""
        self._kept, self._fresh, self._programs = folder / "kept", folder / "fresh", programs
        for checkout in (self._kept, self._fresh):
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
            shutil.copytree(ROOT / "assets" / "tiny-flux", checkout / "model")
        code = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in _code_files()}
        presets = [composed(ROOT, name) for name in ("tiny", "methods")]
        self._changes = Changes(seed, presets, code)
        files = {name: text.encode() for name, text in USER_FILES.items()}
        config = "model/scheduler/scheduler_config.json"
        files[config] = (self._kept / config).read_bytes()
        self._commit = code | files
        self._states = [State(small(composed(ROOT, "smoke")), files)]
        self._ran = self._failed = self._known = 0
        self._moments = random.Random(seed)

    def run(self, count: int) -> Iterator[str]:
        """Make changes and compare after each; yield a line about each."""
        state = self._states[0]
        yield f"the beginning: {self._compare(state)}"
        for _ in range(count):
            words, changed = self._changes.draw(state, self._states)
            try:
                line = self._compare(changed)
            except DrillError as error:
                raise DrillError(f"after the change {words}: {error}") from error
            yield f"{words}: {line}"
            if "failed" not in line:
                state = changed
                self._states.append(state)

    def run_edited(self, count: int) -> Iterator[str]:
        """Make pairs of changes, the second one while `dvc repro` runs after the first; yield a line about each."""
        state = self._states[0]
        yield f"the beginning: {self._compare(state)}"
        for _ in range(count):
            first_words, first = self._changes.draw(state, self._states)
            words, second = self._changes.draw(first, self._states)
            line = f"{first_words}, then {words} {self._repro_edited(first, second)}"
            try:
                for name, each in (("second", second), ("first", first)):
                    compared = self._compare(each)
                    line += f"; {name} {compared}"
                    if "failed" not in compared:
                        state = each
            except DrillError as error:
                raise DrillError(f"{line}; {error}") from error
            yield line

    def _repro_edited(self, first: State, second: State) -> str:
        """Run `dvc repro` after a change, and make another one at a random moment; return when, and how it ended."""
        self._apply(first, self._kept)
        shell, log = ["/bin/sh", "-c", "exec python -m dvc repro"], self._kept.parent / "edited.log"
        with log.open("wb") as stream:
            running = subprocess.Popen(
                shell,
                cwd=self._kept,
                env=stage_environment(self._programs),
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
            moment = self._moments.uniform(0.3, 15.0)
            with suppress(subprocess.TimeoutExpired):
                running.wait(moment)
            self._apply(second, self._kept)
            code = running.wait()
        started = re.findall(r"Running stage '(.+)':", log.read_text(encoding="utf-8"))
        return f"after {moment:.1f} s (ran {', '.join(started)}; exit code {code})"

    def summary(self) -> str:
        """Numbers of stages run and restored, as text."""
        return (
            f"no difference; {self._ran} stages run, {self._known} restored or left; {self._failed} changes made a "
            "stage fail, in both"
        )

    def _compare(self, state: State) -> str:
        start = time.monotonic()
        for checkout in (self._kept, self._fresh):
            self._apply(state, checkout)
        for made in ("artifacts", ".ckpt", ".inputs"):
            shutil.rmtree(self._fresh / made, ignore_errors=True)
        kept, middle = self._repro(), time.monotonic()
        fresh, end = self._bare(), time.monotonic()
        if (fresh.failed is None) != (kept.failed is None) or (fresh.failed or "") != (kept.failed or ""):
            raise DrillError(
                f"without a cache {fresh.failed or 'nothing'} failed, with it {kept.failed or 'nothing'} did:\n"
                f"{fresh.text[-1500:]}\n---\n{kept.text[-1500:]}"
            )
        self._failed += fresh.failed is not None
        if fresh.failed is not None:
            return f"{fresh.failed} failed in both"
        if differing := list(_differences(self._fresh, self._kept)):
            raise DrillError(f"with the cache {', '.join(differing)} differ; ran: {', '.join(kept.ran)}")
        self._ran += len(kept.ran)
        self._known += len(fresh.ran) - len(kept.ran)
        return f"same; ran {len(kept.ran)} of {len(fresh.ran)} ({middle - start:.0f} s; all {end - middle:.0f} s)"

    def _apply(self, state: State, checkout: Path) -> None:
        """Apply a state to a checkout; write only files that differ, as an editor does."""
        for name, content in (self._commit | state.files).items():
            path = checkout / name
            if not path.exists() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        dump_yaml(str(checkout / "params.yaml"), state.params)

    def _bare(self) -> Ended:
        """Run every stage's command in the order of the pipeline."""
        with Repo(str(self._fresh)) as repo:
            commands = {stage.name: stage.cmd for stage in repo.index.stages}
        ran = []
        for stage in Pipeline(self._fresh, Commands()).stages():
            if stage.name == "report":
                for clocks in _CLOCKS:
                    shutil.rmtree(self._fresh / clocks)
                    shutil.copytree(self._kept / clocks, self._fresh / clocks)
            done = self._run(self._fresh, commands[stage.name])
            ran.append(stage.name)
            if done.returncode != 0:
                return Ended(stage.name, tuple(ran), done.stdout)
        return Ended(None, tuple(ran), "")

    def _repro(self) -> Ended:
        done = self._run(self._kept, "exec python -m dvc repro")
        ran = tuple(re.findall(r"Running stage '(.+)':", done.stdout))
        failed = re.search(r"failed to reproduce '(.+?)'", done.stdout)
        if done.returncode != 0 and failed is None:
            raise DrillError(f"dvc repro ended with {done.returncode}:\n{done.stdout[-3000:]}")
        return Ended(failed[1] if failed else None, ran, done.stdout)

    def _run(self, folder: Path, command: str) -> subprocess.CompletedProcess[str]:
        shell = ["/bin/sh", "-c", command]
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.run(shell, cwd=folder, env=stage_environment(self._programs), check=False, **both)


def _code_files() -> Iterator[Path]:
    """Code files of the stages, except code that the drill's pipeline does not use."""
    for folder in _CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.relative_to(ROOT).as_posix().startswith(_NO_CODE):
                yield path


def _differences(fresh: Path, kept: Path) -> Iterator[str]:
    """Artifacts of the run without a cache that are missing or different in the run with the cache."""
    for path in sorted((fresh / "artifacts").rglob("*")):
        name = path.relative_to(fresh).as_posix()
        if not path.is_file() or name.startswith(_CLOCKS) or name == _REPORTS_OWN_CLOCK:
            continue
        other = kept / name
        if not other.is_file():
            yield f"{name} (missing)"
        elif path.read_bytes() != other.read_bytes():
            yield name


if __name__ == "__main__":
    sys.exit(main())
