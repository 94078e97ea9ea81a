"""`prefect server start` with `infra.gaps`: the server of `make serve`, compose and Kubernetes."""

from __future__ import annotations

import os
import runpy
import sys

if __name__ == "__main__":
    os.environ.setdefault("PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE", "infra.gaps")
    from infra.gaps import GAPS, forgive  # here: Prefect reads its settings when it is imported

    forgive()
    GAPS.watch()
    sys.argv[1:1] = ["server", "start"]
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)
