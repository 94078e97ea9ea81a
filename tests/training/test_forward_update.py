"""Updates of AWM and DiffusionNFT against plain autograd with all items in one graph."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from chunk_grpo.core.flow import interpolate
from chunk_grpo.core.forward_process import matching_value, nft_value, optimality, velocity_divergence
from chunk_grpo.core.objective import Terms, chunk_objective
from chunk_grpo.seeding import generator
from chunk_grpo.training.method import Method
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.update import Policies, Update
from tests.training.test_update import (
    ASSIGNMENTS,
    TIMES,
    B,
    Case,
    D,
    L,
    S,
    Toy,
    make_case,
    method_with,
    nothing,
    relative_error,
    two_pass,
)

MATCHING = method_with(clip_range=1e-2, kl_coef=0.3, likelihood="matching")
NFT = method_with(advantage_clip=2.0, clip_range=1e-2, kl_coef=0.3, likelihood="nft", nft_beta=0.4)


def pairs(rows: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Time of the step, and noise by row and step."""
    return TIMES[steps], noise(rows, steps)


def noise(rows: Tensor, steps: Tensor) -> Tensor:
    """Noise by row and step."""
    return torch.stack(
        [
            torch.randn(L, D, generator=generator("item", row, step), dtype=torch.float64)
            for row, step in zip(rows.tolist(), steps.tolist(), strict=True)
        ]
    )


def forward_case(name: str, moved: float = 0.02) -> Case:
    """A case with final latents and noise, and no transition that an update could read."""
    case = make_case(ASSIGNMENTS[name], moved=moved, weights=True)
    batch = case.batch
    assert batch.old_means is not None
    empty = torch.full_like(batch.states, torch.nan)
    return replace(
        case,
        batch=replace(
            batch,
            states=empty,
            finals=batch.states[:, -1],
            pairs=pairs,
            old_log_probs=torch.full_like(batch.old_log_probs, torch.nan),
            old_means=torch.full_like(batch.old_means, torch.nan),
        ),
    )


def prepared(case: Case, method: Method) -> Case:
    """The case after the sampling policy was evaluated."""
    update = Update(Policies(Toy(torch.float64), case.reference), method, case.batch, method.bounds, 4)
    old = update.reevaluate_old(Processes(), nothing)
    trained = case.batch.chunks.assignment.to_steps(case.batch.chunks.selected.double()) > 0
    assert torch.isfinite(old[trained]).all()
    return replace(case, batch=replace(case.batch, old_log_probs=torch.where(trained, old, 0.0)))


def everywhere(case: Case, value: Callable[[Tensor, int, Tensor, Tensor], Tensor]) -> Tensor:
    """`value(velocity, step, x, noise)` of every row and step, [B, S - 1]."""
    batch, rows = case.batch, torch.arange(B)
    assert batch.finals is not None
    found = []
    for step in range(S - 1):
        t = TIMES[step].expand(B)
        e = noise(rows, torch.full((B,), step))
        x = interpolate(batch.finals, e, t)
        found.append(value(case.policy(x, t, batch.conditioning), step, x, e))
    return torch.stack(found, dim=1)


def divergences(case: Case) -> Tensor:
    def of_step(velocity: Tensor, step: int, x: Tensor, e: Tensor) -> Tensor:
        with torch.no_grad():
            anchor = case.reference(x, TIMES[step].expand(B), case.batch.conditioning)
        return velocity_divergence(velocity, anchor)

    return everywhere(case, of_step)


@pytest.mark.parametrize("name", ["step", "listed", "of each trajectory"])
@pytest.mark.parametrize("micro_batch_size", [1, 5, 1000])
def test_awm_is_the_clipped_objective_of_the_matching_loss(name: str, micro_batch_size: int) -> None:
    case = prepared(forward_case(name), MATCHING)
    batch = case.batch
    found, stats = two_pass(case, MATCHING, micro_batch_size)
    values = everywhere(case, lambda v, step, x, e: matching_value(v, batch.finals, e))
    terms = Terms(batch.old_log_probs, batch.advantages, batch.chunks)
    value = chunk_objective(values, terms, MATCHING.bounds, divergences(case))
    assert relative_error(found, list(torch.autograd.grad(-value, list(case.policy.parameters())))) < 1e-12
    assert 0 < stats.clipped.double().mean() < 1


@pytest.mark.parametrize("name", ["step", "listed"])
@pytest.mark.parametrize("micro_batch_size", [1, 5, 1000])
def test_nft_maximises_its_value_without_a_ratio(name: str, micro_batch_size: int) -> None:
    case = prepared(forward_case(name), NFT)
    batch, chunks = case.batch, case.batch.chunks
    sampling = Toy(torch.float64)
    good = optimality(batch.advantages, NFT.advantage_clip)

    def of_step(velocity: Tensor, step: int, x: Tensor, e: Tensor) -> Tensor:
        t = TIMES[step].expand(B)
        old = sampling(x, t, batch.conditioning)
        return nft_value(velocity, old, x, batch.finals, t, good, NFT.variant.nft_beta)

    found, stats = two_pass(case, NFT, micro_batch_size)
    of_chunks = chunks.assignment.means(everywhere(case, of_step))
    kl = chunks.assignment.means(divergences(case))
    shares = chunks.selected.double() / chunks.selected.sum(dim=1, keepdim=True) / B
    value = (of_chunks * chunks.weights * shares).sum() - NFT.variant.kl_coef * (kl * chunks.kl_weights * shares).sum()
    assert relative_error(found, list(torch.autograd.grad(-value, list(case.policy.parameters())))) < 1e-12
    assert set(stats.ratios.tolist()) == {1.0}
    assert not stats.clipped.any()


def test_on_policy_ratios_are_one() -> None:
    case = replace(prepared(forward_case("listed", moved=0.0), MATCHING), reference=Toy(torch.float64).moved(0.1))
    short, _ = two_pass(case, MATCHING, 4, on_policy=True)
    full, stats = two_pass(case, MATCHING, 4, on_policy=False)
    assert relative_error(short, full) < 1e-12
    assert stats.ratios.tolist() == pytest.approx([1.0] * len(stats.ratios), abs=1e-12)


@pytest.mark.parametrize(
    ("method", "missing", "message"),
    [
        (MATCHING, {"finals": None}, "likelihood matching needs the final latents"),
        (MATCHING, {"pairs": None}, "likelihood matching needs the final latents and the items' times and"),
        (NFT, {"old_means": None}, "likelihood nft needs room for the old velocities"),
        (NFT, {"advantages": torch.ones(B, 3)}, r"likelihood nft needs advantages \[B\], got \(6, 3\)"),
    ],
)
def test_missing_forward_process_inputs_are_refused(method: Method, missing: dict[str, object], message: str) -> None:
    case = forward_case("listed")
    with pytest.raises(ValueError, match=message):
        Update(
            Policies(case.policy, case.reference),
            method,
            replace(case.batch, **missing),  # type: ignore[arg-type]
            method.bounds,
            4,
        )
