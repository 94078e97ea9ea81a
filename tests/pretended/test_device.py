"""The pretended accelerator itself: it refuses what CUDA refuses, counts waits, and computes what the CPU computes."""

import pytest
import torch

from tests.pretended.device import DEVICE, WAITS, PretendedTensor


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.cat([x, torch.ones(3)]),
        lambda x: torch.stack([x[0], torch.tensor(1.0)]),  # only kernels for single numbers take the CPU's scalars
        lambda x: x @ torch.ones(3),
        lambda x: torch.ones(3)[x.long()],
        lambda x: torch.nn.functional.linear(x, torch.ones(2, 3)),
        lambda x: x.numpy(),
        lambda x: torch.randn(3, device=x.device, generator=torch.Generator()),
    ],
)
def test_devices_do_not_mix(mix) -> None:
    with pytest.raises(RuntimeError, match=r"CPU|numpy"):
        mix(torch.ones(3, device="pretend"))


def test_what_cuda_allows_is_allowed() -> None:
    x = torch.arange(3.0, device="pretend")
    assert x.shape == (3,)
    assert (x + torch.tensor(1.0)).tolist() == [1, 2, 3]
    assert x[torch.tensor([2, 0])].tolist() == [2, 0]
    assert torch.zeros(3).copy_(x).tolist() == [0, 1, 2]
    assert (torch.ones(3).to(x).device, x.cpu().device) == (DEVICE, torch.device("cpu"))


@pytest.mark.parametrize(
    ("ask", "reads"),
    [
        (lambda x: float(x[0]), 1),
        (lambda x: bool((x > 0).all()), 1),
        (lambda x: x.tolist(), 1),
        (lambda x: x.cpu(), 1),
        (lambda x: x.nonzero(), 1),
        (lambda x: x[x > 0], 1),
        (lambda x: x.unique(), 1),
        (lambda x: x * 2 + x.sum(), 0),
    ],
)
def test_waits_are_counted(ask, reads) -> None:
    x = torch.ones(3, device="pretend")
    with WAITS.counted():
        ask(x)
    assert (WAITS.read.total(), WAITS.sent.total()) == (reads, 0)
    with WAITS.counted():
        torch.ones(3).to("pretend")
        x[torch.tensor([0])] = x[1:2].clone()
    assert (WAITS.read.total(), WAITS.sent.total()) == (0, 2)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_network_trains_as_on_the_cpu(autocast: bool) -> None:
    weights = {}
    for device in ("cpu", "pretend"):
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1)).to(device)
        assert all(isinstance(weight, torch.nn.Parameter) for weight in network.parameters())
        optimizer, x = torch.optim.AdamW(network.parameters()), torch.randn(16, 4).to(device)
        for _ in range(2):
            with torch.autocast(device, torch.bfloat16, enabled=autocast):
                found = network(x)
            assert found.dtype == (torch.bfloat16 if autocast else torch.float32)
            found.float().square().mean().backward()
            optimizer.step()
        weights[device] = [weight.detach().cpu() for weight in network.parameters()]
        assert all(isinstance(weight, PretendedTensor) for weight in network.parameters()) == (device == "pretend")
    assert all(map(torch.equal, weights["cpu"], weights["pretend"]))
