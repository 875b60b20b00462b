"""log Z of an energy by the best means that its space allows."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from ctem.energies import LogPotential
from ctem.partition import LogZ, Proposal, log_z_annealed, log_z_enumerate, log_z_grid, log_z_importance
from ctem.samplers import MALA, Alternate, Gibbs, Sampler
from ctem.spaces import MAX_STATES, Space

__all__ = ["METHODS", "best_method", "box_around", "compute_log_z", "moves"]

METHODS = ("enumerate", "grid", "importance", "annealed")
NODES = 2**20  # of a grid, over all discrete states
POINTS = (101, 401)  # of a real column: fewer are too few, more are not needed
ENOUGH = 1000.0  # effective draws: the standard error is then below about 0.03
MISSED = 0.02  # nats of mass beyond the box of a grid that are not worth a warning
STEP = 0.1  # of MALA in the annealing, in squared encoded units: one that adapts would bias the weights
Box = list[tuple[float, float]]


def box_around(space: Space, x: Tensor) -> Box:
    """Where the grid integrates: three deviations beyond the rows, or to the ends of a column.

    >>> from ctem.spaces import Real
    >>> box_around(Space([Real(low=0.0)]), torch.tensor([[0.0], [2.0]]))
    [(0.0, 6.2426406145095825)]
    """
    box = []
    for j in space.reals:
        low, high = space.bounds[j]
        margin = 3 * float(x[:, j].std())
        box.append((max(low, float(x[:, j].min()) - margin), min(high, float(x[:, j].max()) + margin)))
    return box


def grid_points(space: Space) -> int:
    """Points per real column of a grid that is not too large; 0 where there is none."""
    states = math.prod(space.sizes[j] for j in space.discretes)
    if len(space.reals) not in (1, 2) or states > NODES:
        return 0
    most = int((NODES / states) ** (1 / len(space.reals)))
    points = min(most - 1 + most % 2, POINTS[1])
    return points if points >= POINTS[0] else 0


def best_method(space: Space) -> str:
    """The sum over all states where they are few, a grid of one or two real columns, else draws.

    >>> from ctem.spaces import Category, Real
    >>> [best_method(Space(columns)) for columns in ([Category(2)] * 16, [Real(), Category(4)], [Real()] * 3)]
    ['enumerate', 'grid', 'importance']
    """
    if space.n_states <= MAX_STATES:
        return "enumerate"
    return "grid" if grid_points(space) else "importance"


def moves(space: Space, reals: Sampler | None) -> Sampler:
    """One step of all real columns, then one discrete column in four, each given the others.

    >>> from ctem.spaces import Category
    >>> moves(Space([Category(2)]), None)
    Alternate(Gibbs(columns=['x0']))
    """
    first = [] if reals is None else [reals]
    return Alternate(*first, *(Gibbs(space) for _ in space.discretes[::4]))


def compute_log_z(
    f: LogPotential,
    space: Space,
    proposal: Proposal,
    box: Box,
    generator: torch.Generator,
    *,
    method: str = "auto",
    draws: int = 100_000,
    chains: int = 1000,
    levels: int = 200,
) -> LogZ:
    """log Z of a log-potential.

    "auto" is :func:`best_method`; where importance sampling has too few effective draws, annealing follows.

    Arguments:
        f: the log-potential.
        space: the space.
        proposal: a density to draw from, near exp f.
        box: bounds of the grid, encoded, one pair per real column.
        generator: the randomness, on the device of f.
        method: "auto", or one of ``METHODS``.
        draws: of the importance sampling.
        chains, levels: of the annealing.

    >>> from ctem.bases import FittedBase
    >>> from ctem.spaces import Real
    >>> space, x = Space([Real()] * 3), torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    >>> f = lambda x: -(x**2).sum(-1) / 2
    >>> log_z = compute_log_z(f, space, FittedBase(space, x), [], torch.Generator().manual_seed(0))
    >>> log_z.method, abs(log_z.value - 1.5 * math.log(2 * math.pi)) < 4 * log_z.stderr
    ('importance', True)
    """
    if method not in ("auto", *METHODS):
        raise ValueError(f"method: expected 'auto' or one of {list(METHODS)}; got {method!r}.")
    chosen = best_method(space) if method == "auto" else method
    device = generator.device
    if chosen == "enumerate":
        return log_z_enumerate(f, space, device=device)
    if chosen == "grid":
        return _on_grid(f, space, box, device)
    if chosen == "importance":
        with warnings.catch_warnings():
            if method == "auto":  # few effective draws: annealing is next, and warns itself
                warnings.simplefilter("ignore", UserWarning)
            log_z = log_z_importance(f, proposal, draws, generator)
        if method != "auto" or log_z.ess >= min(ENOUGH, draws / 10):
            return log_z
    fixed = MALA(space, STEP) if space.reals else None
    return log_z_annealed(f, proposal, moves(space, fixed), chains, generator, levels=levels)


def _on_grid(f: LogPotential, space: Space, box: Box, device: torch.device) -> LogZ:
    """The grid on the box, and a warning if a box twice as wide holds more: f then does not fall away from the rows.

    What little it holds more, as tails that fall like a power have, is in the standard error.
    """
    points = grid_points(space) or POINTS[0]
    log_z = log_z_grid(f, space, box, points, device=device)
    wide = [_widened(side, space.bounds[j]) for side, j in zip(box, space.reals, strict=True)]
    if wide == box:
        return log_z
    wider = log_z_grid(f, space, wide, points, device=device)
    missed = wider.value - log_z.value
    if missed <= 3 * wider.stderr:
        return log_z
    if missed > MISSED:
        warnings.warn(
            f"log Z misses mass: a box twice as wide has {missed:.2f} nats more, since f does not "
            "fall away from the rows; train longer, give a base (base=FittedBase(space, x)), or give the ends.",
            UserWarning,
            stacklevel=4,
        )
    return log_z._replace(stderr=max(log_z.stderr, missed))


def _widened(side: tuple[float, float], ends: tuple[float, float]) -> tuple[float, float]:
    half = (side[1] - side[0]) / 2
    return max(ends[0], side[0] - half), min(ends[1], side[1] + half)
