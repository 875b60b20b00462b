"""nltcs in depth, on the CPU: every marginal, missing values, chain samples, the constant of the joint.

    python experiments/nltcs.py --data FOLDER [--quick]

16 bits have 65 536 states, so that everything the model says can be checked by brute force. --quick uses six bits
made on the spot.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import asdict, replace

import torch
from torch import Tensor

from binary import toy_splits
from ctem import Category, ProductBase, Recipe, Space, train
from ctem.chain import Chain
from ctem.clocknet import ClockNet
from ctem.datasets import load_binary
from ctem.joint import joint_log_z
from ctem.partition import log_z_enumerate
from ctem.spacetime import Clocks
from results import arguments, summarise, write

RECIPE = Recipe(
    steps=3500,
    batch_size=256,
    learning_rate=2e-3,
    weight_decay=0.01,
    ema=0.998,
    evaluate_every=250,
    patience=6,
)
NETWORK = {"width": 128, "blocks": 2}
ORDERS, SAMPLES, MISSING = 8, 100_000, 0.3


def fitted(x: Tensor, valid: Tensor, space: Space, recipe: Recipe) -> tuple[Chain, float]:
    base = ProductBase.fit(space, x)
    g = ClockNet(base, **NETWORK)
    began = time.perf_counter()
    train(g, Clocks(base), x, recipe, held_out=valid, progress=True)
    g.eval()
    return Chain(g, base), time.perf_counter() - began


def nats(chain: Chain, test: Tensor) -> float:
    orders = chain.orders(ORDERS, torch.Generator().manual_seed(0))
    return float(chain.log_prob_mixture(test, orders).mean())


def marginal_errors(chain: Chain) -> dict[str, float]:
    """Largest error of P(x_V = 1…1) over all V of one and two columns: one pass against sums of the joint."""
    space, states = chain.space, chain.space.states()
    joint = chain.joint(states).double().softmax(0)
    worst = {}
    for size in (1, 2):
        errors = []
        for V in itertools.combinations(range(space.dim), size):
            row = torch.full((1, space.dim), math.nan)
            row[0, list(V)] = 1.0
            brute = float(joint[(states[:, list(V)] == 1).all(1)].sum())
            errors.append(abs(math.exp(float(chain.joint(row))) - brute))
        worst[f"largest error of a {size}-column marginal, one pass"] = max(errors)
    return worst


def incomplete_rows(chain: Chain, test: Tensor) -> dict[str, float]:
    """Scores of rows with missing cells against brute-force marginals of the joint."""
    generator = torch.Generator().manual_seed(0)
    rows = test[:200].clone()
    rows[torch.rand(rows.shape, generator=generator) < MISSING] = math.nan
    states = chain.space.states()
    joint = chain.joint(states).double().log_softmax(0)
    brute = []
    for row in rows:
        seen = ~row.isnan()
        brute.append(joint[(states[:, seen] == row[seen]).all(1)].logsumexp(0))
    truth = torch.stack(brute)
    exact = chain.log_prob_mixture(rows, chain.orders(ORDERS, generator)).double()
    return {
        "incomplete rows, chain rule minus brute force, mean": float((exact - truth).mean()),
        "incomplete rows, chain rule minus brute force, rms": float(((exact - truth) ** 2).mean().sqrt()),
    }


def sample_errors(chain: Chain) -> dict[str, float]:
    """Mean total variation of all pairwise marginals of chain samples to the chain's own, beside the noise floor."""
    generator = torch.Generator().manual_seed(0)
    order, states = list(range(chain.space.dim)), chain.space.states()
    p = chain.log_prob(states, order).double().softmax(0)
    drawn = chain.sample(SAMPLES, generator, order).x
    ideal = states[torch.multinomial(p, SAMPLES, replacement=True, generator=generator)]

    def pairs(rows: Tensor, weight: Tensor) -> Tensor:
        cells = []
        for i, j in itertools.combinations(range(chain.space.dim), 2):
            cell = (2 * rows[:, i] + rows[:, j]).long()
            cells.append(torch.zeros(4, dtype=torch.float64).index_add(0, cell, weight))
        return torch.stack(cells)

    even = torch.full((SAMPLES,), 1 / SAMPLES, dtype=torch.float64)
    truth = pairs(states, p)
    return {
        f"pairwise TV of {SAMPLES} chain samples": float(
            (pairs(drawn, even) - truth).abs().sum(1).mean() / 2
        ),
        f"pairwise TV of {SAMPLES} exact samples": float(
            (pairs(ideal, even) - truth).abs().sum(1).mean() / 2
        ),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--data", default=None, help="folder with debd/ (default: $CTEM_DATA, else downloaded)"
    )
    args = parser.parse_args()
    if args.device != "cpu" or args.seeds not in (None, 1):
        parser.error(
            f"this script runs one seed on the cpu; got --device {args.device} --seeds {args.seeds}."
        )
    began = time.perf_counter()
    splits = toy_splits() if args.quick else load_binary("nltcs", args.data)
    recipe = replace(RECIPE, steps=40, evaluate_every=20) if args.quick else RECIPE
    space = Space([Category(2)] * splits.train.shape[1])
    x, valid, test = (space.encode(part) for part in splits)
    chain, seconds = fitted(x, valid, space, recipe)
    found = {"exact nats, mixture of 8 orders": nats(chain, test), "training seconds, 2 cores": seconds}
    exact = log_z_enumerate(chain.joint, space)
    sampled = joint_log_z(chain, 20_000, torch.Generator().manual_seed(0))
    found |= {
        "joint, one pass, minus its enumerated constant": float(chain.joint(test).mean()) - exact.value,
        "constant by enumeration": exact.value,
        "constant, sampled minus enumerated": sampled.value - exact.value,
        "standard error of the sampled constant": sampled.stderr,
    }
    found |= marginal_errors(chain) | incomplete_rows(chain, test) | sample_errors(chain)
    gappy = x.clone()
    gappy[torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < MISSING] = math.nan
    missing, _ = fitted(gappy, valid, space, recipe)
    found["exact nats, trained with 30 % of cells missing"] = nats(missing, test)
    records = [
        summarise("nltcs", "clock per column, CPU-sized", name, [value]) for name, value in found.items()
    ]
    for name, value in found.items():
        print(f"{name}: {value:.5f}")
    settings = {"recipe": asdict(RECIPE), "network": NETWORK, "orders": ORDERS, "missing": MISSING}
    write("nltcs", settings, records, args.device, time.perf_counter() - began, args.out, quick=args.quick)


if __name__ == "__main__":
    main()
