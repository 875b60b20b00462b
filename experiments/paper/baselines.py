"""The paper's baselines: kernel density estimates, and RealNVP and neural spline flows, many at once.

Bandwidths are as calibrated: with these Silverman and SD-KDE agree with the published table to the third digit in two
dimensions. The flows have the paper's block counts, steps, dequantisation, cosine decay, clipping and weight decay.
zuko makes their networks and first weights; here all members are evaluated together, in a third of the kernels that
zuko launches: a row is kept as its two halves, which the blocks change in turn, and a spline looks up all that it needs
of a bin at once. A test holds the log-density to zuko's.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from ctem import Real, Recipe, Space, grad_log_density, mean_std, train
from experiments.paper.sets import space_of, together, units

MAX_PAIRS = 2**24  # row–centre pairs held in memory at once
BANDWIDTHS = 80  # of the cross-validation's log grid, from 0.05 to 2 times Silverman's


class KDE:
    """Gaussian kernels of bandwidth h on every row, ρ(x) = 1/n Σ_i N(x; x_i, h² I).

    Arguments:
        rows: x_i (n, d), float64, on the device to work on.
        bandwidth: h.
    """

    def __init__(self, rows: Tensor, bandwidth: float):
        self.rows, self.bandwidth = rows, bandwidth

    @property
    def device(self) -> torch.device:
        return self.rows.device

    def log_density(self, X: Tensor) -> Tensor:
        """log ρ (m,), float64 on the cpu."""
        n, d = self.rows.shape
        parts = [(-q).logsumexp(1) for q in self._exponents(X.to(self.rows))]
        return torch.cat(parts).cpu() - math.log(n) - d / 2 * math.log(2 * math.pi * self.bandwidth**2)

    def slope(self, X: Tensor) -> Tensor:
        """∇ log ρ = (Σ_i P(i | x) x_i − x)/h² (m, d)."""
        nearest = torch.cat([(-q).softmax(1) @ self.rows for q in self._exponents(X)])
        return (nearest - X) / self.bandwidth**2

    def _exponents(self, X: Tensor) -> Iterator[Tensor]:
        for part in X.split(max(1, MAX_PAIRS // len(self.rows))):
            yield torch.cdist(part, self.rows).square() / (2 * self.bandwidth**2)

    @property
    def facts(self) -> dict[str, Any]:
        return {"bandwidth": self.bandwidth}

    def state(self) -> dict[str, Tensor]:
        """The tensors it is made of; with ``facts`` enough for ``restored``."""
        return {"rows": self.rows}

    @classmethod
    def restored(cls, state: dict[str, Tensor], facts: dict[str, Any]) -> KDE:
        return cls(state["rows"], facts["bandwidth"])


def silverman(X: Tensor) -> KDE:
    """h = 0.9 σ̄ n^(−1/(d+4))."""
    return KDE(X, silverman_bandwidth(X))


def silverman_bandwidth(X: Tensor) -> float:
    n, d = X.shape
    return 0.9 * mean_std(X) * n ** (-1 / (d + 4))


def cross_validated(X: Tensor, folds: int = 5) -> KDE:
    """The bandwidth of a fine log grid with the largest held-out likelihood over contiguous folds."""
    ladder = silverman_bandwidth(X) * torch.logspace(math.log10(0.05), math.log10(2), BANDWIDTHS)
    total = torch.zeros(BANDWIDTHS, dtype=torch.float64)
    parts = X.tensor_split(folds)
    for i, held_out in enumerate(parts):
        rest = torch.cat([part for j, part in enumerate(parts) if j != i])
        squared = torch.cdist(held_out, rest).square()
        for j, h in enumerate(ladder.tolist()):
            peak = (-squared / (2 * h**2)).logsumexp(1).sum()
            total[j] += float(peak) - X.shape[1] * len(held_out) * math.log(h)
    return KDE(X, float(ladder[total.argmax()]))


def score_debiased(X: Tensor) -> KDE:
    """KDE of rows shifted by (h²/2)·score of the KDE at the same h, with the self term (Epstein et al. 2025).

    h = 0.4 σ̄ n^(−1/10) in two dimensions; in more, the published values fit Silverman's.
    """
    n, d = X.shape
    h = 0.4 * mean_std(X) * n**-0.1 if d == 2 else silverman_bandwidth(X)
    return KDE(X + h**2 / 2 * KDE(X, h).slope(X), h)


KERNEL_ESTIMATES = {"Silverman": silverman, "CV-KDE": cross_validated, "SD-KDE": score_debiased}


@dataclass(frozen=True, kw_only=True)
class FlowSettings:
    """Blocks and steps are the paper's; what it leaves open (widths, rate, decay, noise) was fixed once, untuned."""

    blocks: int = 8
    steps: int = 10_000
    hidden: tuple[int, ...] = (128, 128)
    bins: int = 8
    dequantisation: float = 0.01  # of a standard deviation
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    clip: float = 5.0


PLANE_FLOW = FlowSettings()
HIGH_D_FLOW = FlowSettings(blocks=10, steps=40_000)
FLOWS = ("RealNVP", "NSF")
SLOPE, BOUND = 1e-3, 5.0  # zuko's: smallest slope of a transform, and the square where splines act


def zuko_flow(kind: str, dim: int, settings: FlowSettings, seed: int) -> torch.nn.Module:
    """One flow as zuko builds it, its weights drawn from the seed."""
    import zuko

    spline = {
        "univariate": zuko.transforms.MonotonicRQSTransform,
        "shapes": [(settings.bins,), (settings.bins,), (settings.bins - 1,)],
    }
    with torch.random.fork_rng(devices=[]):  # zuko initialises from the global generator
        torch.manual_seed(seed)
        return zuko.flows.RealNVP(
            dim,
            transforms=settings.blocks,
            hidden_features=settings.hidden,
            **(spline if kind == "NSF" else {}),
        )


class Couplings:
    """log-densities of K coupling flows of one shape.

    Arguments:
        kind: RealNVP or NSF.
        dim: columns; even and odd ones are transformed in turn.
        settings: blocks, hidden units and bins.
    """

    def __init__(self, kind: str, dim: int, settings: FlowSettings):
        self.kind, self.dim, self.settings = kind, dim, settings
        flow = zuko_flow(kind, dim, settings, seed=0)
        self.perceptron, self.transform = perceptron, spline if kind == "NSF" else affine
        self.kept = [0 if block.mask[0] else 1 for block in flow.transform.transforms]
        self.shapes = [tuple(p.shape) for p in flow.parameters()]

    def initial(self, seeds: Sequence[int]) -> Tensor:
        """Parameters (K, P), one seed a member."""
        flows = [zuko_flow(self.kind, self.dim, self.settings, seed) for seed in seeds]
        return torch.stack([torch.cat([p.detach().flatten() for p in f.parameters()]) for f in flows])

    def __call__(self, parameters: Tensor, x: Tensor) -> Tensor:
        """log ρ of parameters (K, P) at encoded rows (K, n, d), shape (K, n)."""
        parts = parameters.split([math.prod(s) for s in self.shapes], dim=1)
        layers = [p.view(-1, *s) for p, s in zip(parts, self.shapes, strict=True)]
        halves, each = [x[..., ::2], x[..., 1::2]], len(layers) // len(self.kept)
        total = x.new_full((), -self.dim / 2 * math.log(2 * math.pi))
        for i, kept in enumerate(self.kept):
            h = self.perceptron(layers[i * each : (i + 1) * each], halves[kept])
            moved = halves[1 - kept]
            halves[1 - kept], log_slope = self.transform(h.unflatten(-1, (moved.shape[-1], -1)), moved)
            total = total + log_slope.sum(-1)
        return total - torch.cat(halves, -1).square().sum(-1) / 2


def perceptron(layers: Sequence[Tensor], h: Tensor) -> Tensor:
    """ReLU networks with weights (K, out, in) and biases (K, out) in turn, at inputs (K, n, in)."""
    pairs = list(zip(layers[::2], layers[1::2], strict=True))
    for i, (weight, bias) in enumerate(pairs):
        h = torch.baddbmm(bias.unsqueeze(1), h, weight.transpose(1, 2))
        h = relu(h) if i < len(pairs) - 1 else h
    return h


def affine(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """e^a x + b and a, for (b, a) = h (…, 2), a softly clipped."""
    shift, a = h.unbind(-1)
    a = a / (1 + a.abs() / -math.log(SLOPE))
    return torch.addcmul(shift, x, a.exp()), a


def spline(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The monotonic rational-quadratic spline (Durkan et al. 2019) on [−5, 5], and its log-slope.

    h (…, 3B − 1) holds widths and heights of B bins and B − 1 slopes at the inner knots, unconstrained. With s =
    height/width of the bin, slopes d₀, d₁ at its ends, z the place in it, u = z(1 − z), q = s + (d₀ + d₁ − 2s) u:

        y = y₀ + height · (s z² + d₀ u)/q,      dy/dx = (s/q)² (2 s u + d₀ (1 − z)² + d₁ z²).
    """
    bins = (h.shape[-1] + 1) // 3
    clip = pad(h.new_full((2 * bins,), 2.0), (0, bins - 1), value=1.0) / -math.log(SLOPE)
    h = h / (1 + h.abs() * clip)
    sides = h[..., : 2 * bins].unflatten(-1, (2, bins)).softmax(-1).cumsum(-1)
    knots = pad(2 * BOUND * sides - BOUND, (1, 0), value=-BOUND)
    slopes = pad(h[..., 2 * bins :], (1, 1)).exp()
    table = torch.cat([knots, slopes.unsqueeze(-2)], -2)  # (…, 3, B + 1)
    k = (knots[..., 0, :] < x.unsqueeze(-1)).sum(-1, keepdim=True).clamp(1, bins)
    at = torch.cat([k - 1, k], -1).unsqueeze(-2).expand(*x.shape, 3, 2)
    low, high = table.gather(-1, at).unbind(-1)
    (x0, y0, d0), (x1, y1, d1) = low.unbind(-1), high.unbind(-1)
    inside = x.abs() < BOUND
    width, height = x1 - x0, y1 - y0
    s, z = height / width, torch.where(inside, (x - x0) / width, 0.5)
    rest, square = 1 - z, z**2
    u = z * rest
    su = s * u
    q = s + (d0 + d1) * u - 2 * su
    y = y0 + height * torch.addcmul(s * square, d0, u) / q
    slope = 2 * su + d0 * rest**2 + d1 * square
    return torch.where(inside, y, x), torch.where(inside, 2 * (s / q).log() + slope.log(), 0.0)


def compiled(flows: Couplings, device: str) -> Couplings:
    """The same with fused kernels on a CUDA device: a quarter of the time of a spline's many small ones."""
    fused = copy.copy(flows)
    if device.startswith("cuda"):
        fused.perceptron = torch.compile(perceptron)
        fused.transform = torch.compile(flows.transform)
    return fused


class Flows(nn.Module):
    """K flows that train together: the gradient of every member is clipped by itself.

    Arguments:
        couplings: their shape.
        seeds: of the first weights, one a member.
        device: where they are.
    """

    def __init__(self, couplings: Couplings, seeds: Sequence[int], device: str):
        super().__init__()
        self.couplings = couplings
        self.values = nn.Parameter(couplings.initial(seeds).to(device))
        self.values.register_hook(self.clipped)

    def clipped(self, grad: Tensor) -> Tensor:
        limit = self.couplings.settings.clip
        return grad * (limit / grad.norm(dim=1, keepdim=True).clamp(min=limit))

    def forward(self, x: Tensor) -> Tensor:
        """log ρ at encoded rows (K, n, d), shape (K, n)."""
        return self.couplings(self.values, x)


def flow_loss(flows: Flows, x: Tensor, generator: torch.Generator) -> Tensor:
    """Σ_k of the mean −log ρ_k on dequantised rows (K, n, d): each member's gradient is its own."""
    noise = torch.randn(x.shape, generator=generator, device=x.device)
    return -flows(x + flows.couplings.settings.dequantisation * noise).mean(1).sum()


class Flow:
    """A trained flow in the user's units."""

    def __init__(self, couplings: Couplings, parameters: Tensor, space: Space):
        self.couplings, self.parameters, self.device = couplings, parameters, parameters.device
        self.location, self.scale = units(space).to(self.device)
        self.log_det = space.log_det
        self.facts = {"kind": couplings.kind, "settings": asdict(couplings.settings)}

    def log_prob(self, X: Tensor) -> Tensor:
        """log ρ on the device (n,); differentiable in X."""
        x = ((X - self.location) / self.scale).float()
        return self.couplings(self.parameters.unsqueeze(0), x.unsqueeze(0))[0].double() + self.log_det

    def log_density(self, X: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([self.log_prob(part) for part in X.to(self.device).split(16384)]).cpu()

    def slope(self, X: Tensor) -> Tensor:
        return grad_log_density(self.log_prob, X, batch_size=16384)

    def state(self) -> dict[str, Tensor]:
        """The tensors it is made of; with ``facts`` enough for ``restored``."""
        return {"parameters": self.parameters, "units": torch.stack([self.location, self.scale])}

    @classmethod
    def restored(cls, state: dict[str, Tensor], facts: dict[str, Any]) -> Flow:
        space = space_of(state["units"])
        couplings = Couplings(facts["kind"], space.dim, FlowSettings(**facts["settings"]))
        return cls(couplings, state["parameters"], space)


def fit_flows(
    kind: str, tables: Sequence, seeds: Sequence[int], device: str, settings: FlowSettings
) -> tuple[list[Flow], float]:
    """One flow for every table, which share the dimension, trained as one program; and the seconds it took."""
    dim = tables[0].shape[1]
    spaces = [Space([Real()] * dim).standardised(X) for X in tables]
    couplings = Couplings(kind, dim, settings)
    flows = Flows(compiled(couplings, device), seeds, device)
    x, weights = together([space.encode(X) for space, X in zip(spaces, tables, strict=True)], device)
    recipe = Recipe(
        steps=settings.steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
    )
    history = train(flows, flow_loss, x, recipe, weights=weights, cuda_graph=x.is_cuda)
    last = flows.values.detach()
    return [Flow(couplings, p, space) for p, space in zip(last, spaces, strict=True)], history.seconds
