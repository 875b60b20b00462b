r"""A scikit-learn transformer that fills missing cells of mixed tables from one density.

* ``strategy="mean"``: E[X_j | observed cells of the row], of values as far as fit saw any, so that a heavy tail, which
  is a guess, does not move it (as in ``CTEM.impute`` and ``predict``); of labels and booleans the most likely value.
* ``strategy="mode"``: the most likely value of X_j given the observed cells.
* ``strategy="sample"``: the missing cells of a row drawn together, given the observed ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray
from sklearn.base import TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from ctem.estimators.estimator import CTEM
from ctem.estimators.wrappers import AroundCTEM, taking_settings
from ctem.fitting.arguments import check_count
from ctem.tables.answers.density import TableDensity
from ctem.tables.answers.heldout import EVERY, held_out_parts
from ctem.tables.answers.intervals import Intervals
from ctem.tables.io.files import read_path
from ctem.tables.io.frame import Frame, build_frame, read_frame
from ctem.tables.io.given import text_types
from ctem.tables.io.rows import indexed, taken
from ctem.training.borrowed import checked_feature_names, output_config

__all__ = ["CTEMImputer"]

STRATEGIES = ("mean", "mode", "sample")
CALIBRATING = 500  # held-out rows that intervals are calibrated on, at most


class CTEMImputer(TransformerMixin, AroundCTEM):  # type: ignore[misc]
    """Missing cells of numbers, labels and dates, filled in given the observed cells of their row.

    Answers are tables of the kind that came in (NumPy, pandas, polars, pyarrow), or what ``set_output`` asks for.
    Observed cells stay bit for bit. A column without any value in fit stays missing.

    Arguments:
        estimator: the density, fitted as a clone; ``CTEM()`` when None.
        strategy: "mean", "mode" or "sample".
        add_indicator: append a column ``missingindicator_NAME`` for every column with gaps in fit.
        random_state: a seed of the fit and of the draws of "sample"; that of the estimator when None.
        and the arguments of ``CTEM``: where they differ from its defaults, they are set in the density.

    Attributes:
        estimator_: the fitted ``CTEM``.
        indicated_: names of the columns with gaps in fit.
        n_features_in_, feature_names_in_: as in scikit-learn.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=300)
    >>> X = np.column_stack([x, 2 * x])
    >>> X[:50, 1] = np.nan
    >>> imputer = CTEMImputer(CTEM(width=16, members=1, batch_size=64, max_steps=80, random_state=0))
    >>> filled = imputer.fit_transform(X)
    >>> bool(np.corrcoef(filled[:50, 1], x[:50])[0, 1] > 0.95)
    True
    """

    indicated_: tuple[str, ...]
    _intervals: Intervals

    @taking_settings
    def __init__(
        self,
        estimator: CTEM | None = None,
        *,
        strategy: str = "mean",
        add_indicator: bool = False,
        random_state: Any = None,
    ):
        self.estimator = estimator
        self.strategy = strategy
        self.add_indicator = add_indicator
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def fit(self, X: Any, y: Any = None) -> CTEMImputer:
        """Fit the density to the observed cells."""
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy: expected one of {STRATEGIES}; got {self.strategy!r}.")
        density = self.density()
        if getattr(density, "missing", "hidden") == "state":
            raise ValueError("estimator: missing='state' makes a missing cell a value; use missing='hidden'.")
        data = density._learn(X)
        self._adopt(density)
        self.indicated_ = tuple(name for name, cells in data.frame.columns.items() if cells.missing.any())
        parts = held_out_parts(self._table, data.frame, density.seed_, CALIBRATING)
        if data.kept is not None:  # of a table that does not fit into memory
            parts = [(EVERY, taken(data.kept, slice(0, CALIBRATING)))]
        self._intervals = Intervals(self._table, parts)
        return self

    def transform(self, X: Any, return_std: bool = False) -> Any:
        """X with its missing cells filled in; with ``return_std``, and the standard deviation of each.

        Those are (n, columns): 0 for an observed cell, nan for a label, days for dates.
        """
        check_is_fitted(self)
        X, given, frame = self._read(X)
        made = self.estimator_._imputed(X, given, frame, self.strategy, random_state=self.random_state)
        table = self._answer(made, frame)
        return (table, self._table.uncertainty(frame)) if return_std else table

    def draws(self, X: Any, n_draws: int = 5, random_state: Any = None) -> list[Any]:
        """Multiple imputation: tables whose missing cells are drawn together, whatever the strategy."""
        check_is_fitted(self)
        check_count("n_draws", n_draws)
        (X, given, frame), seed = self._read(X), self.random_state if random_state is None else random_state
        drawn = self.estimator_._imputed(X, given, frame, "sample", n_draws, seed)
        return [self._answer(table, frame) for table in (drawn if n_draws > 1 else [drawn])]

    def intervals(self, X: Any, coverage: float = 0.9) -> tuple[Any, Any]:
        """Lower and upper ends of central intervals of the missing cells, as two tables without indicators.

        Each holds its cell with probability ``coverage`` given the observed cells of the row: so often they do on rows
        that fit held out (``ctem.tables.answers.intervals``). With too few of those, such as 8 for 0.9, an interval is
        all that the column may hold. Observed cells stand in both; a label has no interval and stays missing.
        """
        check_is_fitted(self)
        if not 0 < coverage < 1:
            raise ValueError(f"coverage: expected a share in (0, 1); got {coverage!r}.")
        X, _, frame = self._read(X)
        low, high = self._intervals.of(frame, coverage)
        return indexed(build_frame(frame.table_type, low), X), indexed(build_frame(frame.table_type, high), X)

    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> NDArray[np.object_]:
        """The names of the columns of ``transform``."""
        check_is_fitted(self)
        names = checked_feature_names(self, input_features)
        by_fit = dict(zip(self.estimator_.table_type_.names, names, strict=True))
        extra = [f"missingindicator_{by_fit[name]}" for name in self.indicated_] if self.add_indicator else []
        return np.array([*names, *extra], object)

    @property
    def _table(self) -> TableDensity:
        return TableDensity(self.estimator_.schema_, self.estimator_.density_)

    def _read(self, X: Any) -> tuple[Any, Frame, Frame]:
        X = read_path(X, text_types(self.estimator_.table_type_))
        given = read_frame(X)  # whose words on a wrong shape come first
        # names in the order of fit, as those that come out
        validate_data(self, X, skip_check_array=True, reset=False)
        return X, given, self.estimator_._as_fitted(X, given)

    def _answer(self, filled: Any, frame: Frame) -> Any:
        """The table with its indicators, in the library that ``set_output`` asks for."""
        flags = {f"missingindicator_{name}": frame.columns[name].missing for name in self.indicated_}
        if isinstance(filled, np.ndarray):
            return np.column_stack([filled, *flags.values()]) if self.add_indicator and flags else filled
        table = nw.from_native(filled, eager_only=True)
        if self.add_indicator and flags:
            made = nw.from_dict(flags, backend=table.implementation).to_native()
            both = [table, nw.from_native(indexed(made, filled), eager_only=True)]
            table = nw.concat(both, how="horizontal")
        wanted = output_config(self)["dense"]
        if wanted == table.implementation.name.lower() or wanted == "default":
            return table.to_native()
        return table.to_pandas() if wanted == "pandas" else table.to_polars()
