"""
A ring of sixteen labels
========================

The paper's mixed experiment: sixteen Gaussians on a ring, each with its own label, so that a row is a point of the plane and
a category. The truth is known, and the fitted density can be laid beside it.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from ctem import CTEM
from ctem.benchmarks.targets import LabelledRing, grid

ring = LabelledRing(separation=4.0)
NAMES = np.array(list("ABCDEFGHIJKLMNOP"))


def table(rows):
    """Rows of the plane and a label as a table."""
    return pd.DataFrame({"x": rows[:, 0], "y": rows[:, 1], "label": NAMES[rows[:, 2].astype(int)]})


X = table(ring.sample(4000, seed=0))
model = CTEM(effort="quick", max_steps=400, random_state=0).fit(X)

# %%
# The density of the point, with the label left open, and the most likely label at every point.
points = 50
X_grid, _ = grid((-8.0, 8.0), points)
plane = pd.DataFrame(X_grid.numpy(), columns=["x", "y"]).assign(label=None)
learned = np.exp(model.log_density(plane, columns=["x", "y"])).reshape(points, points)
true = ring.log_density_x(X_grid).exp().reshape(points, points).numpy()
label = np.searchsorted(NAMES, model.predict(plane, "label").astype(str)).reshape(points, points)
true_label = ring.label_probabilities(X_grid).argmax(-1).reshape(points, points)

figure, axes = plt.subplots(2, 2, figsize=(8, 8), layout="constrained", sharex=True, sharey=True)
for ax, picture, title in (
    (axes[0, 0], true, "true density"),
    (axes[0, 1], learned, "learned density"),
):
    ax.imshow(picture.T, origin="lower", extent=(-8, 8, -8, 8), cmap="Blues", vmax=true.max())
    ax.set_title(title)
for ax, picture, title in (
    (axes[1, 0], true_label, "most likely label, truth"),
    (axes[1, 1], label, "learned"),
):
    ax.imshow(picture.T, origin="lower", extent=(-8, 8, -8, 8), cmap="twilight", vmin=0, vmax=15)
    ax.set_title(title)

# %%
# Draws of the point given the label.
given = pd.DataFrame({"label": ["A", "E", "I", "M"]})
drawn = model.sample(200, given=given, random_state=0)
figure, ax = plt.subplots(figsize=(4.5, 4.5), layout="constrained")
ax.set_title("points drawn given four of the labels")
for name, part in drawn.groupby("label"):
    ax.plot(part["x"], part["y"], ".", ms=4, label=f"label {name}")
ax.set_aspect("equal")
ax.legend()

# %%
# How far the two are apart, in nats: the mean of log ρ over fresh rows.
fresh = ring.sample(2000, seed=1)
print(f"truth {ring.log_density(torch.as_tensor(fresh)).mean():.3f}, learned {model.score(table(fresh)):.3f}")
