"""One of two processes of which the first writes for longer than a collective may take, or fails.

Started as `python -m tests.training.by_main WHAT`, WHAT one of slow, full, killed, with the environment of
torchrun.
"""

import os
import signal
import sys
import time
from datetime import timedelta

from torch import distributed

from chunk_grpo.errors import ChunkGrpoError, DataError
from chunk_grpo.training.processes import Processes

COLLECTIVE_SECONDS = 4


def write(what: str) -> None:
    if what == "slow":
        time.sleep(2 * COLLECTIVE_SECONDS)
    elif what == "full":
        raise DataError("no space left")
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def main(what: str) -> int:
    distributed.init_process_group("gloo", timeout=timedelta(seconds=COLLECTIVE_SECONDS))
    processes, start = Processes(), time.monotonic()
    processes.gather([0])
    try:
        processes.by_main(lambda: write(what))
        processes.gather([0])  # a collective of the training, entered by all once the first one has written
    except ChunkGrpoError as error:
        print(f"{type(error).__name__}: {error}")  # noqa: T201
        return error.exit_code
    finally:
        distributed.destroy_process_group()  # its threads would abort a process that ends
    print(f"waited {time.monotonic() - start > COLLECTIVE_SECONDS}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
