r"""
A custom energy
===============

Any module that maps rows to numbers can be the log-potential :math:`f` of :math:`\rho \propto \exp f`. Here it is an Ising
model on a ring of twelve spins, with one number for the coupling and one for the field. The objective recovers both from
samples, without ever computing the constant; since there are only 4096 states, everything can be checked exactly.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

from ctem import Category, HammingOne, Recipe, Space, brier, log_score, pair_loss, train
from ctem.partition import log_z_enumerate

space = Space([Category(2)] * 12)


class Ising(nn.Module):
    """f(x) = J Σ_i s_i s_{i+1} + h Σ_i s_i with spins s = 2x − 1."""

    def __init__(self, coupling, field):
        super().__init__()
        self.coupling = nn.Parameter(torch.tensor(float(coupling)))
        self.field = nn.Parameter(torch.tensor(float(field)))

    def forward(self, x):
        s = 2 * x - 1
        return self.coupling * (s * s.roll(1, -1)).sum(-1) + self.field * s.sum(-1)


# %%
# Exact draws of the truth: 4096 states, each with its probability.
truth = Ising(0.4, 0.15)
states = space.states()
with torch.no_grad():
    p = (truth(states) - log_z_enumerate(truth, space).value).exp()
x = states[torch.multinomial(p, 4000, replacement=True, generator=torch.Generator().manual_seed(0))]

# %%
# A comparison flips one spin. Both rules have the truth as their minimum: the paper's, a Brier score, and the log score.
kernel = HammingOne(space)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for rule, colour in ((brier, "#1f5fa8"), (log_score, "#c0562f")):
    model = Ising(0.0, 0.0)
    recipe = Recipe(steps=600, learning_rate=0.01, weight_decay=0.0, evaluate_every=300)
    train(model, lambda f, x, g, rule=rule: pair_loss(f, x, kernel, g, m=2, rule=rule), x, recipe)
    J, h = model.coupling.item(), model.field.item()
    print(f"{rule.__name__}: coupling {J:.3f} (true 0.4), field {h:.3f} (true 0.15)")
    with torch.no_grad():
        q = (model(states) - log_z_enumerate(model, space).value).exp()
    right.plot(p, q, ".", ms=3, color=colour, label=rule.__name__)
right.plot([p.min(), p.max()], [p.min(), p.max()], "k--", lw=1)
right.set(xlabel="true probability of a state", ylabel="learned", xscale="log", yscale="log")
right.legend()
left.hist(2 * x.sum(1) - 12, bins=range(-13, 15, 2), color="#c9d8ea", ec="white", density=True)
_ = left.set(xlabel="sum of spins", title="4000 draws of the truth")
