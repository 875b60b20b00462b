r"""A fitted density on frames: what a density answers in encoded units, in the table's own units.

    log ρ(X) = log ρ(x) + log|dx/dX|

A frame is handled a bounded number of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.tilted import TiltedDensity
from ctem.tables.answers.distributions import ColumnDistribution, column_distribution, log_total_tilt
from ctem.tables.answers.surprise import Rarity, log_units, of_shared_codes, surprises
from ctem.tables.encoding.codecs import Labels, Numbers
from ctem.tables.io.cells import Cells
from ctem.tables.io.frame import Frame
from ctem.tables.io.rows import CHUNK, ahead, chunks, joined, merged, spread, taken
from ctem.tables.margins.bounds import Map
from ctem.tables.schema import Schema

__all__ = ["TableDensity", "find_device", "in_float32"]

Vector = NDArray[np.float64]
# draws beside which a surprise is rare or not: of all members, of one, and where not even half of them are affordable
TYPICAL, OF_ONE, FEW = 512, 128, 64
TYPICAL_PASSES = 2**18  # through a network that they take, at most: a row of many columns takes many
OF_ONE_PASSES = 2**15  # the same of one member
CELLS = 2**20  # that are encoded and answered at a time, at most
CUDA_CELLS, CUDA_ROWS = 2**24, 2**19  # the same on a GPU where no gradient is wanted: what fills it
ENCODED, ENCODING = 2**18, 2  # rows that a thread encodes while a GPU answers those before, and threads


def find_device(name: str) -> torch.device:
    """The device of that name; "auto" is CUDA where there is one, else the CPU.

    >>> find_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device: expected 'auto', 'cpu', or one that torch finds here, such as 'cuda'; got {name!r} ({reason})."
        ) from None
    return device


@contextmanager
def in_float32() -> Iterator[None]:
    """New tensors are float32, as encoded rows are, whatever torch's default: no bit of a model depends on it.

    >>> with in_float32():
    ...     torch.zeros(1).dtype
    torch.float32
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@dataclass(frozen=True)
class TableDensity:
    """The columns of a table, and a density on their encoded rows.

    Arguments:
        schema: the columns.
        density: of encoded rows.
        whole: the answers of all networks, where these are of one.

    >>> from ctem.densities.anyorder import AnyOrderNet
    >>> from ctem.bases import ProductBase
    >>> from ctem.tables.io.frame import read_frame
    >>> frame = read_frame(np.random.default_rng(0).normal(size=(200, 2)))
    >>> schema = Schema.fit(frame)
    >>> density = AnyOrderDensity(AnyOrderNet(ProductBase(schema.space)), 0.01, [[0, 1]])
    >>> TableDensity(schema, density).log_prob(frame).shape
    (200,)
    """

    schema: Schema
    density: AnyOrderDensity
    whole: TableDensity | None = None

    @property
    def device(self) -> torch.device:
        """Where the density lives."""
        return self.density.base.log_table.device

    @property
    def passes(self) -> int:
        """How many rows go through a network to score one: of each column, in each order, by each member."""
        density = self.density
        members = density.net.members if density.member is None else 1
        return density.space.dim * len(density.orders) * members

    def of_member(self, member: int) -> TableDensity:
        """The answers of one network alone, kept because they remember what is typical; of all if it is negative."""
        if member < 0:
            return self
        if member not in self._of_members:
            density = self.density.altered(member=member)
            self._of_members[member] = TableDensity(self.schema, density, self)
        return self._of_members[member]

    @cached_property
    def _of_members(self) -> dict[int, TableDensity]:
        return {}

    def encode(self, frame: Frame) -> tuple[Tensor, Vector]:
        """Encoded rows on the device, and log|dx/dX| of every cell (n, columns)."""
        encoded = self.schema.encode(frame)
        return encoded.x.to(self.device), encoded.log_det.numpy()

    def encode_given(self, frame: Frame, known: Collection[str]) -> Tensor:
        """Encoded rows of which only some columns, by name, are known; the others are nan, even if that is a state."""
        x = self.encode(frame)[0]
        pairs = zip(self.schema.columns, self.schema.owner, strict=True)
        x[:, [j for name, owner in pairs if name not in known for j in owner]] = torch.nan
        return x

    def log_prob(self, frame: Frame) -> Vector:
        """log ρ of every row, missing cells marginalised."""

        def answer(x: Tensor, log_det: Vector) -> Vector:
            return np.asarray(self.density.log_prob(x).cpu().numpy() + log_det.sum(1))

        return self._answers(frame, answer)

    def log_conditional(self, frame: Frame, asked: Sequence[int], given: Sequence[int]) -> Vector:
        """log ρ(asked | given) of every row, for columns of the table by position."""
        if len(set(asked)) == len(self.schema.owner):
            return self.log_prob(frame)
        density, owner = self.density, self.schema.owner
        inner, outer = ([i for j in part for i in owner[j]] for part in (asked, given))

        def answer(x: Tensor, log_det: Vector) -> Vector:
            log_p = density.log_prob(x, inner, outer)
            if isinstance(density, TiltedDensity) and len(asked) == 1 and inner:
                log_p = log_p - self._log_excess(density, x, asked[0], outer)
            return np.asarray(log_p.cpu().numpy() + log_det[:, list(asked)].sum(1))

        return self._answers(frame, answer)

    def _log_excess(self, density: TiltedDensity, x: Tensor, asked: int, given: Sequence[int]) -> Tensor:
        """log of what the conditional of one column adds up to, (n,): with an energy, nearly 0; 0 of missing cells."""
        known, owner = torch.full_like(x, torch.nan), self.schema.owner[asked]
        known[:, list(given)] = x[:, list(given)]
        parts = known.split(CHUNK // 8)
        total = torch.cat([log_total_tilt(density, part, owner) for part in parts])
        before = torch.cat([density.energy(part) for part in parts]) if given else 0.0
        return torch.where(x[:, owner[0]].isnan(), 0.0, total - before)

    def grad_log_prob(self, frame: Frame) -> Vector:
        """∂ log ρ / ∂X (n, columns) = T′(X) ∂ log ρ / ∂x + ∂ log T′ / ∂X; nan where there is none."""
        codecs = [inferred.codec for inferred in self.schema.columns.values()]

        def answer(x: Tensor, log_det: Vector) -> Vector:
            grad = self.density.grad_log_prob(x).double().cpu()
            out = np.full((len(x), len(codecs)), np.nan)
            for j, codec in enumerate(codecs):
                if isinstance(codec, Numbers):
                    i = self.schema.owner[j][-1]
                    slope, bend = _slopes(codec.transform, x[:, i].double().cpu())
                    out[:, j] = grad[:, i] * slope + bend
            return out

        return self._answers(frame, answer, self._at_a_time)

    def sample(self, n: int, generator: torch.Generator) -> dict[str, Cells]:
        """Columns of n new rows."""
        most = self._filling
        sizes = [min(most, n - start) for start in range(0, n, most)]
        x = torch.cat([self.density.sample(size, generator).cpu() for size in sizes])
        return self.schema.exact(self.schema.decode(x, generator))

    def completed(
        self, frame: Frame, generator: torch.Generator, known: Collection[str] | None = None
    ) -> dict[str, Cells]:
        """The columns of a frame, the missing cells of a row drawn together given its others.

        ``known``: names of the columns that are given, all when None.
        """
        density = self.density
        gone = np.any([cells.missing for cells in frame.columns.values()], axis=0)
        if not gone.any():
            return dict(frame.columns)
        names = frame.columns if known is None else known
        parts = [self.encode_given(part, names) for part in chunks(taken(frame, gone), self._at_a_time)]
        x = torch.cat([density.complete(part, generator).cpu() for part in parts])
        drawn = self.schema.decode(x, generator)
        columns = {name: merged(cells, spread(drawn[name], gone)) for name, cells in frame.columns.items()}
        gaps_of = {name: cells.missing for name, cells in frame.columns.items()}
        return self.schema.exact(columns, gaps_of)

    def expected(self, frame: Frame, method: str) -> dict[str, Cells]:
        """The columns of a frame, each missing cell at the "mode" or "mean" of its conditional."""
        summary = ColumnDistribution.mode if method == "mode" else ColumnDistribution.mean
        return self.summarised(frame, lambda distribution, name: summary(distribution))[0]

    def summarised(
        self, frame: Frame, *summaries: Callable[[ColumnDistribution, str], Cells]
    ) -> list[dict[str, Cells]]:
        """The columns of a frame for each summary, every missing cell at that summary of its conditional and name."""
        columns = [dict(frame.columns) for _ in summaries]
        for name, gone, answers in self._gaps(frame):
            for table, summary in zip(columns, summaries, strict=True):
                table[name] = merged(
                    frame.columns[name], spread(joined([summary(one, name) for one in answers]), gone)
                )
        return columns

    def uncertainty(self, frame: Frame) -> Vector:
        """The standard deviation of every missing cell given the observed ones (n, columns); 0 for those.

        Dates in days; nan for labels, which have none.
        """
        out = np.zeros((len(frame), len(frame.columns)))
        for name, gone, answers in self._gaps(frame):
            out[gone, list(frame.columns).index(name)] = np.concatenate([one.std() for one in answers])
        return out

    def _gaps(self, frame: Frame) -> Iterator[tuple[str, NDArray[np.bool_], list[ColumnDistribution]]]:
        """Name, missing rows and their conditionals, a bounded number of rows each, of every column with gaps."""
        for j, (name, cells) in enumerate(frame.columns.items()):
            if cells.missing.any():
                parts = chunks(taken(frame, cells.missing), CHUNK // 8)
                yield name, cells.missing, [self.conditional(part, j) for part in parts]

    def conditional(self, frame: Frame, j: int, known: Collection[str] | None = None) -> ColumnDistribution:
        """The distribution of column j of the table given the other observed cells of each row.

        Arguments:
            known: columns that something is known of, by name; all when None. A cell of another is not missing but
                unknown, which differs where missing is a state.
        """
        density = self.density
        inferred, owner = list(self.schema.columns.values())[j], self.schema.owner[j]
        x = self.encode(frame)[0] if known is None else self.encode_given(frame, known)
        codec, numeric = inferred.codec, inferred.kind != "category"
        if not owner:
            cells = codec.decode(x[:1, :0].cpu())
            return ColumnDistribution(cells, np.ones((len(x), 1)), np.zeros(1, np.int64), numeric)
        values, p, group = column_distribution(density, x, owner)
        if isinstance(codec, Labels):
            cells, p = codec.by_value(p.double().cpu())
            return ColumnDistribution(cells, p.numpy(), np.arange(len(cells)), numeric)
        cells = codec.decode(values.cpu())
        ends = codec.ends() if isinstance(codec, Numbers) else None
        return ColumnDistribution(cells, p.double().cpu().numpy(), group.cpu().numpy(), numeric, ends)

    def surprises(self, frame: Frame) -> Vector:
        """What every cell adds to the score of its row (n, columns), beyond what its column adds on average.

        ``ctem.tables.answers.surprise`` has the formula.
        """
        return np.concatenate([self._added(part, *self.encode(part)) for part in chunks(frame)])

    def log_prob_and_surprise(self, frame: Frame) -> tuple[Vector, Vector]:
        """``log_prob`` and ``surprise``, (n,) each, by one pass where there are no formulas and gaps."""
        density, log_p, strange = self.density, [], []
        for part in chunks(frame):
            x, log_det = self.encode(part)
            terms = density.log_terms(x)
            strange.append(self._added(part, x, log_det, terms).sum(1))
            log_p.append(terms.sum(1).cpu().numpy() + log_det.sum(1))
        return np.concatenate(log_p), np.concatenate(strange)

    def _added(self, part: Frame, x: Tensor, log_det: Vector, terms: Tensor | None = None) -> Vector:
        """``surprises`` of rows that are encoded already."""
        density = self.density
        shared = of_shared_codes(self.schema, x, torch.from_numpy(log_det)).numpy()
        added = self._rarity(surprises(self.schema, density, x, terms).cpu().numpy() + shared)
        for j, encoded in enumerate(self.schema.owner):
            added[:, j] *= not encoded or ~x[:, encoded[0]].isnan().cpu().numpy()
        return np.where(self.schema.unseen(part).numpy(), -log_det - log_units(self.schema), added)

    def surprise(self, frame: Frame) -> Vector:
        """The score of every row: the sum of its cells'."""
        return np.asarray(self.surprises(frame).sum(1))

    @cached_property
    def _rarity(self) -> Rarity:
        """How rare surprises are among those of rows that the density draws; of one member, in one of its orders.

        Where columns are so many that even few draws would take long, all members judge the same ones, in one order.
        How many there are follows from the model alone: held-out rows and new ones must have the same scores.
        """
        density = self.density
        whole = density.member is None
        most, passes = (TYPICAL, TYPICAL_PASSES) if whole else (OF_ONE, OF_ONE_PASSES)
        affordable = passes // (self.schema.space.dim + self.passes)
        simple = density.altered(member=density.member, orders=density.orders[:1])
        if affordable < most // 2:
            shared = (self if self.whole is None else self.whole)._few_drawn
            return Rarity(surprises(self.schema, simple, shared).cpu().numpy())
        drawing = density if whole else simple
        drawn = drawing.sample(min(most, affordable), torch.Generator(self.device).manual_seed(0))
        return Rarity(surprises(self.schema, density, drawn).cpu().numpy())

    @cached_property
    def _few_drawn(self) -> Tensor:
        """Some encoded rows that the networks draw in one order, whichever member is asked."""
        simple = self.density.altered(orders=self.density.orders[:1])
        return simple.sample(FEW, torch.Generator(self.device).manual_seed(0))

    def independent(self, frame: Frame) -> Vector:
        """log b(x) + log|dx/dX|: the log-density of independent columns."""

        def answer(x: Tensor, log_det: Vector) -> Vector:
            log_b = torch.where(x.isnan(), 0.0, self.density.base.column_log_prob(x.nan_to_num()))
            return np.asarray(log_b.double().sum(1).cpu().numpy() + log_det.sum(1))

        return self._answers(frame, answer)

    def nats_from_others(self) -> list[float | None]:
        """Nats that the other columns give about each column of the table on unseen rows; None where unknown."""
        nats = self.density.net.worth.nats
        return [
            None if nats is None or not part else sum(nats[j] for j in part) for part in self.schema.owner
        ]

    def believed(self) -> list[float | None]:
        """How far the networks are believed of each column, the mean over its encoded parts."""
        share = self.density.net.worth.share
        return [None if not part else sum(share[j] for j in part) / len(part) for part in self.schema.owner]

    def _answers(
        self, frame: Frame, answer: Callable[[Tensor, Vector], Vector], most: int | None = None
    ) -> Vector:
        """The answers to all rows, at most so many of them at a time."""
        rows = self._filling if most is None else most
        if self.device.type != "cuda":
            return np.concatenate([answer(*self.encode(part)) for part in chunks(frame, rows)])
        size = min(rows, ENCODED)
        encoded = ahead(self.schema.encode, chunks(frame, size), ENCODING)
        answers = []
        while parts := list(islice(encoded, rows // size)):
            x = torch.cat([piece.x.to(self.device) for piece in parts])
            answers.append(answer(x, torch.cat([piece.log_det for piece in parts]).numpy()))
        return np.concatenate(answers)

    @property
    def _filling(self) -> int:
        """Rows that are answered at a time where nothing is kept for a gradient."""
        if self.device.type != "cuda":
            return self._at_a_time
        return max(self._at_a_time, min(CUDA_ROWS, CUDA_CELLS // self.schema.space.dim))

    @property
    def _at_a_time(self) -> int:
        """Rows that are encoded and answered at a time: several chunks of a narrow table."""
        return CHUNK * max(1, CELLS // (CHUNK * self.schema.space.dim))


def _slopes(transform: Map, x: Tensor) -> tuple[Tensor, Tensor]:
    """T′(X) and ∂ log T′(X)/∂X at X = T⁻¹(x)."""
    X = transform.inverse(x).requires_grad_()
    _, log_slope = transform.with_log_slope(X)
    (bend,) = torch.autograd.grad(log_slope.nansum(), X)
    return log_slope.detach().exp(), torch.where(x.isnan(), torch.nan, bend)
