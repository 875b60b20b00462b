"""A fitted ``CTEM`` as plain values for printing, and as what its file holds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from ctem.densities.tilted import TiltedDensity
from ctem.fitting.arguments import plain_arguments
from ctem.persistence.models.fitted import Fitted, Origin
from ctem.tables.answers.density import TableDensity
from ctem.training.cut import still_improving

__all__ = ["attributes_of", "describe_model", "fitted_of"]


def describe_model(model: Any) -> dict[str, Any]:
    """What was inferred and how the fit went: ``CTEM.describe``.

    >>> from ctem import CTEM
    >>> short = {"max_steps": 2, "width": 8, "members": 1, "energy": None}
    >>> model = CTEM(**short, random_state=0).fit(np.arange(100.0)[:, None])
    >>> describe_model(model)["rows"]
    100
    """
    history, energy = model.density_.history, None
    if isinstance(model.density_, TiltedDensity):
        energy = model.density_.energy.summary()
    table = TableDensity(model.schema_, model.density_)
    learned = zip(model.schema_.describe(), table.nats_from_others(), table.believed(), strict=True)
    return {
        "columns": [
            {**asdict(column), "nats_from_others": nats, "believed": share} for column, nats, share in learned
        ],
        "rows": model.n_samples_seen_,
        "effort": model.effort,
        "settings": asdict(model.settings_),
        "independent_score": model.independent_score_,
        "held_out": model.held_out_.summary(),
        "level": model.density_.level,
        "energy": energy,
        "steps": history.step[-1] if history.step else 0,
        "best_step": history.best_step,
        "best_loss": history.best_loss,
        "seconds": history.seconds,
        "still_improving": still_improving(history) or None,
        "seed": model.seed_,
        "data_hash": model.data_hash_,
    }


def fitted_of(model: Any) -> Fitted:
    """What a file holds of a fitted model.

    >>> from ctem import CTEM
    >>> short = {"max_steps": 2, "width": 8, "members": 1, "energy": None}
    >>> model = CTEM(**short, random_state=0).fit(np.arange(100.0)[:, None])
    >>> fitted_of(model).origin.rows
    100
    """
    arguments = plain_arguments(model.get_params(deep=False))
    origin = Origin(model.seed_, model.n_samples_seen_, model.data_hash_, model.independent_score_)
    about = model.table_type_, hasattr(model, "feature_names_in_"), model.schema_, model.settings_
    return Fitted(arguments, *about, model.density_, origin, model.held_out_, model.missingness_)


def attributes_of(fitted: Fitted) -> dict[str, Any]:
    """The attributes of the model that a file holds, by name: all but its density and what is made of that.

    >>> from ctem import CTEM
    >>> short = {"max_steps": 2, "width": 8, "members": 1, "energy": None}
    >>> model = CTEM(**short, random_state=0).fit(np.arange(100.0)[:, None])
    >>> attributes_of(fitted_of(model))["n_samples_seen_"]
    100
    """
    names, origin = fitted.table_type.names, fitted.origin
    return {
        "table_type_": fitted.table_type,
        "schema_": fitted.schema,
        "settings_": fitted.settings,
        "n_features_in_": len(names),
        **({"feature_names_in_": np.array(names, object)} if fitted.named else {}),
        "seed_": origin.seed,
        "n_samples_seen_": origin.rows,
        "data_hash_": origin.data_hash,
        "independent_score_": origin.independent_score,
        "held_out_": fitted.held_out,
        "missingness_": fitted.missingness,
    }
