"""Pictures of a fitted model, by matplotlib: pairs of columns, a conditional, a what-if curve. Each returns its axes.

>>> import matplotlib
>>> matplotlib.use("agg")
>>> import numpy as np
>>> from ctem import CTEM, plot
>>> X = np.random.default_rng(0).normal(size=(120, 2))
>>> model = CTEM(max_steps=5, width=8, members=1, random_state=0).fit(X)
>>> plot.pairs(model, X).shape
(2, 2)
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from ctem.estimators.estimator import CTEM
from ctem.fitting.arguments import check_count
from ctem.tables.answers.distributions import DAY, ColumnDistribution
from ctem.tables.answers.markup import cell_text
from ctem.tables.io.cells import Cells, tzinfo_of
from ctem.tables.io.given import positions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["conditional", "pairs", "what_if"]

REAL, SAMPLED, UNKNOWN = "#1f5fa8", "#c0562f", "#9aa5b1"
CURVES = ("#1f5fa8", "#c0562f", "#3b7d4f", "#7a4fa3", "#a8861f", "#3f8fa8")
MOST_COLUMNS = 4  # of pairs, when none are named
MOST_LABELS = 6  # curves of a what-if
STEPS = 41  # points of a what-if curve
CENTRAL = (0.025, 0.975)  # the part of a column that a curve runs over
BAND = (0.1, 0.9)


def pairs(
    model: CTEM,
    X: Any,
    columns: Sequence[str | int] | None = None,
    n_rows: int = 500,
    random_state: Any = 0,
) -> NDArray[Any]:
    """Every pair of some columns: rows of X below the diagonal, as many sampled rows above it, both on the diagonal.

    Panel (i, j) has column j to the right and column i upwards, so that a picture above the diagonal is the mirror
    image of the one below if the model is right. Rows with a missing cell are left out of the pairs it is missing in.

    Arguments:
        model: a fitted estimator.
        X: a table of the columns of fit.
        columns: names or positions; the first four that the model has when None.
        n_rows: of X, chosen at random, and of the samples; at most.
        random_state: a seed of both.

    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> X = np.random.default_rng(0).normal(size=(120, 3))
    >>> model = CTEM(max_steps=5, width=8, members=1, random_state=0).fit(X)
    >>> pairs(model, X, columns=["x0", "x2"]).shape
    (2, 2)
    """
    check_is_fitted(model)
    check_count("n_rows", n_rows)
    names = _named(model, columns)
    frame = model.as_frame(X).displayed()
    chosen = np.random.default_rng(random_state).permutation(len(frame))[:n_rows]
    drawn = model.as_frame(model.sample(len(chosen), random_state))
    real, sampled = ([table.columns[name] for name in names] for table in (frame, drawn))
    scales = [_Scale.of(cells) for cells in real]
    figure, axes = _pyplot().subplots(
        *(len(names), len(names)), figsize=(2.2 * len(names) + 1, 2.2 * len(names)), squeeze=False
    )
    for i, j in np.ndindex(axes.shape):
        if i == j:
            _margins(axes[i, i], scales[i], real[i], sampled[i])
            continue
        cells, colour = (real, REAL) if i > j else (sampled, SAMPLED)
        rows = chosen if i > j else np.arange(len(chosen))
        _scatter(axes[i, j], scales[j], cells[j], scales[i], cells[i], rows, colour)
    _outside(axes, names, scales)
    figure.suptitle("rows of the table (blue, below) and sampled rows (red, above)", fontsize=10)
    figure.set_layout_engine("constrained")
    return np.asarray(axes)


def conditional(
    model: CTEM,
    column: str | int,
    given: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
    ax: Axes | None = None,
) -> Axes:
    """What the model expects of one column: with nothing known in grey, and given the values of others in colour.

    Arguments:
        model: a fitted estimator.
        column: its name or position.
        given: name → value, of one row; or several of them.
        ax: where to draw; a new figure when None.

    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> X = np.random.default_rng(0).normal(size=(120, 2))
    >>> model = CTEM(max_steps=5, width=8, members=1, random_state=0).fit(X)
    >>> conditional(model, "x1", given={"x0": 0.5}).get_xlabel()
    'x1'
    """
    check_is_fitted(model)
    (name,) = _named(model, [column])
    ax = ax or _pyplot().subplots(layout="constrained")[1]
    known = [given] if isinstance(given, Mapping) else list(given)
    rows = [({}, UNKNOWN), *((part, CURVES[i % len(CURVES)]) for i, part in enumerate(known) if part)]
    distributions = [model.conditional(part, name).distribution for part, _ in rows]
    scale = _Scale.of(distributions[0].cells, gaps=True)
    for i, (distribution, (part, colour)) in enumerate(zip(distributions, rows, strict=True)):
        label = ", ".join(f"{key} {_short(value)}" for key, value in part.items()) or "nothing known"
        _distribution(ax, scale, distribution, colour, label, (i, len(distributions)))
    scale.label(ax.xaxis)
    ax.set(
        xlabel=scale.named(name),
        ylabel="probability" if scale.labels else f"density per {scale.unit}".strip(),
    )
    ax.legend(frameon=False, fontsize=9)
    return ax


def what_if(
    model: CTEM,
    column: str | int,
    target: str | int,
    given: Mapping[str, Any] | None = None,
    values: Sequence[Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """What the model expects of ``target`` as ``column`` varies and ``given`` stays.

    Of a number, its mean and the interval that holds eight in ten; of a label, the probability of each value. It is
    what is seen in such rows, not what would happen to a row whose column were changed.

    Arguments:
        model: a fitted estimator.
        column: what varies.
        target: the column that it is expected of.
        given: name → value of other columns; the rest is unknown.
        values: of the column; its central values when None.
        ax: where to draw; a new figure when None.

    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> X = np.random.default_rng(0).normal(size=(120, 2))
    >>> model = CTEM(max_steps=5, width=8, members=1, random_state=0).fit(X)
    >>> what_if(model, "x0", "x1", values=[-1.0, 0.0, 1.0]).get_ylabel()
    'x1'
    """
    check_is_fitted(model)
    varied, expected = _named(model, [column, target])
    known = dict(given or {})
    ax = ax or _pyplot().subplots(layout="constrained")[1]
    range_of = model.conditional(known, varied).distribution
    tried = _tried(range_of) if values is None else list(values)
    distributions = [model.conditional({**known, varied: value}, expected).distribution for value in tried]
    scale = _Scale.of(range_of.cells)
    place = scale.places_of(tried)
    _curves(ax, place, distributions, expected, discrete=bool(scale.labels))
    scale.label(ax.xaxis)
    ax.set(xlabel=scale.named(varied))
    title = ", ".join(f"{key} {_short(value)}" for key, value in known.items())
    ax.set_title(f"given {title}" if title else "all other columns unknown", fontsize=10)
    return ax


class _Scale(NamedTuple):
    """How a column lies on an axis: numbers as they are or as their text, dates in their zone, labels at 0, 1, 2, …"""

    type: str
    labels: tuple[Any, ...]
    time: str
    unit: str
    zone: Any
    text: Callable[[Any], str] | None

    @classmethod
    def of(cls, cells: Cells, gaps: bool = False) -> _Scale:
        labels: tuple[Any, ...] = (
            cells.labels if cells.type == "label" else (False, True) if cells.type == "bool" else ()
        )
        labels = (*labels, None) if labels and gaps and cells.missing.any() else labels
        units = {"moment": "day", "duration": "day"}
        zone = tzinfo_of(cells.zone) if cells.zone else None
        return cls(cells.type, labels, cells.unit, units.get(cells.type, "unit"), zone, cells.text)

    def places(self, cells: Cells) -> NDArray[Any]:
        """Where the cells lie, as matplotlib takes them; missing ones at nan or NaT."""
        cells = replace(cells, zone="", text=None)
        if self.labels:
            at = {label: place for place, label in enumerate(self.labels)}
            return np.array([at.get(label, np.nan) for label in cells.to_list()], float)
        if self.type == "duration":
            days = cells.to_numpy() / np.timedelta64(1, "D")
            return np.asarray(days)
        if self.type == "moment":
            return np.asarray(cells.to_numpy().astype("M8[us]"))
        return np.where(cells.missing, np.nan, cells.values.astype(float))

    def places_of(self, values: Sequence[Any]) -> NDArray[Any]:
        """Where Python objects lie."""
        if self.labels:
            return np.array([self.labels.index(value) for value in values], float)
        if self.type == "moment":
            return np.array([_in_utc(value) for value in values], "M8[us]")
        if self.type == "duration":
            return np.array(values, "m8[us]") / np.timedelta64(1, "D")
        return np.array(values, float)

    def label(self, axis: Any) -> None:
        """Names on the axis of a category, times on that of a zone, and text for numbers that stand for it."""
        if self.zone is not None:
            axis.axis_date(self.zone)
        if (text := self.text) is not None:
            axis.get_major_locator().set_params(integer=True)
            axis.set_major_formatter(lambda place, _: text(round(place)))
        if self.labels:
            texts = [_short(label) for label in self.labels]
            axis.set_ticks(range(len(texts)), texts, rotation=0 if sum(map(len, texts)) < 40 else 60)

    def named(self, name: str) -> str:
        """The name of the column, with the unit that its axis has."""
        return f"{name}, days" if self.type == "duration" else name


def _named(model: CTEM, columns: Sequence[str | int] | None) -> list[str]:
    """The names of columns that the density has."""
    left_out, names = set(model.schema_.left_out), model.table_type_.names
    if columns is None:
        return [name for name in names if name not in left_out][:MOST_COLUMNS]
    chosen = [names[j] for j in positions("columns", columns, model.table_type_)]
    if gone := [name for name in chosen if name in left_out]:
        raise ValueError(f"columns: {gone[0]!r} is left out of the density; name other columns.")
    return chosen


def _margins(ax: Axes, scale: _Scale, real: Cells, sampled: Cells) -> None:
    """The shares of one column among rows of the table and among samples."""
    parts = [scale.places(cells) for cells in (real, sampled)]
    parts = [part[~np.isnan(part)] for part in parts]
    if scale.labels:
        edges: Any = np.arange(len(scale.labels) + 1) - 0.5
    else:
        edges = _edges(_floats(parts[0]), 86_400e6 if scale.type == "moment" else 1.0)
    for part, colour in zip(parts, (REAL, SAMPLED), strict=True):
        share = np.histogram(_floats(part), edges)[0] / max(len(part), 1)
        places = edges if scale.type != "moment" else edges.astype("M8[us]")
        ax.stairs(share, places, color=colour, fill=colour == REAL, alpha=0.5 if colour == REAL else 1.0)


def _edges(values: NDArray[np.float64], unit: float) -> NDArray[np.float64]:
    """Of twenty even bins; of one bin, about a unit wide, where all values are the same."""
    low, high = values.min(initial=np.inf), values.max(initial=-np.inf)
    if high - low > 1e-12 * max(abs(low), abs(high)):
        return np.linspace(low, high, 21)
    middle = low if len(values) else 0.0
    return middle + max(unit, 1e-6 * abs(middle)) * np.array([-0.5, 0.5])


def _floats(places: NDArray[Any]) -> NDArray[np.float64]:
    return places.astype("M8[us]").astype(np.int64).astype(float) if places.dtype.kind == "M" else places


def _scatter(
    ax: Axes, across: _Scale, x: Cells, up: _Scale, y: Cells, rows: NDArray[Any], colour: str
) -> None:
    """Points; labels are spread a little, so that they do not hide each other."""
    rng = np.random.default_rng(0)
    places = []
    for scale, cells in ((across, x), (up, y)):
        place = scale.places(cells)[rows]
        places.append(place + rng.uniform(-0.25, 0.25, len(place)) if scale.labels else place)
    ax.plot(*places, ".", ms=3, alpha=0.5, color=colour, mec="none")


def _outside(axes: Any, names: Sequence[str], scales: Sequence[_Scale]) -> None:
    """Names and numbers at the left and lower edge only, and the same range in each row and column."""
    last = len(names) - 1
    for i, j in np.ndindex(axes.shape):
        ax = axes[i, j]
        scales[j].label(ax.xaxis)
        if i != j:
            scales[i].label(ax.yaxis)
        _range(ax, axes[i, (last if i == 0 else 0)] if i != j else None, axes[last if j != last else 0, j])
        ax.tick_params(labelsize=7, labelbottom=i == last, labelleft=j == 0 and i > 0)
        ax.set_xlabel(scales[j].named(names[j]) if i == last else "", fontsize=9)
        ax.set_ylabel(scales[i].named(names[i]) if j == 0 else "", fontsize=9)


def _range(ax: Any, row: Any, column: Any) -> None:
    if column is not ax:
        ax.sharex(column)
    if row is not None and row is not ax:
        ax.sharey(row)


def _distribution(
    ax: Axes, scale: _Scale, distribution: ColumnDistribution, colour: str, label: str, place: tuple[int, int]
) -> None:
    """Bars of a category, side by side; the outline of a number's density, filled if nothing is known."""
    if scale.labels:
        at, width = scale.places(distribution.cells), 0.8 / place[1]
        ax.bar(
            at - 0.4 + width * (place[0] + 0.5), distribution.probability[0], width, color=colour, label=label
        )
        return
    if distribution.cells.missing.any():
        label = f"{label} (missing {distribution.probability[0, distribution.cells.missing].sum():.0%})"
    share, edges = distribution.histogram()
    density = share / np.diff(edges) * _per_day(scale)
    places = edges
    if scale.type == "moment":
        places = np.rint(edges).astype(np.int64).astype(f"M8[{scale.time}]").astype("M8[us]")
    elif scale.type == "duration":
        places = edges / _per_day(scale)
    ax.stairs(
        density, places, color=colour, fill=place[0] == 0, label=label, lw=1.6, alpha=0.9 if place[0] else 0.4
    )


def _per_day(scale: _Scale) -> float:
    """Counts of the unit of time in a day; 1 for numbers."""
    return DAY.get(scale.time, 1.0)


def _tried(range_of: ColumnDistribution) -> list[Any]:
    """Values of a column to look at: all labels, or numbers evenly spaced over its central part."""
    cells = range_of.cells
    if cells.type in ("label", "bool") or len(cells) <= STEPS:
        return [value for value in replace(cells, text=None).to_list() if value is not None]
    low, high = (range_of.without_atoms().quantile(share).values[0] for share in CENTRAL)
    values = np.linspace(0.0, float(high - low), STEPS)
    whole = cells.values.dtype.kind in "iu"
    values = low + np.unique(np.rint(values)).astype(cells.values.dtype) if whole else low + values
    return replace(cells, values=values, missing=np.zeros(len(values), bool), text=None).to_list()


def _in_utc(value: Any) -> Any:
    """A moment of a zone as one of UTC, which axes have; anything else as it is."""
    aware = isinstance(value, dt.datetime) and value.tzinfo is not None
    return value.astimezone(dt.UTC).replace(tzinfo=None) if aware else value


def _curves(
    ax: Axes, place: NDArray[Any], distributions: Sequence[ColumnDistribution], name: str, discrete: bool
) -> None:
    """Mean and band of a number; the probability of each of the most likely labels."""
    style = "o" if discrete else "-"
    if distributions[0].has_mean:
        scale = _Scale.of(distributions[0].cells)
        low, middle, high = (
            np.concatenate([scale.places(part) for part in cells])
            for cells in (
                [d.quantile(BAND[0]) for d in distributions],
                [d.mean() for d in distributions],
                [d.quantile(BAND[1]) for d in distributions],
            )
        )
        if discrete:
            ax.vlines(place, low, high, color=REAL, alpha=0.4, lw=6, label="eight in ten")
        else:
            ax.fill_between(place, low, high, color=REAL, alpha=0.2, lw=0, label="eight in ten")
        ax.plot(place, middle, style, color=REAL, label="mean")
        scale.label(ax.yaxis)
        ax.set_ylabel(scale.named(name))
    else:
        shares, labels = np.stack([d.probability[0] for d in distributions]), distributions[0].values
        for i, k in enumerate(np.argsort(-shares.mean(0))[:MOST_LABELS]):
            ax.plot(place, shares[:, k], style, color=CURVES[i % len(CURVES)], label=_short(labels[k]))
        ax.set(ylabel=f"probability of {name}", ylim=(0, 1))
    ax.legend(frameon=False, fontsize=9)


def _short(value: Any) -> str:
    text = cell_text(value)
    return text if len(text) <= 24 else text[:23] + "…"


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("ctem.plot: needs matplotlib; pip install 'ctem[plot]'.") from error
    return plt
