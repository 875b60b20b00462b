"""The picture in the README: one continuous, one discrete and one mixed density, learned by the same few lines.

    python experiments/picture.py

Prints the error of each against its known truth and writes docs/demo.png, truth beside learned. With --quick it
only shows that everything runs, and draws into a folder that git ignores.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table as Rows
from torch import Tensor

from ctem import (
    MLP,
    Gaussian,
    Grid,
    HammingOne,
    Mixture,
    Product,
    ProductBase,
    Recipe,
    Sphere,
    Tilted,
    Uniform,
    log_score,
    pair_loss,
    train,
)
from ctem.metrics import ise, total_variation
from ctem.quantised import Moons
from ctem.targets import LabelledRing, TwoRings, grid
from foundation import label_errors, on_the_square, ring_errors
from results import QUICK

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "demo.png"
RECIPES = {
    "rings": Recipe(steps=3000),
    "moons": Recipe(steps=3000, learning_rate=3e-3, ema=0.998),
    "labels": Recipe(steps=3000, batch_size=512, ema=0.998),
}


class Panel(NamedTuple):
    """One density on a square: what is true and what was learned."""

    title: str
    truth: Tensor  # (points, points)
    learned: Tensor
    errors: dict[str, str]


def two_rings(console: Console, recipe: Recipe) -> Panel:
    """Continuous: 1000 points on two rings; the energy tilts a standard normal."""
    console.print("[bold]Two Rings[/bold], R², 1000 rows, Gaussian comparisons")
    target = TwoRings()
    X = target.sample(1000, seed=0)
    space = target.space.standardised(X)
    kernel = Gaussian(space, 0.4)
    f = Tilted(ProductBase(space), MLP(space))
    train(f, lambda f, x, g: pair_loss(f, x, kernel, g, m=4), space.encode(X), recipe, progress=True)
    square = grid(target.bounds)
    with torch.no_grad():
        p = f(space.encode(square.X)).double().exp()
    p /= (p * square.weights).sum()
    truth = target.log_density(square.X).exp()
    error = f"{100 * ise(p, truth, square.weights):.3f}e-2"
    return Panel(
        "Two Rings (continuous)", truth.view(200, 200), p.view(200, 200), {"ISE (paper 0.773e-2)": error}
    )


def moons(console: Console, recipe: Recipe) -> Panel:
    """Discrete: 20 000 points of the moons on a 91×91 grid, local and global comparisons."""
    console.print("[bold]Moons[/bold], 91×91 grid, 20 000 rows, grid and uniform comparisons")
    target = Moons()
    space, x = target.space, target.space.encode(target.sample(20_000, seed=0))
    kernel = Mixture([Grid(space, reach=8), Uniform(space)], [0.7, 0.3])
    f = MLP(space, width=64)

    def loss(f, x, generator):
        return pair_loss(f, x, kernel, generator, m=4, rule=log_score)

    train(f, loss, x, recipe, progress=True)
    with torch.no_grad():
        p = f(space.states()).double().softmax(0)
    truth = target.probabilities()
    histogram = torch.bincount(space.index(x), minlength=len(p)).double() / len(x)
    return Panel(
        "Moons (discrete)",
        truth.view(91, 91),
        p.view(91, 91),
        {
            "TV": f"{total_variation(p, truth):.3f}",
            "TV of the plain histogram": f"{total_variation(histogram, truth):.3f}",
        },
    )


def labelled_ring(console: Console, recipe: Recipe) -> Panel:
    """Mixed: R² × {0..15}, the paper's joint kernel."""
    console.print("[bold]Labelled ring[/bold], R²×{0..15}, 20 000 rows, the joint mixed kernel")
    target = LabelledRing()
    X = target.sample(20_000, seed=0)
    space = target.space.standardised(X)
    x = space.encode(X)
    kernel = Product(Sphere(space, 0.5), HammingOne(space))
    f = Tilted(ProductBase.fit(space, x), MLP(space, width=64))
    train(f, lambda f, x, g: pair_loss(f, x, kernel, g, m=2), x, recipe, progress=True)
    p, truth, weights = on_the_square(f, space, target)
    errors = ring_errors(p, truth, weights, target)
    return Panel(
        "Labelled ring (mixed), marginal",
        truth.sum(0).view(100, 100),
        p.sum(0).view(100, 100),
        {name: f"{value:.3f}" for name, value in errors.items()}
        | {
            f"label {y}, relative L2 error": f"{value:.3f}"
            for y, value in enumerate(label_errors(p, truth, weights))
        },
    )


def draw(panels: list[Panel], picture: Path) -> None:
    """Truth above, learned below, one colour scale per column."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(panels), figsize=(9, 6.2), layout="constrained")
    for column, panel in zip(axes.T, panels, strict=True):
        top = float(panel.truth.max())
        for axis, density in zip(column, (panel.truth, panel.learned), strict=True):
            axis.imshow(density.T, origin="lower", cmap="magma", vmin=0, vmax=top)
            axis.set_xticks([])
            axis.set_yticks([])
        column[0].set_title(panel.title, fontsize=10)
    axes[0, 0].set_ylabel("truth")
    axes[1, 0].set_ylabel("learned")
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    quick = parser.parse_args().quick
    recipes = {name: replace(r, steps=20) if quick else r for name, r in RECIPES.items()}
    picture = QUICK / "demo.png" if quick else PICTURE
    console, began = Console(), time.perf_counter()
    panels = [
        two_rings(console, recipes["rings"]),
        moons(console, recipes["moons"]),
        labelled_ring(console, recipes["labels"]),
    ]
    table = Rows("density", "measure", "value", title="Learned against the truth")
    for panel in panels:
        for name, value in panel.errors.items():
            table.add_row(panel.title, name, value)
    draw(panels, picture)
    console.print(table)
    console.print(f"picture: {picture}\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
