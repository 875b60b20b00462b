r"""An energy of the paper's networks, learned with the paper's loss against draws of a density.

A row z of the data and a comparison z̃ drawn from the density, k(z̃ | z) = b(z̃), have the gap Δ = g(z) − g(z̃), and the
loss is (tanh(Δ/2) − 1)². Every row of a batch is compared with every draw of the batch: n² pairs for 2 n evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ctem.energies import MLPs
from ctem.matching.losses import brier
from ctem.spaces import Category, Real, Space
from ctem.training import Recipe, train

__all__ = ["Networks", "compared"]

FARTHEST = 5.0  # deviations from the mean, at most, that a network sees
CODES = 256  # of a column, at most, that have a feature each; columns of more are seen as numbers
UNSEEN = 0.15  # share of rows and draws by which the training is stopped
ROWS = 2**14  # evaluated at a time
LOOKED_AT = 2048  # of the unseen rows and draws, at most


class Networks(nn.Module):
    """g(x) of rows (n, d), the mean of several multilayer perceptrons.

    Arguments:
        sizes: of the columns: how many codes each has, 0 for numbers.
        members, width, depth: of the networks.
        seed: of their weights.

    >>> Networks([0, 3], members=2, width=8)(torch.tensor([[0.5, 2.0], [torch.nan, 0.0]])).detach()
    tensor([0., 0.], dtype=torch.float64)
    """

    coded: Tensor
    centre: Tensor
    scale: Tensor
    typical: Tensor

    def __init__(
        self, sizes: Sequence[int], *, members: int = 1, width: int = 128, depth: int = 3, seed: int = 0
    ):
        super().__init__()
        self.options = {"members": members, "width": width, "depth": depth}
        columns = [Category(size) if 0 < size <= CODES else Real() for size in sizes]
        self.nets = MLPs(Space(columns), members, width, depth, seed)
        nn.init.zeros_(self.nets.last)
        coded = torch.tensor([size > 0 for size in self.nets.space.sizes])
        self.register_buffer("coded", coded, persistent=False)
        self.register_buffer("centre", torch.zeros(len(sizes)))
        self.register_buffer("scale", torch.ones(len(sizes)))
        self.register_buffer(
            "typical", torch.zeros(len(sizes))
        )  # a value of every column, to compare others with

    def each(self, x: Tensor) -> Tensor:
        """g_k at rows (members, n, d), its own for each network, or (n, d): (members, n)."""
        known = (x.to(self.centre) - self.centre) / self.scale
        x = torch.where(self.coded, x.to(self.centre), known.clamp(-FARTHEST, FARTHEST))
        return self.nets(x.nan_to_num())

    def forward(self, x: Tensor) -> Tensor:
        """g(x), float64 of shape (n,); nan marks a number that a row does not have."""
        parts = [self.each(part).mean(0) for part in x.split(ROWS)]
        return torch.cat(parts).double()

    def at(self, x: Tensor, j: int, values: Tensor) -> Tensor:
        """g with column j at each of some values (q,), the other cells as in x: (n, q), float64."""
        parts = []
        for part in x.split(max(1, ROWS // len(values))):
            rows = part.repeat_interleave(len(values), 0)
            rows[:, j] = values.to(rows).repeat(len(part))
            parts.append(self(rows).view(len(part), -1))
        return torch.cat(parts)

    def shares(self, x: Tensor) -> Tensor:
        """What each column adds to g(x): how far g falls when its value is a typical one, (n, d), float64."""
        here = self(x)
        rest = [here - self.at(x, j, value.view(1)).squeeze(1) for j, value in enumerate(self.typical)]
        return torch.stack(rest, 1)

    def tensors(self) -> dict[str, Tensor]:
        """Weights and scales by name, for a file."""
        return dict(self.state_dict())

    @classmethod
    def of_tensors(
        cls, tensors: Mapping[str, Tensor], sizes: Sequence[int], options: Mapping[str, int]
    ) -> Networks:
        """The networks that ``tensors`` wrote; anything else is refused.

        >>> net = Networks([0, 3], width=8)
        >>> Networks.of_tensors(net.tensors(), [0, 3], net.options).options["width"]
        8
        """
        net = cls(sizes, **options)
        known = {name: (value.shape, value.dtype) for name, value in net.tensors().items()}
        if known != {name: (value.shape, value.dtype) for name, value in tensors.items()}:
            raise ValueError("energy: expected the weights of the networks that its header describes.")
        if not all(bool(value.isfinite().all()) for value in tensors.values()) or bool(
            (tensors["scale"] <= 0).any()
        ):
            raise ValueError("energy: expected finite weights, and scales > 0.")
        net.load_state_dict(dict(tensors))
        return net.eval().requires_grad_(False)


def compared(
    data: Tensor,
    drawn: Tensor,
    sizes: Sequence[int],
    *,
    data_weight: Tensor | None = None,
    drawn_weight: Tensor | None = None,
    members: int = 1,
    width: int = 128,
    recipe: Recipe | None = None,
) -> Networks:
    """g ≈ log of the density of ``data`` over that of ``drawn`` (n, d) by constant-target matching; weights are (n,).

    >>> generator = torch.Generator().manual_seed(0)
    >>> data, drawn = (torch.randn(2000, 1, generator=generator) + shift for shift in (1.0, 0.0))
    >>> g = compared(data, drawn, [0], width=16, recipe=Recipe(steps=100, batch_size=256, learning_rate=0.01))
    >>> bool((g(torch.tensor([[2.0]])) - g(torch.tensor([[1.0]])) - 1).abs() < 0.3)  # log ratio x − 1/2
    True
    """
    recipe = recipe or Recipe()
    net = Networks(sizes, members=members, width=width, seed=recipe.seed).to(data.device)
    data, drawn = data.float(), drawn.float()
    _scaled(net, drawn)
    held, other = (max(1, round(UNSEEN * len(rows))) for rows in (data, drawn))
    weight = torch.ones(len(drawn), device=drawn.device) if drawn_weight is None else drawn_weight.to(drawn)
    total = weight[other:].cumsum(0)

    def loss(f: Networks, x: Tensor, generator: torch.Generator) -> Tensor:
        shape = x.shape[:-1]
        if not f.training:  # the same unseen draws at every look, weighed instead of drawn
            count = min(shape[-1], other, LOOKED_AT)
            gap = f.each(x[:, :count]).unsqueeze(-1) - f.each(drawn[:count].expand(len(x), -1, -1)).unsqueeze(
                -2
            )
            return (brier(gap) * weight[:count] / weight[:count].sum()).sum(-1).mean()
        u = torch.rand(shape, generator=generator, device=x.device) * total[-1]
        place = torch.searchsorted(total, u.flatten()).clamp(max=len(total) - 1).view(shape)
        return brier(f.each(x).unsqueeze(-1) - f.each(drawn[other:][place]).unsqueeze(-2)).mean()

    rows = data[held:]
    weights = torch.ones(len(rows)) if data_weight is None else data_weight[held:]
    unseen = data[:held].expand(members, -1, -1)
    train(net, loss, rows, recipe, held_out=unseen, weights=weights.expand(members, -1))
    return net.eval().requires_grad_(False)


def _scaled(net: Networks, rows: Tensor) -> None:
    """Set the scales of the networks' inputs by rows (n, d)."""
    known = ~rows.isnan()
    count = known.sum(0).clamp_min(1)
    mean = rows.nan_to_num().sum(0) / count
    spread = (torch.where(known, rows - mean, 0.0).square().sum(0) / count).sqrt()
    net.centre.copy_(mean)
    net.scale.copy_(torch.where(spread > 0, spread, 1.0))
    for j, size in enumerate(net.nets.space.sizes):
        net.typical[j] = rows[known[:, j], j].mode().values if size else mean[j]
