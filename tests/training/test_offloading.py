"""Parts are away exactly while nothing is decoded or scored."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.scorers.running.configured import MODELS, SharedModels
from chunk_grpo.training.offloading import Offloading
from tests.training.conftest import OPTIONS


class Moved(nn.Linear):
    """A network that notes where it is sent."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.places: list[str] = []

    def to(self, device: object) -> "Moved":  # type: ignore[override]
        self.places.append(str(device))
        return self


class Holder:
    """A model with a network among its attributes."""

    def __init__(self, network: nn.Module) -> None:
        self.network, self.scale = network, 1.0


def test_models_are_moved_once_and_back_to_where_they_were() -> None:
    models, alone, held = SharedModels(), Moved(), Moved()
    models.take("alone", lambda: alone)
    models.take("held", lambda: Holder(held))
    models.take("rules", lambda: Holder.__new__(Holder))
    models.put_away()
    models.put_away()
    models.bring_back()
    models.bring_back()
    assert alone.places == held.places == ["cpu", "cpu"]  # away, and back to the CPU, where they were


def test_a_model_that_is_given_back_while_away_is_forgotten() -> None:
    models, network = SharedModels(), Moved()
    models.take("one", lambda: network)
    models.put_away()
    models.give_back("one")
    models.bring_back()
    assert network.places == ["cpu"]


@pytest.fixture
def network() -> Iterator[Moved]:
    found = Moved()
    MODELS.take("test", lambda: found)
    yield found
    MODELS.give_back("test")


def test_after_an_error_nothing_is_moved(network: Moved) -> None:
    """A scorer may still run in the background."""
    offloading = Offloading(FluxFamily.load(OPTIONS, ("transformer",)), ("scorers",))
    with pytest.raises(KeyError), offloading.in_use():
        network.places.clear()
        raise KeyError
    assert network.places == []


def test_parts_that_are_not_named_stay(network: Moved) -> None:
    with Offloading(FluxFamily.load(OPTIONS, ("transformer",)), ("vae",)).in_use():
        pass
    assert network.places == []


def test_training_loads_no_text_encoder() -> None:
    parts = FluxFamily.load(OPTIONS, ("transformer",))._pipeline
    assert parts.text_encoder is None and parts.text_encoder_2 is None
    assert parts.vae.dtype == torch.float32
