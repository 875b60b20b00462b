"""scikit-learn's outlier interface: rows that are stranger than all but a given share of the rows of fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import OutlierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ctem.estimators.estimator import CTEM
from ctem.estimators.wrappers import AroundCTEM, taking_settings
from ctem.tables.answers.density import TableDensity

__all__ = ["CTEMOutlier"]

Vector = NDArray[np.float64]


class CTEMOutlier(OutlierMixin, AroundCTEM):  # type: ignore[misc]
    """An outlier detector of scikit-learn: a row is one if it is stranger than all but a given share of fit.

    Arguments:
        estimator: the density, fitted as a clone; ``CTEM()`` when None.
        contamination: share of the rows of fit that are called outliers, in (0, 0.5].
        and the arguments of ``CTEM``: where they differ from its defaults, they are set in the density.

    Attributes:
        estimator_: the fitted ``CTEM``; its ``outliers`` names the columns.
        offset_: the threshold in nats.
        n_features_in_, feature_names_in_: as in scikit-learn.

    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> outliers = CTEMOutlier(CTEM(max_steps=20, random_state=0), contamination=0.05).fit(X)
    >>> int((outliers.predict(X) == -1).sum()), outliers.predict([[0.0, 0.0], [30.0, -30.0]])
    (10, array([ 1, -1]))
    """

    offset_: float

    @taking_settings
    def __init__(self, estimator: CTEM | None = None, *, contamination: float = 0.1):
        self.estimator = estimator
        self.contamination = contamination

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, X_val: Any = None) -> CTEMOutlier:
        """Fit the density, as ``CTEM.fit`` does, and set the threshold."""
        share: Any = self.contamination
        if not isinstance(share, int | float | np.number) or not 0 < share <= 0.5:
            raise ValueError(f"contamination: expected a share in (0, 0.5]; got {share!r}.")
        density = self.density()
        data = density._learn(X, sample_weight, X_val)
        self._adopt(density)
        table = TableDensity(density.schema_, density.density_)
        self.offset_ = self._threshold(-table.surprise(data.frame), data.weights)
        return self

    def _threshold(self, score: Vector, weight: Tensor | None) -> float:
        """The score below which ``contamination`` of the rows lie, by their weights if they have any."""
        if weight is None:
            return float(np.percentile(score, 100 * self.contamination))
        order = np.argsort(score)
        share = np.cumsum(weight.double().cpu().numpy()[order])
        return float(score[order[np.searchsorted(share, self.contamination * share[-1], side="right")]])

    def score_samples(self, X: Any) -> Vector:
        """−``outlier_scores`` of every row, in nats: lower is stranger."""
        check_is_fitted(self)
        return -self.estimator_.outlier_scores(X)

    def decision_function(self, X: Any) -> Vector:
        """The score less the threshold: negative for outliers."""
        return self.score_samples(X) - self.offset_

    def p_values(self, X: Any) -> Vector:
        """Conformal p-values of the rows, as ``CTEM.p_values`` has them."""
        check_is_fitted(self)
        return self.estimator_.p_values(X)

    def predict(self, X: Any) -> NDArray[np.int64]:
        """1 for inliers, −1 for outliers."""
        return np.where(self.decision_function(X) < 0, -1, 1)
