"""
The densities of the paper's Table 1
====================================

The four planar sets of the paper, a thousand rows each, by the paper's own method: pairs of near points, the constant target,
and a constant log Z that is known afterwards. It is what ``ctem.EnergyModel`` does by default; here the rate is higher and
training shorter, which the spiral shows: it needs more steps than the other three. ``make table1`` makes the table itself,
and an energy of our own beside it, which tilts a normal law.
"""

import matplotlib.pyplot as plt
import torch

from ctem import EnergyModel, Recipe
from ctem.benchmarks.targets import PAPER_2D, grid

figure, axes = plt.subplots(2, 4, figsize=(10, 5.2), layout="constrained")
for (top, below), target in zip(axes.T, PAPER_2D, strict=True):
    X = torch.as_tensor(target.sample(1000, seed=0), dtype=torch.float32)
    recipe = Recipe(steps=1500, learning_rate=2e-3, evaluate_every=100)
    model = EnergyModel(target.space.standardised(X), recipe=recipe, random_state=0).fit(X)
    side = float(X.abs().max()) * 1.15
    plane, weights = grid((-side, side), 80)
    true = target.log_density(plane).exp()
    learned = model.log_prob(plane.float()).exp()
    print(
        f"{type(target).__name__:14s} mass {float((learned * weights).sum()):.3f}, log Z {model.log_z().value:.3f}"
    )
    for ax, picture, title in ((top, true, "truth"), (below, learned, "learned")):
        ax.imshow(
            picture.reshape(80, 80).T, origin="lower", cmap="Blues", vmax=true.max(), extent=(-side, side) * 2
        )
        ax.set_title(f"{type(target).__name__}, {title}", fontsize=9)
        ax.set(xticks=[], yticks=[])
