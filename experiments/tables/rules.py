"""Rules that hold in six tables: how many drawn rows break each with and without them, and what they are worth.

    python -m experiments.tables.rules --data FOLDER               six tables of FOLDER/wild
    python -m experiments.tables.rules --quick                     a made-up table, smaller fits

One short fit a table, without an energy. The same networks then answer twice: with the rules and orders that the fit
kept, and without. Nats are the mean log-density of held-out rows. C2ST is that of ``nats.py``, drawn rows against
held-out ones, in the columns that have no gaps in these ("None" is one): drawn rows have none. Search is a part of the
fit.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ctem import CTEM
from ctem.densities.anyorder import AnyOrderDensity
from ctem.tables.answers.breaches import breaches
from ctem.tables.answers.density import TableDensity
from ctem.tables.io.frame import build_frame
from ctem.tables.relations.relations import relations
from experiments.results import Record, arguments, staged, summarise, write
from experiments.sweep import wild
from experiments.tables.nats import WILD, boosted

ROWS, TEST, DRAWN = 3000, 400, 500
FIT = {"effort": "quick", "energy": None, "max_steps": 300}
QUICK = {"energy": None, "max_steps": 20, "width": 16, "blocks": 1, "members": 1, "orders": 2}
MOST_LABELS = 200  # of a column that C2ST takes for labels
SEARCH, FITTED = "search, processor seconds", "fit, processor seconds"


def made_up(n: int, seed: int) -> pd.DataFrame:
    """A clock time, a label with a group, a start and an end."""
    rng = np.random.default_rng(seed)
    hour, minute, city = rng.integers(24, size=n), rng.integers(60, size=n), rng.integers(40, size=n)
    start = rng.integers(0, 1000, n)
    told = {"hour": hour, "minute": minute, "time": 100 * hour + minute, "city": [f"c{i}" for i in city]}
    told |= {"state": [f"s{i // 5}" for i in city], "start": start, "end": start + rng.geometric(0.02, n) - 1}
    return pd.DataFrame(told)


def without_rules(model: CTEM) -> TableDensity:
    """The density of the same networks, in which no rule or order is kept."""
    schema, fitted = replace(model.schema_, rules=(), orders=()), model.density_
    about = {"parents": fitted.parents, "late": fitted.chain.late, "rules": schema.keeper}
    return TableDensity(schema, AnyOrderDensity(fitted.net, fitted.level, fitted.orders, **about))


def measured(name: str, X: pd.DataFrame, seed: int, settings: dict[str, Any]) -> list[Record]:
    """Everything about one table."""
    X = X.sample(min(len(X), ROWS), random_state=seed).reset_index(drop=True)
    held_out = min(TEST, len(X) // 5)
    train, test = X[held_out:].reset_index(drop=True), X[:held_out]
    began = time.process_time()
    model = CTEM(**settings, random_state=seed).fit(train)
    fitted = time.process_time() - began
    records = [
        summarise(name, "all", FITTED, [fitted]),
        summarise(name, "all", SEARCH, [_search(model, train)]),
    ]
    frame, drawn_columns = model.as_frame(test), model.sampled_type_.names
    full = [column for column in drawn_columns if not frame.columns[column].missing.any()]
    kept = TableDensity(model.schema_, model.density_)
    systems = (
        {"with rules": kept, "without": without_rules(model)} if kept.schema.keeper else {"with rules": kept}
    )
    for system, density in systems.items():
        cells = density.sample(DRAWN, torch.Generator().manual_seed(seed))
        drawn = build_frame(model.sampled_type_, cells)
        records.append(summarise(name, system, "nats", [float(density.log_prob(frame).mean())]))
        compared = boosted(*numbered(test[full], drawn[full]), seed)
        records.append(summarise(name, system, "C2ST", [compared]))
        for breach in breaches(model.schema_, cells):
            share = breach.broken / max(1, breach.rows)
            records.append(
                summarise(f"{name}: {breach.words}", system, "share of drawn rows that break it", [share])
            )
    for breach in breaches(model.schema_, model.as_frame(train).columns):
        what = f"{name}: {breach.words}", "rows of the table", "share of drawn rows that break it"
        records.append(summarise(*what, [breach.expected]))
    return records


def numbered(real: pd.DataFrame, fake: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both with text of very many values, such as moments, as places in its order."""
    both = pd.concat([real, fake], ignore_index=True)
    for name in both:
        if not pd.api.types.is_numeric_dtype(both[name]) and both[name].nunique() > MOST_LABELS:
            both[name] = pd.factorize(both[name].astype(str), sort=True)[0]
    return both[: len(real)], both[len(real) :]


def _search(model: CTEM, X: pd.DataFrame) -> float:
    """Processor seconds that looking for rules takes."""
    codecs = {name: column.codec for name, column in model.schema_.columns.items()}
    cells = model.as_frame(X).columns
    began = time.process_time()
    relations(codecs, cells)
    return time.process_time() - began


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, help="folder of the tables")
    parser.add_argument("--tables", nargs="*", default=WILD, help="these alone")
    args = parser.parse_args()
    settings = QUICK if args.quick else FIT
    about = {**settings, "rows": ROWS, "held out": TEST, "drawn": DRAWN}
    for name in ["made up"] if args.quick else args.tables:
        began = time.perf_counter()
        records = measured(name, made_up(400, 0) if args.quick else wild(name, args.data), 0, settings)
        print(*(f"{r.dataset}  {r.system}  {r.metric}  {r.mean:.4g}" for r in records), sep="\n", flush=True)
        with staged(args.out) as folder:
            seconds = time.perf_counter() - began
            write(
                f"rules-{name.replace(' ', '-')}",
                about,
                records,
                args.device,
                seconds,
                folder,
                quick=args.quick,
            )


if __name__ == "__main__":
    main()
