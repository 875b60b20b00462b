"""What each part of space-time CTEM is worth: one part taken away at a time, three seeds each, small budgets.

    python experiments/ablation.py --device cuda [--data FOLDER] [--quick]

Binary sets: exact test nats by the chain rule, beside an order-agnostic masked cross-entropy network of the same trunk
and number of steps. Two Rings and the 10-D mixture: errors of the one-pass density. The seeds are members of one
program. On discrete columns ``Clocks`` integrates base draws out, so that constant and soft target are one loss.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from binary import toy_splits
from ctem import Category, Noise, ProductBase, Recipe, Space, grad_log_density, train
from ctem.chain import Chain
from ctem.clocknet import ClockNet
from ctem.datasets import Splits, load_binary
from ctem.losses import brier
from ctem.metrics import fisher_divergence, ise
from ctem.partition import log_z_enumerate
from ctem.spacetime import Clocks, SharedClock
from ctem.targets import GaussianMixture, TwoRings, grid
from results import Record, arguments, summarise, write

SEEDS, ORDERS, LEVEL = 3, 8, 8e-4
BITS = {"width": 256, "blocks": 3}
REALS = {"width": 128, "blocks": 2, "harmonics": 1}
RECIPE = Recipe(
    steps=3000, batch_size=SEEDS * 512, weight_decay=0.01, ema=0.998, evaluate_every=300, patience=6
)


class Masked(nn.Module):
    """The rival: the trunk of ClockNet with one logit per column, read off where the column is hidden."""

    def __init__(self, base: ProductBase, network: dict):
        super().__init__()
        self.trunk = ClockNet(base, members=SEEDS, **network)
        self.head = nn.Parameter(torch.zeros(SEEDS, network["width"], base.space.dim))
        self.register_buffer("prior", base.log_table[:, 1] - base.log_table[:, 0])

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """Logits (n, d) of every column given the visible ones; row r belongs to member r mod members."""
        level = torch.where(visible, 0.0, math.inf)
        seen = self.trunk.seen(x, level).unflatten(0, (-1, SEEDS)).transpose(0, 1)
        h = self.trunk.norm(self.trunk.body(self.trunk.first(seen)))
        return torch.bmm(h, self.head).transpose(0, 1).flatten(0, 1) + self.prior

    def loss(self, model: nn.Module, x: Tensor, generator: torch.Generator) -> Tensor:
        """Mean cross-entropy of the hidden columns, their number uniform."""
        u = torch.rand(x.shape, generator=generator, device=x.device)
        share = torch.rand(len(x), 1, generator=generator, device=x.device)
        hidden = u.argsort(-1).argsort(-1) < (share * x.shape[1]).floor() + 1
        each = binary_cross_entropy_with_logits(model(x, ~hidden), x, reduction="none")
        return ((each * hidden).sum(-1) / hidden.sum(-1)).mean()


def masked_nats(model: Masked, test: Tensor, orders: list[list[int]]) -> list[float]:
    """Exact test nats of the rival, mixture of orders, of each member."""
    rows, totals = test.repeat_interleave(SEEDS, 0), []
    with torch.no_grad():
        for order in orders:
            visible, total = torch.zeros_like(rows, dtype=torch.bool), 0.0
            for j in order:
                logit = model(rows, visible)[:, j]
                total = total - binary_cross_entropy_with_logits(logit, rows[:, j], reduction="none")
                visible[:, j] = True
            totals.append(total)
    each = torch.stack(totals).logsumexp(0) - math.log(len(orders))
    return each.double().view(-1, SEEDS).mean(0).tolist()


def bits(splits: Splits, device: str, recipe: Recipe, network: dict):
    """(variant, metric, value of each seed)."""
    space = Space([Category(2)] * splits.train.shape[1])
    x, valid, test = (space.encode(part).to(device) for part in splits)
    held = valid[:2048].repeat_interleave(SEEDS, 0)
    marginal, flat = ProductBase.fit(space, x).to(device), ProductBase(space).to(device)
    weights = torch.ones(SEEDS, len(x), device=device)
    variants = {
        "all parts (log rule)": Clocks(marginal),
        "Brier rule": Clocks(marginal, rule=brier),
        "no temporal pairs": Clocks(marginal, temporal=0.0),
        "no base measure (uniform)": Clocks(flat),
        "with local normalisation": Clocks(marginal, consistency=1.0),
        "one shared clock": SharedClock(Noise(marginal), low=0.01, whole=1.0, clean=0.0),
    }
    metric = f"exact nats, mixture of {ORDERS} orders"
    for name, objective in variants.items():
        base = flat if "uniform" in name else marginal
        net = ClockNet(base, members=SEEDS, **network).to(device)
        train(net, objective, x, recipe, held_out=held, weights=weights, cuda_graph=device.startswith("cuda"))
        chains = [Chain(net.member(k).eval(), base) for k in range(SEEDS)]
        if "shared" in name:
            if space.n_states <= 2**22:
                yield (
                    name,
                    "exact nats, one pass minus its enumerated constant",
                    [shared_nats(net.member(k).eval(), base, test) for k in range(SEEDS)],
                )
            continue
        orders = chains[0].orders(ORDERS, torch.Generator().manual_seed(0))
        yield name, metric, [float(c.log_prob_mixture(test, orders).double().mean()) for c in chains]
    rival = Masked(marginal, network).to(device)
    train(rival, rival.loss, x, recipe, held_out=held, weights=weights, cuda_graph=device.startswith("cuda"))
    yield "rival: masked cross-entropy", metric, masked_nats(rival.eval(), test, orders)


def shared_nats(g: ClockNet, base: ProductBase, test: Tensor) -> float:
    def f(rows: Tensor) -> Tensor:
        return base.log_prob(rows) + g(rows, torch.full((len(rows),), 0.01, device=rows.device))

    with torch.no_grad():
        log_z = log_z_enumerate(f, base.space, device=test.device)
        return float(f(test).double().mean()) - log_z.value


def reals(target, rows: int, device: str, recipe: Recipe, network: dict):
    """(variant, metric, value of each seed), of the one-pass density."""
    sets = [target.sample(rows, seed) for seed in range(SEEDS)]
    spaces = [target.space.standardised(X) for X in sets]
    for name, options, width in (
        ("all parts (log rule, soft target)", {}, 1.0),
        ("Brier rule", {"rule": brier}, 1.0),
        ("constant target", {"constant": True}, 1.0),
        ("no temporal pairs", {"temporal": 0.0}, 1.0),
        ("base three times too wide", {}, 3.0),
        ("one shared clock", {"whole": 1.0}, 1.0),
    ):
        x = torch.cat([s.encode(X) / width for s, X in zip(spaces, sets, strict=True)]).to(device)
        base = ProductBase(target.space).to(device)
        owner = torch.arange(SEEDS, device=device).repeat_interleave(rows)
        held = (torch.arange(len(x), device=device) % 10) == 0
        weights = ((owner == torch.arange(SEEDS, device=device).unsqueeze(1)) & ~held).float()
        turn = torch.stack([x[held & (owner == k)] for k in range(SEEDS)], 1).flatten(0, 1)
        objective = SharedClock(Noise(base), **({"low": 2e-4, "reach": 1.5, "clean": 1.0} | options))
        net = ClockNet(base, members=SEEDS, **network).to(device)
        train(
            net,
            objective,
            x,
            recipe,
            held_out=turn.repeat(8, 1),
            weights=weights,
            cuda_graph=device.startswith("cuda"),
        )
        found: dict[str, list[float]] = {}
        for k in range(SEEDS):
            for metric, value in measured(
                net.member(k).eval(), base, spaces[k], target, width, device
            ).items():
                found.setdefault(metric, []).append(value)
        for metric, values in found.items():
            yield name, metric, values


def measured(
    g: ClockNet, base: ProductBase, space: Space, target, width: float, device: str
) -> dict[str, float]:
    def f(x: Tensor) -> Tensor:
        return base.log_prob(x) + g(x, torch.full((len(x),), LEVEL, device=device))

    scale = torch.tensor([c.scale for c in space.columns]).double() * width
    if isinstance(target, GaussianMixture):
        X = torch.as_tensor(target.sample(2000, seed=10_000))
        score = grad_log_density(f, (space.encode(X) / width).to(device)).double().cpu() / scale
        return {"Fisher divergence": fisher_divergence(score, target.grad_log_density(X))}
    square = grid(target.bounds)
    with torch.no_grad():
        log_p = f((space.encode(square.X) / width).to(device)).double().cpu() - scale.log().sum()
    log_z = (log_p + square.weights.log()).logsumexp(0)
    truth = target.log_density(square.X).exp()
    return {
        "ISE ×1e-2, self-normalised": 100 * ise(log_p.exp(), truth, square.weights),
        "ISE ×1e-2, normalised on the grid": 100 * ise((log_p - log_z).exp(), truth, square.weights),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--data", default=None, help="folder with debd/ (default: $CTEM_DATA, else downloaded)"
    )
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    began, recipe, sizes = time.perf_counter(), RECIPE, (BITS, REALS)
    if args.quick:
        recipe = replace(RECIPE, steps=10, batch_size=SEEDS * 16, evaluate_every=5)
        sizes = ({"width": 16, "blocks": 1}, {"width": 16, "blocks": 1})
    cases = {
        name: lambda name=name: bits(load_binary(name, args.data), args.device, recipe, sizes[0])
        for name in ("nltcs", "plants")
    }
    if args.quick:
        cases = {"toy bits": lambda: bits(toy_splits(), args.device, recipe, sizes[0])}
    cases["Two Rings"] = lambda: reals(TwoRings(), 1000, args.device, recipe, sizes[1])
    cases["10-D mixture"] = lambda: reals(GaussianMixture(10), 5000, args.device, recipe, sizes[1])
    records: list[Record] = []
    settings = {"recipe": asdict(RECIPE), "bits": BITS, "reals": REALS, "level": LEVEL}
    for name, variants in cases.items():
        for variant, metric, values in variants():
            records.append(summarise(name, variant, metric, values))
            print(f"{name}, {variant}: {metric} " + " ".join(f"{v:.4f}" for v in values), flush=True)
            write(
                "ablation",
                settings,
                records,
                args.device,
                time.perf_counter() - began,
                args.out,
                quick=args.quick,
            )


if __name__ == "__main__":
    main()
