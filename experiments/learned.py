"""What every system of a table is in the end, a density with its gradient; and the energies of ``batched`` as one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from batched import Networks
from ctem import Real, Space, grad_log_density
from ctem.targets import grid

MAX_ROWS = 2**19  # member–row pairs evaluated at once


class Density(Protocol):
    """What every system of a table is in the end; rows are in the user's units."""

    device: torch.device

    def log_density(self, X: Tensor) -> Tensor:
        """log ρ, float64 on the cpu (n,)."""
        ...

    def slope(self, X: Tensor) -> Tensor:
        """∇ log ρ at float64 rows on ``device`` (n, d), without a wait for it: a CUDA graph can record it."""
        ...


def grad_of(density: Density, X: Tensor, rows: int = 16384) -> Tensor:
    """∇ log ρ, float64 on the cpu (n, d)."""
    return torch.cat([density.slope(part) for part in X.to(density.device).split(rows)]).cpu()


def potential(networks: Networks, tilted: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """f(parameters, x) of all members: the network, or with ``tilted`` the network − |x|²/2."""
    if not tilted:
        return networks
    return lambda parameters, x: networks(parameters, x) - x.square().sum(-1) / 2


class Mixture:
    """A mixture of K normalised energies, log ρ(X) = log 1/K Σ_k exp(f_k(x) − log Z_k), x = encoded X.

    ``log_z`` is in the user's units; it starts at 0 and a ``normalise`` function sets it.

    Arguments:
        f: of parameters (K, P) at rows (K, n, d), shape (K, n).
        parameters: of the K energies.
        space: standardised; the units of X.
    """

    def __init__(self, f: Callable[[Tensor, Tensor], Tensor], parameters: Tensor, space: Space):
        self.f, self.parameters, self.device = f, parameters, parameters.device
        self.location, self.scale = (v.to(self.device) for v in units(space))
        self.log_z = self.location.new_zeros(len(parameters))

    def values(self, X: Tensor) -> Tensor:
        """f_k at rows on the device, float64 (K, n); differentiable in X."""
        k = len(self.parameters)
        x = ((X - self.location) / self.scale).float()
        parts = [self.f(self.parameters, part.expand(k, -1, -1)) for part in x.split(max(1, MAX_ROWS // k))]
        return torch.cat(parts, dim=1).double()

    def mixture(self, X: Tensor) -> Tensor:
        """log ρ on the device (n,); differentiable in X."""
        return (self.values(X) - self.log_z.unsqueeze(1)).logsumexp(0) - math.log(len(self.parameters))

    def log_density(self, X: Tensor) -> Tensor:
        with torch.no_grad():
            return self.mixture(X.to(self.device)).cpu()

    def slope(self, X: Tensor) -> Tensor:
        return grad_log_density(self.mixture, X)

    def state(self) -> dict[str, Tensor]:
        """The tensors it is made of; with ``facts`` enough for ``restored``."""
        return {k: getattr(self, k) for k in ("parameters", "log_z", "location", "scale")}


class Energy(Mixture):
    """The mixture of K networks of ``batched``; ``tilted`` ones tilt N(0, I)."""

    def __init__(self, networks: Networks, parameters: Tensor, space: Space, tilted: bool):
        super().__init__(potential(networks, tilted), parameters, space)
        shape = {"inputs": networks.inputs, "width": networks.width, "squares": networks.squares}
        self.facts = {**shape, "tilted": tilted}

    @classmethod
    def restored(cls, state: dict[str, Tensor], facts: dict[str, Any]) -> Energy:
        networks = Networks(facts["inputs"], facts["width"], squares=facts["squares"])
        energy = cls(networks, state["parameters"], space_of(state), facts["tilted"])
        energy.log_z = state["log_z"]
        return energy


def units(space: Space) -> tuple[Tensor, Tensor]:
    """Location and scale of the real columns, float64 (d,)."""
    columns = space.columns
    pairs = torch.tensor([[c.location, c.scale] for c in columns], dtype=torch.float64)
    return pairs[:, 0], pairs[:, 1]


def space_of(state: dict[str, Tensor]) -> Space:
    """The space with these locations and scales."""
    return Space(
        [Real(m, s) for m, s in zip(state["location"].tolist(), state["scale"].tolist(), strict=True)]
    )


def normalise_on_square(energy: Mixture, bounds: tuple[float, float], points: int = 200) -> None:
    """The paper's constant: the trapezoidal rule on the evaluation square."""
    square = grid(bounds, points)
    _set_by_quadrature(energy, square.X, square.weights)


def normalise_on_plane(energy: Mixture, space: Space, reach: float = 8.0, points: int = 513) -> None:
    """The constant over the whole plane, as far as ``reach`` standard deviations go."""
    square = grid((-reach, reach), points)
    X = torch.as_tensor(space.decode(square.X))
    _set_by_quadrature(energy, X, square.weights * math.exp(-space.log_det))


def _set_by_quadrature(energy: Mixture, X: Tensor, weights: Tensor) -> None:
    with torch.no_grad():
        energy.log_z = (energy.values(X.to(energy.device)) + weights.log().to(energy.log_z)).logsumexp(1)


class Importance(NamedTuple):
    """How well the constants are known: the worst of K."""

    stderr: float
    ess: float


def normalise_by_importance(energy: Mixture, space: Space, n: int, seed: int = 0) -> Importance:
    """The constant by n draws from the normal fitted to the rows, N(location, scale²) of the space."""
    generator = torch.Generator(energy.device).manual_seed(seed)
    xi = torch.randn(n, space.dim, generator=generator, dtype=torch.float64, device=energy.device)
    log_q = -xi.square().sum(1) / 2 - space.dim / 2 * math.log(2 * math.pi) + space.log_det
    with torch.no_grad():
        log_w = energy.values(energy.location + energy.scale * xi) - log_q
    total = log_w.logsumexp(1)
    energy.log_z = total - math.log(n)
    ess = float((2 * total - (2 * log_w).logsumexp(1)).exp().min())
    return Importance(math.sqrt(max(n / ess - 1, 0.0) / (n - 1)), ess)
