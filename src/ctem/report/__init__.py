"""The report: one HTML file on what a model learned of a table, and how far to trust it.

``findings`` looks, ``axes`` and ``compare`` lay out and compare columns, ``notes`` lists what to watch; ``charts``,
``pictures``, ``sections`` and ``page`` draw; ``explorer`` puts the fitted density into the page, to be asked there. The
file loads nothing from outside, runs no script but the explorer's, and escapes what the table holds.
"""

from __future__ import annotations

import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from sklearn.utils.validation import check_is_fitted

from ctem import __version__
from ctem.estimators.estimator import CTEM
from ctem.persistence.atomic import write_whole
from ctem.report.explorer import explorer_section
from ctem.report.findings import Findings, examine
from ctem.report.page import page

__all__ = ["write_report"]


def write_report(
    model: CTEM,
    X: Any,
    path: str | Path,
    held_out: Any = None,
    n_samples: int = 1000,
    seed: int = 0,
    name: str = "",
) -> Path:
    """Write a report on a fitted model, atomically, and return its path.

    Arguments:
        model: a fitted estimator.
        X: the table to describe, usually that of the fit; the columns, pictures and outliers are of its rows.
        path: the HTML file.
        held_out: rows that the fit did not see, for an honest log-density.
        n_samples: rows to draw from the model.
        seed: of the draws; the same one gives the same report but for its time.
        name: of the table, for the title.

    >>> import tempfile, numpy as np
    >>> X = np.random.default_rng(0).normal(size=(120, 2))
    >>> model = CTEM(max_steps=5, width=8, members=1, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(model, X, Path(folder) / "report.html", n_samples=100).read_text()[:15]
    '<!DOCTYPE html>'
    """
    check_is_fitted(model)
    if isinstance(n_samples, bool) or not isinstance(n_samples, int) or n_samples < 2:
        raise ValueError(f"n_samples: expected a whole number ≥ 2; got {n_samples!r}.")
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"path: no folder {target.parent}; make it first.")
    findings = examine(model, X, held_out, n_samples, seed, name)
    text = page(findings, _origin(model, findings, seed), seed, explorer_section(model, findings))
    write_whole(target, text.encode("utf-8", "xmlcharrefreplace"), "report")
    return target


def _origin(model: CTEM, findings: Findings, seed: int) -> dict[str, Any]:
    """Where the numbers come from; no path and no name of a machine."""
    arguments = model.get_params(deep=False)
    settings = {key: arguments[key] for key in ("missing", "effort", "max_steps", "max_time", "kinds")}
    whose = "the rows of" if findings.same_rows else "not the rows of"
    return {
        "ctem": __version__,
        "torch, Python": f"{torch.__version__}, {platform.python_version()}",
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "rows of the fit": f"{model.n_samples_seen_:,}, {whose} this report",
        "data, SHA-256 of encoded rows": model.data_hash_,
        "seed of the fit": "none" if model.random_state is None else model.random_state,
        "seed and draws of the report": f"{seed}, {findings.n_samples:,}",
        "settings": _list({key: value for key, value in settings.items() if value is not None}),
        "networks and training": _list(asdict(model.settings_)),
        "seconds of training": f"{model.density_.history.seconds:,.1f}",
        "noise level of real columns": f"{model.density_.level:.3g}",
    }


def _list(facts: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in facts.items())
