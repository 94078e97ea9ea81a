"""Stages on the pretended accelerator."""

from collections import Counter
from collections.abc import Iterator

import pytest

from chunk_grpo.training.sealing import _PLAIN
from chunk_grpo.training.trainer import Trainer
from tests.pretended.device import DEVICE, WAITS, PretendedTensor


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
    """Make it the device that stages take, and save its tensors."""
    for module in ("chunk_grpo.families.base", "chunk_grpo.families.options"):
        patch.setattr(f"{module}.default_device", lambda: DEVICE)
    # torch.save writes them as tensors of the CPU; the check of a checkpoint's types does not know that.
    patch.setattr("chunk_grpo.training.sealing._PLAIN", (*_PLAIN, PretendedTensor))
