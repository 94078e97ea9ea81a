"""Entry point of every stage's process: arguments, parameters, signals, errors, the run manifest.

A stage module has a frozen dataclass of its arguments, whose fields `reads`, `writes` and `value` make, a function
`main(params, arguments)`, and as its last lines

    if __name__ == "__main__":
        sys.exit(run_stage(main, Arguments))

dvc.yaml runs `python -m stages.NAME --params artifacts/inputs/params.json --code artifacts/inputs/code/NAME.json
--manifest artifacts/runs/NAME.json --FIELD VALUE ...`, with one option per field of the dataclass.
"""

import argparse
import dataclasses
import os
import sys
import typing
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.console import Console

from chunk_grpo.artifacts import check_writable
from chunk_grpo.artifacts.manifest import Notes, measured_run
from chunk_grpo.code import check_code
from chunk_grpo.config import Params, load_params
from chunk_grpo.environment import EXIT_CODE, PROCESSES, whole_number
from chunk_grpo.errors import ChunkGrpoError, ConfigError, Stopped
from chunk_grpo.stopping import STOP

_MEMORY = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Torch's variables for its memory on a GPU, the second of older releases."""

_PLACES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


class _Dataclass(Protocol):
    __dataclass_fields__: typing.ClassVar[dict[str, Any]]


Arguments = TypeVar("Arguments", bound=_Dataclass)


def run_stage(
    main: Callable[[Params, Arguments], Notes | None], arguments: type[Arguments], argv: Sequence[str] | None = None
) -> int:
    """Run one stage as a process: `main`, with the parameters and the arguments of the command line.

    What it returns are notes for the manifest.

    The fields of `arguments` are `str` or `int`. Each becomes an option, required unless it has a default. `argv` is
    the command line; None: the process's.

    Returns the exit code: 0 done, 2 bad configuration, 3 bad input or output, 75 worth another try (stopped, or a store
    did not answer). Other exceptions are bugs and propagate with their traceback.
    """
    let_memory_grow()
    try:
        check_environment()
    except ChunkGrpoError as error:
        return report_error(error)
    writes = is_main_process()
    own, params, manifest, code = _parse(main, arguments, argv)
    try:
        if code and writes:
            check_code(code)
        measured = measured_run(Path(manifest).stem, manifest) if writes and manifest else nullcontext()
        with STOP.raised(), measured as notes:
            parameters = load_params(params)
            if writes:
                for location in filter(None, (manifest, *_written(own))):
                    check_writable(location)
            found = main(parameters, own)
            if notes is not None:
                notes |= found or {}
    except (ChunkGrpoError, Stopped) as error:
        leave_group(has_failed=True)
        return leave_code(report_error(error))
    leave_group()
    return leave_code(0)


def leave_group(*, has_failed: bool = False) -> None:
    """Leave the process group, if this process is in one. Call it before the process ends.

    Otherwise a thread of gloo may still hold a tensor when Python has shut down, and aborts the process. If
    `has_failed`, this process may end before the others; NCCL would wait for them, so its group is kept.
    """
    distributed = sys.modules.get("torch.distributed")  # without it there is no group, and importing it is slow
    if distributed is None or not distributed.is_initialized():
        return
    if not has_failed or distributed.get_backend() == "gloo":
        distributed.destroy_process_group()


def let_memory_grow() -> None:
    """Let torch's memory on a GPU grow in place, unless the environment says otherwise.

    Rollout and update take blocks of different sizes; fixed segments of one phase are of no use to the other. Torch
    reads the variable when it first uses the GPU.
    """
    if not any(name in os.environ for name in _MEMORY):
        os.environ[_MEMORY[0]] = "expandable_segments:True"


def leave_code(code: int) -> int:
    """Write the exit code of a stage to the file of `CHUNK_GRPO_EXIT_CODE`, if the environment names one; return it."""
    file = os.environ.get(EXIT_CODE)
    if file and is_main_process():
        Path(file).write_text(str(code), encoding="utf-8")
    return code


def is_main_process() -> bool:
    """Whether this process writes files; with several processes only rank 0 does."""
    return os.environ.get("RANK", "0") == "0"


def check_environment() -> None:
    """Reject an incomplete set of torchrun's and accelerate's rank variables, or a RANK that is not below WORLD_SIZE.

    With a stray RANK the process would take itself for a non-main process and write nothing. A wrong number of
    processes is refused by the first stage already.
    """
    whole_number(PROCESSES, None)
    given = {name: os.environ[name] for name in _PLACES if name in os.environ}
    remedy = "unset it, or start the processes by `accelerate launch` or torchrun"
    for name, value in given.items():
        if not value.isdecimal():
            raise ConfigError(f"{name}: must be a whole number of at least 0, got {value!r}; {remedy}")
    if given.items() <= {("RANK", "0"), ("WORLD_SIZE", "1")}:
        return  # a single process; some schedulers set these two variables
    for name in _PLACES:
        if name not in given:
            raise ConfigError(f"{name}: must be set together with {' and '.join(given)}, got nothing; {remedy}")
    if int(given["RANK"]) >= int(given["WORLD_SIZE"]):
        raise ConfigError(f"RANK: must be below WORLD_SIZE = {given['WORLD_SIZE']}, got {given['RANK']}; {remedy}")


def report_error(error: ChunkGrpoError | Stopped) -> int:
    """Print the error, or the stop on request, that ended a stage; return its exit code."""
    is_stop = STOP.requested and error.exit_code == Stopped.exit_code
    text, style = (str(error), "bold") if is_stop else (f"error: {error}", "bold red")
    Console(stderr=True, soft_wrap=True).print(text, style=style, markup=False, highlight=False)
    return error.exit_code


def parsed(main: Callable[..., object], arguments: type[Arguments]) -> tuple[Params, Arguments]:
    """The parameters and the arguments of the command line."""
    own, params, _, _ = _parse(main, arguments)
    return load_params(params), own


def value(help_text: str, default: Any = MISSING) -> Any:
    """A field of an arguments dataclass: an option with this description."""
    return dataclasses.field(default=default, metadata={"help": help_text})


def reads(help_text: str, default: Any = MISSING) -> Any:
    """A field with a path that the stage reads."""
    return value(help_text, default)


def writes(help_text: str) -> Any:
    """A field with a path that the stage writes; `run_stage` checks that it can be written."""
    return dataclasses.field(metadata={"help": help_text, "writes": True})


def _written(arguments: _Dataclass) -> list[str]:
    return [getattr(arguments, field.name) for field in fields(arguments) if "writes" in field.metadata]


def _parse(
    main: Callable[..., object], arguments: type[Arguments], argv: Sequence[str] | None = None
) -> tuple[Arguments, str, str | None, str | None]:
    """The stage's arguments; parameter file, manifest, and record of the code."""
    module = sys.modules[main.__module__]
    parser = argparse.ArgumentParser(description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", default="params.yaml", help="the parameter file (default: params.yaml)")
    parser.add_argument("--code", help="record of the stage's code by `inputs`, to be checked (default: none)")
    parser.add_argument("--manifest", help="run manifest to write; the file's stem is the stage's name (default: none)")
    types = typing.get_type_hints(arguments)
    for field in fields(arguments):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=types[field.name],
            required=field.default is MISSING,
            default=field.default,
            help=field.metadata["help"],
        )
    options = vars(parser.parse_args(argv))
    params, manifest, code = options.pop("params"), options.pop("manifest"), options.pop("code")
    return arguments(**options), params, manifest, code
