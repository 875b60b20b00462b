"""Twenty binary benchmarks: exact test nats of the default.

    python -m experiments.binary.nats --device cuda --data FOLDER [--sets SET …] [--jobs N] [--quick]

``CTEM().fit(train, X_val=valid)``: the validation split stops training and chooses. A few of its rows (accidents 1,
msweb 2, tmovie 3) are left out: they hold a value that the training rows' column never has. --quick takes bits made on
the spot, so that it needs no data. "networks" is the density that the energy tilts, of the same fit.
"""

from __future__ import annotations

import time

import numpy as np

from ctem import CTEM
from ctem.datasets import BINARY, Splits, load_binary
from ctem.densities.tilted import TiltedDensity
from experiments.sweep import TINY, Task, Values, sweep, sweep_arguments, tasks

PUBLISHED = {  # test nats of HCLT, then the best that is printed elsewhere; "?": quoted from memory, not checked
    "nltcs": "HCLT -5.999; circuits -5.99",
    "msnbc": "HCLT -6.058; circuits -6.03",
    "kdd": "HCLT -2.141; circuits -2.12",
    "plants": "HCLT -14.265; mixtures of trees -12.26 (?)",
    "baudio": "HCLT -39.768; continuous mixtures -39.02 (?)",
    "jester": "HCLT -52.376; continuous mixtures -51.93 (?)",
    "bnetflix": "HCLT -56.248; mixtures of trees -55.31 (?)",
    "accidents": "HCLT -26.736",
    "tretail": "HCLT -10.855; mixtures of trees -10.82 (?)",
    "pumsb_star": "HCLT -23.650; circuits -22.40",
    "dna": "HCLT -79.051",
    "kosarek": "HCLT -10.598; mixtures of trees -10.56 (?)",
    "msweb": "HCLT -9.906; mixtures of trees -9.62 (?)",
    "book": "HCLT -33.534",
    "tmovie": "HCLT -50.538; continuous mixtures -48.69 (?)",
    "cwebkb": "HCLT -150.838; mixtures of trees -147.77 (?)",
    "cr52": "HCLT -85.949; mixtures of trees -81.17 (?)",
    "c20ng": "HCLT -153.644; mixtures of trees -148.17 (?)",
    "bbc": "HCLT -249.049; continuous mixtures -240.19 (?)",
    "ad": "HCLT -16.064; mixtures of trees -14.76 (?)",
}


def toy_splits() -> Splits:
    """Six bits that mostly agree: enough to run every line."""
    rng = np.random.default_rng(0)
    common = rng.integers(0, 2, (3000, 1))
    bits = np.where(rng.random((3000, 6)) < 0.8, common, rng.integers(0, 2, (3000, 6))).astype(float)
    return Splits(bits[:2000], bits[2000:2500], bits[2500:])


def known(rows: np.ndarray, train: np.ndarray) -> np.ndarray:
    """The rows whose every value occurs in the training rows' column."""
    return rows[((rows >= train.min(0)) & (rows <= train.max(0))).all(1)]


def measure(task: Task, args) -> Values:
    """One fit."""
    train, valid, test = toy_splits() if args.quick else load_binary(task.data, args.data)
    began = time.perf_counter()
    model = CTEM(random_state=task.seed, device=args.device, **(TINY if args.quick else {}))
    model.fit(train, X_val=known(valid, train))
    fitted = time.perf_counter()
    values = {
        "test nats": float(model.score_samples(test).mean()),
        "fit, seconds": fitted - began,
        "scoring, rows per second": len(test) / (time.perf_counter() - fitted),
        "step chosen by held-out loss": model.density_.history.best_step,
    }
    if isinstance(model.density_, TiltedDensity):
        model._adopt(model.density_.plain)
    return values | {"test nats, networks": float(model.score_samples(test).mean())}


def published(data: str, metric: str) -> str | None:
    return PUBLISHED.get(data) if metric == "test nats" else None


def main() -> None:
    args = sweep_arguments(__doc__, list(BINARY), ("CTEM",), seeds=3).parse_args()
    todo = tasks(args, quick=("toy bits",))
    sweep(measure, todo, args, args.name or "binary", {"model": "CTEM()"}, published=published)


if __name__ == "__main__":
    main()
