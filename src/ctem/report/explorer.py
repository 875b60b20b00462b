"""What the explorer of a report needs: the fitted networks and columns as JSON, for ``script/*.js`` to evaluate.

The page carries its data and its one script inside. The data are float32 weights, in base64 and in the order of
``network``, and plain numbers; the script is allowed by its SHA-256 in the page's policy, so that no other can run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctem.densities.anyorder import numbers, ties
from ctem.densities.anyorder.conditionals import NODES
from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.anyorder.inputs import Inputs
from ctem.densities.anyorder.labels import STEEPEST
from ctem.densities.anyorder.network import AnyOrderNet
from ctem.densities.anyorder.numbers import NumberHead
from ctem.densities.anyorder.ties import Ties
from ctem.densities.anyorder.worth import NEVER
from ctem.densities.residuals import LEAST, TAME
from ctem.densities.tilted import TiltedDensity
from ctem.estimators.estimator import CTEM
from ctem.report.axes import Ruled, display_text, lay_out, plain_text
from ctem.report.findings import Findings, Strange
from ctem.report.markup import tag, text
from ctem.report.trees import energy_data
from ctem.tables.encoding.codecs import Codec, Constant, Labels, LeftOut, Numbers
from ctem.tables.encoding.lookup import cells_of, find
from ctem.tables.io.cells import Cells
from ctem.tables.relations.formulas import CLOSEST, OFF
from ctem.tables.relations.quantities import Quantity
from ctem.tables.schema import Schema

__all__ = ["explorer_data", "explorer_section", "policy", "row_cells", "why_not"]

SCRIPT = (
    "numerics",
    "columns",
    "notations",
    "network",
    "ties",
    "rules",
    "energy",
    "density",
    "ranges",
    "summaries",
    "cards",
    "page",
)
MAX_BYTES = 4 * 2**20  # of weights, and of trees
MAX_COLUMNS = 60  # each question looks at every pair of columns
ABOUT = tag(
    "p",
    "Set any columns to a value, to a range or to several values, and leave the others unknown: each picture shows "
    "what the model then expects of a column, given all others that are set. A column that is set shows what was "
    "expected in its place.",
) + (
    '<p class="keys"><span class="key">Nothing known</span><span class="key model">Given what is set</span></p>'
)

NETWORKS = (
    "Answers here are those of the networks alone; the energy that the model adds to them answers in Python and in the "
    "shell."
)

Json = dict[str, Any]


def why_not(model: CTEM) -> str:
    """Why a model has no explorer, as a sentence; empty if it has one.

    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> why_not(CTEM(max_steps=2, width=8, members=1, random_state=0).fit(X))
    ''
    """
    density = model.density_
    if model.missing == "state":
        return 'with missing="state" a gap is a value, which this cannot show yet.'
    if len(model.schema_.columns) > MAX_COLUMNS:
        return f"the table has {len(model.schema_.columns)} columns, and this is for at most {MAX_COLUMNS}."
    if model.schema_.pairs:
        return "its rare labels follow counts of pairs of labels, which this cannot show yet."
    if density.net.classes is not None:
        return "its networks are mixed with latent classes, which this cannot show yet."
    size = _bytes(density.net)
    if size > MAX_BYTES:
        room = f"a page carries at most {MAX_BYTES / 2**20:.0f} MB"
        return f"the networks have {size / 2**20:.1f} MB of weights, and {room}; smaller ones (width=, members=) fit."
    return ""


def explorer_section(model: CTEM, findings: Findings) -> tuple[str, str, str, str]:
    """Mark, title, words and content of the section, or a sentence with the reason why there is none.

    >>> from ctem.report.findings import examine
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = CTEM(max_steps=2, width=8, members=1, random_state=0).fit(X)
    >>> explorer_section(model, examine(model, X, None, 50, 0))[:2]
    ('ask', 'Ask the model')
    """
    if reason := why_not(model):
        return (
            "ask",
            "Ask the model",
            "",
            tag("p", text(f"There is no explorer in this report: {reason}"), "muted"),
        )
    without = tag("noscript", tag("p", "This part needs scripts; the rest of the report does not."))
    data = _data(model, findings)
    embedded = f'<script type="application/json" id="ask-data">{_text(data)}</script>'
    content = tag("div", without, "explorer", id="explorer") + embedded + f"<script>{script()}</script>"
    alone = isinstance(model.density_, TiltedDensity) and data["energy"] is None
    return "ask", "Ask the model", ABOUT + (tag("p", NETWORKS, "muted") if alone else ""), content


def policy(content: str) -> str:
    """The part of a Content-Security-Policy that lets the explorer of a page run, and no other script.

    >>> policy("<p>no explorer</p>")
    ''
    """
    source = script()
    if f"<script>{source}</script>" not in content:
        return ""
    return f"; script-src 'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


@cache
def script() -> str:
    """The script of the explorer."""
    folder = files("ctem.report").joinpath("script")
    return "\n".join(folder.joinpath(f"{name}.js").read_text("utf-8") for name in SCRIPT)


def explorer_data(model: CTEM, findings: Findings) -> str:
    """What the script reads, as JSON that may stand in a page.

    Arguments:
        model: a fitted estimator for which ``why_not`` is empty.
        findings: what the report shows of it.

    >>> from ctem.report.findings import examine
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = CTEM(max_steps=2, width=8, members=1, random_state=0).fit(X)
    >>> sorted(json.loads(explorer_data(model, examine(model, X, None, 50, 0))))
    ['columns', 'density', 'energy', 'inputs', 'network', 'numbers', 'outliers', 'rules', 'ties', 'weights']
    """
    return _text(_data(model, findings))


def _text(data: Json) -> str:
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")  # nothing in it can end the element that holds it


def _data(model: CTEM, findings: Findings) -> Json:
    density = model.density_
    network, weights = _network(density.net)
    return {
        "density": _density(density),
        "inputs": _inputs(density.net.inputs, density),
        "numbers": _numbers(density.net.numbers, density.net.worth.reach),
        "ties": None if density.net.ties is None else _ties(density.net.ties),
        "rules": _rules(model.schema_),
        "network": network,
        "columns": _columns(model, findings),
        "outliers": [_outlier(strange, model) for strange in findings.outliers],
        "weights": weights,
        "energy": _energy(density),
    }


def _energy(density: AnyOrderDensity) -> Json | None:
    """The energy of a density; None if it has none, if networks are a part of it, or if a page cannot carry it."""
    if not isinstance(density, TiltedDensity) or density.energy.networks is not None:
        return None
    data = energy_data(density.energy)
    size = _bytes(density.net) + 0.75 * len(json.dumps(data))  # base64 writes 3 bytes in 4 letters
    return data if size <= MAX_BYTES else None


def _bytes(net: AnyOrderNet) -> int:
    """The size of the weights."""
    return 4 * sum(parameter.numel() for parameter in net.parameters())


def _network(net: AnyOrderNet) -> tuple[Json, str]:
    """Where each weight lies in the blob, and the blob: little-endian float32 in base64."""
    blob: list[bytes] = []
    sizes = [0]

    def place(tensor: Tensor) -> Json:
        values = tensor.detach().cpu().numpy().astype("<f4")
        blob.append(values.tobytes())
        sizes.append(sizes[-1] + values.size)
        return {"shape": list(values.shape), "start": sizes[-2]}

    def linear(module: torch.nn.Module) -> Json:
        return {name: place(parameter) for name, parameter in module.named_parameters()}

    layers = {
        "first": linear(net.first),
        "blocks": [
            {name: linear(part) for name, part in block.named_children() if name != "drop"}
            for block in net.body
        ],
        "labels": linear(net.of_labels),
        "numbers": linear(net.of_numbers),
        "ties": None if net.ties is None else linear(net.of_ties),
    }
    return layers, base64.b64encode(b"".join(blob)).decode()


def _density(density: AnyOrderDensity) -> Json:
    return {
        "sizes": list(density.space.sizes),
        "parents": density.parents,
        "members": density.net.members,
        "orders": density.orders,
        "shares": list(density.net.worth.share),
        "heard": list(density.net.worth.heard),
    }


def _inputs(inputs: Inputs, density: AnyOrderDensity) -> Json:
    level = torch.full((1, 1), density.level)
    d, values = density.space.dim, inputs.place
    hidden = torch.zeros(1, d, dtype=torch.bool, device=inputs.scores.device)
    seen = inputs(torch.zeros(1, d, device=hidden.device), hidden, level.to(hidden.device)).inputs[0]
    correlation = inputs.correlation
    return {
        "clock": seen[d : values.start].tolist(),  # of a row that shows nothing: the same for every row
        "ahead": float((-level).exp()),
        "reals": list(density.space.reals),
        "discretes": inputs.discretes.tolist(),
        "start": inputs.start.tolist(),
        "height": inputs.height[:-1].tolist(),
        "mean": inputs.mean.sum(0).tolist(),  # a value belongs to one column
        "spread": inputs.spread.tolist(),
        "gain": density.net.labels.gain.tolist(),
        "steepest": STEEPEST,
        "scores": inputs.scores.tolist(),
        "places": inputs.places.tolist(),
        "centre": inputs.centre.tolist(),
        "scale": inputs.scale.tolist(),
        "noisy": inputs.noisy.tolist(),
        "frequencies": inputs.frequencies.tolist(),
        "correlation": None if correlation is None else correlation.tolist(),
        "tame": TAME,
        "least": LEAST,
    }


def _numbers(head: NumberHead, reach: float) -> Json:
    polygons = (head.fixed, head.moving)
    return {
        "lengths": list(head.lengths),
        "scale": head.scale.tolist(),
        "start": head.start.tolist(),
        "polygons": [{"knots": p.knots.tolist(), "share": p.share.tolist()} for p in polygons],
        "far": numbers.FAR,
        "reach": reach,
        "never": NEVER,
        "nodes": NODES,
        "narrowest": numbers.NARROWEST,
        "widest": numbers.WIDEST,
        "steepest": numbers.STEEPEST,
    }


def _ties(of_net: Ties) -> Json:
    """The formulas, target by target, and what turns a network's outputs into their parts of a density."""
    return {
        "targets": [_target(of_net, g) for g in range(len(of_net.targets))],
        "slots": of_net.slots,  # of every target, be there a formula in it or not
        "nearly": ties.NEARLY,
        "gain": ties.GAIN,
        "farthest": ties.FARTHEST,
        "narrowest": ties.NARROWEST,
        "widest": ties.WIDEST,
        "far": numbers.FAR,
        "off": OFF,
        "closest": CLOSEST,
    }


def _target(ties: Ties, g: int) -> Json:
    formulas = [tie for tie in ties.ties if tie.target == ties.targets[g]]
    rows = zip(
        formulas, ties.finest[g].tolist(), ties.start[g].tolist(), strict=False
    )  # the others hold no formula
    return {
        "column": ties.targets[g],
        "width": ties.units.width(ties.targets[g]),
        "formulas": [{"terms": tie.terms, "finest": finest, "start": start} for tie, finest, start in rows],
    }


def _rules(schema: Schema) -> Json | None:
    """The rules and orders, by the places of columns in the table, and these columns as numbers; None without any."""
    keeper = schema.keeper
    if keeper is None:
        return None
    places = {name: i for i, name in enumerate(schema.columns)}
    known = keeper.quantities
    return {
        "quantities": [_quantity(known[name]) if name in known else None for name in schema.columns],
        "rules": [
            {
                "target": places[rule.target],
                "terms": [[places[term.column], term.part] for term in rule.terms],
                "function": rule.function.to_json(),
                "share": rule.share,
                "agree": rule.agree,
            }
            for rule in schema.rules
        ],
        "orders": [{"low": places[o.low], "high": places[o.high], "share": o.share} for o in keeper.orders],
        "off": OFF,
        "closest": CLOSEST,
        "far": numbers.FAR,
    }


def _quantity(quantity: Quantity) -> Json:
    listed = [None if np.isnan(value) else value for value in quantity.listed.tolist()]
    ends = [None if np.isnan(end) else end for end in quantity.extent]
    known = listed if isinstance(quantity.codec, Labels) else None
    return {"listed": known, "width": quantity.width, "ends": ends}


def _columns(model: CTEM, findings: Findings) -> list[Json]:
    pairs = zip(model.schema_.columns.items(), model.schema_.owner, strict=True)
    written = {field.name: field.written for field in model.table_type_.fields}
    return [
        {
            "name": plain_text(name, 60),
            "kind": inferred.kind,
            "owner": list(owner),
            "written": None if findings.real[name].text is None else written[name],
            "zone": findings.real[name].zone,
            **_codec(name, inferred.codec, findings.real[name]),
        }
        for (name, inferred), owner in pairs
    ]


def _codec(name: str, codec: Codec, cells: Cells) -> Json:
    if isinstance(codec, LeftOut):  # to the page it is a column that holds nothing
        codec = Constant(codec.type, (), codec.unit)
    data = codec.to_json()
    if isinstance(codec, Constant | Labels):
        listed = cells_of(codec, np.arange(len(codec.values))).displayed_like(cells)
        return {**data, "values": [display_text(listed, i) for i in range(len(codec.values))]}
    axis = lay_out(name, codec, cells)
    assert isinstance(axis, Ruled)
    lattice = {
        **data.pop("lattice"),
        "per": codec.lattice.per,
        "shift": str(codec.lattice.shift),  # with digits that a number of JavaScript has not
        "offset": codec.lattice.shift / codec.lattice.per,
    }
    return {**data, "lattice": lattice, "edges": axis.edges.tolist()}


def _outlier(strange: Strange, model: CTEM) -> Json:
    outlier, cells = strange
    blamed = [list(cells).index(cell.name) for cell in outlier.cells]
    return {"row": outlier.row, "blamed": blamed, "cells": row_cells(model, cells)}


def row_cells(model: CTEM, columns: Mapping[str, Cells]) -> list[float | str | None]:
    """The first row of some columns as the explorer knows it, a cell for each column.

    X of a number, the place of a listed value, a text for one that was never seen, None for a gap.

    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = CTEM(max_steps=2, width=8, members=1, random_state=0).fit(X)
    >>> row_cells(model, model.as_frame(np.array([[0.5, np.nan]])).columns)
    [0.5, None]
    """
    return [_cell(name, inferred.codec, columns[name]) for name, inferred in model.schema_.columns.items()]


def _cell(name: str, codec: Codec, cells: Cells) -> float | str | None:
    if bool(cells.missing[0]) or isinstance(codec, LeftOut):
        return None
    if isinstance(codec, Numbers):
        return float(codec.lattice.measure(cells)[0])
    place = int(find(name, cells, codec)[0])
    return display_text(cells, 0) if place == -2 else place
