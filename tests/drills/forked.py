"""Python without start-up time: a server that has imported torch, diffusers, DVC and others forks for each program.

A folder with a program named `python`, first on PATH, connects to the server. The programs are the unchanged ones of
the folder in which they are started; only modules of installed packages are already imported.
"""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
_IMPORTED = (
    *("accelerate", "diffusers", "dvc.cli", "jinja2", "matplotlib.figure", "numpy", "peft", "pyarrow.parquet"),
    *("pydantic", "rich.progress", "ruamel.yaml", "safetensors.torch", "scipy.stats", "torch", "transformers"),
)
_LAZY = ("AutoencoderKL", "FlowMatchEulerDiscreteScheduler", "FluxPipeline", "FluxTransformer2DModel")

_CLIENT = """\
#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({path!r})
    request = json.dumps([os.getcwd(), sys.argv[1:], dict(os.environ)]).encode()
    socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(request)
    answer = server.recv(16)
sys.exit(int(answer) if answer else 1)
"""


@contextmanager
def forking(folder: Path) -> Iterator[Path]:
    """Run the server inside the context; yield the folder to put first on PATH."""
    programs, path = folder / "bin", folder / "socket"
    programs.mkdir(parents=True)
    # A new process: a fork of a test would keep the streams that pytest captures.
    server = subprocess.Popen([sys.executable, "-m", __name__, str(path)], cwd=ROOT)
    try:
        wait_for(path.exists, 60, "the server")
        for name in ("python", "python3"):
            (programs / name).write_text(_CLIENT.format(python=sys.executable, path=str(path)))
            (programs / name).chmod(0o755)
        yield programs
    finally:
        server.kill()
        server.wait()


def _serve(path: str) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for name in _IMPORTED:
        __import__(name)
    for name in _LAZY:
        getattr(sys.modules["diffusers"], name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _answer(connection)
        connection.close()


def _answer(connection: socket.socket) -> None:
    """Run a client's program in a child process, and send its exit code."""
    length, streams, _, _ = socket.recv_fds(connection, 8, 3)
    request = b""
    while len(request) < int.from_bytes(length, "big"):
        request += connection.recv(2**20)
    child = os.fork()
    if child == 0:
        connection.close()
        _run(streams, *json.loads(request))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):  # the client may have been ended
        connection.sendall(str(128 - code if code < 0 else code).encode())
    os._exit(0)


def _run(streams: Sequence[int], folder: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run `python -m MODULE ...` in this process; does not return."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    option, module, *rest = arguments
    if option != "-m":
        raise ValueError(f"only python -m MODULE is served, got {arguments}")
    for name in [name for name in sys.modules if name.partition(".")[0] in ("chunk_grpo", "stages")]:
        del sys.modules[name]  # imported from the folder in which the server was started
    sys.path[0] = folder
    sys.argv = ["-m", *rest]  # as of Python, while it looks for the module
    code: Any = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    _serve(sys.argv[1])
