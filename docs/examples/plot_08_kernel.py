r"""
A new kernel in ten lines
=========================

The objective compares a data point with a point that a *kernel* draws nearby. A kernel is one method, ``move``: where the
point goes, and by how much the move is asymmetric, :math:`\log k(y|x) - \log k(x|y)`. Here the point is turned about the
origin and its radius is stretched, a move that suits rings.
"""

import matplotlib.pyplot as plt
import torch

from ctem import MLP, Recipe, pair_loss, train
from ctem.benchmarks.targets import TwoRings, grid
from ctem.matching.kernels import Comparison, Kernel
from ctem.partition import log_z_grid


class Turn(Kernel):
    """Turn by an angle and stretch by a factor, both random.

    y = e^a R(t) x with a, t normal. The stretch is symmetric in log r, so in the plane the densities of the move and of its
    return differ by the Jacobian: log k(y|x) − log k(x|y) = −2a.
    """

    def move(self, x, generator):
        a, t = 0.8 * torch.randn(2, *x.shape[:-1], generator=generator)
        turned = torch.stack(
            [x[..., 0] * t.cos() - x[..., 1] * t.sin(), x[..., 0] * t.sin() + x[..., 1] * t.cos()], -1
        )
        return Comparison(a.exp()[..., None] * turned, -2 * a)


# %%
# Without the correction ``-2 * a`` the learned density is wrong by a factor :math:`r^2`. The moves must also be long enough
# to lead from one ring to the other and into the hole: what no comparison reaches stays unknown. Training is the library's loop with the library's loss.
target = TwoRings()
X = torch.as_tensor(target.sample(2000, seed=0), dtype=torch.float32)
space = target.space
kernel = Turn(space, space.reals, "real")
f = MLP(space, width=64)
train(
    f,
    lambda f, x, g: pair_loss(f, x, kernel, g, m=2),
    X,
    Recipe(steps=1500, learning_rate=4e-3, ema=0.99, evaluate_every=500),
)
log_z = log_z_grid(f, space, bounds=(-3, 3))
print(f"log Z = {log_z.value:.3f}")

# %%
# Along a ray the two rings have the right height.
r = torch.linspace(0.2, 2.8, 300)
ray = torch.stack([r, torch.zeros_like(r)], 1)
with torch.no_grad():
    learned = (f(ray) - log_z.value).exp()
    plane, _ = grid((-3.0, 3.0), 100)
    picture = (f(plane.float()) - log_z.value).exp().reshape(100, 100)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.imshow(picture.T, origin="lower", extent=(-3, 3, -3, 3), cmap="Blues")
left.set_title("learned density")
right.plot(r, target.log_density(ray).exp(), color="0.6", lw=3, label="truth")
right.plot(r, learned, color="#b03a2e", label="learned")
right.set(xlabel="radius", ylabel="density", title="along a ray")
right.legend()
