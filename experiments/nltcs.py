"""nltcs in depth: every marginal, missing values, chain samples, the constant of the joint.

    python experiments/nltcs.py [--data FOLDER] [--device cuda] [--systems slopes [--members 8]] [--jobs 3] [--quick]

16 bits have 65 536 states, so that everything the model says can be checked by brute force. --quick uses six bits
made on the spot.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import asdict, replace
from typing import NamedTuple

import torch
from torch import Tensor

from binary import toy_splits
from ctem import Category, Space
from ctem.chain import Chain
from ctem.datasets import load_binary
from ctem.density import Density
from ctem.fitting import fit_density
from ctem.partition import log_z_enumerate
from ctem.plans import Plan
from sweep import Task, Values, sweep, sweep_arguments, tasks

ORDERS, SAMPLES, MISSING = 8, 100_000, 0.3
SYSTEMS = ("clock per column", "slopes")


def fitted(x: Tensor, valid: Tensor, space: Space, plan: Plan, seed: int) -> tuple[Density, float]:
    began = time.perf_counter()
    density = fit_density(space, x, plan, seed=seed, held_out=valid, progress=True)
    return density, time.perf_counter() - began


def _states(chain: Chain) -> Tensor:
    return chain.space.states(device=chain.base.log_table.device)


def marginal_errors(density: Density) -> dict[str, float]:
    """Largest error of P(x_V = 1…1) over all V of one and two columns, against sums of the joint.

    There are two joints, of the chain rule and of one pass; each way is held against its own, and the first against the
    second.
    """
    chain, space, states = density.chain, density.space, _states(density.chain)
    joint = chain.joint(states).double().softmax(0)
    exact = density.log_prob_exact(states).double().exp()
    worst = {}
    for size in (1, 2):
        errors: dict[str, list[float]] = {}
        for V in itertools.combinations(range(space.dim), size):
            row = states.new_full((1, space.dim), math.nan)
            row[0, list(V)] = 1.0
            ones = (states[:, list(V)] == 1).all(1)
            said = float(density.log_prob_exact(row, V).exp())
            found = {
                "chain rule": said - float(exact[ones].sum()),
                "chain rule against one pass": said - float(joint[ones].sum()),
            }
            if density.slopes is None:
                found["one pass"] = math.exp(float(chain.joint(row))) - float(joint[ones].sum())
            for way, error in found.items():
                errors.setdefault(way, []).append(abs(error))
        for way, values in errors.items():
            worst[f"largest error of a {size}-column marginal, {way}"] = max(values)
    return worst


def incomplete_rows(density: Density, test: Tensor) -> dict[str, float]:
    """Scores of rows with missing cells against brute-force marginals of the joint."""
    generator = torch.Generator().manual_seed(0)
    rows = test[:200].clone()
    rows[torch.rand(rows.shape, generator=generator).to(rows.device) < MISSING] = math.nan
    states = _states(density.chain)
    joint = density.chain.joint(states).double().log_softmax(0)
    brute = []
    for row in rows:
        seen = ~row.isnan()
        brute.append(joint[(states[:, seen] == row[seen]).all(1)].logsumexp(0))
    truth = torch.stack(brute)
    said = {"as scored": density.log_prob(rows), "chain rule": density.log_prob_exact(rows).double()}
    found = {}
    for way, log_p in said.items():
        error = log_p - truth
        found[f"incomplete rows, {way} minus brute force, mean"] = float(error.mean())
        found[f"incomplete rows, {way} minus brute force, rms"] = float((error**2).mean().sqrt())
    return found


def sample_errors(chain: Chain) -> dict[str, float]:
    """Mean total variation of all pairwise marginals of chain samples to the chain's own, beside the noise floor."""
    states = _states(chain)
    generator, order = torch.Generator(states.device).manual_seed(0), list(range(chain.space.dim))
    p = chain.log_prob(states, order).double().softmax(0)
    drawn = chain.sample(SAMPLES, generator, order).x
    ideal = states[torch.multinomial(p, SAMPLES, replacement=True, generator=generator)]

    def pairs(rows: Tensor, weight: Tensor) -> Tensor:
        cells = []
        for i, j in itertools.combinations(range(chain.space.dim), 2):
            cell = (2 * rows[:, i] + rows[:, j]).long()
            cells.append(torch.zeros(4, dtype=torch.float64, device=rows.device).index_add(0, cell, weight))
        return torch.stack(cells)

    even = p.new_full((SAMPLES,), 1 / SAMPLES)
    truth = pairs(states, p)
    return {
        f"pairwise TV of {SAMPLES} chain samples": float(
            (pairs(drawn, even) - truth).abs().sum(1).mean() / 2
        ),
        f"pairwise TV of {SAMPLES} exact samples": float(
            (pairs(ideal, even) - truth).abs().sum(1).mean() / 2
        ),
    }


class Parts(NamedTuple):
    """The encoded splits and their space."""

    space: Space
    train: Tensor
    valid: Tensor
    test: Tensor


def parts(args) -> Parts:
    splits = toy_splits() if args.quick else load_binary("nltcs", args.data)
    space = Space([Category(2)] * splits.train.shape[1])
    return Parts(space, *(space.encode(part).to(args.device) for part in splits))


def planned(x: Tensor, system: str, args) -> Plan:
    """The default with more orders and draws, and slopes if they are the system."""
    suited = Plan.suited(*x.shape, cuda=x.is_cuda)
    slopes = (suited.slopes or suited.own) if system == "slopes" else None
    plan = replace(suited, log_z_samples=20_000, orders=ORDERS, slopes=slopes)
    if slopes is not None and args.members:
        recipe = replace(slopes.recipe, batch_size=128 * args.members)
        slopes = replace(slopes, members=args.members, recipe=recipe)
        plan = replace(plan, slopes=slopes, orders=max(1, ORDERS // args.members))
    if args.quick:
        brief = None if plan.slopes is None else plan.slopes.limited(len(x), max_steps=40)
        plan = replace(plan.limited(len(x), max_steps=40), log_z_samples=1000, slopes=brief)
    return plan


def measured(task: Task, args) -> Values:
    """Everything about one seed."""
    space, x, valid, test = parts(args)
    plan = planned(x, task.system, args)
    density, seconds = fitted(x, valid, space, plan, task.seed)
    chain = density.chain
    found = {
        "exact nats, mixture of 8 orders": float(density.log_prob_exact(test).mean()),
        "seconds": seconds,
    }
    exact = log_z_enumerate(chain.joint, space, device=x.device)
    sampled = density.log_z
    found |= {
        "joint, one pass, minus its enumerated constant": float(chain.joint(test).mean()) - exact.value,
        "constant by enumeration": exact.value,
        "constant, sampled minus enumerated": sampled.value - exact.value,
        "standard error of the sampled constant": sampled.stderr,
    }
    found |= marginal_errors(density) | incomplete_rows(density, test) | sample_errors(density.members[0])
    gappy = x.clone()
    gappy[torch.rand(x.shape, generator=torch.Generator().manual_seed(1)).to(x.device) < MISSING] = math.nan
    missing, _ = fitted(gappy, valid, space, plan, task.seed)
    found["exact nats, trained with 30 % of cells missing"] = float(missing.log_prob_exact(test).mean())
    return found


def main() -> None:
    parser = sweep_arguments(__doc__, ["nltcs"], SYSTEMS, seeds=3)
    parser.add_argument(
        "--members", type=int, help="networks of slopes, which share the orders (default: the plan's)"
    )
    args = parser.parse_args()
    x = parts(args).train
    settings = {f"plan, {system}": asdict(planned(x, system, args)) for system in args.systems}
    settings |= {"orders": ORDERS, "missing": MISSING}
    sweep(measured, tasks(args, quick=["toy bits"]), args, args.name or "nltcs", settings)


if __name__ == "__main__":
    main()
