r"""
log Z three ways
================

The paper's objective learns a potential :math:`f` with :math:`\rho \propto \exp f`; its constant :math:`\log Z` stays open.
``ctem.partition`` closes it. Each way returns a value with a standard error, here for a density whose constant is known.
"""

import math

import matplotlib.pyplot as plt
import torch

from ctem import ProductBase, Real, Space
from ctem.partition import log_z_bracket, log_z_grid, log_z_importance
from ctem.samplers import MALA

# %%
# A banana: :math:`f(x) = -\tfrac{1}{2} x_1^2 - 2 (x_2 - x_1^2/2)^2`. The second term is a normal density in :math:`x_2` of
# variance 1/4 wherever :math:`x_1` is, so :math:`Z = \sqrt{2\pi} \cdot \sqrt{2\pi/4}`.
space = Space([Real(), Real()])
truth = math.log(2 * math.pi / 2)


def banana(x):
    """The log-potential, (n, 2) → (n,)."""
    return -0.5 * x[:, 0] ** 2 - 2 * (x[:, 1] - 0.5 * x[:, 0] ** 2) ** 2


# %%
# A grid sees everything between its bounds and works for one or two columns. Importance sampling needs a proposal that
# covers the density, and shows by its effective sample size whether it did. Annealed importance sampling moves the draws on
# the way: from the proposal it is low in expectation, from exact draws of the density it is high, so that two numbers
# enclose the truth.
generator = torch.Generator().manual_seed(0)
base = ProductBase(space)
first = torch.randn(500, generator=generator)
exact = torch.stack([first, 0.5 * first**2 + 0.5 * torch.randn(500, generator=generator)], 1)
between = log_z_bracket(banana, base, MALA(space, step=0.1), exact, generator, levels=100)
ways = {
    "grid": log_z_grid(banana, space, bounds=(-6, 20)),
    "importance": log_z_importance(banana, base, 20_000, generator),
    "annealed, from below": between.lower,
    "annealed, from above": between.upper,
}
for name, found in ways.items():
    print(f"{name:22s} {found.value:.4f} ± {found.stderr:.4f}")
print(f"{'truth':22s} {truth:.4f}")

# %%
# Error bars are two standard errors. The grid's is the change from a grid of half as many points.
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
side = torch.linspace(-4, 4, 200)
plane = torch.cartesian_prod(side, side + 2)
left.contourf(side, side + 2, banana(plane).exp().reshape(200, 200).T, levels=12, cmap="Blues")
left.plot(*exact.T, ".", ms=2, color="#b03a2e", alpha=0.4)
left.set(xlabel="$x_1$", ylabel="$x_2$", ylim=(-2, 6), title="the density, and exact draws")
place = range(len(ways))
right.errorbar(
    place, [w.value for w in ways.values()], [2 * w.stderr for w in ways.values()], fmt="o", capsize=4
)
right.axhline(truth, color="0.5", lw=1, label="truth")
right.set_xticks(place, [name.replace(", ", ",\n") for name in ways])
right.set(title="log Z")
right.legend()
