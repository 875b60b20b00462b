"""Rows from an energy: all states at once, draws of a base chosen by their weights, or Markov chains."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ctem.energies import LogPotential
from ctem.energy_model.constants import moves
from ctem.partition import Proposal
from ctem.samplers import MALA, Adapted, run
from ctem.samplers.diagnostics import chain_diagnostics
from ctem.samplers.sampler import evaluated
from ctem.spaces import MAX_STATES, Space

__all__ = ["WAYS", "Draws", "draw_rows"]

WAYS = ("exact", "resampling", "chain")
CANDIDATES = 64  # draws of the proposal for every row
BATCH = 2**16  # rows evaluated at once
KEPT = 200  # states of a chain that diagnostics look at
FOLLOWED = 64  # chains that diagnostics look at


class Draws(NamedTuple):
    """Rows, and how far they can be trusted.

    >>> Draws(torch.zeros(3, 1), "exact").acceptance
    1.0
    """

    X: Any  # (n, …) in the user's units; encoded ones (n, d) from ``draw_rows``
    method: str  # "exact", "resampling" or "chain"
    acceptance: float = 1.0  # of the chains' proposals
    weights_ess: float = math.inf  # effective draws that the rows, or the starts of chains, were chosen from
    r_hat: Tensor | None = None  # (d,) of a chain: near 1 when chains agree
    ess: Tensor | None = None  # (d,) of a chain: effective draws of 64 chains, 200 states each


def draw_rows(
    f: LogPotential,
    space: Space,
    proposal: Proposal,
    n: int,
    generator: torch.Generator,
    *,
    method: str = "auto",
    steps: int = 500,
    diagnostics: bool = False,
) -> Draws:
    """n encoded rows of exp f.

    "exact" draws among all states of a finite space. "resampling" takes draws of the proposal, 64 for every row, and
    chooses among them by exp f/q. "chain" goes on from there by ``steps`` moves: MALA on real columns, whose step
    adapts in the first half, and Gibbs on discrete ones. "auto" is "exact" on a finite space, "resampling" where its
    effective draws are at least as many as the rows, else "chain".

    >>> from ctem.spaces import Category
    >>> from ctem.bases import FittedBase
    >>> space = Space([Category(2)])
    >>> draw_rows(lambda x: 99 * x[:, 0], space, FittedBase(space), 3, torch.Generator().manual_seed(0)).X.T
    tensor([[1., 1., 1.]])
    """
    if method not in ("auto", *WAYS):
        raise ValueError(f"method: expected 'auto' or one of {list(WAYS)}; got {method!r}.")
    finite = space.n_states <= MAX_STATES
    if method == "exact" and not finite:
        raise ValueError(
            f"method: 'exact' needs a finite space of at most {MAX_STATES} states; got {space!r}."
        )
    if finite and method in ("auto", "exact"):
        return Draws(_among_all_states(f, space, n, generator), "exact")
    start, ess = _resampled(f, proposal, n, generator)
    if method == "resampling" or (method == "auto" and ess >= n):
        if ess < n:
            warnings.warn(
                f"sample: {n} rows are chosen from {ess:.0f} effective draws, so that some occur several times; "
                "method='chain' moves them apart.",
                UserWarning,
                stacklevel=4,
            )
        return Draws(start, "resampling", weights_ess=ess)
    return _chains(f, space, start, steps, generator, diagnostics)._replace(weights_ess=ess)


def _among_all_states(f: LogPotential, space: Space, n: int, generator: torch.Generator) -> Tensor:
    states = space.states(device=generator.device)
    log_p = torch.cat([evaluated(f, part) for part in states.split(BATCH)]).double().log_softmax(0)
    u = torch.rand(n, generator=generator, dtype=torch.float64, device=generator.device)
    return states[torch.searchsorted(log_p.exp().cumsum(0), u).clamp(max=len(states) - 1)]


def _resampled(
    f: LogPotential, proposal: Proposal, n: int, generator: torch.Generator
) -> tuple[Tensor, float]:
    """Rows chosen from draws of the proposal by their weights, and the effective number of draws."""
    draws = proposal.sample(CANDIDATES * n, generator)
    log_w = torch.cat(
        [
            evaluated(f, part).double() - evaluated(proposal.log_prob, part).double()
            for part in draws.split(BATCH)
        ]
    )
    p = log_w.softmax(0)
    u = torch.rand(n, generator=generator, dtype=torch.float64, device=p.device)
    chosen = torch.searchsorted(p.cumsum(0), u).clamp(max=len(p) - 1)
    return draws[chosen], float(1 / p.square().sum())


def _chains(
    f: LogPotential, space: Space, start: Tensor, steps: int, generator: torch.Generator, diagnostics: bool
) -> Draws:
    adapted = Adapted(lambda step: MALA(space, step), step=0.1) if space.reals else None
    half = max(1, steps // 2)
    x = run(moves(space, adapted), f, start, half, generator).x
    sampler = moves(space, None if adapted is None else adapted.frozen())
    thin = max(1, half // KEPT) if diagnostics else None
    result = run(sampler, f, x, half, generator, thin=thin)
    if result.trace is None:
        return Draws(result.x, "chain", result.acceptance)
    trace = result.trace[:, :FOLLOWED].clone()
    angles = list(space.angles)
    trace[..., angles] = trace[..., angles].cos()  # an angle has no place to start from
    mixed = chain_diagnostics(trace)
    return Draws(result.x, "chain", result.acceptance, r_hat=mixed.r_hat, ess=mixed.ess)
