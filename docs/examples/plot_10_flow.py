"""
Beside a normalizing flow
=========================

A spline flow (zuko's) and ``CTEM`` on the same rows: the two rings, in which a smooth map of a Gaussian has to tear open
a hole. Both are small and trained for seconds; the :doc:`results </results/tables>` compare them at full size on ten
tables.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
import torch
import zuko

from ctem import CTEM, Recipe, train
from ctem.benchmarks.targets import TwoRings, grid

target = TwoRings()
X, fresh = target.sample(2000, seed=0), target.sample(2000, seed=1)

# %%
# The flow is trained by the library's own loop, as any module is: the loss is its negative log-likelihood, and a fifth of the
# rows decides when to stop.
with torch.random.fork_rng(devices=[]):
    torch.manual_seed(0)  # zuko initialises from torch's global generator
    flow = zuko.flows.NSF(2, transforms=3, hidden_features=(64, 64))
rows = torch.as_tensor(X, dtype=torch.float32)
began = time.perf_counter()
recipe = Recipe(steps=400, batch_size=256, evaluate_every=50, patience=4)
train(flow, lambda f, x, g: -f().log_prob(x).mean(), rows[:1600], recipe, held_out=rows[1600:])
seconds = {"flow": time.perf_counter() - began}
began = time.perf_counter()
model = CTEM(effort="quick", random_state=0).fit(X)
seconds["CTEM"] = time.perf_counter() - began

# %%
# The mean log-density of fresh rows, in nats; the truth is the best that is possible.
with torch.no_grad():
    nats = {
        "truth": float(target.log_density(fresh).mean()),
        "flow": float(flow().log_prob(torch.as_tensor(fresh, dtype=torch.float32)).mean()),
        "CTEM": model.score(fresh),
    }
for name, value in nats.items():
    print(f"{name:6s} {value:7.3f} nats" + (f"  {seconds[name]:5.1f} s" if name in seconds else ""))

# %%
plane, _ = grid((-3.0, 3.0), 100)
with torch.no_grad():
    pictures = {
        "truth": target.log_density(plane).exp(),
        "flow": flow().log_prob(plane.float()).exp(),
        "CTEM": torch.as_tensor(np.exp(model.score_samples(plane.numpy()))),
    }
figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
for ax, (name, picture) in zip(axes, pictures.items(), strict=True):
    top = float(pictures["truth"].max())
    ax.imshow(picture.reshape(100, 100).T, origin="lower", extent=(-3, 3, -3, 3), cmap="Blues", vmax=top)
    ax.set_title(f"{name}: {nats[name]:.2f} nats")
