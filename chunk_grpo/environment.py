"""Names that programs of the project share: environment variables, and the events of a Prefect server."""

PROCESSES = "CHUNK_GRPO_PROCESSES"
"""Processes that train together on this machine."""

STOP_SECONDS = "CHUNK_GRPO_STOP_SECONDS"
"""Seconds that a stopped training may take to save, at least 1."""

PARENT = "CHUNK_GRPO_PARENT"
"""Process id of the launcher, for the processes that it starts."""

SAVING = "CHUNK_GRPO_SAVING"
"""File that exists while one of several processes saves; the launcher waits for it."""

RUN_MARKER = "STAGE_RUN_MARKER"
"""File that a stage touches first: DVC ran it and did not restore it."""

REPOSITORY = "CHUNK_GRPO_REPOSITORY"
"""Checkout of which flow runs clone a commit; by default that of the code."""

WORKER_PID = "CHUNK_GRPO_WORKER_PID"
"""Process id of the worker; its flow runs end with it."""

PUBLISH = "CHUNK_GRPO_PUBLISH"
"""Folder or URL that finished runs are published to."""

REPORTS_URL = "CHUNK_GRPO_REPORTS_URL"
"""Address at which the published reports are seen."""

NOTIFY_WEBHOOK = "CHUNK_GRPO_NOTIFY_WEBHOOK"
"""Secret URL that alerts are sent to."""

SCORE_MOVED = "chunk-grpo.score.moved"
"""Event: the score of a published model is no longer what it was."""
