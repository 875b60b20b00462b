"""How one column of a table becomes encoded columns, and back: labels, numbers, and columns that never vary.

Each codec has ``columns(name)``, ``encode(name, cells)`` → values (n, width) with nan where hidden and the log-density
terms (n,), ``decode(x, generator)`` → cells, and plain JSON. ``ctem.tables.schema`` chooses them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from ctem.densities.anyorder.apart import MOST_APART, placed, slots_of
from ctem.spaces import Category, Column, Ordinal, Real
from ctem.tables.encoding.lookup import cells_of, find, in_words
from ctem.tables.io.cells import Cells, Label
from ctem.tables.margins.bounds import Bounded, Map, bounded_from_json
from ctem.tables.margins.lattices import Lattice

__all__ = ["Codec", "Constant", "Labels", "Numbers", "codec_from_json"]

TYPES = ("label", "bool", "int", "float", "moment", "duration")
Block = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Constant:
    """A column that holds one value, or none at all: nothing to encode, density 1 less the reserve.

    Arguments:
        type, unit: of the cells.
        values: the value, if there is one.
        reserve: probability of a value that was never seen; 0 refuses it.

    >>> Constant("int", (7,)).columns("n")
    {}
    """

    type: str
    values: tuple[Label, ...]
    unit: str = ""
    reserve: float = 0.0

    def columns(self, name: str) -> dict[str, Column]:
        """No encoded column."""
        return {}

    def encode(self, name: str, cells: Cells) -> Block:
        """Nothing, and the log-probability of the value or of a new one."""
        index = find(name, cells, self)
        terms = _log_terms(self, np.zeros(len(self.values)), 0.0)[index]
        return torch.empty(len(index), 0, dtype=torch.float64), torch.from_numpy(terms)

    def unseen(self, name: str, cells: Cells) -> Tensor:
        """Which cells hold another value, (n,)."""
        return torch.from_numpy(find(name, cells, self) == -2)

    def decode(self, x: Tensor, generator: Generator | None = None) -> Cells:
        """The value in every row; missing if none was ever seen."""
        return cells_of(self, np.full(len(x), 0 if self.values else -1))

    def to_json(self) -> dict[str, Any]:
        """This codec as plain JSON."""
        rest = {"unit": self.unit, "reserve": self.reserve}
        return {"codec": "constant", "type": self.type, "values": list(self.values), **rest}


@dataclass(frozen=True)
class LeftOut:
    """A column that the density leaves out: identifiers and prose. It has no density, and nothing is drawn for it.

    >>> LeftOut("label").decode(torch.empty(2, 0)).to_list()
    [None, None]
    """

    type: str
    unit: str = ""

    def columns(self, name: str) -> dict[str, Column]:
        """No encoded column."""
        return {}

    def encode(self, name: str, cells: Cells) -> tuple[Tensor, Tensor]:
        """Nothing, whatever the cells hold."""
        n = len(cells)
        return torch.empty(n, 0, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)

    def unseen(self, name: str, cells: Cells) -> Tensor:
        """No cell."""
        return torch.zeros(len(cells), dtype=torch.bool)

    def decode(self, x: Tensor, generator: Generator | None = None) -> Cells:
        """Missing cells."""
        values = np.zeros(len(x), {"float": np.float64, "bool": bool}.get(self.type, np.int64))
        labels = ("",) if self.type == "label" else ()
        return Cells(self.type, values, np.ones(len(x), bool), labels, self.unit)

    def to_json(self) -> dict[str, Any]:
        """This codec as plain JSON."""
        return {"codec": "left out", "type": self.type, "unit": self.unit, "reserve": 0.0}


@dataclass(frozen=True)
class Labels:
    """A column of listed values, one code each; rare ones may share a code.

    The log-density term of a value v is log share(v), its training frequency within its code: 0 for a code of its own;
    plus log(1 − reserve). A value that was never seen has the reserve as its probability and is hidden from the others.
    Values that share code 0 may be kept apart behind the point (``ctem.densities.anyorder.apart``).

    Arguments:
        type, unit: of the cells.
        values: the values in order; numbers increase.
        codes: the code of each value, 0 … size−1.
        shares: share(v).
        ordered: an Ordinal column.
        state: missing is one more code, the last.
        reserve: probability of a value that was never seen; 0 refuses it.
        apart: encoded numbers distinguish the values that share code 0.

    >>> city = Labels("label", ("Bergen", "Oslo"), (0, 1), (1.0, 1.0))
    >>> cells = Cells("label", np.array([0, 0, 1]), np.array([False, False, True]), ("Oslo", "Bergen"))
    >>> city.encode("city", cells)[0].flatten()
    tensor([1., 1., nan], dtype=torch.float64)
    """

    type: str
    values: tuple[Label, ...]
    codes: tuple[int, ...]
    shares: tuple[float, ...]
    unit: str = ""
    ordered: bool = False
    state: bool = False
    reserve: float = 0.0
    apart: bool = False

    @cached_property
    def size(self) -> int:
        """Number of codes."""
        return max(self.codes) + 1 + self.state

    @cached_property
    def shared(self) -> int:
        """Number of values that share code 0 and are kept apart."""
        return self.codes.count(0) if self.apart else 0

    @property
    def slots(self) -> int:
        """Number of values that encoded numbers distinguish, missing among them where it is a code."""
        return self.size + max(self.shared - 1, 0)

    @cached_property
    def slot_of_value(self) -> NDArray[np.int64]:
        """The slot of every value: those that share code 0, then the other codes; without these, its code."""
        codes = np.array(self.codes)
        return np.argsort(self._lots[0]) if self.apart else codes

    @property
    def can_be_apart(self) -> bool:
        """Whether values share code 0, and no other."""
        codes = np.bincount(self.codes)
        return 1 < codes[0] <= MOST_APART and bool((codes[1:] == 1).all()) and not self.ordered

    def kept_apart(self) -> Labels:
        """The same, but for encoded numbers that distinguish values of code 0."""
        return replace(self, apart=True)

    def columns(self, name: str) -> dict[str, Column]:
        """One Category or Ordinal."""
        return {name: Ordinal(self.size) if self.ordered else Category(self.size)}

    def encode(self, name: str, cells: Cells) -> Block:
        """Codes (n, 1), nan where missing or never seen, and log-density terms (n,)."""
        index = find(name, cells, self)
        gap = float(self.size - 1) if self.state else math.nan
        numbers = np.array(self.codes, np.float64)
        if self.apart:
            numbers = placed(torch.from_numpy(self.slot_of_value), self.shared, torch.float64).numpy()
        codes = np.array([*numbers, math.nan, gap])[index]
        seen = math.log1p(-self.reserve)
        terms = _log_terms(self, np.log(self.shares), seen if self.state else 0.0)[index]
        return torch.from_numpy(codes)[:, None], torch.from_numpy(terms)

    def unseen(self, name: str, cells: Cells) -> Tensor:
        """Which cells hold a value that is not listed, (n,)."""
        return torch.from_numpy(find(name, cells, self) == -2)

    def decode(self, x: Tensor, generator: Generator | None = None) -> Cells:
        """Values from encoded numbers (n, 1); a shared code that is no more than that is drawn by the shares."""
        code = x[:, 0].cpu()
        hidden = code.isnan()
        whole = torch.where(hidden, 0.0, code).long()
        if len(whole) and not 0 <= int(whole.min()) <= int(whole.max()) < self.size:
            raise ValueError(
                f"x: expected codes 0 … {self.size - 1}; got {int(whole.min())} … {int(whole.max())}."
            )
        order, start, total = self._lots
        known = lot = np.minimum(whole.numpy(), len(start) - 1)
        if len(order) > len(start):
            u = _uniform(len(x), generator)
            lot = np.maximum(np.searchsorted(total, known + u.numpy() * (1 - 1e-12), "right"), start[known])
        if self.apart:
            slot = slots_of(torch.where(hidden, 0.0, code), self.shared).numpy()
            lot = np.where((slot >= 0) & (slot < self.shared), slot, lot)
        gone = hidden.numpy() | (whole.numpy() >= len(start))
        return cells_of(self, np.where(gone, -1, order[lot]))

    def by_value(self, p: Tensor) -> tuple[Cells, Tensor]:
        """All values, "missing" last where it is a state, and their probabilities from those of codes or slots (n, k).

        >>> Labels("label", ("a", "b", "c"), (0, 1, 1), (1.0, 0.25, 0.75)).by_value(torch.tensor([[0.6, 0.4]]))[1]
        tensor([[0.6000, 0.1000, 0.3000]])
        """
        places = [*range(len(self.values)), *[-1] * self.state]
        if self.apart and p.shape[1] == self.slots:
            slots = [*self.slot_of_value.tolist(), *[self.slots - 1] * self.state]
            return cells_of(self, np.array(places)), p[:, slots]
        codes = torch.tensor([*self.codes, *[self.size - 1] * self.state])
        shares = torch.tensor([*self.shares, *[1.0] * self.state], dtype=p.dtype)
        return cells_of(self, np.array(places)), p[:, codes] * shares

    @cached_property
    def _lots(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Values by code, where each code starts, and code + cumulative share: one search draws from every code."""
        codes = np.array(self.codes)
        order = np.argsort(codes, kind="stable")
        start = np.searchsorted(codes[order], np.arange(int(codes.max()) + 1))
        running = np.cumsum(np.array(self.shares)[order])
        within = running - np.concatenate([[0.0], running])[start][codes[order]]
        last = np.append(start[1:], len(codes)) - 1
        within[last] = 1.0
        return order, start, codes[order] + within

    def to_json(self) -> dict[str, Any]:
        """This codec as plain JSON."""
        lists = {"values": list(self.values), "codes": list(self.codes), "shares": list(self.shares)}
        flags = {"unit": self.unit, "ordered": self.ordered, "state": self.state, "reserve": self.reserve}
        return {
            "codec": "labels",
            "type": self.type,
            **lists,
            **flags,
            **({"apart": True} if self.apart else {}),
        }


@dataclass(frozen=True)
class Numbers:
    """A real column: x = T(X), and beside it, if some values are atoms, a column of these.

    Codes of the atom column: 0 for the continuous part, then one for each atom, then one for "missing" if that is a
    state. An atom has no real part: x is nan there. The log-density term is log T′(X) in the continuous part. It is 0
    at an atom, which has a probability; but −log w where the column is dequantised by w, so that the densities of all
    values are per unit of X.

    Arguments:
        lattice: of the numbers, and their type.
        transform: T.
        atoms: numbers with a probability.
        state: missing is one more code, the last.
        reserve: probability beyond the ends of the column, where the density falls off; 0 refuses such values.
        seen: the least and the greatest X of the continuous part in fit; what a conditional has beyond is a guess.

    >>> from ctem.tables.margins.monotone import MonotoneMap
    >>> numbers = Numbers(Lattice("float"), MonotoneMap(0.0, 1.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0)), atoms=(0.0,))
    >>> list(numbers.columns("rain"))
    ['rain: atom', 'rain']
    """

    lattice: Lattice
    transform: Map
    atoms: tuple[float, ...] = ()
    state: bool = False
    reserve: float = 0.0
    seen: tuple[float, float] = -math.inf, math.inf

    @property
    def atomic(self) -> bool:
        """Whether there is an atom column."""
        return bool(self.atoms) or self.state

    def columns(self, name: str) -> dict[str, Column]:
        """A Real, after its atom column if there is one."""
        size = 1 + len(self.atoms) + self.state
        return {f"{name}: atom": Category(size), name: Real()} if self.atomic else {name: Real()}

    def encode(self, name: str, cells: Cells) -> Block:
        """x (n, 1 or 2) and log T′ (n,)."""
        X = torch.from_numpy(self.measure(name, cells))
        atom = self._atom(X)
        beyond = self._beyond(X, atom)
        if not self.reserve and bool(beyond.any()):
            raise self.outside(name, cells, int(beyond.long().argmax()))
        rest = ~(X.isnan() | beyond | (atom > 0))
        part, term = self._mapped(name, cells, X, rest)
        x = part[:, None]
        if self.atomic:
            hidden = math.nan if not self.state else 1.0 + len(self.atoms)
            x = torch.stack([torch.where(X.isnan(), hidden, atom.double()), part], 1)
            term[atom > 0] = -math.log(self.lattice.width) if self.lattice.width else 0.0
        if self.reserve and isinstance(self.transform, Bounded):
            gone = X.isnan() & (not self.state)
            term += math.log1p(-self.reserve) * (~gone).double()
            x[beyond], term[beyond] = math.nan, math.log(self.reserve) + self.transform.log_beyond(X[beyond])
        return x, term

    def _mapped(self, name: str, cells: Cells, X: Tensor, rest: Tensor) -> Block:
        """T(X) and log T′(X) of some rows; nan and 0 elsewhere."""
        few = self.seen[1] - self.seen[0] < len(X) * self.lattice.width
        values, place = X[rest].unique(return_inverse=True) if few else (X[rest], slice(None))
        mapped, slopes = self.transform.with_log_slope(values)
        x, log_slope = torch.full_like(X, math.nan), torch.zeros_like(X)
        x[rest], log_slope[rest] = mapped[place], slopes.nan_to_num(0.0)[place]
        if not bool((x.isfinite() | ~rest).all()):
            row = int((~x.isfinite() & rest).double().argmax())
            raise ValueError(
                f"column {name!r}, row {cells.first + row}: {float(X[row]):g} is further than float64 can hold "
                f"from the values in fit ({self.transform.location:g} ± {self.transform.scale:g})."
            )
        return x, log_slope

    def _atom(self, X: Tensor) -> Tensor:
        """Which atom every number is, counted from 1; 0 for none."""
        if not self.atoms:
            return torch.zeros_like(X, dtype=torch.long)
        values, order = torch.tensor(self.atoms, dtype=torch.float64).sort()
        near = torch.searchsorted(values, X).clamp(max=len(values) - 1)
        return torch.where(values[near] == X, order[near] + 1, 0)

    def unseen(self, name: str, cells: Cells) -> Tensor:
        """Which cells lie beyond the ends of the column, (n,)."""
        X = torch.from_numpy(self.measure(name, cells))
        return self._beyond(X, self._atom(X))

    def _beyond(self, X: Tensor, atom: Tensor) -> Tensor:
        if not isinstance(self.transform, Bounded):
            return torch.zeros_like(X, dtype=torch.bool)
        low, high = self.transform.edges
        return (atom == 0) & ((low > X) | (high < X))

    def outside(self, name: str, cells: Cells, row: int) -> ValueError:
        """The error for a value beyond the ends of the column."""
        ends = (
            f"{self.transform.low:g} … {self.transform.high:g}" if isinstance(self.transform, Bounded) else ""
        )
        return ValueError(
            f"column {name!r} holds {cells.to_list()[row]} in row {cells.first + row}, beyond its ends {ends}; "
            f"kinds={{{name!r}: Real(low=…, high=…)}} in fit sets others."
        )

    def decode(self, x: Tensor, generator: Generator | None = None) -> Cells:
        """Numbers from x (n, 1 or 2), on the lattice; atoms as they are."""
        x = x.double().cpu()
        if not self.atomic:
            return self.lattice.restore(self._inverse(x[:, 0]))
        atom, rest = x[:, 0], x[:, 0] == 0
        listed = torch.tensor([math.nan, *self.atoms, math.nan], dtype=torch.float64)
        X = listed[atom.nan_to_num(0.0).long()]
        X[rest] = self._inverse(x[rest, 1])
        return self.lattice.restore(X, atom > 0)

    def _inverse(self, x: Tensor) -> Tensor:
        X = self.transform.inverse(x)
        return X.clamp(self.transform.low, self.transform.high) if isinstance(self.transform, Bounded) else X

    def ends(self) -> Cells:
        """The least and the greatest value of the continuous part in fit."""
        return self.lattice.restore(torch.tensor(self.seen, dtype=torch.float64))

    def jitter(self, x: Tensor, generator: Generator) -> Tensor:
        """T(X + w(U − ½)) for the real part x (n,): a uniform point of the cell that X stands for."""
        X = self.lattice.snap(self.transform.inverse(x.double()))
        u = torch.rand(x.shape, generator=generator, dtype=torch.float64, device=x.device)
        return self.transform(X + self.lattice.width * (u - 0.5)).to(x.dtype)

    def to_json(self) -> dict[str, Any]:
        """This codec as plain JSON."""
        parts = {"lattice": self.lattice.to_json(), "transform": self.transform.to_json()}
        rest = {"atoms": list(self.atoms), "state": self.state, "reserve": self.reserve}
        return {"codec": "numbers", **parts, **rest, "seen": list(self.seen)}

    def measure(self, name: str, cells: Cells) -> NDArray[np.float64]:
        """X of cells, nan where missing, after a check that they are of the type of fit."""
        if cells.missing.all():
            return np.full(len(cells), np.nan)
        timed = self.lattice.type in ("moment", "duration")
        if cells.type != self.lattice.type if timed else cells.type not in ("int", "float"):
            wanted = in_words(self.lattice.type) if timed else "numbers"
            raise TypeError(f"column {name!r}: expected {wanted}, as in fit; got {in_words(cells.type)}.")
        return self.lattice.measure(cells)


Codec = Constant | LeftOut | Labels | Numbers


def codec_from_json(data: Mapping[str, Any]) -> Codec:
    """The codec that ``to_json`` wrote; anything else is refused.

    >>> codec_from_json(Constant("int", (7,)).to_json())
    Constant(type='int', values=(7,), unit='', reserve=0.0)
    """
    kind = data["codec"]
    if kind == "numbers":
        atoms = tuple(map(float, data["atoms"]))
        if not all(map(math.isfinite, atoms)) or len(set(atoms)) < len(atoms):
            raise ValueError(f"codec: expected finite atoms, each once; got {atoms[:3]} …")
        lattice, transform = Lattice.from_json(data["lattice"]), bounded_from_json(data["transform"])
        return Numbers(
            lattice, transform, atoms, _flag(data["state"]), _reserve(data["reserve"]), _seen(data["seen"])
        )
    if kind == "left out" and data["type"] in TYPES:
        return LeftOut(data["type"], str(data["unit"]))
    if kind not in ("constant", "labels") or data["type"] not in TYPES:
        raise ValueError(f"codec: expected constant, labels or numbers of a known type; got {kind!r}.")
    values = tuple(data["values"])
    if not all(_can_be(data["type"], value) for value in values) or len(set(values)) < len(values):
        raise ValueError(f"codec: expected values that a {data['type']} can have, each once.")
    reserve = _reserve(data["reserve"])
    if kind == "constant":
        return Constant(data["type"], values, str(data["unit"]), reserve)
    codes, shares = tuple(data["codes"]), tuple(map(float, data["shares"]))
    _check_codes(values, codes, shares)
    flags = _flag(data["ordered"]), _flag(data["state"])
    codec = Labels(data["type"], values, codes, shares, str(data["unit"]), *flags, reserve)
    if not _flag(data.get("apart", False)):
        return codec
    if not codec.can_be_apart:
        raise ValueError("codec: expected values that share code 0, and no other, to keep apart.")
    return codec.kept_apart()


def _can_be(kind: str, value: Any) -> bool:
    """Whether a value of a file is one of this type of cells, which NumPy can hold."""
    if kind in ("label", "bool", "float"):
        allowed: Any = {"label": str | int | float, "bool": bool, "float": int | float}[kind]
        return isinstance(value, allowed) and (isinstance(value, str | bool) or math.isfinite(value))
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64


def _check_codes(values: tuple[Label, ...], codes: tuple[Any, ...], shares: tuple[float, ...]) -> None:
    """Every code in use, none beyond the number of values, and the shares of a code add up to 1."""
    fine = 1 <= len(values) == len(codes) == len(shares) and all(type(code) is int for code in codes)
    if not fine or not 0 <= min(codes) <= max(codes) < len(codes) or len(set(codes)) <= max(codes):
        raise ValueError("codec: expected a code and a share for every value, and no code left out.")
    total = np.bincount(np.array(codes), weights=np.array(shares))
    if not all(0 < share <= 1 for share in shares) or not np.allclose(
        total, 1, rtol=0, atol=1e-9 * len(codes)
    ):
        raise ValueError("codec: expected shares in (0, 1] that add up to 1 in every code.")


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"codec: expected true or false; got {value!r}.")
    return value


def _seen(value: Any) -> tuple[float, float]:
    low, high = map(float, value)
    if not -math.inf < low <= high < math.inf:
        raise ValueError(f"codec: expected the least and the greatest number that fit saw; got {value!r}.")
    return low, high


def _reserve(value: Any) -> float:
    if value != 0 and not 1e-24 <= float(value) <= 0.5:
        raise ValueError(f"codec: expected a reserve of 0, or in [1e-24, ½]; got {value!r}.")
    return float(value)


def _log_terms(codec: Constant | Labels, seen: NDArray[np.float64], gap: float) -> NDArray[np.float64]:
    """Log-density terms by place: of the values, at −2 of one that was never seen, at −1 of a missing cell."""
    new = math.log(codec.reserve) if codec.reserve else -math.inf
    return np.concatenate([seen + math.log1p(-codec.reserve), [new, gap]])


def _uniform(n: int, generator: Generator | None) -> Tensor:
    if generator is None:
        raise ValueError("decode: expected a torch.Generator, to draw among rare values that share a code.")
    return torch.rand(n, generator=generator, dtype=torch.float64, device=generator.device).cpu()
