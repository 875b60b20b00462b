"""Is the density identified: the connected components of the comparison graph over observed rows."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from ctem.matching.kernels import (
    Gaussian,
    Grid,
    HammingOne,
    Kernel,
    Mixture,
    OrnsteinUhlenbeck,
    Product,
    Redraw,
    Refresh,
    Uniform,
)
from ctem.spaces import as_rows

__all__ = ["ConnectedComponents", "components"]

Link = tuple[NDArray[np.int64], NDArray[np.int64]]  # row numbers (e,), (e,)
Links = list[Link]

ODD = np.uint64(0x9E3779B97F4A7C15)  # any large odd number: the hash of a pair of codes
CHUNK = 256  # rows whose neighbours are looked up at once
MOST_LISTED = 2**14  # states of a product of kernels that is written out
MOST_CHOICES = 4096  # ways in which the parts of a product may differ


@dataclass(frozen=True)
class ConnectedComponents:
    """The connected components of a comparison graph over observed rows.

    >>> ConnectedComponents(1, torch.zeros(4, dtype=torch.long), "").count
    1
    """

    count: int
    labels: Tensor  # (n,) component of each row, 0 the largest
    message: str  # what is not identified; empty when count is 1


def components(kernel: Kernel, x: ArrayLike) -> ConnectedComponents:
    """Connected components of the comparison graph over the rows x; more than one is a warning.

    Each comparison fixes a difference of f, so f is learned up to one constant *per component*. Two rows are
    linked when the kernel moves one to the other. A kernel on real columns links two rows at most two steps
    apart (they share comparison points) that agree in all columns it leaves alone; mixed with it, or joined to it by
    ``Product``, a discrete kernel links rows that close. Rows are compared by a 64-bit hash.

    Arguments:
        kernel: the comparison kernel of the loss. One of your own is known by its ``edges`` on a finite space, or by
            its ``radius``, the length of a step, if it moves real columns alone; of others nothing is known, and
            they are refused.
        x: the observed rows, encoded, shape (n, d).

    >>> from ctem.matching.kernels import HammingOne
    >>> from ctem.spaces import Category, Space
    >>> kernel = HammingOne(Space([Category(2)] * 3))
    >>> components(kernel, torch.tensor([[0.0, 0, 0], [0, 0, 1], [0, 1, 1]])).count
    1
    """
    x = as_rows(x)
    if x.ndim != 2 or x.shape[1] != kernel.space.dim or len(x) == 0:
        raise ValueError(f"x: expected shape (n, {kernel.space.dim}) with n ≥ 1; got {tuple(x.shape)}.")
    rows, inverse = _observed(kernel, x.detach().cpu().double().numpy())
    labels = _labelled(_links(kernel, rows), len(rows.x))[inverse]
    sizes = np.bincount(labels)
    rank = np.empty(len(sizes), dtype=np.int64)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes))
    message = ""
    if len(sizes) > 1:
        message = (
            f"the comparison graph over the observed states falls into {len(sizes)} components "
            f"(largest {sizes.max()} rows): log-density differences between components are not identified; "
            "use a wider kernel, a Mixture with Uniform, or noise levels."
        )
        warnings.warn(message, UserWarning, stacklevel=2)
    return ConnectedComponents(len(sizes), torch.from_numpy(rank[labels]).to(x.device), message)


class _Rows(NamedTuple):
    """Different rows, and a 64-bit hash Σ_j h_j of each, so that "equal but for column j" is one subtraction."""

    x: NDArray[np.float64]  # (n, d)
    terms: NDArray[np.uint64]  # (n, d): h
    total: NDArray[np.uint64]  # (n,)

    def key(self, moved: Sequence[int]) -> NDArray[np.uint64]:
        """Equal for rows that agree in all columns but the moved ones."""
        return self.total - self.terms[:, list(moved)].sum(1, dtype=np.uint64)

    def paired(self, j: int, shift: int) -> NDArray[np.uint64]:
        """Equal for rows that agree in all columns but j, and there lie in one pair 2a − shift, 2a + 1 − shift."""
        pair = (self.x[:, j].astype(np.uint64) + np.uint64(shift)) // np.uint64(2)
        return self.key([j]) + pair * ODD


def _observed(kernel: Kernel, x: NDArray[np.float64]) -> tuple[_Rows, NDArray[np.int64]]:
    """The different rows of x, and for each row of x its number among them."""
    codes = x.astype(np.int64)
    for j in kernel.space.reals:
        codes[:, j] = np.unique(x[:, j], return_inverse=True)[1]
    draws = np.random.default_rng(0).integers(2**64, size=x.shape[1], dtype=np.uint64, endpoint=False)
    odd = draws | np.uint64(1)
    terms = codes.astype(np.uint64) * odd
    total, first, inverse = np.unique(terms.sum(1, dtype=np.uint64), return_index=True, return_inverse=True)
    return _Rows(x[first], terms[first], total), inverse


class _Stride(NamedTuple):
    """How far apart two rows may be in some real columns and still count as compared."""

    columns: list[int]
    reach: float
    angles: tuple[int, ...] = ()


STILL = _Stride([], 0.0)


def _stride(kernel: Kernel) -> _Stride:
    """Two steps of a kernel on real columns: two rows so far apart share comparison points."""
    match kernel:
        case Gaussian():  # and Sphere
            return _Stride(kernel.columns, 2 * kernel.radius, kernel.space.angles)
        case OrnsteinUhlenbeck():
            kept = math.sqrt(1 - kernel.rate**2)  # rows are drawn together before they move
            return _Stride(kernel.columns, 2 * kernel.radius / kept if kept > 0 else math.inf)
        case Product() | Mixture():
            return max(map(_stride, kernel.kernels), key=lambda stride: stride.reach)
        case _ if set(kernel.columns) <= set(kernel.space.reals):
            return _Stride(kernel.columns, 2 * _radius(kernel), kernel.space.angles)
        case _:
            return STILL


def _radius(kernel: Kernel) -> float:
    """The length of a step of a kernel that is not ours, if it has a ``radius``."""
    radius = getattr(kernel, "radius", None)
    if not isinstance(radius, int | float):
        raise ValueError(
            f"kernel: how far {kernel!r} reaches is not known: give its class a `radius`, the length of a step, "
            "or leave `components` out and check that its steps bridge the gaps of your data."
        )
    return float(radius)


def _links(kernel: Kernel, rows: _Rows, stride: _Stride = STILL) -> Links:
    """Links that join exactly those rows that comparisons join, directly or through other rows."""
    match kernel:
        case Mixture():  # no two rows have the same real values: discrete parts may rest on the real part
            return [link for part in kernel.kernels for link in _links(part, rows, _stride(kernel))]
        case Product():
            return _joint(kernel, rows)
        case Gaussian() | OrnsteinUhlenbeck():
            return _near(rows, rows.key([]), _stride(kernel))
        case Uniform() | Refresh():
            return _near(rows, rows.key(kernel.columns), stride)
        case HammingOne() | Redraw():
            return [link for j in kernel.columns for link in _near(rows, rows.key([j]), stride)]
        case Grid():
            pairs = [
                (j, shift) for j in kernel.columns for shift in (0, 1)
            ]  # {0, 1}, {2, 3}, … and {1, 2}, …
            return [link for j, shift in pairs for link in _near(rows, rows.paired(j, shift), stride)]
        case _ if set(kernel.columns) <= set(kernel.space.reals):
            return _near(rows, rows.key([]), _stride(kernel))
        case _:
            return [_listed(kernel, rows)]


def _joint(kernel: Product, rows: _Rows) -> Links:
    """All parts move at once. Beside a real part, rows are linked when they are near and share comparison labels.

    Without a real part, the product is written out where its states are few; else its parts must reach any label.
    """
    real = [part for part in kernel.kernels if set(part.columns) <= set(kernel.space.reals)]
    labels = [part for part in kernel.kernels if part not in real]
    if not real and kernel.space.n_states <= MOST_LISTED:
        return [_listed(kernel, rows)]
    choices = [_shared_labels(part) if real else _any_label(part) for part in labels]
    if len(real) > 1 or None in choices or math.prod(len(c or ()) for c in choices) > MOST_CHOICES:
        raise ValueError(
            f"kernel: the comparison graph of {kernel!r} is not known; expected a Product of at most one kernel on "
            "real columns and of HammingOne, Redraw, Uniform or Refresh, the first two on few columns."
        )
    links: Links = []
    for freed in itertools.product(*(c or () for c in choices)):
        links += _near(rows, rows.key([j for part in freed for j in part]), _stride(kernel))
    return links


def _shared_labels(part: Kernel) -> list[tuple[int, ...]] | None:
    """Sets of columns; rows that differ in one of them only are moved to each other or to a common point."""
    match part:
        case Uniform() | Refresh():
            return [tuple(part.columns)]
        case HammingOne() | Redraw():
            return list(itertools.combinations(part.columns, min(2, len(part.columns))))
        case _:
            return None


def _any_label(part: Kernel) -> list[tuple[int, ...]] | None:
    """The columns of a part that puts no restriction: any two of 3 or more labels share a comparison label."""
    alone = isinstance(part, HammingOne | Redraw) and len(part.columns) == 1
    free = isinstance(part, Uniform | Refresh) or alone
    many = math.prod(part.space.sizes[j] for j in part.columns) >= 3
    return [tuple(part.columns)] if free and many else None


def _on_circles(points: NDArray[np.float64], stride: _Stride) -> NDArray[np.float64]:
    """Angles as points of unit circles, where a chord is a little shorter than its arc."""
    angles = points[:, [j in stride.angles for j in stride.columns]]
    rest = points[:, [j not in stride.angles for j in stride.columns]]
    return np.concatenate([rest, np.cos(angles), np.sin(angles)], 1)


def _near(rows: _Rows, key: NDArray[np.uint64], stride: _Stride) -> Links:
    """Links between rows of equal key, but for the columns of the stride, where they are within reach."""
    key = key - rows.terms[:, stride.columns].sum(1, dtype=np.uint64)
    order = np.argsort(key, kind="stable")
    same = np.diff(key[order]) == 0
    if not stride.columns or math.isinf(stride.reach):
        return [(order[:-1][same], order[1:][same])]
    points = torch.from_numpy(_on_circles(rows.x[:, stride.columns], stride))
    links: Links = []
    for members in np.split(order, 1 + np.flatnonzero(~same)):
        links += _flood(points, torch.from_numpy(members), stride.reach)
    return links


def _flood(points: Tensor, left: Tensor, reach: float) -> Links:
    """Flood fill: each row is looked up once, against the rows not yet reached, so memory stays linear."""
    links: Links = []
    filtered = False
    while len(left) > 1:
        front, left, before = left[:1], left[1:], len(links)
        while len(front) and len(left):
            near = torch.cdist(points[front[:CHUNK]], points[left]) <= reach
            hit = near.any(0)
            if bool(hit.any()):
                links.append((front[near[:, hit].long().argmax(0)].numpy(), left[hit].numpy()))
            front, left = torch.cat([front[CHUNK:], left[hit]]), left[~hit]
        if len(links) == before and not filtered:  # a row alone: there may be many, drop them all at once
            left, filtered = _accompanied(points, left, reach), True
    return links


def _accompanied(points: Tensor, left: Tensor, reach: float) -> Tensor:
    """The rows among `left` that have another one within reach."""
    counts = [(torch.cdist(points[rows], points[left]) <= reach).sum(1) for rows in left.split(CHUNK)]
    return left[torch.cat(counts) > 1] if len(left) else left


def _listed(kernel: Kernel, rows: _Rows) -> Link:
    """The kernel's own list of edges, restricted to observed states."""
    if type(kernel).edges is Kernel.edges:
        raise ValueError(
            f"kernel: which rows {kernel!r} joins is not known: give its class `edges`, the kernel on a finite space "
            "written out, or leave `components` out and check that it bridges the gaps of your data."
        )
    edges = kernel.edges()
    row = np.full(int(kernel.space.n_states), -1)
    row[kernel.space.index(torch.from_numpy(rows.x)).numpy()] = np.arange(len(rows.x))
    a, b = row[edges.source.numpy()], row[edges.target.numpy()]
    seen = (a >= 0) & (b >= 0)
    return a[seen], b[seen]


def _labelled(links: Links, n: int) -> NDArray[np.int64]:
    """Component of each of n rows."""
    source = np.concatenate([np.empty(0, dtype=np.int64), *(a for a, _ in links)])
    target = np.concatenate([np.empty(0, dtype=np.int64), *(b for _, b in links)])
    graph = coo_array((np.ones(len(source), dtype=bool), (source, target)), shape=(n, n))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)
