"""The small pipeline, served for all tests of a module; those that break more serve one of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.drills.watch import Watch
from tests.flows.faults import served


@pytest.fixture(scope="module")
def watch(
    tmp_path_factory: pytest.TempPathFactory, make_pipeline: Callable[[Path], Path], request: pytest.FixtureRequest
) -> Iterator[Watch]:
    """With as many GPU workers as the module says (GPU_WORKERS)."""
    workers = getattr(request.module, "GPU_WORKERS", 1)
    with served(tmp_path_factory.mktemp("served") / "root", make_pipeline, gpu_workers=workers) as made:
        yield made
