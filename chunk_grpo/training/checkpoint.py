"""Checkpoints of a training run: one folder per iteration, of one process or several, verified before use.

A folder has a name that no folder had, and gets its manifest last (`state_files`). Older ones are removed after that,
so a kill at any moment leaves a whole checkpoint; what a killed save left is removed by the next one. `copies` keeps
copies elsewhere, to resume on another machine.

Training waits while the state is copied to host memory, and a second for the files. A thread of each process writes
them, without exchanging anything with the others. When all have ended, which training asks after each iteration, the
main process writes the manifest.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from chunk_grpo.artifacts.kept import link
from chunk_grpo.artifacts.storage import storage_errors
from chunk_grpo.errors import DataError
from chunk_grpo.training.copies import Copies, order_of
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.state_files import (
    BEST,
    MANIFEST,
    PART,
    STATE,
    WHOLE,
    Staged,
    UnusableError,
    Written,
    encoded,
    held,
    make_folder,
    read_manifest,
    read_state,
    verify,
    write_file,
    write_files,
    write_manifest,
    write_tensors,
)

PROMPT_SECONDS = 1.0
"""Training waits this long for the files: a small state is then whole at once."""

_logger = logging.getLogger(__name__)


@dataclass
class TrainingState:
    """State that resumes a run. Random streams are functions of the iteration and have no state."""

    iteration: int
    """Number of completed iterations, >= 0."""
    network: dict[str, Any]
    """State dict of the trained weights: the whole policy, or the adapter alone. Here and below, tensors may be
    sharded; a loaded state has a `StoredTensor` in their place."""
    optimizer: dict[str, Any]
    """State dict of the optimiser; {} after the last iteration of a training whose state is not kept."""
    rows: list[tuple[int, str, float]]
    """Metric rows (iteration, metric, value) so far."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Other plain values and tensors by name, such as averaged weights or a chunk plan; {} if unused."""


@dataclass
class _Save:
    """A checkpoint that is being written."""

    path: Path
    plain: Any
    """The state, with names in place of its tensors."""
    shapes: dict[str, list[int]]
    """Shapes of the sharded tensors by name."""
    best: dict[str, str]
    """File and checksum of the best policy at that iteration, if there is one."""
    copied: bool
    written: Future[Written]


class CheckpointStore:
    """The checkpoints of one run in one folder, and the best policy beside them. Other entries are ignored."""

    def __init__(
        self, folder: Path, identity: str, keep: int, processes: Processes, copies: Copies | None = None
    ) -> None:
        """Set the folder. The first checkpoint creates it.

        Args:
            folder: Folder of this run's checkpoints, not shared with other runs.
            identity: Name of the computation (code, parameters, inputs). Checkpoints with another identity are refused.
            keep: Number of checkpoints that are kept, >= 1.
            processes: Processes that all call the methods, except where they say otherwise.
            copies: Copies of the newest checkpoint; None: there are none.
        """
        self._folder, self._identity, self._keep, self._copies = folder, identity, keep, copies
        self._processes = processes
        self._index, self._count = processes.place
        self._refused: set[Path] = set()  # not counted by `keep`: bad ones must not displace good ones
        self._best: dict[str, str] = {}
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._saving: _Save | None = None

    def begin(self, state: TrainingState, *, copied: bool = True) -> None:
        """Begin to write a copy of `state`, after `finish`; remove what killed saves left. A prompt write is finished.

        Args:
            state: State to write.
            copied: Whether to copy the checkpoint when it is written, if there are copies.

        Raises:
            DataError: The disk is full or not writable. The older checkpoints remain.
            TypeError: `state` holds a value that cannot be written.
        """
        tensors: dict[str, Tensor] = {}
        plain = encoded(vars(state), tensors)
        self.finish()
        self._processes.by_main(lambda: self._remove_all_but(self._whole()))
        path = self._folder / self._processes.by_main(lambda: self._new_folder(state.iteration))
        shapes = {name: list(value.shape) for name, value in tensors.items() if isinstance(value, DTensor)}
        written = self._writer.submit(write_files, path, self._staged(tensors))
        self._saving = _Save(path, plain, shapes, self._best, copied, written)
        wait([written], PROMPT_SECONDS)
        self.finish_if_written()

    def finish_if_written(self) -> None:
        """`finish`, if it has nothing to wait for in any process."""
        saving, copies = self._saving, self._copies
        if saving is not None and all(
            self._processes.by_all(lambda: saving.written.done() and (copies is None or copies.is_done()))
        ):
            self.finish()

    def finish(self) -> None:
        """Wait for the checkpoint that is being written, complete it, and begin to copy it; raises as `begin`."""
        if self._saving is None:
            return
        saving, self._saving = self._saving, None
        with self._removed_by_errors(saving.path):
            parts = self._processes.by_all(saving.written.result)
            written = {file: about for part in parts for file, about in part.items()}
            self._processes.by_main(lambda: self._complete(saving, written))
        if self._copies is not None:
            self._copies.settle()  # the checkpoint before may still be sent
        self._processes.by_main(lambda: self._remove_all_but(self._kept(saving.path)))
        if self._copies is not None and saving.copied:
            self._copies.start(saving.path.name)

    def _new_folder(self, iteration: int) -> str:
        """Make a folder with the best policy so far; its name.

        Stopped within an iteration, a training saves the one before again, under another name.
        """
        used = [number for found, number in map(order_of, self._folders()) if found == iteration]
        path = self._folder / (f"iteration-{iteration:06d}" + (f"-{max(used) + 1}" if used else ""))
        with self._removed_by_errors(path), storage_errors("write", path):
            make_folder(path)
            for name in self._best:
                link(self._folder / name, path / name)
        return path.name

    @contextmanager
    def _removed_by_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except DataError:
            if self._processes.is_main:
                shutil.rmtree(path, ignore_errors=True)
            raise

    def _staged(self, tensors: Mapping[str, Tensor]) -> Staged:
        """Copies of this process's tensors in host memory, by file."""
        parts = {name: held(value) for name, value in tensors.items() if isinstance(value, DTensor)}
        found: Staged = {}
        if self._processes.is_main:
            rest = {name: tensors[name].to("cpu", copy=True) for name in tensors if name not in parts}
            found[WHOLE] = rest, {}
        # With hybrid sharding every machine holds all parts, and the first one writes them.
        if parts and self._processes.index == self._index:
            own = {name: part.to("cpu", copy=True) for name, (part, _) in parts.items() if part.numel()}
            found[f"part-{self._index}.safetensors"] = own, {name: parts[name][1] for name in own}
        return found

    def _complete(self, saving: _Save, written: Written) -> None:
        """Write the plain values and the manifest."""
        sharded = {
            name: (shape, {file: boxes[name] for file, (_, boxes) in written.items() if name in boxes})
            for name, shape in saving.shapes.items()
        }
        path, content = saving.path, json.dumps({"state": saving.plain, "sharded": sharded}).encode()
        with storage_errors("write", path):
            files = {file: checksum for file, (checksum, _) in written.items()} | saving.best
            files[STATE] = write_file(path / STATE, [content])
            write_manifest(path, identity=self._identity, iteration=order_of(path)[0], files=files)

    def _kept(self, path: Path) -> list[Path]:
        """Checkpoints to keep after a save: the new one, older ones up to `keep`, and all newer ones."""
        new = order_of(path)
        whole = [each for each in self._whole() if order_of(each)[0] != new[0] or each == path]
        good = [each for each in whole if order_of(each) <= new and each not in self._refused]
        return [each for each in whole if order_of(each) >= order_of(good[-self._keep :][0])]

    def _remove_all_but(self, kept: list[Path]) -> None:
        with storage_errors("write", self._folder):
            for path in self._folders():
                if path not in kept:
                    (path / MANIFEST).unlink(missing_ok=True)  # a kill in between leaves none
                    shutil.rmtree(path)

    def keep_best(self, policy: Mapping[str, Tensor]) -> None:
        """Write the best policy so far, which the next checkpoints have, too. One process calls."""
        with storage_errors("write", self._folder / BEST):
            make_folder(self._folder)
            partial = self._folder / f"{BEST}.partial"
            self._best = {BEST: write_tensors(policy, partial)}
            partial.replace(self._folder / BEST)

    def best(self) -> dict[str, Tensor] | None:
        """The best policy, in the process that wrote or resumed it; None if there is none."""
        return load_file(self._folder / BEST) if self._best else None

    def latest(self, last: int = sys.maxsize) -> TrainingState | None:
        """The newest intact checkpoint of this computation, with tensors on the CPU; None without any checkpoint.

        A copy that is newer is brought to the folder. Logs a warning for each newer checkpoint that is refused.

        Args:
            last: Largest iteration of a checkpoint.

        Raises:
            DataError: All checkpoints in the folder and all copies are refused, or the folder cannot be read.
            TransientError: The store of the copies does not answer.
        """
        refused: dict[Path, str] = {}
        for path, copy in self._processes.by_main(lambda: self._candidates(last)):
            try:
                if copy and self._copies is not None:
                    self._copies.fetch(path.name)
                state = self._read(path, is_copy=bool(copy))
            except UnusableError as error:
                if copy:
                    _logger.warning("%s: %s; this copy is not used", copy, error)
                else:
                    refused[path] = str(error)
                continue
            if copy and path not in refused:
                _logger.warning(
                    "%s: newer than the checkpoints in %s, so training resumes from this copy", copy, self._folder
                )
            for bad, reason in refused.items():
                _logger.warning("%s: %s; %s is used instead", bad, reason, copy or path)
            self._refused = set(refused) - {path}
            return state
        if refused:
            reasons = "; ".join(f"{bad}: {reason}" for bad, reason in refused.items())
            raise DataError(f"{reasons}; delete {self._folder} to train from the start")
        return None

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Context of the use of a loaded state: one that does not fit the training is a DataError."""
        try:
            yield
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise DataError(
                f"{self.newest_path()}: its values do not fit this training ({error!r}); delete {self._folder}, and "
                "its copies if there are any, to train from the start"
            ) from error

    def wait(self, *, together: bool = False) -> None:
        """Wait until this process writes and copies nothing; after an error, so that no other one is raised.

        One of several processes may call it alone. If all call it `together`, the checkpoint is completed.
        """
        if together or self._processes.count == 1:
            with suppress(DataError):
                self.finish()
        elif self._saving is not None:
            wait([self._saving.written])
        if self._copies is not None:
            self._copies.wait()

    def settle(self) -> None:
        """`finish`; wait until no process copies anything, and remove older copies."""
        self.finish()
        if self._copies is not None:
            self._copies.settle()

    def newest_path(self) -> Path | None:
        """The newest checkpoint by name, for messages. Skips those that `latest` refused; does not read it."""
        return next((path for path in reversed(self._whole()) if path not in self._refused), None)

    def _candidates(self, last: int) -> list[tuple[Path, str]]:
        """Checkpoints, and copies with their locations, the newest first, and a checkpoint before its copy."""
        found = [(path, "") for path in self._whole()]
        if self._copies is not None:
            found += [(self._folder / name, location) for name, location in self._copies.found().items()]
        found.sort(key=lambda each: (order_of(each[0]), not each[1]), reverse=True)
        return [each for each in found if 0 <= order_of(each[0])[0] <= last]

    def _whole(self) -> list[Path]:
        """Folders with a manifest, oldest first."""
        return [path for path in self._folders() if (path / MANIFEST).exists()]

    def _folders(self) -> list[Path]:
        """Folders of checkpoints, whole or not, oldest first."""
        try:
            found = [path for path in self._folder.iterdir() if order_of(path)[0] >= 0]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DataError(f"{self._folder}: the folder of checkpoints cannot be read ({error.strerror})") from error
        return sorted(found, key=order_of)

    def _read(self, path: Path, *, is_copy: bool) -> TrainingState:
        """Load the state in `path`, or raise UnusableError; complete the folder if it was fetched."""
        manifest, iteration = path / (f"{MANIFEST}.partial" if is_copy else MANIFEST), order_of(path)[0]
        files = self._processes.by_main(lambda: read_manifest(manifest, identity=self._identity, iteration=iteration))
        parts = {name: int(found[1]) for name in files if (found := PART.fullmatch(name))}

        def check() -> None:
            # Parts are checked by as many processes as wrote them.
            own = {name for name, number in parts.items() if number % self._count == self._index}
            if self._processes.is_main:
                own |= files.keys() - parts.keys()
            verify(path, {name: checksum for name, checksum in files.items() if name in own})

        self._processes.by_all(check)
        states: list[TrainingState] = []
        self._processes.by_all(lambda: states.append(_state_from(read_state(path), iteration)))
        self._processes.by_main(lambda: self._take(path, manifest, files))
        return states[0]

    def _take(self, path: Path, manifest: Path, files: Mapping[str, str]) -> None:
        """Complete a fetched folder, and take the best policy from the folder."""
        self._best = {name: checksum for name, checksum in files.items() if name == BEST}
        with storage_errors("write", path):
            manifest.replace(path / MANIFEST)
            for name in self._best:
                (self._folder / name).unlink(missing_ok=True)
                link(path / name, self._folder / name)


def _state_from(content: Any, iteration: int) -> TrainingState:
    """The state of decoded content; UnusableError if it has other fields or another iteration."""
    try:
        state = TrainingState(**content)
    except TypeError as error:
        raise UnusableError(f"does not hold the fields of a state ({error})") from error
    if type(state.iteration) is not int or state.iteration != iteration:
        raise UnusableError(f"holds iteration {state.iteration!r}, which does not match its name")
    return state
