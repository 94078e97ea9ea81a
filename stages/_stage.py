"""What every stage's process does around its own work: arguments, parameters, signals, errors, the manifest.

A stage module holds a frozen dataclass of its arguments, `main(params, arguments)`, and as its last lines

    if __name__ == "__main__":
        sys.exit(run_stage(main, Arguments))

dvc.yaml then writes `python -m stages.NAME --manifest artifacts/runs/NAME.json --FIELD VALUE ...`, one option
for each field of the dataclass.
"""

import argparse
import atexit
import ctypes
import gc
import os
import signal
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, fields
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeVar

from rich.console import Console

from chunk_grpo.artifacts import check_writable
from chunk_grpo.artifacts.manifest import measured_run
from chunk_grpo.config import Params, load_params
from chunk_grpo.errors import ChunkGrpoError, ConfigError, Stopped

RUN_MARKER = "STAGE_RUN_MARKER"
"""Environment variable: a file that a stage touches to say that it really ran."""

_PLACES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class _Dataclass(Protocol):
    __dataclass_fields__: typing.ClassVar[dict[str, Any]]


Arguments = TypeVar("Arguments", bound=_Dataclass)


def run_stage(
    main: Callable[[Params, Arguments], None],
    arguments: type[Arguments],
    argv: Sequence[str] | None = None,
) -> int:
    """Run one stage as a process.

    Args:
        main: the stage's work; it gets the parameters and its arguments.
        arguments: a dataclass whose fields are `str`, `int` or `tuple[str, ...]`, each with the metadata
            `help`; a field becomes a required option, or an optional one if it has a default.
        argv: the command line, by default the process's.

    Returns:
        The exit code: 0 done, 2 bad configuration, 3 bad input or output, 75 worth another try (stopped, or
        no answer from a store). Any other exception is a bug and leaves with its traceback.
    """
    try:
        begin()
        check_environment()
    except ChunkGrpoError as error:
        return report_error(error)
    writes = is_main_process()
    parser = _parser(main, arguments)
    options = vars(parser.parse_args(argv))
    params, manifest = options.pop("params"), options.pop("manifest")
    try:
        measured = measured_run(Path(manifest).stem, manifest) if writes and manifest else nullcontext()
        with stop_on_sigterm(), measured:
            parameters = load_params(params)
            outputs = [options[field.name] for field in fields(arguments) if field.metadata.get("writes")]
            for location in filter(None, (manifest, *outputs)) if writes else ():
                check_writable(location)
            main(parameters, arguments(**options))
    except (ChunkGrpoError, Stopped) as error:
        return report_error(error)
    return 0


def begin() -> None:
    """A stage's first act: say that it really runs, and ask for SIGTERM when the process that started it ends."""
    if is_main_process():
        _mark_as_run()
    _die_with_parent()


def is_main_process() -> bool:
    """Whether this process writes; the others of a stage in several processes only compute."""
    return os.environ.get("RANK", "0") == "0"


def check_environment() -> None:
    """Refuse half of the variables by which torchrun and accelerate tell a process its place among others.

    With half of them a process takes itself for another one's helper, and writes nothing.

    Raises:
        ConfigError: One of them is no number, some are missing, or there is no such rank.
    """
    given = {name: os.environ[name] for name in _PLACES if name in os.environ}
    remedy = "unset it, or start the processes by `accelerate launch` or torchrun"
    for name, value in given.items():
        if not value.isdecimal():
            raise ConfigError(f"{name}: must be a whole number of at least 0, got {value!r}; {remedy}")
    if given.items() <= {("RANK", "0"), ("WORLD_SIZE", "1")}:
        return  # a single process, also where a scheduler says so
    for name in _PLACES:
        if name not in given:
            raise ConfigError(f"{name}: must be set beside {' and '.join(given)}, got nothing; {remedy}")
    if int(given["RANK"]) >= int(given["WORLD_SIZE"]):
        raise ConfigError(
            f"RANK: must be below WORLD_SIZE = {given['WORLD_SIZE']}, got {given['RANK']}; {remedy}"
        )


def report_error(error: ChunkGrpoError | Stopped) -> int:
    """Tell what ended a stage that has no bug; its exit code."""
    Console(stderr=True, soft_wrap=True).print(
        f"error: {error}", style="bold red", markup=False, highlight=False
    )
    return error.exit_code


def params_path(main: Callable[..., None], arguments: type[Arguments]) -> str:
    """The parameter file that the command line names."""
    return str(_parser(main, arguments).parse_args().params)


def argument(help_text: str, writes: bool = False) -> dict[str, Any]:
    """The `metadata` of a field of an arguments dataclass; `writes` marks a path that the stage writes to."""
    return {"help": help_text, "writes": writes}


class StopSignal:
    """SIGTERM as a request: at once an exception, or, inside `deferred`, a flag that long work looks at.

    Attributes:
        requested: whether SIGTERM has come.
    """

    def __init__(self) -> None:
        self.requested = False
        self._deferred = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside, SIGTERM only sets `requested`; the work saves a checkpoint and returns when it can."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        if self.requested:
            self.leave()

    def leave(self) -> typing.NoReturn:
        """End the stage.

        Raises:
            Stopped: always.
        """
        raise Stopped("stopped by SIGTERM. Run the same command again; it goes on from the last checkpoint.")

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        del number, frame
        self.requested = True
        # At its end Python looks through all objects once more, which takes seconds with torch loaded.
        atexit.register(gc.freeze)
        if not self._deferred:
            self.leave()


STOP = StopSignal()
"""The process's stop request; training defers it."""


@contextmanager
def stop_on_sigterm() -> Iterator[None]:
    """SIGTERM goes to STOP; on leaving, what handled it before does so again."""
    before = signal.signal(signal.SIGTERM, STOP.handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _mark_as_run() -> None:
    marker = os.environ.get(RUN_MARKER)
    if marker:
        try:
            Path(marker).touch()
        except OSError as error:
            raise ConfigError(
                f"{RUN_MARKER}: must be a file that can be written, got {marker!r} ({error.strerror}); unset it, or "
                "make its folder"
            ) from error


def _die_with_parent() -> None:
    """On Linux, have the kernel send SIGTERM when the process that started this one ends, however it ends."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")


def _parser(main: Callable[..., None], arguments: type[Arguments]) -> argparse.ArgumentParser:
    module = sys.modules[main.__module__]
    parser = argparse.ArgumentParser(
        description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--params", default="params.yaml", help="the parameter file (default: params.yaml)")
    parser.add_argument(
        "--manifest", help="where to write how the run went; its stem names the stage (default: nowhere)"
    )
    types = typing.get_type_hints(arguments)
    for field in fields(arguments):
        required = field.default is MISSING
        options: dict[str, Any] = {"required": required, "help": field.metadata["help"]}
        if not required:
            options["default"] = field.default
        if types[field.name] == tuple[str, ...]:
            options |= {"nargs": "+", "action": _Tuple}
        elif types[field.name] in (str, int):
            options["type"] = types[field.name]
        else:
            raise TypeError(f"{arguments.__name__}.{field.name}: must be str, int or tuple[str, ...]")
        parser.add_argument(f"--{field.name.replace('_', '-')}", **options)
    return parser


class _Tuple(argparse.Action):
    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: Any, option: object = None
    ) -> None:
        setattr(namespace, self.dest, tuple(values))
