"""Base measures: a known density b that the network only has to correct.

With f = log b + g the network learns g = log(ρ/b): the dependence and the shape beyond the marginals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ctem.spaces import Space

__all__ = ["ProductBase"]


class ProductBase(nn.Module):
    r"""Independent columns: b(x) = ∏_j b_j(x_j), standard normal on reals, a known table on discrete columns.

    Arguments:
        space: the space; its real columns should be standardised.
        tables: for each discrete column in order, its probabilities (k,). Uniform when left out.

    >>> from ctem.spaces import Category, Real
    >>> space = Space([Real(), Category(2)])
    >>> base = ProductBase(space, [torch.tensor([0.25, 0.75])])
    >>> base.log_prob(torch.tensor([[0.0, 1.0]])).exp()  # 0.3989 · 0.75
    tensor([0.2992])
    """

    log_table: Tensor
    columns: Tensor
    sizes: Tensor
    rows: Tensor

    def __init__(self, space: Space, tables: Sequence[Tensor] | None = None):
        super().__init__()
        sizes = [space.sizes[j] for j in space.discretes]
        tables = [torch.full((k,), 1.0 / k) for k in sizes] if tables is None else list(tables)
        if len(tables) != len(sizes):
            raise ValueError(f"tables: expected {len(sizes)}, one per discrete column; got {len(tables)}.")
        log_table = torch.full((len(sizes), max(sizes, default=1)), -math.inf, dtype=torch.float64)
        for i, (j, table) in enumerate(zip(space.discretes, tables, strict=True)):
            if table.shape != (sizes[i],) or not bool((table > 0).all()):
                raise ValueError(f"tables: column {space.names[j]!r} needs {sizes[i]} probabilities > 0.")
            log_table[i, : sizes[i]] = (table.double() / table.double().sum()).log()
        self.space = space
        self.register_buffer("log_table", log_table.to(torch.get_default_dtype()))
        self.register_buffer("columns", torch.arange(len(sizes)), persistent=False)
        self.register_buffer("rows", torch.full((space.dim,), -1), persistent=False)  # −1 where real
        self.rows[list(space.discretes)] = self.columns
        self.register_buffer("sizes", torch.tensor(sizes, dtype=torch.long), persistent=False)

    @classmethod
    def fit(cls, space: Space, x: Tensor, smoothing: float = 0.5) -> ProductBase:
        """The base whose tables are the smoothed marginals (count + smoothing) / (n + k·smoothing) of rows x.

        >>> from ctem.spaces import Category
        >>> space = Space([Category(2)])
        >>> ProductBase.fit(space, torch.tensor([[0.0], [1.0], [1.0]])).log_table.exp()
        tensor([[0.3750, 0.6250]])
        """
        if smoothing <= 0:
            raise ValueError(f"smoothing: expected > 0, so that no value has probability 0; got {smoothing}.")
        counts = [torch.bincount(x[:, j].long().cpu(), minlength=space.sizes[j]) for j in space.discretes]
        return cls(space, [count.double() + smoothing for count in counts])

    def column_log_prob(self, x: Tensor) -> Tensor:
        """log b_j(x_j) for every column, shape (…, d)."""
        reals, discretes = list(self.space.reals), list(self.space.discretes)
        out = torch.empty_like(x)
        out[..., reals] = -0.5 * x[..., reals] ** 2 - 0.5 * math.log(2 * math.pi)
        out[..., discretes] = self.log_table[self.columns, x[..., discretes].long()].to(x.dtype)
        return out

    def log_prob(self, x: Tensor) -> Tensor:
        """log b(x), shape (…,)."""
        return self.column_log_prob(x).sum(-1)

    def forward(self, x: Tensor) -> Tensor:
        """log b(x): a base is itself a log-potential."""
        return self.log_prob(x)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n independent rows from b, on the base's device.

        >>> from ctem.spaces import Category
        >>> ProductBase(Space([Category(2)])).sample(4, torch.Generator().manual_seed(0)).shape
        torch.Size([4, 1])
        """
        table, reals = self.log_table, list(self.space.reals)
        x = torch.empty(n, self.space.dim, dtype=table.dtype, device=table.device)
        x[:, reals] = torch.randn(n, len(reals), generator=generator, dtype=x.dtype, device=x.device)
        u = torch.rand(len(table), n, generator=generator, dtype=x.dtype, device=x.device)
        codes = torch.searchsorted(table.exp().cumsum(-1), u, right=True)  # inverse distribution function
        x[:, list(self.space.discretes)] = torch.minimum(codes, self.sizes.unsqueeze(-1) - 1).T.to(x.dtype)
        return x

    def redraw(self, x: Tensor, column: Tensor, generator: torch.Generator) -> Tensor:
        """x (n, d) with one column per row, numbered by ``column`` (n,), redrawn; a discrete one always changes.

        >>> from ctem.spaces import Category
        >>> base = ProductBase(Space([Category(2), Category(2)]))
        >>> base.redraw(torch.zeros(2, 2), torch.tensor([0, 1]), torch.Generator())
        tensor([[1., 0.],
                [0., 1.]])
        """
        old, row = x.gather(1, column.unsqueeze(1)), self.rows[column]
        new = torch.randn(old.shape, generator=generator, dtype=x.dtype, device=x.device)
        if self.space.discretes:
            odds = self.log_table[row].exp().scatter(1, old.long().clamp(0, self.log_table.shape[1] - 1), 0.0)
            codes = torch.multinomial(odds + (row < 0).unsqueeze(1), 1, generator=generator)
            new = torch.where((row < 0).unsqueeze(1), new, codes.to(x.dtype))
        return x.scatter(1, column.unsqueeze(1), new)
