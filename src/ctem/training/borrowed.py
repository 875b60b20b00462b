"""Private functions of torch and scikit-learn, all that this library uses, in one place.

They have no promise of stability: tests/test_borrowed.py names the versions with which they were seen to work.
scikit-learn's are imported when they are called, since training an energy does not need it.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["checked_feature_names", "checked_sample_weight", "output_config"]

# in-place sums and products of lists of tensors, and a step of AdamW on all of them
each_add_ = torch._foreach_add_
each_mul_ = torch._foreach_mul_
each_sub = torch._foreach_sub
fused_adamw_ = torch._fused_adamw_


def checked_sample_weight(weights: Any, X: Any) -> Any:
    """Weights ≥ 0 as an array, one for each row of X; an error that scikit-learn's users know.

    >>> import numpy as np
    >>> checked_sample_weight([1, 2], np.zeros((2, 1)))
    array([1., 2.])
    """
    from sklearn.utils.validation import _check_sample_weight

    return _check_sample_weight(weights, X, ensure_non_negative=True)


def checked_feature_names(estimator: Any, names: Any) -> Any:
    """The names of the columns of a fitted estimator, after a check of those that are given.

    >>> from types import SimpleNamespace
    >>> checked_feature_names(SimpleNamespace(n_features_in_=2), None)
    array(['x0', 'x1'], dtype=object)
    """
    from sklearn.utils.validation import _check_feature_names_in

    return _check_feature_names_in(estimator, names)


def output_config(estimator: Any) -> dict[str, str]:
    """What ``set_output`` of an estimator was called with.

    >>> output_config(None)
    {'dense': 'default'}
    """
    from sklearn.utils._set_output import _get_output_config

    return dict(_get_output_config("transform", estimator))
