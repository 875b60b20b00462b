r"""How surprising a row is, in units that compare, and what each of its cells adds to that.

    s(row) = Σ_j s_j,      s_j = − log ρ(x_j | columns before j) − log( σ_j T_j′(X_j) )

A log-density per unit of the table cannot rank rows: it depends on the unit and on how finely a column was rounded, and
a number that was written down three times is three times as dense as its neighbours. So numbers are measured in robust
standard deviations σ_j of their column, T_j is its smooth curve, without the steps of preferred values, and a number
that is exactly what a formula says counts by the probability of that, not by the width of its cell. A missing cell adds
what it would add on average, given the cells that are there, so that rows with gaps compare with others. A label that
shares its code with others (``columns.codecs.Labels``) also adds −log of its share of the code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ctem.densities.anyorder.conditionals import WIDTH, NumberDensity
from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.chain import Conditional
from ctem.tables.columns.codecs import Labels, Numbers
from ctem.tables.columns.schema import Schema

__all__ = ["by_column", "measure", "of_shared_codes", "surprises"]

TABULATED = 512  # rows whose conditional of a column is tabulated at a time


def surprises(schema: Schema, density: AnyOrderDensity, x: Tensor, terms: Tensor | None = None) -> Tensor:
    """s_j of every cell of encoded rows, float64 of shape (n, columns of the table); 0 for a constant column.

    Encoded rows do not tell labels that share a code apart: such a cell adds what they add on average.

    Arguments:
        terms: ``density.log_terms(x)``, if it is known already.

    >>> import numpy as np
    >>> from ctem.densities.anyorder import AnyOrderNet
    >>> from ctem.bases import ProductBase
    >>> from ctem.tables.frames.frame import read_frame
    >>> schema = Schema.fit(read_frame(np.random.default_rng(0).normal(size=(200, 2))))
    >>> density = AnyOrderDensity(AnyOrderNet(ProductBase(schema.space)), 0.01, [[0, 1]])
    >>> surprises(schema, density, torch.tensor([[0.0, 4.0]])).argmax(1)
    tensor([1])
    """
    counted = density.counted()
    terms = counted.log_terms(x) if terms is None or counted is not density else terms
    seen = measure(schema, x) - torch.where(x.isnan(), 0.0, terms)
    return by_column(schema, seen + _expected_terms(schema, counted, x))


def by_column(schema: Schema, terms: Tensor) -> Tensor:
    """Terms of encoded columns (n, d), added up for the columns of the table (n, columns).

    >>> import numpy as np
    >>> from ctem.tables.frames.frame import read_frame
    >>> schema = Schema.fit(read_frame(np.array([[1, 7], [2, 7]])))  # the second is constant
    >>> by_column(schema, torch.ones(1, 1))
    tensor([[1., 0.]])
    """
    return torch.stack([terms[:, list(group)].sum(1) for group in schema.owner], 1)


def measure(schema: Schema, x: Tensor) -> Tensor:
    """−log(σ T′(X)) of the numbers among encoded rows (n, d), float64; 0 for labels, atoms and missing cells.

    A code that labels share has the mean of −log share(v) over them.

    >>> import numpy as np
    >>> from ctem.tables.frames.frame import read_frame
    >>> schema = Schema.fit(read_frame(np.random.default_rng(0).normal(size=(200, 1))))
    >>> measure(schema, torch.zeros(1, 1)).abs() < 0.5
    tensor([[True]])
    """
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for j, codec in enumerate(_measured(schema)):
        if codec is not None:
            out[:, j] = _column_measure(codec, x[:, j])
    return out


def of_shared_codes(schema: Schema, x: Tensor, log_det: Tensor) -> Tensor:
    """What labels add beyond the average of those that share their code, float64 (n, columns of the table).

    Arguments:
        x, log_det: of ``Schema.encode``.

    >>> from ctem.tables.columns.inference import InferredColumn
    >>> codec = Labels("label", ("a", "b", "c"), (0, 1, 1), (1.0, 0.25, 0.75))
    >>> schema = Schema({"city": InferredColumn(codec, "category", "")})
    >>> of_shared_codes(schema, torch.tensor([[1.0], [1.0]]), torch.tensor([[0.25], [0.75]]).log()).flatten()
    tensor([ 0.8240, -0.2747], dtype=torch.float64)
    """
    out = torch.zeros(log_det.shape, dtype=torch.float64)
    measured = _measured(schema)
    for j, group in enumerate(schema.owner):
        codec = measured[group[-1]] if group else None
        if isinstance(codec, Labels):
            code = x[:, group[-1]].cpu()
            own = math.log1p(-codec.reserve) - log_det[:, j]
            out[:, j] = torch.where(code.isnan(), 0.0, own - _column_measure(codec, code))
    return out


def _column_measure(codec: Numbers | Labels, x: Tensor) -> Tensor:
    if isinstance(codec, Labels):
        return torch.where(x.isnan(), 0.0, _entropies(codec).to(x.device)[x.nan_to_num().long()])
    transform = codec.transform
    _, log_slope = transform.smooth.with_log_slope(transform.inverse(x.double().cpu()))
    return -(log_slope + math.log(transform.scale)).nan_to_num(nan=0.0).to(x.device)


def _expected_terms(schema: Schema, density: AnyOrderDensity, x: Tensor) -> Tensor:
    """What the missing cells of encoded rows would add on average, float64 of shape (n, d); 0 for the others.

        E[ −log ρ(x_j | observed cells, missing cells before j at their modes) − log(σ_j T_j′) ]

    in the first order of the density, by its network. The continuous part of a column with atoms counts as often as
    there is one.
    """
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    gone = x.isnan().any(1).nonzero().squeeze(1)
    codecs = _measured(schema)
    with torch.no_grad():
        for rows in gone.split(TABULATED):
            out[rows] = _filled_in(density, x[rows], codecs)
    return out


def _filled_in(density: AnyOrderDensity, x: Tensor, codecs: Sequence[Numbers | Labels | None]) -> Tensor:
    filled, out = x.clone(), torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    continuous = torch.ones_like(out)  # of atom columns: the probability that there is a continuous part
    for j in density.orders[0]:
        parent = density.parents.get(j)
        rows = x[:, j if parent is None else parent].isnan().nonzero().squeeze(1)
        if not len(rows):
            continue
        shown = filled[rows]
        if parent is not None:
            shown[:, parent] = 0.0
        visible = ~shown.isnan()
        found = density.chain.conditionals.given(shown.nan_to_num(), visible, j)
        values, log_p = found.table()
        p = _masses(log_p, density.space.sizes[j] == 0)
        codec = codecs[j]
        scale = 0.0 if codec is None else _column_measure(codec, values)
        often = 1.0 if parent is None else continuous[rows, parent]
        out[rows, j] = often * ((p * (scale - log_p.double())).sum(1) + _of_cells(found))
        best = values[log_p.argmax(1)].to(x.dtype)
        there = torch.ones_like(best, dtype=torch.bool) if parent is None else filled[rows, parent] == 0
        filled[rows, j] = torch.where(there, best, math.nan)
        continuous[rows, j] = p[:, 0]
    return out


def _of_cells(found: Conditional) -> Tensor | float:
    """What a table of nodes takes off, which has the cells of formulas as wide as the nodes are apart, not as 1."""
    if not isinstance(found, NumberDensity) or found.tied is None:
        return 0.0
    return -math.log(WIDTH) * found.tied.points()[1].sum(1).double()


def _masses(log_p: Tensor, real: bool) -> Tensor:
    """Probabilities of values, or of the nodes of a real column by the trapezoidal rule: (n, q), float64."""
    p = log_p.double().exp()
    if real:
        p[:, [0, -1]] /= 2
    return p / p.sum(1, keepdim=True)


def _measured(schema: Schema) -> list[Numbers | Labels | None]:
    """The codec of every encoded column that holds numbers, or codes that labels share."""
    found: list[Numbers | Labels | None] = [None] * schema.space.dim
    for group, inferred in zip(schema.owner, schema.columns.values(), strict=True):
        codec = inferred.codec
        if isinstance(codec, Numbers) or (isinstance(codec, Labels) and min(codec.shares) < 1):
            found[group[-1]] = codec
    return found


def _entropies(codec: Labels) -> Tensor:
    """−Σ share(v) log share(v) over the labels of every code, (size,)."""
    shares = torch.tensor(codec.shares, dtype=torch.float64)
    out = torch.zeros(codec.size, dtype=torch.float64)
    return out.index_add(0, torch.tensor(codec.codes), torch.special.entr(shares))
