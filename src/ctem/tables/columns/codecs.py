"""How one column of a table becomes encoded columns, and back: labels, numbers, and columns that never vary.

Each codec has ``columns(name)``, ``encode(name, cells)`` → values (n, width) with nan where hidden and the log-density
terms (n,), ``decode(x, generator)`` → cells, and plain JSON. ``ctem.tables.columns.schema`` chooses them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from ctem.spaces import Category, Column, Ordinal, Real
from ctem.tables.columns.lattices import Ruler
from ctem.tables.columns.monotone import Curve
from ctem.tables.columns.preferred import Steps, map_from_json
from ctem.tables.frames.cells import Cells, Label

__all__ = ["Codec", "Constant", "Labels", "Numbers", "codec_from_json"]

TYPES = ("label", "bool", "int", "float", "moment", "duration")
Block = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Constant:
    """A column that holds one value, or none at all: nothing to encode, density 1.

    >>> Constant("int", (7,)).columns("n")
    {}
    """

    type: str
    values: tuple[Label, ...]
    unit: str = ""

    def columns(self, name: str) -> dict[str, Column]:
        """No encoded column."""
        return {}

    def encode(self, name: str, cells: Cells) -> Block:
        """Nothing, after a check that no other value came."""
        index = _find(name, cells, self)
        return torch.empty(len(index), 0, dtype=torch.float64), torch.zeros(len(index), dtype=torch.float64)

    def decode(self, x: Tensor, generator: Generator | None = None) -> Cells:
        """The value in every row; missing if none was ever seen."""
        return _cells(self, np.full(len(x), 0 if self.values else -1))

    def to_json(self) -> dict[str, Any]:
        """This codec as plain JSON."""
        return {"codec": "constant", "type": self.type, "values": list(self.values), "unit": self.unit}


@dataclass(frozen=True)
class Labels:
    """A column of listed values, one code each; rare ones may share a code.

    The log-density term of a value v is log share(v), its training frequency within its code: 0 for a code of its own.

    Arguments:
        type, unit: of the cells.
        values: the values in order; numbers increase.
        codes: the code of each value, 0 … size−1.
        shares: share(v).
        ordered: an Ordinal column.
        state: missing is one more code, the last.

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

    @property
    def size(self) -> int:
        """Number of codes."""
        return max(self.codes) + 1 + self.state

    def columns(self, name: str) -> dict[str, Column]:
        """One Category or Ordinal."""
        return {name: Ordinal(self.size) if self.ordered else Category(self.size)}

    def encode(self, name: str, cells: Cells) -> Block:
        """Codes (n, 1) and log shares (n,)."""
        index = _find(name, cells, self)
        gap = float(self.size - 1) if self.state else math.nan
        codes = np.append(np.array(self.codes, np.float64), gap)[index]
        log_share = np.append(np.log(self.shares), 0.0)[index]
        return torch.from_numpy(codes)[:, None], torch.from_numpy(log_share)

    def decode(self, x: Tensor, generator: Generator | None = None) -> Cells:
        """Values from codes (n, 1); a shared code is drawn by the shares."""
        code = x[:, 0].double().cpu()
        hidden = code.isnan()
        whole = torch.where(hidden, 0.0, code).long()
        if len(whole) and not 0 <= int(whole.min()) <= int(whole.max()) < self.size:
            raise ValueError(
                f"x: expected codes 0 … {self.size - 1}; got {int(whole.min())} … {int(whole.max())}."
            )
        order, start, total = self._lots
        u = (
            _uniform(len(x), generator)
            if len(self.values) > len(start)
            else torch.zeros(len(x), dtype=torch.float64)
        )
        known = np.minimum(whole.numpy(), len(start) - 1)
        lot = np.searchsorted(total, known + u.numpy() * (1 - 1e-12), side="right")
        index = order[np.clip(lot, start[known], None)]
        gone = hidden.numpy() | (whole.numpy() >= len(start))
        return _cells(self, np.where(gone, -1, index))

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
        flags = {"unit": self.unit, "ordered": self.ordered, "state": self.state}
        return {"codec": "labels", "type": self.type, **lists, **flags}


@dataclass(frozen=True)
class Numbers:
    """A real column: x = T(X), and beside it, if some values are atoms, a column that says which.

    The log-density term is log T′(X) for the continuous part. An atom's is 0: it has a probability; but −log w where
    the column is dequantised by w, so that all its values keep one unit, per X. The atom column is 0 for
    "continuous", then one code per atom, then one for "missing" if that is a state; the real part of an atom does not
    exist and is nan.

    >>> numbers = Numbers(Ruler("float"), Curve(0.0, 1.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0)), atoms=(0.0,))
    >>> list(numbers.columns("rain"))
    ['rain: atom', 'rain']
    """

    ruler: Ruler
    curve: Curve | Steps
    atoms: tuple[float, ...] = ()
    state: bool = False

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
        known = np.zeros(len(cells)) if cells.missing.all() else self._measure(name, cells)
        X = torch.from_numpy(np.where(cells.missing, np.nan, known))
        x, log_slope = self.curve.with_log_slope(X)
        if not bool((x.isfinite() | X.isnan()).all()):
            row = int((~x.isfinite() & ~X.isnan()).double().argmax())
            raise ValueError(
                f"column {name!r}, row {cells.first + row}: {float(X[row]):g} is further than float64 can say "
                f"from the values in fit ({self.curve.location:g} ± {self.curve.scale:g})."
            )
        log_slope = log_slope.nan_to_num(0.0)
        if not self.atomic:
            return x[:, None], log_slope
        atom = torch.where(X.isnan(), math.nan if not self.state else 1.0 + len(self.atoms), 0.0)
        for code, value in enumerate(self.atoms, 1):
            atom = torch.where(X.eq(value), float(code), atom)
        unit = -math.log(self.ruler.width) if self.ruler.width else 0.0
        term = torch.where(atom == 0, log_slope, torch.where(X.isnan(), 0.0, unit))
        return torch.stack([atom, torch.where(atom == 0, x, math.nan)], 1), term

    def decode(self, x: Tensor, generator: Generator | None = None) -> Cells:
        """Numbers from x (n, 1 or 2), on the lattice."""
        X = self.curve.inverse(x[:, -1].double().cpu())
        if self.atomic:
            atom = x[:, 0].double().cpu()
            X = torch.where(atom == 0, X, math.nan)
            for code, value in enumerate(self.atoms, 1):
                X = torch.where(atom == code, value, X)
        return self.ruler.restore(X)

    def jitter(self, x: Tensor, generator: Generator) -> Tensor:
        """T(X + w(U − ½)) for the real part x (n,): a uniform point of the cell that X stands for."""
        X = self.ruler.snap(self.curve.inverse(x.double()))
        u = torch.rand(x.shape, generator=generator, dtype=torch.float64, device=x.device)
        return self.curve(X + self.ruler.width * (u - 0.5)).to(x.dtype)

    def to_json(self) -> dict[str, Any]:
        """This codec as plain JSON."""
        parts = {"ruler": self.ruler.to_json(), "curve": self.curve.to_json()}
        return {"codec": "numbers", **parts, "atoms": list(self.atoms), "state": self.state}

    def _measure(self, name: str, cells: Cells) -> NDArray[np.float64]:
        timed = self.ruler.type in ("moment", "duration")
        if cells.type != self.ruler.type if timed else cells.type not in ("int", "float"):
            wanted = f"{self.ruler.type}s" if timed else "numbers"
            raise TypeError(f"column {name!r}: expected {wanted}, as in fit; got {_plural(cells.type)}.")
        return self.ruler.measure(cells)


Codec = Constant | Labels | Numbers


def codec_from_json(data: Mapping[str, Any]) -> Codec:
    """The codec that ``to_json`` wrote; anything else is refused.

    >>> codec_from_json(Constant("int", (7,)).to_json())
    Constant(type='int', values=(7,), unit='')
    """
    kind = data["codec"]
    if kind == "numbers":
        atoms = tuple(map(float, data["atoms"]))
        ruler, curve = Ruler.from_json(data["ruler"]), map_from_json(data["curve"])
        return Numbers(ruler, curve, atoms, _flag(data["state"]))
    if kind not in ("constant", "labels") or data["type"] not in TYPES:
        raise ValueError(f"codec: expected constant, labels or numbers of a known type; got {kind!r}.")
    values = tuple(data["values"])
    if not all(isinstance(value, str | int | float) for value in values) or len(set(values)) < len(values):
        raise ValueError("codec: expected values of text or numbers, each once.")
    if kind == "constant":
        return Constant(data["type"], values, str(data["unit"]))
    codes, shares = tuple(map(int, data["codes"])), tuple(map(float, data["shares"]))
    if not len(values) == len(codes) == len(shares) or set(codes) != set(range(max(codes, default=0) + 1)):
        raise ValueError("codec: expected a code and a share for every value, and no code left out.")
    if not all(0 < share <= 1 for share in shares):
        raise ValueError("codec: expected shares in (0, 1].")
    return Labels(
        data["type"], values, codes, shares, str(data["unit"]), _flag(data["ordered"]), _flag(data["state"])
    )


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"codec: expected true or false; got {value!r}.")
    return value


def _find(name: str, cells: Cells, codec: Constant | Labels) -> NDArray[np.int64]:
    """The place of every cell in the codec's values, −1 where missing; a stranger is an error."""
    if cells.missing.all():
        return np.full(len(cells), -1)
    if cells.type == "label":
        place = {value: i for i, value in enumerate(codec.values)}
        table = np.array([place.get(label, -2) for label in cells.labels])
        index = table[np.where(cells.missing, 0, cells.values)]
    else:
        index = _search(cells, codec)
    index = np.where(cells.missing, -1, index)
    if (index == -2).any():
        raise _stranger(name, cells, codec, int(np.argmax(index == -2)))
    return index


def _search(cells: Cells, codec: Constant | Labels) -> NDArray[np.int64]:
    if not codec.values or isinstance(codec.values[0], str):
        return np.full(len(cells), -2)
    values = cells.values
    if codec.unit and cells.unit and codec.unit != cells.unit:
        values = values.view(f"M8[{cells.unit}]").astype(f"M8[{codec.unit}]").view(np.int64)
    known = np.array(codec.values)
    order = np.argsort(known, kind="stable")
    at = np.minimum(np.searchsorted(known[order], values), len(known) - 1)
    return np.where(known[order][at] == values, order[at], -2)


def _stranger(name: str, cells: Cells, codec: Constant | Labels, row: int) -> ValueError:
    value = _short(_show(cells, row))
    if isinstance(codec, Constant):
        always = (
            "always missing"
            if not codec.values
            else f"always {_short(_show(codec.decode(torch.empty(1, 0)), 0))}"
        )
        return ValueError(
            f"column {name!r} holds {value} in row {cells.first + row}; in fit it was {always}, so it has no "
            "density elsewhere: drop the column, or fit on rows where it varies."
        )
    some = _cells(codec, np.arange(min(2, len(codec.values))))
    known = ", ".join(_short(_show(some, i)) for i in range(len(some)))
    advice = (
        "" if codec.type in ("label", "bool") else f"; columns={{{name!r}: Real()}} in fit takes any number"
    )
    return ValueError(
        f"column {name!r} holds {value} in row {cells.first + row}, not seen in fit; "
        f"known: {known}, … ({len(codec.values)} in all){advice}."
    )


def _show(cells: Cells, row: int) -> Any:
    pick = slice(row, row + 1)
    one = Cells(cells.type, cells.values[pick], cells.missing[pick], cells.labels, cells.unit)
    value = one.to_list()[0]
    return value if isinstance(value, str | int | float | bool) else str(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…" + text[0]


def _cells(codec: Constant | Labels, index: NDArray[np.int64]) -> Cells:
    """Cells of the codec's type from places in its values, missing at −1."""
    missing = index < 0
    if codec.type == "label":
        return Cells("label", index, missing, codec.values)
    store = {"bool": bool, "float": np.float64}.get(codec.type, np.int64)
    listed = np.array(codec.values or (0,), np.uint64 if _unsigned(codec) else store)
    values = listed[np.where(missing, 0, index)]
    return Cells(codec.type, values, missing, unit=codec.unit)


def _unsigned(codec: Constant | Labels) -> bool:
    return codec.type == "int" and any(int(value) >= 2**63 for value in codec.values)


def _plural(kind: str) -> str:
    return {"label": "text or categories", "bool": "booleans"}.get(kind, f"{kind}s")


def _uniform(n: int, generator: Generator | None) -> Tensor:
    if generator is None:
        raise ValueError("decode: expected a torch.Generator, to draw among rare values that share a code.")
    return torch.rand(n, generator=generator, dtype=torch.float64, device=generator.device).cpu()
