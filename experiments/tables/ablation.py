"""What each part of the default is worth: one changed at a time, nats of validation rows.

    python -m experiments.tables.ablation --device cuda --data FOLDER [--sets …] [--systems …] [--jobs N]

Bits are fitted to their training split and judged by their validation split. Of a table only training rows are looked
at (those of ``nats.py``; adult's training file): a fifth of them is for validation, which no fit sees. Nats are of
rows as written (``nats.our_nats``); every variant of a set and seed has the same rows. How orders are chosen and
mixed needs no other fit, so these variants are further metrics of the default. --quick takes a made-up table.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, silu

from ctem.bases import ProductBase
from ctem.datasets import load_binary, load_table
from ctem.densities.anyorder import AnyOrderDensity, AnyOrderNet, Settings, fit_anyorder
from ctem.densities.anyorder.layers import Linear
from ctem.densities.anyorder.numbers import NumberHead
from ctem.tables.answers.density import TableDensity, find_device
from ctem.tables.io.frame import read_frame
from ctem.tables.schema import Schema
from experiments.sweep import UNSAID, Task, Values, sweep, sweep_arguments, tasks, toy_table
from experiments.tables.nats import our_nats, split

BITS, TABLES = ("nltcs", "plants", "dna"), ("california", "bank", "diamonds", "adult")
SEEDS = 3
TINY = {"steps": 20, "width": 16, "blocks": 1, "orders": 2, "batch_size": 64}  # with --quick


class GradientHead(AnyOrderNet):
    """Coefficients of labels as the gradient of a scalar read-out w.r.t. their inputs: first-order comparisons.

    A label enters as (1[x_j = v] − share)/spread, so that a potential changes by 1/spread times its slope there if a
    hidden column takes the value v: the same scale as the linear head's.
    """

    def __init__(self, base: ProductBase, **options: Any):
        super().__init__(base, **options)
        self.of_labels = _Slopes(Linear(self.members, self.options["width"], 1, None), self.inputs.place)
        self.to(base.log_table)

    def _hidden(
        self, x: Tensor, visible: Tensor, level: Tensor, member: slice, holding: Tensor | None = None
    ) -> Any:
        """As ``Body`` has it, but with a gradient that has a gradient."""
        with torch.enable_grad():
            h, prediction = self._first(x, visible, level, member, holding)
            for block in self.body:
                h = h + block.outer(silu(block.inner(layer_norm(h, h.shape[-1:]), member)), member)
            self.of_labels.last.h = layer_norm(h, h.shape[-1:])
            return self.of_labels.last.h, prediction

    def _first(self, x: Tensor, visible: Tensor, level: Tensor, member: slice, holding: Tensor | None) -> Any:
        seen, prediction = self.inputs(x.flatten(0, 1), visible.flatten(0, 1), level.flatten(0, 1))
        seen = seen.unflatten(0, x.shape[:2])
        seen = (seen if holding is None else torch.cat([seen, holding], -1)).expand(
            len(self.first.bias[member]), -1, -1
        )
        self.of_labels.seen = seen.detach().requires_grad_()
        return self.first(self.of_labels.seen, member), prediction


class _Last:
    """The last layer of a pass, which a copy of the network does not take along."""

    h = torch.empty(0)

    def __deepcopy__(self, memo: Any) -> _Last:
        return _Last()


class _Slopes(nn.Module):
    """The gradient of a read-out of the last layer w.r.t. some of the inputs, in all rows of a pass or some of them."""

    def __init__(self, readout: nn.Module, place: slice):
        super().__init__()
        self.readout, self.place, self.seen, self.last = readout, place, torch.empty(0), _Last()

    def forward(self, h: Tensor, member: slice, outputs: slice = slice(None)) -> Tensor:
        with torch.enable_grad():
            g = self.readout(self.last.h, member).sum()
        (slope,) = torch.autograd.grad(g, self.seen, create_graph=self.training, retain_graph=True)
        first = (
            h.storage_offset() // h.shape[-1]
        )  # of the rows that are asked, which are a view of the last layer
        return slope[:, first : first + h.shape[1], self.place][..., outputs]

    def stretched(self, h: Tensor, scale: Tensor, start: Tensor) -> Tensor:
        return start + scale * self(h, slice(None))


class Uncorrected(AnyOrderNet):
    """Numbers around the linear prediction itself, which the network neither shifts nor stretches."""

    def __init__(self, base: ProductBase, **options: Any):
        super().__init__(base, **options)
        self.numbers = _Fixed().to(base.log_table)


class _Fixed(NumberHead):
    def _parts(self, found: Tensor, mean: Tensor, spread: Tensor) -> Any:
        weight, shift, stretch, a, b = found.split(self.lengths, -1)
        fixed = [weight, torch.zeros_like(shift), torch.zeros_like(stretch), a, b]
        return super()._parts(torch.cat(fixed, -1), mean, spread)

    def log_prob_of_scaled(self, t: Tensor, scaled: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
        found = (scaled.mT - self.start) * self.scale
        return self.log_prob(t.unsqueeze(-1), found, mean, spread).squeeze(-1)


class Finer(AnyOrderNet):
    """Densities of numbers with 33 and 25 knots instead of 9 and 17."""

    def __init__(self, base: ProductBase, **options: Any):
        super().__init__(base, **options)
        self.numbers = NumberHead((33, 25)).to(base.log_table)
        outputs = len(self.space.reals) * self.numbers.size
        self.of_numbers = Linear(self.members, self.options["width"], outputs, None).to(base.log_table)


def unpredicted(base: ProductBase, *, correlation: Tensor | None, **options: Any) -> AnyOrderNet:
    """Neither residuals as inputs nor a linear prediction."""
    return AnyOrderNet(base, **options)


class Variant(NamedTuple):
    """What is changed: of the settings, the network, the noise levels, the rehearsal, the formulas among columns."""

    settings: dict[str, float] = {}  # noqa: RUF012  read only
    network: Callable[..., AnyOrderNet] = AnyOrderNet
    levels: tuple[float, float] = fit_anyorder.__kwdefaults__["levels"]
    rehearsed: float = fit_anyorder.__kwdefaults__["rehearsed"]
    formulas: bool = True


VARIANTS = {
    "default": Variant(),
    "no rehearsal of the chosen orders": Variant(rehearsed=0.0),
    "rehearsal in all rows": Variant(rehearsed=1.0),
    "no formulas among columns": Variant(formulas=False),
    "33 and 25 knots": Variant(network=Finer),
    "half the steps": Variant({"steps": 4000}),
    "batches of 512": Variant({"batch_size": 512}),
    "gradient head for labels": Variant(network=GradientHead),
    "no linear prediction": Variant(network=unpredicted),
    "prediction not corrected": Variant(network=Uncorrected),
    "1 member": Variant({"members": 1}),
    "4 members": Variant({"members": 4}),
    "weight decay 0": Variant({"weight_decay": 0.0}),
    "weight decay 1": Variant({"weight_decay": 1.0}),
    "one noise level, 1e-4": Variant(levels=(1e-4, 1e-4)),
}


def load(data: str, seed: int, args) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and validation rows."""
    if data in BITS:
        splits = load_binary(data, args.data)
        return _frame(splits.train), _frame(splits.valid)
    if data == "toy":
        return split(toy_table(150, 0), seed)
    frame = load_table(data, args.data)
    train = frame.fillna(UNSAID) if data == "adult" else split(frame.dropna(), seed)[0]
    return split(train.reset_index(drop=True), seed + 1)


def _frame(bits: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(bits.astype(int), columns=[f"x{j}" for j in range(bits.shape[1])])


def settled(schema: Schema, rows: int, variant: Variant, quick: bool) -> Settings:
    """What ``CTEM()`` would take, with the changes."""
    suited = Settings.suited(rows, schema.space.dim, reals=len(schema.space.reals))
    return suited.changed(rows, **((TINY if quick else {}) | variant.settings))


def measure(task: Task, args) -> Values:
    """One fit, and for the default what other orders would give."""
    variant, (train, valid) = VARIANTS[task.system], load(task.data, task.seed, args)
    schema = Schema.fit(read_frame(train))
    schema = schema if variant.formulas else replace(schema, formulas=())
    x = schema.encode(read_frame(train)).x.to(find_device(args.device))
    settings, began = settled(schema, len(x), variant, args.quick), time.perf_counter()
    density = fit_anyorder(
        schema.space,
        x,
        settings,
        seed=task.seed,
        parents=schema.parents,
        jitter=schema.preparation,
        ties=schema.ties,
        network=variant.network,
        levels=variant.levels,
        rehearsed=variant.rehearsed,
    )
    seconds = time.perf_counter() - began

    def nats(density: AnyOrderDensity) -> float:
        table = TableDensity(schema, density)
        return our_nats(schema, lambda rows: table.log_prob(read_frame(rows)), valid, task.seed)

    found = {"validation nats": nats(density)}
    if task.system == "default":
        for name, orders in other_orders(density, settings, task.seed).items():
            found[f"validation nats, {name}"] = nats(with_orders(density, orders))
        found["validation nats, networks mixed whole"] = nats(MixedWhole(density))
    return found | {"fit, seconds": seconds, "step chosen by held-out loss": density.history.best_step}


def other_orders(density: AnyOrderDensity, settings: Settings, seed: int) -> dict[str, list[list[int]]]:
    """Random orders instead of chosen ones, and the best order alone."""
    drawn = density.chain.orders(settings.orders, torch.Generator().manual_seed(seed))
    return {"random orders": drawn, "1 order": density.orders[:1]}


class MixedWhole:
    """The mean over the networks of the density that each makes alone, instead of the mean in every conditional."""

    def __init__(self, density: AnyOrderDensity):
        self.alone = [density.altered(member=k) for k in range(density.net.members)]
        self.base, self.space, self.parents = density.base, density.space, density.parents

    def log_prob(self, x: Tensor) -> Tensor:
        each = torch.stack([one.log_prob(x) for one in self.alone])
        return each.logsumexp(0) - math.log(len(each))


def with_orders(density: AnyOrderDensity, orders: list[list[int]]) -> AnyOrderDensity:
    late = density.chain.late
    return AnyOrderDensity(density.net, density.level, orders, parents=density.parents, late=late)


def main() -> None:
    args = sweep_arguments(__doc__, (*BITS, *TABLES), tuple(VARIANTS), SEEDS).parse_args()
    settings = {
        "default": asdict(Settings()),
        "validation": "bits: their split; tables: a fifth of the training rows",
    }
    sweep(measure, tasks(args), args, args.name or "ablation", settings)


if __name__ == "__main__":
    main()
