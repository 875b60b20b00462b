"""Base measures: a known density b that the network only has to correct.

With f = log b + g the network learns g = log(ρ/b): the dependence and the shape beyond the marginals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ctem.spaces import Space

__all__ = ["FittedBase", "Pool", "ProductBase"]

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class ProductBase(nn.Module):
    r"""Independent columns: b(x) = ∏_j b_j(x_j), standard normal on reals, a known table on discrete columns.

    Nothing here waits for the device or copies to it, so that training steps can be captured as CUDA graphs.

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
    sizes: Tensor
    rows: Tensor
    is_real: Tensor

    def __init__(self, space: Space, tables: Sequence[Tensor] | None = None):
        super().__init__()
        expect_whole_line("ProductBase", space, space.reals)
        sizes = [space.sizes[j] for j in space.discretes]
        tables = [torch.full((k,), 1.0 / k) for k in sizes] if tables is None else list(tables)
        if len(tables) != len(sizes):
            raise ValueError(f"tables: expected {len(sizes)}, one per discrete column; got {len(tables)}.")
        log_table = torch.full((max(len(sizes), 1), max(sizes, default=1)), -math.inf, dtype=torch.float64)
        for i, (j, table) in enumerate(zip(space.discretes, tables, strict=True)):
            if table.shape != (sizes[i],) or not bool((table > 0).all()):
                raise ValueError(f"tables: column {space.names[j]!r} needs {sizes[i]} probabilities > 0.")
            log_table[i, : sizes[i]] = (table.double() / table.double().sum()).log()
        row = {j: i for i, j in enumerate(space.discretes)}
        self.space = space
        self.register_buffer("log_table", log_table.to(torch.get_default_dtype()))
        self.register_buffer("sizes", torch.tensor([max(k, 1) for k in space.sizes]), persistent=False)
        rows = torch.tensor([row.get(j, 0) for j in range(space.dim)])  # of log_table; 0 stands in for reals
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("is_real", torch.tensor([k == 0 for k in space.sizes]), persistent=False)

    @classmethod
    def fit(
        cls, space: Space, x: Tensor, smoothing: float = 0.5, weights: Tensor | None = None
    ) -> ProductBase:
        """The base whose tables are the smoothed marginals (count + smoothing) / (n + k·smoothing) of rows x.

        A nan cell is missing and counts for nothing. Values of a category that never occur share what Good and Turing
        give to all of them together, the number of values that occur once (at least the smoothing of one): two hundred
        declared labels of which three occur do not make a sixth of the rows. Rows may have weights (n,), whose mean
        counts as one row.

        >>> from ctem.spaces import Category
        >>> space = Space([Category(2)])
        >>> ProductBase.fit(space, torch.tensor([[0.0], [1.0], [1.0]])).log_table.exp()
        tensor([[0.3750, 0.6250]])
        """
        if smoothing <= 0:
            raise ValueError(f"smoothing: expected > 0, so that no value has probability 0; got {smoothing}.")
        counts, relative = [], None if weights is None else (weights / weights.mean()).cpu().double()
        for j in space.discretes:
            there = ~x[:, j].isnan()
            codes, weight = x[:, j][there].long().cpu(), None if relative is None else relative[there.cpu()]
            count = torch.bincount(codes, weight, minlength=space.sizes[j]).double()
            counts.append(count + smoothing if j in space.ordinals else smoothed_counts(count, smoothing))
        return cls(space, counts)

    def column_log_prob(self, x: Tensor) -> Tensor:
        """log b_j(x_j) for every column, shape (…, d)."""
        return self.value_log_prob(x, self.rows, self.is_real)

    def value_log_prob(self, value: Tensor, row: Tensor, is_real: Tensor) -> Tensor:
        """log b_j(value) where column j has the given row of the table, or is real; shapes broadcast."""
        out = -0.5 * value**2 - _LOG_SQRT_2PI
        if self.space.discretes:
            code = torch.where(is_real, 0.0, value).long()
            out = torch.where(is_real, out, self.log_table[row, code].to(value.dtype))
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
        table, shape = self.log_table, (n, self.space.dim)
        x = torch.randn(shape, generator=generator, dtype=table.dtype, device=table.device)
        if self.space.discretes:
            u = torch.rand(shape, generator=generator, dtype=table.dtype, device=table.device)
            cumulative = table.exp().cumsum(-1)[self.rows]  # inverse distribution function
            codes = torch.searchsorted(cumulative, u.T.contiguous(), right=True).T
            x = torch.where(self.is_real, x, torch.minimum(codes, self.sizes - 1).to(x.dtype))
        return x

    def redraw(self, x: Tensor, column: Tensor, generator: torch.Generator) -> Tensor:
        """x (n, d) with one column per row, numbered by ``column`` (n,), redrawn; a discrete one always changes.

        >>> from ctem.spaces import Category
        >>> base = ProductBase(Space([Category(2), Category(2)]))
        >>> base.redraw(torch.zeros(2, 2), torch.tensor([0, 1]), torch.Generator())
        tensor([[1., 0.],
                [0., 1.]])
        """
        at = column.unsqueeze(1)
        new = torch.randn(at.shape, generator=generator, dtype=x.dtype, device=x.device)
        if self.space.discretes:
            is_real = self.is_real[at]
            old = torch.where(is_real, 0.0, x.gather(1, at)).long()
            odds = self.log_table[self.rows[column]].exp().scatter(1, old, 0.0)
            odds = odds.masked_fill(is_real, 1.0)  # any draw: it is not used
            race = torch.empty_like(odds).exponential_(generator=generator)
            new = torch.where(is_real, new, (odds / race).argmax(1, keepdim=True).to(x.dtype))
        return x.scatter(1, at, new)


class FittedBase(nn.Module):
    r"""Independent columns of any kind, fitted to rows: a wide, simple law around the data, to draw from.

    Real columns are normal with the mean and ``widen`` times the deviation of the rows; beside one end half normal; on
    an interval and a circle uniform. Discrete columns have their smoothed frequencies, as in :meth:`ProductBase.fit`.

    Arguments:
        space: the space.
        x: encoded rows (n, d), or None to load the tensors later.
        widen: how much wider than the rows; more than 1, since a proposal should reach further than its target.

    >>> from ctem.spaces import Angle, Category, Real
    >>> space = Space([Real(), Real(low=0.0), Angle(), Category(2)])
    >>> base = FittedBase(space, torch.rand(100, 4, generator=torch.Generator().manual_seed(0)).round(decimals=1))
    >>> x = base.sample(5, torch.Generator().manual_seed(0))
    >>> base.log_prob(x).shape, bool(space.inside(x).all())
    (torch.Size([5]), True)
    """

    location: Tensor
    spread: Tensor
    log_table: Tensor

    def __init__(self, space: Space, x: Tensor | None = None, widen: float = 1.25):
        super().__init__()
        self.space = space
        rows = torch.zeros(2, space.dim) if x is None else x.detach()
        location, spread = rows.mean(0), widen * rows.std(0).clamp_min(1e-6)
        for j in space.bounded:
            low, high = space.bounds[j]
            location[j] = low if math.isfinite(low) else high
            spread[j] = widen * (rows[:, j] - location[j]).square().mean().sqrt().clamp_min(1e-6)
        table = torch.full((space.dim, max(2, *space.sizes)), -math.inf, dtype=rows.dtype)
        for j in space.discretes:
            codes = rows[:, j].long().cpu()
            counts = smoothed_counts(torch.bincount(codes, minlength=space.sizes[j]))
            table[j, : space.sizes[j]] = (counts / counts.sum()).log()
        self.register_buffer("location", location)
        self.register_buffer("spread", spread)
        self.register_buffer("log_table", table.to(rows.device))

    def log_prob(self, x: Tensor) -> Tensor:
        """log b(x), shape (…,); −infinity beyond the end of a column."""
        total = x.new_zeros(x.shape[:-1])
        for j, size in enumerate(self.space.sizes):
            if size:
                total = total + self.log_table[j].to(x.dtype)[x[..., j].long()]
            elif math.isfinite(length := self._length(j)):
                total = total - math.log(length)
            else:
                z = (x[..., j] - self.location[j]) / self.spread[j]
                total = total - z**2 / 2 - _LOG_SQRT_2PI - self.spread[j].log()
                total = total + (math.log(2) if j in self.space.bounded else 0.0)
        return torch.where(self.space.inside(x), total, -math.inf)

    def forward(self, x: Tensor) -> Tensor:
        """log b(x): a base is itself a log-potential."""
        return self.log_prob(x)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n independent rows from b, on the base's device."""
        like, space = self.location, self.space
        x = torch.randn((n, space.dim), generator=generator, dtype=like.dtype, device=like.device)
        x = (
            space.folded(self.location + self.spread * x)
            if space.bounded
            else self.location + self.spread * x
        )
        for j, size in enumerate(space.sizes):
            if size:
                p = self.log_table[j].exp()
                x[:, j] = torch.multinomial(p, n, replacement=True, generator=generator).to(x.dtype)
            elif math.isfinite(length := self._length(j)):
                u = torch.rand(n, generator=generator, dtype=like.dtype, device=like.device)
                x[:, j] = space.bounds[j][0] + length * u
        return x

    def _length(self, j: int) -> float:
        low, high = self.space.bounds[j]
        return high - low


class Pool:
    """Rows that were drawn before, where drawing is slow: ``sample`` takes some of them, with replacement.

    Arguments:
        rows: (n, d).

    >>> Pool(torch.tensor([[7.0]])).sample(2, torch.Generator().manual_seed(0))
    tensor([[7.],
            [7.]])
    """

    def __init__(self, rows: Tensor):
        self.rows = rows

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n of the rows, (n, d)."""
        rows = self.rows
        return rows[torch.randint(len(rows), (n,), generator=generator, device=rows.device)]


def smoothed_counts(counts: Tensor, added: float = 0.5) -> Tensor:
    """Counts of values, and a little more: less for unseen ones, if they are many beside values seen once.

    >>> smoothed_counts(torch.tensor([3, 1, 0, 0, 0, 0]))
    tensor([3.5000, 1.5000, 0.2500, 0.2500, 0.2500, 0.2500], dtype=torch.float64)
    """
    counts = counts.double()
    unseen = counts == 0
    share = max(added, float((counts == 1).sum())) / max(int(unseen.sum()), 1)
    return counts + torch.where(unseen, min(added, share), added).to(counts.dtype)


def expect_whole_line(what: str, space: Space, columns: Sequence[int]) -> None:
    """A normal law needs the whole line: columns with ends and angles are refused.

    >>> from ctem.spaces import Real
    >>> expect_whole_line("ProductBase", Space([Real(low=0.0)]), [0])
    Traceback (most recent call last):
    ...
    ValueError: ProductBase is normal on real columns; 'x0' is Real(low=0.0): give a base on it of your own.
    """
    for j in columns:
        if j in space.angles or j in space.bounded:
            raise ValueError(
                f"{what} is normal on real columns; {space.names[j]!r} is {space.columns[j]!r}: "
                "give a base on it of your own."
            )
