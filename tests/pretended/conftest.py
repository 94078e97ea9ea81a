"""Stages on the pretended accelerator."""

from collections import Counter
from collections.abc import Iterator

import pytest

from chunk_grpo.training.trainer import Trainer
from tests.pretended.device import DEVICE, WAITS


@pytest.fixture(scope="module")
def waits() -> Iterator[dict[str, Counter[str]]]:
    """Stages take the pretended accelerator; `read` and `sent` are the waits of the last training iteration."""
    iterate, found = Trainer._iterate, {}

    def counted(self: Trainer, iteration: int) -> None:
        with WAITS.counted():
            iterate(self, iteration)
            found.update(read=WAITS.read.copy(), sent=WAITS.sent.copy())

    with pytest.MonkeyPatch.context() as patch:
        use_the_device(patch)
        patch.setattr(Trainer, "_iterate", counted)
        yield found


def use_the_device(patch: pytest.MonkeyPatch) -> None:
    """Make it the device that stages take."""
    for module in ("chunk_grpo.families.base", "chunk_grpo.families.options"):
        patch.setattr(f"{module}.default_device", lambda: DEVICE)
