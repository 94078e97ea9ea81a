"""`chunk-grpo serve-scorer NAME`: serve a scorer of params.yaml over HTTP, for stages that set its URL.

Without a token it listens on loopback only. After SIGTERM it finishes the batch being scored.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Sequence

from chunk_grpo.config import load_params
from chunk_grpo.errors import ConfigError
from chunk_grpo.scorers.base import Scorer
from chunk_grpo.scorers.executors.messages import read_token, worker_for
from chunk_grpo.scorers.running.registry import make_scorer
from chunk_grpo.scorers.workers.worker_protocol.requests import is_loopback
from chunk_grpo.scorers.workers.worker_protocol.serving import Limits, ScoringServer

_LOG = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT.

    Returns:
        Exit code: 0 after a signal, 2 for a bad configuration, 3 for a missing file, 1 after a second signal, 75 if a
        batch exceeded its time limit.
    """
    options = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    token = read_token("--token-variable", options.token_variable)
    if token is None and not is_loopback(options.host):
        raise ConfigError(
            f"--host: without a token a server listens on this machine only (127.0.0.1), got {options.host!r}; "
            "put a token into an environment variable and name the variable with --token-variable"
        )
    if options.held_megabytes < options.most_megabytes:
        raise ConfigError(
            f"--held-megabytes: must be at least --most-megabytes ({options.most_megabytes}), got "
            f"{options.held_megabytes}"
        )
    scorer = _scorer(options.params, options.name, options.device)
    limits = Limits(
        held_bytes=options.held_megabytes * 10**6,
        most_bytes=options.most_megabytes * 10**6,
        token=token,
        batch_seconds=options.batch_seconds,
    )
    serve(scorer, (options.host, options.port), limits)
    return 0


def serve(scorer: Scorer, address: tuple[str, int], limits: Limits) -> None:
    """Serve a scorer until SIGTERM or SIGINT. Must be called in the main thread.

    A second signal ends the process with exit code 1 although a batch is being scored, as soon as Python can handle it;
    a call that exceeds its time limit ends it with exit code 75. Port 0 is any free port.
    """
    with _listen(*address) as listener:
        host, port = listener.getsockname()[:2]
        _LOG.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        server = ScoringServer(listener, limits)
        _leave_at_a_signal(server)
        server.run(lambda: worker_for(scorer))


def _leave_at_a_signal(server: ScoringServer) -> None:
    """Leave at the first signal; end the process at the second, since a batch may be hanging."""

    def at_signal(*_: object) -> None:
        if server.is_leaving:
            os._exit(1)
        server.leave()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, at_signal)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--host, --port: cannot listen on {host}, port {port} ({error})") from error


def _scorer(params: str, name: str, device: str | None) -> Scorer:
    scorers = load_params(params).scorers
    if name not in scorers:
        raise ConfigError(f"NAME: must be one of scorers in {params}: {', '.join(scorers)}, got {name!r}")
    return make_scorer(name, scorers[name], device)


def parser() -> argparse.ArgumentParser:
    """Parser of the command line."""
    own = argparse.ArgumentParser(prog="chunk-grpo serve-scorer", description=__doc__)
    own.add_argument("name", metavar="NAME", help="name of the scorer in params.yaml")
    own.add_argument("--params", default="params.yaml", help="parameter file (default: params.yaml)")
    own.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    own.add_argument("--port", type=int, default=8901, help="port; 0: any free port, which is logged (default: 8901)")
    own.add_argument("--token-variable", help="environment variable with the token that every request must carry")
    own.add_argument(
        "--held-megabytes",
        type=_positive,
        default=2048,
        help="maximum size of all requests held, including the one being scored; clients retry others (default: 2048)",
    )
    own.add_argument(
        "--most-megabytes",
        type=_positive,
        default=512,
        help="maximum size of a request; a 1024x1024 image takes 4.2 (default: 512)",
    )
    own.add_argument(
        "--batch-seconds",
        type=_seconds,
        default=3600.0,
        help="time limit of a batch, including the time to load the model; beyond it the server ends with exit code "
        "75, because a scorer that hangs cannot be ended alone (default: 3600)",
    )
    own.add_argument("--device", help="device such as cuda:0 (default: the first GPU, else the CPU)")
    return own


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text}")
    return value
