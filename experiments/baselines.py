"""The paper's baselines: Silverman, cross-validated and score-debiased KDE; RealNVP and Neural Spline Flow.

Bandwidths are as CALIBRATION found them: with these Silverman and SD-KDE agree with the published table to the third
digit in two dimensions. The flows are zuko's couplings with the paper's block counts, steps, dequantisation, cosine
decay, clipping and weight decay; all members of one shape train as one batched program.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from batched import Program, Trained
from ctem import Real, Recipe, Space, grad_log_density, mean_std
from learned import space_of, units

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


class Couplings(nn.Module):
    """log-density of a zuko coupling flow with alternating masks, without a wait for the device.

    zuko finds the two halves of a row anew at every call, which a CUDA graph cannot record; here their indices are
    buffers, and only zuko's networks and univariate transforms are used.
    """

    def __init__(self, kind: str, dim: int, settings: FlowSettings, seed: int):
        import zuko

        super().__init__()
        self.kind = kind
        spline = {
            "univariate": zuko.transforms.MonotonicRQSTransform,
            "shapes": [(settings.bins,), (settings.bins,), (settings.bins - 1,)],
        }
        with torch.random.fork_rng(devices=[]):  # zuko initialises from the global generator
            torch.manual_seed(seed)
            flow = zuko.flows.RealNVP(
                dim,
                transforms=settings.blocks,
                hidden_features=settings.hidden,
                **(spline if kind == "NSF" else {}),
            )
        self.blocks = flow.transform.transforms
        halves = [(torch.arange(dim)[b.mask], torch.arange(dim)[~b.mask]) for b in self.blocks]
        for i, (kept, moved) in enumerate(halves):
            self.register_buffer(f"kept{i}", kept)
            self.register_buffer(f"moved{i}", moved)
            self.register_buffer(f"back{i}", torch.cat([kept, moved]).argsort())

    def forward(self, x: Tensor) -> Tensor:
        """log ρ at encoded rows (n, d), shape (n,)."""
        total = 0.0
        for i, block in enumerate(self.blocks):
            kept = x.index_select(-1, getattr(self, f"kept{i}"))
            moved = x.index_select(-1, getattr(self, f"moved{i}"))
            moved, ladj = block.meta(None, kept).call_and_ladj(moved)
            x = torch.cat([kept, moved], dim=-1).index_select(-1, getattr(self, f"back{i}"))
            total = total + ladj
        return total - x.square().sum(-1) / 2 - x.shape[-1] / 2 * math.log(2 * math.pi)


class FlowLoss:
    """Mean −log ρ of every member on a fresh, dequantised batch; parameters flat, (K, P)."""

    def __init__(self, flow: Couplings, rows: Tensor, settings: FlowSettings):
        self.flow, self.rows, self.settings = flow.to(rows.device), rows, settings
        named = dict(flow.named_parameters())
        self.names, self.shapes = list(named), [p.shape for p in named.values()]
        self.buffers = dict(flow.named_buffers())

    def one(self, flat: Tensor, x: Tensor) -> Tensor:
        """log ρ of one member with parameters (P,) at rows (n, d)."""
        parts = flat.split([s.numel() for s in self.shapes])
        named = {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}
        return functional_call(self.flow, (named, self.buffers), (x,))

    def __call__(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        k, n, d = self.rows.shape
        size, device = (k, self.settings.batch_size), self.rows.device
        index = torch.randint(n, size, generator=generator, device=device)
        x = self.rows.gather(1, index.unsqueeze(-1).expand(-1, -1, d))
        noise = torch.randn(x.shape, generator=generator, device=device)
        return -vmap(self.one)(parameters, x + self.settings.dequantisation * noise).mean(1)


class Flow:
    """A trained flow in the user's units."""

    def __init__(self, loss: FlowLoss, parameters: Tensor, space: Space):
        self.loss, self.parameters, self.device = loss, parameters, parameters.device
        self.location, self.scale = (v.to(self.device) for v in units(space))
        self.log_det = space.log_det
        self.facts = {"kind": loss.flow.kind, "settings": asdict(loss.settings)}

    def log_prob(self, X: Tensor) -> Tensor:
        """log ρ on the device (n,); differentiable in X."""
        x = ((X - self.location) / self.scale).float()
        return self.loss.one(self.parameters, x).double() + self.log_det

    def log_density(self, X: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([self.log_prob(part) for part in X.to(self.device).split(16384)]).cpu()

    def slope(self, X: Tensor) -> Tensor:
        return grad_log_density(self.log_prob, X, batch_size=16384)

    def state(self) -> dict[str, Tensor]:
        """The tensors it is made of; with ``facts`` enough for ``restored``."""
        return {k: getattr(self, k) for k in ("parameters", "location", "scale")}

    @classmethod
    def restored(cls, state: dict[str, Tensor], facts: dict[str, Any]) -> Flow:
        space = space_of(state)
        settings = FlowSettings(**facts["settings"])
        flow = Couplings(facts["kind"], space.dim, settings, seed=0)
        nowhere = torch.zeros(1, 1, space.dim, device=state["parameters"].device)
        return cls(FlowLoss(flow, nowhere, settings), state["parameters"], space)


def fit_flows(
    kind: str, tables: Sequence, seeds: Sequence[int], device: str, settings: FlowSettings
) -> tuple[list[Flow], Trained]:
    """One flow for every table of n rows (n and the dimension are shared), trained as one program."""
    dim = tables[0].shape[1]
    spaces = [Space([Real()] * dim).standardised(X) for X in tables]
    rows = torch.stack([space.encode(X) for space, X in zip(spaces, tables, strict=True)]).to(device)
    flows = [Couplings(kind, dim, settings, seed) for seed in seeds]
    start = torch.stack([torch.cat([p.detach().flatten() for p in f.parameters()]) for f in flows]).to(device)
    loss = FlowLoss(flows[0], rows, settings)
    recipe = Recipe(
        steps=settings.steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        clip=settings.clip,
        evaluate_every=settings.steps,
    )
    trained = Program(start, loss, recipe, settings.weight_decay).run()
    last = trained.parameters[-1]
    return [Flow(loss, p, space) for p, space in zip(last, spaces, strict=True)], trained
