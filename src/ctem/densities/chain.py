r"""The chain rule on one-column conditionals: exact normalisation, any marginal or conditional, any-order sampling.

    log ρ(x) = Σ_j log ρ(x_j | columns before j)

in any order of the columns is normalised by construction if every conditional is, and so is a mixture over orders.
:class:`Conditionals` is where they come from: a network that gives them directly (``ctem.densities.anyorder``),
differences of a potential (``ctem.densities.spacetime``) or its slopes (``experiments/images/firstorder.py``).
:class:`Conditional` is what can be asked of one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from ctem.bases import ProductBase
from ctem.densities.choices import choose
from ctem.densities.contexts import Contexts

__all__ = ["Asked", "Chain", "Conditional", "Conditionals", "Drawn", "Probabilities"]


class Conditional(Protocol):
    """The distribution of one column for each of n rows, given what they show.

    >>> law: Conditional = Probabilities(torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log())
    >>> law.rows(torch.tensor([1])).table()[1].exp()
    tensor([[0.5000, 0.5000]])
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """log ρ of values (n,)."""

    def table(self) -> tuple[Tensor, Tensor]:
        """All values (q,), or nodes of a real column, and log ρ of each: (n, q)."""

    def draw(self, generator: torch.Generator) -> Tensor:
        """A value for each row, (n,)."""

    def rows(self, index: Tensor) -> Self:
        """The distributions of these rows."""


class Asked(NamedTuple):
    """Rows, what they show, and the column whose conditional is asked for.

    >>> Asked(torch.zeros(4, 2), torch.zeros(4, 2, dtype=torch.bool), 1).j
    1
    """

    x: Tensor  # (n, d)
    visible: Tensor  # (n, d)
    j: int


class Conditionals(Protocol):
    """Where the conditionals of single columns come from.

    By default they answer one question at a time.

    >>> from ctem.densities.anyorder import AnyOrderNet, AtLevel
    >>> from ctem.spaces import Category, Space
    >>> net = AnyOrderNet(ProductBase(Space([Category(2)] * 3)), width=8, members=4)
    >>> conditionals: Conditionals = AtLevel(net, 1e-3)
    >>> conditionals.base is net.base
    True
    """

    base: ProductBase  # which knows what the columns are

    @property
    def at_once(self) -> int:
        """Rows that ``several`` takes at a time, unless one question has more."""
        return 1

    def given(self, x: Tensor, visible: Tensor, j: int) -> Conditional:
        """ρ(x_j | x_V) for rows x (n, d) and their visible sets V (n, d)."""

    def several(self, asked: Sequence[Asked]) -> list[Conditional]:
        """``given`` of each question, which may share a pass."""
        return [self.given(*question) for question in asked]

    def draw(self, x: Tensor, visible: Tensor, j: int, generator: torch.Generator) -> Tensor:
        """A draw from ``given(x, visible, j)`` for each row, (n,), by the shortest way."""


@dataclass(frozen=True)
class Probabilities:
    """The conditional of a discrete column: log-probabilities (n, k) of its values.

    >>> Probabilities(torch.tensor([[0.25, 0.75]]).log()).log_prob(torch.tensor([1.0])).exp()
    tensor([0.7500])
    """

    log_p: Tensor

    def log_prob(self, value: Tensor) -> Tensor:
        """log ρ of codes (n,)."""
        return self.log_p.gather(1, value.long().unsqueeze(1)).squeeze(1)

    def table(self) -> tuple[Tensor, Tensor]:
        """The codes (k,) and log ρ of each (n, k)."""
        return torch.arange(self.log_p.shape[1], device=self.log_p.device).to(self.log_p.dtype), self.log_p

    def draw(self, generator: torch.Generator) -> Tensor:
        """A code for each row, (n,)."""
        return choose(self.log_p.exp(), generator).to(self.log_p.dtype)

    def rows(self, index: Tensor) -> Probabilities:
        """Those of these rows."""
        return Probabilities(self.log_p[index])


class Drawn(NamedTuple):
    """Rows drawn by the chain rule and the log-density that they were drawn with.

    >>> Drawn(torch.zeros(4, 2), torch.zeros(4)).log_prob.shape
    torch.Size([4])
    """

    x: Tensor  # (n, d)
    log_prob: Tensor  # (n,), of the cells that were drawn


class Chain:
    """The chain rule. A nan cell of x is missing: it stays hidden, which marginalises it.

    Arguments:
        conditionals: of single columns.
        parents: for a real column that exists only where a category has code 0, that category. It comes first in
            ``orders``, and what does not exist is neither scored nor drawn.
        late: for each column how late it comes in ``orders``: smaller numbers first, equal ones shuffled. Columns with
            gaps belong after complete ones, because gaps may depend on what those hold.
        after: for a column those that it comes after in every order, because they name its value.

    >>> from ctem.densities.anyorder import AnyOrderNet, AtLevel
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2), Category(3)]))
    >>> chain = Chain(AtLevel(AnyOrderNet(base, width=16), 1e-3))  # untrained: the base itself
    >>> x = torch.tensor([[1.0, 2.0]])
    >>> torch.allclose(chain.log_prob(x, [0, 1]), base.log_prob(x), atol=1e-5)
    True
    """

    def __init__(
        self,
        conditionals: Conditionals,
        parents: Mapping[int, int] | None = None,
        late: Sequence[float] | None = None,
        after: Mapping[int, Collection[int]] | None = None,
    ):
        self.after = dict(after or {})
        self.conditionals, self.base, self.space = conditionals, conditionals.base, conditionals.base.space
        self.parents = dict(parents or {})
        self.late = [0.0] * self.space.dim if late is None else list(late)

    def orders(self, count: int, generator: torch.Generator) -> list[list[int]]:
        """Random orders of the columns, as far as ``late`` and ``parents`` leave a choice.

        >>> from ctem.densities.anyorder import AnyOrderNet, AtLevel
        >>> from ctem.spaces import Real, Space
        >>> net = AnyOrderNet(ProductBase(Space([Real()] * 3)), width=8)
        >>> Chain(AtLevel(net, 0.01), late=[1, 0, 2]).orders(1, torch.Generator())
        [[1, 0, 2]]
        """
        d, device = self.space.dim, generator.device
        drawn = []
        for _ in range(count):
            rank = torch.randperm(d, generator=generator, device=device).tolist()
            order = sorted(range(d), key=lambda j: (self.late[j], rank[j]))
            for child, parent in self.parents.items():
                i, j = order.index(child), order.index(parent)
                if i < j:
                    order[i], order[j] = parent, child
            drawn.append(self.arranged(order))
        return drawn

    def arranged(self, order: Sequence[int]) -> list[int]:
        """The order with every column moved behind those that it comes after, and no further.

        >>> from ctem.densities.anyorder import AnyOrderNet, AtLevel
        >>> from ctem.spaces import Real, Space
        >>> net = AnyOrderNet(ProductBase(Space([Real()] * 3)), width=8)
        >>> Chain(AtLevel(net, 0.01), after={0: {2}}).arranged([0, 1, 2])
        [1, 2, 0]
        """
        left, placed = list(order), list[int]()
        while left:
            waiting = set(left)
            free = (
                j
                for j in left
                if not waiting & set(self.after.get(j, ())) and self.parents.get(j) not in waiting
            )
            placed.append(next(free))
            left.remove(placed[-1])
        return placed

    def allows(self, before: int, after: int) -> bool:
        """Whether an order may have two neighbours in this order.

        >>> from ctem.densities.anyorder import AnyOrderNet, AtLevel
        >>> from ctem.spaces import Real, Space
        >>> net = AnyOrderNet(ProductBase(Space([Real()] * 2)), width=8)
        >>> Chain(AtLevel(net, 0.01), late=[1, 0]).allows(0, 1)
        False
        """
        early = self.late[before] <= self.late[after] or before in self.after.get(after, ())
        return early and self.parents.get(before) != after and after not in self.after.get(before, ())

    def log_prob(self, x: Tensor, order: Sequence[int], given: Iterable[int] = ()) -> Tensor:
        """log ρ(x_order | x_given) by the chain rule in the given order of columns, shape (n,)."""
        return self.log_probs(x, [order], given)[0]

    def log_probs(self, x: Tensor, orders: Sequence[Sequence[int]], given: Iterable[int] = ()) -> Tensor:
        """The same in several orders, shape (orders, n)."""
        total = [x.new_zeros(len(x)) for _ in orders]
        for c, _, term in self._terms(x, orders, list(given)):
            total[c] = total[c] + term
        return torch.stack(total)

    def log_terms(self, x: Tensor, orders: Sequence[Sequence[int]]) -> Tensor:
        """log ρ(x_j | columns before j) of all columns in each order, 0 where x_j is missing: (orders, n, d)."""
        out = x.new_zeros(len(orders), *x.shape)
        for c, j, term in self._terms(x, orders, []):
            out[c, :, j] = term
        return out

    def sample(
        self,
        n: int,
        generator: torch.Generator,
        order: Sequence[int] | None = None,
        given: Tensor | None = None,
    ) -> Drawn:
        """n rows, drawn column by column without MCMC; or the nan cells of ``given`` (n, d), filled in.

        >>> from ctem.densities.anyorder import AnyOrderNet, AtLevel
        >>> from ctem.spaces import Category, Space
        >>> chain = Chain(AtLevel(AnyOrderNet(ProductBase(Space([Category(2)] * 2)), width=8), 0.01))
        >>> chain.sample(1, torch.Generator(), given=torch.tensor([[1.0, math.nan]])).x[0, 0]
        tensor(1.)
        """
        order = self.orders(1, generator)[0] if order is None else list(order)
        x = self._to_fill(n, order, given)
        total = x.new_zeros(len(x))
        for j, todo, contexts in self._gaps(x, order):
            conditional = self._given(x, todo, j, contexts)
            value = conditional.draw(generator)
            x[todo, j] = value
            total[todo] += conditional.log_prob(value)
        return Drawn(x, total)

    def fill(self, x: Tensor, generator: torch.Generator, order: Sequence[int]) -> Tensor:
        """x with its nan cells drawn, as ``sample`` draws them; without how likely they were, and faster.

        >>> from ctem.densities.anyorder import AnyOrderNet, AtLevel
        >>> from ctem.spaces import Category, Space
        >>> chain = Chain(AtLevel(AnyOrderNet(ProductBase(Space([Category(2)] * 2)), width=8), 0.01))
        >>> chain.fill(torch.tensor([[1.0, math.nan]]), torch.Generator(), [0, 1])[0, 0]
        tensor(1.)
        """
        x = self._to_fill(len(x), order, x)
        for j, todo, contexts in self._gaps(x, order):
            x[todo, j] = self._draw(x, todo, j, contexts, generator)
        return x

    def _gaps(self, x: Tensor, order: Sequence[int]) -> Iterator[tuple[int, Tensor, Contexts]]:
        """The columns that some rows of x lack, in their order, and these rows, to be drawn before the next."""
        contexts = Contexts.of(x)
        for j in order:
            todo = self._to_draw(x, j).nonzero().squeeze(1)
            if len(todo):
                yield j, todo, contexts
                contexts.show(x[:, j])

    def _terms(
        self, x: Tensor, orders: Sequence[Sequence[int]], given: list[int]
    ) -> Iterator[tuple[int, int, Tensor]]:
        """Every column of every order and log ρ(x_j | x_given and the columns before), 0 where x_j is missing, (n,)."""
        for terms in _together(self._asked(x, orders, given), self.conditionals.at_once):
            columns = sorted({term.asked.j for term in terms})
            alike = [[term for term in terms if term.asked.j == j] for j in columns]
            every = self.conditionals.several([_joined([term.asked for term in some]) for some in alike])
            for j, some, law in zip(columns, alike, every, strict=True):
                rows = [term.rows for term in some]
                kind = _kinds(some)
                log_p = (law if kind is None else law.rows(kind)).log_prob(x[torch.cat(rows), j])
                for term, log_term in zip(some, log_p.split([*map(len, rows)]), strict=True):
                    yield term.order, j, x.new_zeros(len(x)).index_copy(0, term.rows, log_term)

    def _asked(self, x: Tensor, orders: Sequence[Sequence[int]], given: list[int]) -> Iterator[_Term]:
        """The questions to which ``_terms`` are the answers; rows with the same cells share one."""
        for c, order in enumerate(orders):
            self._check_columns([*order, *given])
            visible, contexts = torch.zeros_like(x, dtype=torch.bool), Contexts(x)
            for j in given:
                visible = _shown(visible, x, j)
                contexts.show(x[:, j])
            for j in order:
                rows = (~x[:, j].isnan()).nonzero().squeeze(1)
                if len(rows):
                    first, kind = contexts.among(rows)
                    shown = visible[first]
                    yield _Term(c, rows, kind, Asked(_filled(x[first], shown), shown, j))
                visible = _shown(visible, x, j)
                contexts.show(x[:, j])

    def _given(self, x: Tensor, rows: Tensor, j: int, contexts: Contexts) -> Conditional:
        """ρ(x_j | all other cells) of some rows of x, those with the same cells sharing a pass."""
        first, kind = contexts.among(rows)
        shown = ~x[first].isnan()
        conditional = self.conditionals.given(_filled(x[first], shown), shown, j)
        return conditional if kind is None else conditional.rows(kind)

    def _draw(
        self, x: Tensor, todo: Tensor, j: int, contexts: Contexts, generator: torch.Generator
    ) -> Tensor:
        """A value of column j for each of the rows ``todo``."""
        if contexts.first is not None:
            return self._given(x, todo, j, contexts).draw(generator)
        visible = ~x[todo].isnan()
        return self.conditionals.draw(_filled(x[todo], visible), visible, j, generator)

    def _to_draw(self, x: Tensor, j: int) -> Tensor:
        """Which rows lack column j, not counting those in which it does not exist: (n,)."""
        todo = x[:, j].isnan()
        return todo & ~(x[:, self.parents[j]] > 0) if j in self.parents else todo

    def _check_columns(self, columns: Sequence[int]) -> None:
        if len(set(columns)) < len(columns) or not set(columns) <= set(range(self.space.dim)):
            raise ValueError(
                f"order, given: expected different columns of 0 … {self.space.dim - 1}; got {list(columns)}."
            )

    def _to_fill(self, n: int, order: Sequence[int], given: Tensor | None) -> Tensor:
        """Rows (n, d) with nan in the cells to be drawn, all of whose columns are in the order; a copy of ``given``."""
        self._check_columns(order)
        like, d = self.base.log_table, self.space.dim
        if given is not None and given.shape != (n, d):
            raise ValueError(f"given: expected shape ({n}, {d}); got {tuple(given.shape)}.")
        x = like.new_full((n, d), math.nan) if given is None else given.clone()
        left = [j for j in range(d) if j not in order and bool(self._to_draw(x, j).any())]
        if left:
            raise ValueError(f"order: expected every column that is not given; missing {left}.")
        return x


class _Term(NamedTuple):
    """A term of the chain rule before it is known."""

    order: int
    rows: Tensor  # that have this column
    kind: Tensor | None  # which row of the question each of them is; None if all are asked
    asked: Asked


def _joined(asked: Sequence[Asked]) -> Asked:
    """Questions for the same column as one."""
    return Asked(torch.cat([ask.x for ask in asked]), torch.cat([ask.visible for ask in asked]), asked[0].j)


def _kinds(terms: Sequence[_Term]) -> Tensor | None:
    """Which row of their joined question every row of these terms is; None if all are asked."""
    if all(term.kind is None for term in terms):
        return None
    starts = accumulate((len(term.asked.x) for term in terms), initial=0)
    kinds = [torch.arange(len(t.rows)).to(t.rows) if t.kind is None else t.kind for t in terms]
    return torch.cat([start + kind for start, kind in zip(starts, kinds, strict=False)])


def _together(terms: Iterable[_Term], rows: int) -> Iterator[list[_Term]]:
    """Terms that are asked for in one pass: of at most so many rows, or one."""
    some, count = list[_Term](), 0
    for term in terms:
        count += len(term.asked.x)
        if some and count > rows:
            yield some
            some, count = [], len(term.asked.x)
        some.append(term)
    if some:
        yield some


def _shown(visible: Tensor, x: Tensor, j: int) -> Tensor:
    visible = visible.clone()
    visible[:, j] = ~x[:, j].isnan()
    return visible


def _filled(x: Tensor, visible: Tensor) -> Tensor:
    return torch.where(visible, x, 0.0)
