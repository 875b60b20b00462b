"""
The densities of the paper's Table 1
====================================

The four planar sets of the paper, a thousand rows each, by the paper's own objective: pairs of points, a constant target,
and a constant log Z that is known afterwards (``objective="pairwise"``). Networks here are small and trained briefly, which
the spiral shows: it needs more steps than the other three. ``make table1`` makes the table itself.
"""

import matplotlib.pyplot as plt
import torch

from ctem import Recipe
from ctem.benchmarks.targets import PAPER_2D, grid
from ctem.densities.pairwise import fit_pairwise

figure, axes = plt.subplots(2, 4, figsize=(10, 5.2), layout="constrained")
for (top, below), target in zip(axes.T, PAPER_2D, strict=True):
    X = torch.as_tensor(target.sample(1000, seed=0), dtype=torch.float32)
    space = target.space.standardised(X)
    density = fit_pairwise(
        space,
        space.encode(X),
        width=64,
        folds=2,
        weight_decays=[1.0],
        recipe=Recipe(steps=700, learning_rate=5e-3, evaluate_every=100),
    )
    side = float(X.abs().max()) * 1.15
    plane, weights = grid((-side, side), 80)
    true = target.log_density(plane).exp()
    learned = (density.log_prob(space.encode(plane.float())) + space.log_det).double().exp()
    print(
        f"{type(target).__name__:14s} mass {float((learned * weights).sum()):.3f}, log Z {density.log_z.value:.3f}"
    )
    for ax, picture, title in ((top, true, "truth"), (below, learned, "learned")):
        ax.imshow(
            picture.reshape(80, 80).T, origin="lower", cmap="Blues", vmax=true.max(), extent=(-side, side) * 2
        )
        ax.set_title(f"{type(target).__name__}, {title}", fontsize=9)
        ax.set(xticks=[], yticks=[])
