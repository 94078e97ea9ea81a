"""A scorer in a process of its own: the messages, and the server that answers them. Standard library only.

A message is a JSON object. A stage starts a worker with a start message on its standard input, or contacts a server.
Both answer `GET /health` with a `ready` message that identifies the scorer, and `POST /score` with a `scores` or an
`error` message.

`executors.NAME.script` may be a script for an interpreter without chunk_grpo. It imports this package by its name:

    import worker_protocol

    def open_worker(start):
        judge = load_a_model(start.settings["options"]["weights"], start.device)

        def score(batch):
            return [judge(row.prompt, row.pixels, batch.height, batch.width) for row in batch.rows], {}

        return worker_protocol.Worker("my-judge", 1, score)

    if __name__ == "__main__":
        worker_protocol.serve(open_worker)
"""

from .messages import PROTOCOL as PROTOCOL
from .messages import Answer as Answer
from .messages import Batch as Batch
from .messages import ConfigError as ConfigError
from .messages import DataError as DataError
from .messages import MalformedError as MalformedError
from .messages import RefusedError as RefusedError
from .messages import Row as Row
from .messages import Start as Start
from .messages import TransientError as TransientError
from .messages import Worker as Worker
from .messages import settings_hash as settings_hash
from .serving import serve as serve
