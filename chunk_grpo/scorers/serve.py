"""`python -m chunk_grpo.scorers.serve NAME`: serve a scorer of params.yaml over HTTP, for stages that set its URL.

Without a token it listens on loopback only. After SIGTERM it finishes the batch being scored.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Sequence

from chunk_grpo.config import load_params
from chunk_grpo.errors import ChunkGrpoError, ConfigError, install_command
from chunk_grpo.scorers.base import Scorer
from chunk_grpo.scorers.executors.access import is_loopback, read_token
from chunk_grpo.scorers.running.registry import make_scorer


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT.

    Args:
        argv: Command line; None: the process's.

    Returns:
        Exit code: 0 after a signal, 2 for a bad configuration, 3 for a missing file, 1 after a second signal, 75 if a
        batch exceeded its time limit.
    """
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    try:
        from chunk_grpo.scorers.executors.http_app import Limits
        from chunk_grpo.scorers.executors.http_server import serve

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
        limits = Limits(options.held_megabytes * 10**6, options.most_megabytes * 10**6, token)
        serve(scorer, (options.host, options.port), limits, options.merge, options.batch_seconds)
    except ImportError as error:
        sys.stderr.write(f"error: a package is not installed ({error}); {install_command('serving')}\n")
        return ConfigError.exit_code
    except ChunkGrpoError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def _scorer(params: str, name: str, device: str | None) -> Scorer:
    scorers = load_params(params).scorers
    if name not in scorers:
        raise ConfigError(f"NAME: must be one of scorers in {params}: {', '.join(scorers)}, got {name!r}")
    return make_scorer(name, scorers[name], device)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chunk_grpo.scorers.serve", description=__doc__)
    parser.add_argument("name", metavar="NAME", help="name of the scorer in params.yaml")
    parser.add_argument("--params", default="params.yaml", help="parameter file (default: params.yaml)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: this machine only)"
    )
    parser.add_argument(
        "--port", type=int, default=8901, help="port; 0: any free port, which is logged (default: 8901)"
    )
    parser.add_argument(
        "--token-variable", help="environment variable with the token that every request must carry"
    )
    parser.add_argument(
        "--held-megabytes",
        type=_positive,
        default=2048,
        help="maximum size of all requests held, including the one being scored; clients retry others (default: 2048)",
    )
    parser.add_argument(
        "--merge",
        type=_positive,
        default=1,
        help="maximum number of images in one call that merges waiting batches; 1: no merging, so that rounding does "
        "not depend on other clients (default: 1)",
    )
    parser.add_argument(
        "--most-megabytes",
        type=_positive,
        default=512,
        help="maximum size of a request; a 1024x1024 image takes 4.2 (default: 512)",
    )
    parser.add_argument(
        "--batch-seconds",
        type=_seconds,
        default=3600.0,
        help="time limit of a batch, including the time to load the model; beyond it the server ends with exit code "
        "75, because a scorer that hangs cannot be ended alone (default: 3600)",
    )
    parser.add_argument("--device", help="device such as cuda:0 (default: the first GPU, else the CPU)")
    return parser


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


if __name__ == "__main__":
    sys.exit(main())
