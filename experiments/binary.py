"""Eight binary benchmarks: exact test nats by the chain rule, the one-pass joint and its constant.

    python experiments/binary.py --device cuda --data FOLDER [--seeds 3] [--quick]

One configuration for all sets; the held-out loss on the validation split stops training. --quick runs a small
network on bits made on the spot, so that it needs no data.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace

import numpy as np
import torch
from torch import Tensor

from ctem import Category, ProductBase, Recipe, Space, train
from ctem.chain import Chain
from ctem.clocknet import ClockNet, Ensemble
from ctem.datasets import BINARY, Splits, load_binary
from ctem.joint import joint_log_z
from ctem.partition import log_z_enumerate
from ctem.spacetime import Clocks
from results import Record, arguments, summarise, write

RECIPE = Recipe(
    steps=8000,
    batch_size=1024,
    learning_rate=1e-3,
    weight_decay=0.01,
    ema=0.999,
    evaluate_every=400,
    patience=6,
)
NETWORK = {"width": 512, "blocks": 4, "dropout": 0.0}
OBJECTIVE = {"moves": 4, "temporal": 0.5}
ORDERS = 8
CHAIN_SAMPLES = 20_000  # for the constant of the joint
HCLT = {
    "nltcs": -5.999,
    "msnbc": -6.058,
    "kdd": -2.141,
    "plants": -14.265,
    "bnetflix": -56.248,
    "kosarek": -10.598,
    "book": -33.534,
    "tmovie": -50.538,
}


def toy_splits() -> Splits:
    """Six bits that mostly agree: enough to run every line."""
    rng = np.random.default_rng(0)
    common = rng.integers(0, 2, (3000, 1))
    bits = np.where(rng.random((3000, 6)) < 0.8, common, rng.integers(0, 2, (3000, 6))).astype(float)
    return Splits(bits[:2000], bits[2000:2500], bits[2500:])


class Fit:
    """One trained model and what was measured on it."""

    def __init__(self, splits: Splits, seed: int, device: str, recipe: Recipe, network: dict):
        space = Space([Category(2)] * splits.train.shape[1])
        x, valid, self.test = (space.encode(part).to(device) for part in splits)
        self.base = ProductBase.fit(space, x).to(device)
        self.g = ClockNet(self.base, seed=seed, **network).to(device)
        began = time.perf_counter()
        self.history = train(
            self.g,
            Clocks(self.base, **OBJECTIVE),
            x,
            replace(recipe, seed=seed),
            held_out=valid[:4096],
            cuda_graph=device.startswith("cuda"),
        )
        self.seconds = time.perf_counter() - began
        self.g.eval()
        self.chain = Chain(self.g, self.base)


def chain_nats(chain: Chain, test: Tensor, seed: int = 0) -> tuple[float, float]:
    """Mean test log-likelihood: of single orders, and of the mixture of all."""
    orders = chain.orders(ORDERS, torch.Generator().manual_seed(seed))
    each = torch.stack([chain.log_prob(test, order) for order in orders]).double()
    return float(each.mean()), float((each.logsumexp(0) - math.log(ORDERS)).mean())


def joint_nats(fit: Fit, device: str) -> dict[str, float]:
    """The one-pass joint: as it is, minus its sampled constant, and the constant's error where Z is enumerable."""
    generator = torch.Generator(device).manual_seed(0)
    sampled = joint_log_z(fit.chain, CHAIN_SAMPLES, generator)
    one_pass = float(fit.chain.joint(fit.test).double().mean())
    found = {
        "joint, one pass, as trained": one_pass,
        "joint, one pass, minus its constant": one_pass - sampled.value,
        "standard error of the constant": sampled.stderr,
        "effective samples of the constant": sampled.ess,
    }
    if fit.chain.space.n_states <= 2**22:
        exact = log_z_enumerate(fit.chain.joint, fit.chain.space, device=device)
        found["constant by enumeration"] = exact.value
        found["constant, sampled minus enumerated"] = sampled.value - exact.value
    return found


def run(name: str, splits: Splits, seeds: range, device: str, recipe: Recipe, network: dict) -> list[Record]:
    """All records of one data set."""
    found: dict[tuple[str, str], list[float]] = {}
    fits = []
    for seed in seeds:
        fit = Fit(splits, seed, device, recipe, network)
        fits.append(fit)
        single, mixture = chain_nats(fit.chain, fit.test)
        values = {
            "exact nats, single orders": single,
            f"exact nats, mixture of {ORDERS} orders": mixture,
            **joint_nats(fit, device),
            "training seconds": fit.seconds,
            "step chosen by held-out loss": fit.history.best_step,
        }
        for metric, value in values.items():
            found.setdefault(("clock per column", metric), []).append(value)
        print(f"{name} seed {seed}: " + ", ".join(f"{k} {v:.4f}" for k, v in values.items()), flush=True)
    if len(fits) > 1:
        chain = Chain(Ensemble(ClockNet.stacked([fit.g for fit in fits])), fits[0].base)
        single, mixture = chain_nats(chain, fits[0].test)
        system = f"mixture of {len(fits)} seeds"
        found[system, "exact nats, single orders"] = [single]
        found[system, f"exact nats, mixture of {ORDERS} orders"] = [mixture]
        print(f"{name} ensemble: single {single:.4f}, mixture {mixture:.4f}", flush=True)
    hclt = f"HCLT {HCLT[name]}" if name in HCLT else None
    return [
        summarise(name, system, metric, values, paper=hclt if "exact" in metric else None)
        for (system, metric), values in found.items()
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--data", default=None, help="folder with debd/ (default: $CTEM_DATA, else downloaded)"
    )
    parser.add_argument("--sets", nargs="*", default=list(BINARY), help="which sets")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    settings = {"recipe": asdict(RECIPE), "network": NETWORK, "objective": OBJECTIVE, "orders": ORDERS}
    for name in ["toy bits"] if args.quick else args.sets:
        began, recipe, network = time.perf_counter(), RECIPE, NETWORK
        if args.quick:
            recipe, network = (
                replace(recipe, steps=60, batch_size=128, evaluate_every=30),
                {"width": 32, "blocks": 1},
            )
        splits = toy_splits() if args.quick else load_binary(name, args.data)
        records = run(name, splits, range(2 if args.quick else args.seeds or 3), args.device, recipe, network)
        seconds = time.perf_counter() - began
        write(f"binary-{name}", settings, records, args.device, seconds, args.out, quick=args.quick)


if __name__ == "__main__":
    main()
