r"""How strange a row is: how unlikely each of its cells is given the cells before it, beside rows that the model draws.

    s_j = − log ρ(x_j | columns before j) − log( σ_j T_j′(X_j) ),      score(row) = Σ_j a_j(s_j)

A log-density per unit of the table cannot rank rows: it depends on the unit and on how finely a column was rounded, and
a number that was written down three times is three times as dense as its neighbours. So numbers are measured in robust
standard deviations σ_j of their column, T_j is its smooth curve, without the steps of preferred values, and a number
that is exactly what a formula gives counts by the probability of that, not by the width of its cell. Nor do nats of
different columns compare: a noisy column drowns what another one hardly ever does. So what a cell adds, a_j, is its
nats above the average of its column, or −log of the probability of so many nats there (as R. A. Fisher would combine
columns), whichever is more (``Rarity``). A missing cell adds nothing, and is at a value as rare as the average where
others are judged. A label that shares its code with others (``columns.codecs.Labels``) also has −log of its share, and
a value that fit never saw −log of the probability, or density per σ_j, that is kept for such.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.tables.encoding.codecs import Labels, Numbers
from ctem.tables.schema import Schema

__all__ = ["Rarity", "log_units", "of_shared_codes", "surprises"]

Vector = NDArray[np.float64]
TABULATED = 512  # rows whose conditional of a column is tabulated at a time
TAIL = 0.05  # of the draws, beyond which a nat is a nat
TIE = 0.1  # nats: surprises that are nearly alike count as equal


class Rarity:
    """What surprises add to a score in every column, beside those of rows that the model draws, (m, columns).

    Nats above the mean of the draws; or how rare they are, if that is more: −log of the share of draws that are as
    surprising, and beyond nearly all of them −log ``TAIL`` and what is above in nats, since the tail probability of
    −log ρ falls about as e^{−s}. Either is less its mean over the draws, and so is what comes out.

    >>> of = Rarity(np.array([[0.0], [0.0], [0.0], [1.0]]))
    >>> of(np.array([[0.0], [1.0], [9.0]])).round(2)
    array([[-0.24],
           [ 0.73],
           [ 8.73]])
    """

    def __init__(self, drawn: Vector):
        self.drawn = np.sort(drawn, axis=0)
        self.cut = self.drawn[math.ceil((1 - TAIL) * len(drawn)) - 1]
        self.usual, self.often = drawn.mean(0), self.rare(drawn).mean(0)
        self.mean = np.zeros_like(self.usual)
        self.mean = self(drawn).mean(0)

    def __call__(self, surprise: Vector) -> Vector:
        most = np.maximum(self.rare(surprise) - self.often, surprise - self.usual)
        return np.asarray(most - self.mean)

    def rare(self, surprise: Vector) -> Vector:
        """−log of the share of draws that are as surprising, and nats beyond nearly all of them."""
        less = surprise - TIE
        rank = np.arange(len(self.drawn))
        below = [np.interp(new, held, rank) for new, held in zip(less.T, self.drawn.T, strict=True)]
        share = 1 - np.stack(below, 1) / (1 + len(self.drawn))
        return np.asarray(np.maximum(less - self.cut, 0.0) - np.log(np.maximum(share, TAIL)))


def surprises(schema: Schema, density: AnyOrderDensity, x: Tensor, terms: Tensor | None = None) -> Tensor:
    """s_j of every cell of encoded rows, float64 of shape (n, columns of the table); 0 for a constant column.

    Missing cells are taken at values as rare as the average. Encoded rows do not distinguish labels that share a code:
    such a cell has what they have on average.

    Arguments:
        terms: ``density.log_terms(x)``, if it is known already.

    >>> from ctem.densities.anyorder import AnyOrderNet
    >>> from ctem.bases import ProductBase
    >>> from ctem.tables.io.frame import read_frame
    >>> schema = Schema.fit(read_frame(np.random.default_rng(0).normal(size=(200, 2))))
    >>> density = AnyOrderDensity(AnyOrderNet(ProductBase(schema.space)), 0.01, [[0, 1]])
    >>> surprises(schema, density, torch.tensor([[0.0, 4.0]])).argmax(1)
    tensor([1])
    """
    counted, (whole, gaps) = density.counted(), _completed(density, x)
    if terms is None or counted is not density:
        terms = counted.log_terms(whole)
    elif len(gaps):
        terms = terms.index_copy(0, gaps, counted.log_terms(whole[gaps]))
    nats = _measure(schema, whole) - torch.where(whole.isnan(), 0.0, terms)
    return torch.stack([nats[:, list(group)].sum(1) for group in schema.owner], 1)


def _measure(schema: Schema, x: Tensor) -> Tensor:
    """−log(σ T′(X)) of the numbers among encoded rows (n, d), float64; 0 for labels, atoms and missing cells.

    A code that labels share has the mean of −log share(v) over them.
    """
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for j, codec in enumerate(_measured(schema)):
        if codec is not None:
            out[:, j] = _column_measure(codec, x[:, j])
    return out


def log_units(schema: Schema) -> Vector:
    """log σ of the columns of the table, 0 for labels.

    >>> from ctem.tables.io.frame import read_frame
    >>> X = np.random.default_rng(0).normal(5, 3, size=(200, 1))
    >>> np.exp(log_units(Schema.fit(read_frame(X)))).round()
    array([3.])
    """
    codecs = [inferred.codec for inferred in schema.columns.values()]
    return np.array(
        [math.log(codec.transform.scale) if isinstance(codec, Numbers) else 0.0 for codec in codecs]
    )


def of_shared_codes(schema: Schema, x: Tensor, log_det: Tensor) -> Tensor:
    """What labels add beyond the average of those that share their code, float64 (n, columns of the table).

    Arguments:
        x, log_det: of ``Schema.encode``.

    >>> from ctem.tables.inference.kinds import InferredColumn
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
            log_share = math.log1p(-codec.reserve) - log_det[:, j]
            out[:, j] = torch.where(code.isnan(), 0.0, log_share - _column_measure(codec, code))
    return out


def _column_measure(codec: Numbers | Labels, x: Tensor) -> Tensor:
    if isinstance(codec, Labels):  # −Σ share(v) log share(v) over the labels of every code
        shares = torch.special.entr(torch.tensor(codec.shares, dtype=torch.float64))
        entropies = torch.zeros(codec.size, dtype=torch.float64)
        entropies.index_add_(0, torch.tensor(codec.codes), shares)
        return torch.where(x.isnan(), 0.0, entropies.to(x.device)[x.nan_to_num().long()])
    transform = codec.transform
    _, log_slope = transform.smooth.with_log_slope(transform.inverse(x.double().cpu()))
    return -(log_slope + math.log(transform.scale)).nan_to_num(nan=0.0).to(x.device)


def _completed(density: AnyOrderDensity, x: Tensor) -> tuple[Tensor, Tensor]:
    """Encoded rows with missing cells at values as rare as the average, one after the other, and which rows had any."""
    absent = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for j in (j for j in range(x.shape[1]) if j not in density.parents):
        absent |= x[:, j].isnan()
    out, gaps = x.clone(), absent.nonzero().squeeze(1)
    with torch.no_grad():
        for rows in gaps.split(TABULATED):
            out[rows] = _filled_in(density, x[rows])
    return out, gaps


def _filled_in(density: AnyOrderDensity, x: Tensor) -> Tensor:
    filled = x.clone()
    for j in density.orders[0]:
        parent = density.parents.get(j)
        gone = x[:, j if parent is None else parent].isnan()
        rows = (gone if parent is None else gone & (filled[:, parent] == 0)).nonzero().squeeze(1)
        if len(rows):
            values, log_p = density.conditional(filled[rows], j)
            filled[rows, j] = values[_middling(log_p, density.space.sizes[j] == 0)].to(x.dtype)
    return filled


def _middling(log_p: Tensor, real: bool) -> Tensor:
    """The value (n,) of each row of log-probabilities (n, q), or of densities at nodes, that is as rare as the average.

    The likeliest would be too good: what depends on it would surprise less than it does on average. −log of the mass
    of what is as unlikely is 1 on average, so that is asked for.

    >>> _middling(torch.tensor([[0.9, 0.1], [0.4, 0.6]]).log(), real=False)
    tensor([0, 0])
    """
    p = log_p.double().exp()
    if real:
        p[:, [0, -1]] /= 2
    p, order = p.sort(1)
    upto = p.cumsum(1)
    return order.gather(1, (upto < upto[:, -1:] / math.e).sum(1, keepdim=True)).squeeze(1)


def _measured(schema: Schema) -> list[Numbers | Labels | None]:
    """The codec of every encoded column that holds numbers, or codes that labels share."""
    codecs: list[Numbers | Labels | None] = [None] * schema.space.dim
    for group, inferred in zip(schema.owner, schema.columns.values(), strict=True):
        codec = inferred.codec
        if isinstance(codec, Numbers) or (isinstance(codec, Labels) and min(codec.shares) < 1):
            codecs[group[-1]] = codec
    return codecs
