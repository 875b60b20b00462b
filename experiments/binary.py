"""Eight binary benchmarks: exact test nats by the chain rule, the one-pass joint and its constant.

    python experiments/binary.py --device cuda --data FOLDER [--objective slopes] [--seeds 3] [--quick]
    python experiments/binary.py --device cuda --weight-decay 0.3 --name binary-decayed  # for the one pass

One configuration for all sets; the held-out loss on the validation split stops training. ``clocks`` trains one network
on pairs; ``slopes`` trains the conditionals on all hidden bits at once, and the joint on pairs.
--quick runs a small network on bits made on the spot, so that it needs no data.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ctem import Category, ProductBase, Recipe, Space, train
from ctem.chain import Chain
from ctem.clocknet import ClockNet
from ctem.datasets import BINARY, Splits, load_binary
from ctem.fitting import fit_density
from ctem.joint import joint_log_z
from ctem.partition import log_z_enumerate
from ctem.plans import Plan
from ctem.spacetime import Clocks
from ctem.training import History
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
NETWORK = {"width": 512, "blocks": 4}
OBJECTIVE = {"moves": 4, "temporal": 0.5}
SYSTEMS = {"clocks": "clock per column", "slopes": "slopes"}
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


@dataclass(frozen=True)
class Job:
    """One configuration for all sets."""

    objective: str
    recipe: Recipe = RECIPE
    network: dict[str, int] = field(default_factory=lambda: NETWORK)

    @property
    def system(self) -> str:
        decay = self.recipe.weight_decay
        return SYSTEMS[self.objective] + (f", weight decay {decay:g}" if decay != RECIPE.weight_decay else "")


def toy_splits() -> Splits:
    """Six bits that mostly agree: enough to run every line."""
    rng = np.random.default_rng(0)
    common = rng.integers(0, 2, (3000, 1))
    bits = np.where(rng.random((3000, 6)) < 0.8, common, rng.integers(0, 2, (3000, 6))).astype(float)
    return Splits(bits[:2000], bits[2000:2500], bits[2500:])


class Fit:
    """One trained model and what was measured on it."""

    def __init__(self, splits: Splits, seed: int, device: str, job: Job):
        space = Space([Category(2)] * splits.train.shape[1])
        x, valid, self.test = (space.encode(part).to(device) for part in splits)
        began = time.perf_counter()
        fit = by_slopes if job.objective == "slopes" else by_clocks
        self.chain, self.history = fit(space, x, valid[:4096], replace(job.recipe, seed=seed), job)
        self.seconds = time.perf_counter() - began

    def each(self) -> Tensor:
        """Test log-likelihoods in every order, (orders, n)."""
        orders = self.chain.orders(ORDERS, torch.Generator().manual_seed(0))
        return torch.stack([self.chain.log_prob(self.test, order) for order in orders]).double()


def by_clocks(space: Space, x: Tensor, valid: Tensor, recipe: Recipe, job: Job) -> tuple[Chain, History]:
    base = ProductBase.fit(space, x).to(x.device)
    g = ClockNet(base, seed=recipe.seed, dropout=0.0, **job.network).to(x.device)
    history = train(g, Clocks(base, **OBJECTIVE), x, recipe, held_out=valid, cuda_graph=x.is_cuda)
    return Chain(g.eval(), base), history


def by_slopes(space: Space, x: Tensor, valid: Tensor, recipe: Recipe, job: Job) -> tuple[Chain, History]:
    """Networks for the conditionals, and one for the joint."""
    plan = Plan(**job.network, members=1, recipe=recipe, log_z_samples=1000)
    plan = replace(plan, slopes=plan.own)
    density = fit_density(space, x, plan, seed=recipe.seed, held_out=valid)
    return density.members[0], density.history


def nats(each: Tensor) -> tuple[float, float]:
    """Mean test log-likelihood: of single orders, and of the mixture of all."""
    return float(each.mean()), float((each.logsumexp(0) - math.log(len(each))).mean())


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


def run(name: str, splits: Splits, seeds: range, device: str, job: Job) -> Iterator[list[Record]]:
    """All records of one data set, after every seed."""
    found: dict[tuple[str, str], list[float]] = {}
    likelihoods = []
    for seed in seeds:
        fit = Fit(splits, seed, device, job)
        likelihoods.append(fit.each())
        single, mixture = nats(likelihoods[-1])
        values = {
            "exact nats, single orders": single,
            f"exact nats, mixture of {ORDERS} orders": mixture,
            **joint_nats(fit, device),
            "training seconds": fit.seconds,
            "step chosen by held-out loss": fit.history.best_step,
        }
        for metric, value in values.items():
            found.setdefault((job.system, metric), []).append(value)
        print(f"{name} seed {seed}: " + ", ".join(f"{k} {v:.4f}" for k, v in values.items()), flush=True)
        yield records(name, found, likelihoods)


def records(
    name: str, found: Mapping[tuple[str, str], list[float]], likelihoods: list[Tensor]
) -> list[Record]:
    """Mean and spread over seeds, and the likelihood of the mixture of all seeds."""
    hclt = f"HCLT {HCLT[name]}" if name in HCLT else None
    mixed = {}
    if len(likelihoods) > 1:
        _, mixture = nats(torch.cat(likelihoods))
        mixed[f"mixture of {len(likelihoods)} seeds", f"exact nats, mixture of {ORDERS} orders"] = [mixture]
    return [
        summarise(name, system, metric, values, paper=hclt if "exact" in metric else None)
        for (system, metric), values in (*found.items(), *mixed.items())
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--data", default=None, help="folder with debd/ (default: $CTEM_DATA, else downloaded)"
    )
    parser.add_argument("--sets", nargs="*", default=list(BINARY), help="which sets")
    parser.add_argument(
        "--objective", choices=SYSTEMS, default="clocks", help="what the chain rule is trained on"
    )
    parser.add_argument("--weight-decay", type=float, default=RECIPE.weight_decay, help="of the networks")
    parser.add_argument("--name", help="of the result files, before the name of the set")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    job = Job(args.objective, replace(RECIPE, weight_decay=args.weight_decay))
    if args.quick:
        short = replace(job.recipe, steps=60, batch_size=128, evaluate_every=30)
        job = Job(args.objective, short, {"width": 32, "blocks": 1})
    settings = {"job": asdict(job), "clocks": OBJECTIVE, "orders": ORDERS}
    prefix = args.name or ("binary" if args.objective == "clocks" else f"binary-{args.objective}")
    for name in ["toy bits"] if args.quick else args.sets:
        began = time.perf_counter()
        splits = toy_splits() if args.quick else load_binary(name, args.data)
        for found in run(name, splits, range(2 if args.quick else args.seeds or 3), args.device, job):
            seconds = time.perf_counter() - began
            write(f"{prefix}-{name}", settings, found, args.device, seconds, args.out, quick=args.quick)


if __name__ == "__main__":
    main()
