"""What estimators around a ``CTEM`` share: they take its arguments as their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any

from sklearn.base import BaseEstimator, clone
from sklearn.utils import Tags

from ctem.estimators.estimator import CTEM

__all__ = ["AroundCTEM", "taking_settings"]

DEFAULTS = {name: each.default for name, each in signature(CTEM).parameters.items()}


def taking_settings(init: Callable[..., None]) -> Callable[..., None]:
    """An ``__init__`` that also has the arguments of ``CTEM``, and keeps those that are not its own as attributes.

    >>> class Around(AroundCTEM):
    ...     @taking_settings
    ...     def __init__(self, estimator=None):
    ...         self.estimator = estimator
    >>> Around(effort="quick").get_params()["effort"]
    'quick'
    """
    declared = signature(init)
    rest = {name: default for name, default in DEFAULTS.items() if name not in declared.parameters}

    @wraps(init)
    def both(self: Any, *args: Any, **kwargs: Any) -> None:
        for name, default in rest.items():
            setattr(self, name, kwargs.pop(name, default))
        init(self, *args, **kwargs)

    keywords = [Parameter(name, Parameter.KEYWORD_ONLY, default=default) for name, default in rest.items()]
    both.__signature__ = declared.replace(parameters=[*declared.parameters.values(), *keywords])  # type: ignore[attr-defined]
    return both


class AroundCTEM(BaseEstimator):  # type: ignore[misc]
    """An estimator around a density: one that is given, with further arguments of ``CTEM`` set in it, or a new one.

    >>> from ctem.estimators.outliers import CTEMOutlier
    >>> CTEMOutlier(contamination=0.05, effort="quick").set_params(width=16)
    CTEMOutlier(contamination=0.05, effort='quick', width=16)
    """

    estimator: CTEM | None
    estimator_: CTEM

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags = self.density().__sklearn_tags__().input_tags
        return tags

    def density(self) -> CTEM:
        """The density to fit: a clone of the one that was given, or a new one, with the settings that were given."""
        density = CTEM() if self.estimator is None else clone(self.estimator)
        settings = {name: getattr(self, name) for name in DEFAULTS}
        return density.set_params(
            **{name: value for name, value in settings.items() if value is not DEFAULTS[name]}
        )

    def _adopt(self, fitted: CTEM) -> None:
        """Keep a fitted density, and the names of its columns as scikit-learn does."""
        self.estimator_, self.n_features_in_ = fitted, fitted.n_features_in_
        if hasattr(fitted, "feature_names_in_"):
            self.feature_names_in_ = fitted.feature_names_in_
