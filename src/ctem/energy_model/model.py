"""The paper's method as an object: an energy on any space, fitted, normalised, drawn from and saved."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from ctem.bases import FittedBase, Pool
from ctem.energies import LogPotential, grad_log_density
from ctem.energy_model.constants import Box, best_method, box_around, compute_log_z
from ctem.energy_model.defaults import checked_recipe, default_kernel, default_net, find_rule
from ctem.energy_model.drawing import BATCH, Draws, draw_rows
from ctem.energy_model.files import load, save
from ctem.energy_model.network import Shaped, tilted
from ctem.matching.kernels import Kernel
from ctem.matching.losses import Rule, pair_loss, tilt_loss
from ctem.matching.rivals import Objective
from ctem.partition import LogZ, Proposal
from ctem.spaces import Space
from ctem.tables.answers.density import find_device
from ctem.training import History, Recipe, train

__all__ = ["EnergyModel", "Look"]

Net = nn.Module | Callable[[Tensor], Tensor]
WIDE = (0.05, 20.0)  # deviations of a real column that a network can live with


class Look(NamedTuple):
    """What a callback is given at every evaluation.

    >>> Look(250, 0.71, 0.72, 1.5, 0, nn.Identity()).held_out
    0.72
    """

    step: int
    loss: float  # mean over the steps since the last look
    held_out: float | None  # of the held-out comparisons, if there are any
    seconds: float  # of training so far
    member: int  # which network of a cross-fit
    net: nn.Module  # as it is now


class EnergyModel(BaseEstimator):  # type: ignore[misc]
    r"""ρ(z) ∝ exp f(z) on any space, learned by comparing each row z with points z̃ near it.

        loss = mean of (tanh(Δ/2) − 1)²,     Δ = f(z) − f(z̃) + log k(z̃|z)/k(z|z̃)

    By default all is the paper's: its loss, its network, and the kernel k and scale of its experiments on such a space
    (:func:`~ctem.energy_model.defaults.default_kernel`). With a base b and no kernel, comparisons are draws of b,
    f = log b + g, and Δ = g(z) − g(z̃). Rows are in the units of the space; ``space.standardised(X)`` learns them.

    Arguments:
        space: what a row is.
        net: f, or g beside a base: a module, or any function from rows (n, *space.shape) to (n,) or (n, 1). It is
            copied; a function without parameters is taken as it is, and only normalised. None is the paper's MLP.
        base: an object with ``sample(n, generator)`` and a normalised ``log_prob(x)`` of encoded rows (n, d).
        kernel: where comparisons come from; None is the paper's, or the base where there is one.
        rule: "constant target" (the paper's), "log score", "concrete score", "score entropy", a function of Δ, or a
            rival's loss of its own kind (``ctem.matching.rivals``), which needs no kernel.
        scale: c of the paper's ε = c·σ̄, for kernel=None; None is 0.5 in up to three real columns, 0.2/√d beyond.
        comparisons: m for each row and step; on real columns in antithetic pairs.
        draws: of a base that is slow to draw from, made once for all comparisons, and as many fresh ones for log Z,
            which is not annealed then; None draws anew at every step.
        recipe: how long and how fast, a ``ctem.Recipe``; None is the paper's, with early stopping.
        validation_fraction: of the rows, held out to stop by if there are no others; 0 trains to the end.
        folds: more than 1 cross-fits: so many networks, each blind to one part of the rows, which stops it; the density
            is the mean of theirs.
        random_state: of everything random.
        device: "auto" (CUDA where there is one), "cpu", "cuda".
        verbose: 1 shows a bar.

    Attributes after fit: ``nets_`` (one per fold), ``kernel_``, ``log_zs_``, ``histories_``, ``base_`` (what log Z and
    samples are drawn from).

    >>> from ctem.spaces import Category
    >>> X = np.random.default_rng(0).integers(2, size=(200, 3))
    >>> model = EnergyModel(Space([Category(2)] * 3), recipe=Recipe(steps=50), random_state=0).fit(X)
    >>> model.log_z().method, round(float(np.exp(model.log_prob(model.space.states().numpy())).sum()), 5)
    ('enumerate', 1.0)
    """

    def __init__(
        self,
        space: Space,
        *,
        net: Net | None = None,
        base: Proposal | None = None,
        kernel: Kernel | None = None,
        rule: str | Rule | Objective = "constant target",
        scale: float | None = None,
        comparisons: int = 4,
        draws: int | None = None,
        recipe: Recipe | None = None,
        validation_fraction: float = 0.1,
        folds: int = 1,
        random_state: int | None = None,
        device: str = "auto",
        verbose: int = 0,
    ):
        self.space = space
        self.net = net
        self.base = base
        self.kernel = kernel
        self.rule = rule
        self.scale = scale
        self.comparisons = comparisons
        self.draws = draws
        self.recipe = recipe
        self.validation_fraction = validation_fraction
        self.folds = folds
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(
        self, X: ArrayLike, X_val: ArrayLike | None = None, callbacks: Sequence[Callable[[Look], Any]] = ()
    ) -> EnergyModel:
        """Learn f from rows X (n, *space.shape), NumPy or tensors, and then log Z.

        Arguments:
            X: the rows, in the units of the space.
            X_val: rows to stop by; None holds some of X out.
            callbacks: each is called with a :class:`Look` at every evaluation; one that returns True ends training.
        """
        self._check()
        self.device_ = find_device(self.device)
        x = self.space.encode(X, device=self.device_)
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._adopt(x)
        with_kernel = self.kernel is not None or self.base is None
        self.kernel_ = (self.kernel or default_kernel(self.space, x, self.scale)) if with_kernel else None
        self._pools = self._drawn_before()
        self.nets_: list[Shaped] = []
        self.histories_: list[History] = []
        for k, (seen, held_out) in enumerate(self._splits(x, X_val)):
            net = default_net(self.space, self.seed_ + k) if self.net is None else self.net
            g = Shaped(self.space, net).to(self.device_)
            self.histories_.append(self._trained(g, seen, held_out, k, callbacks))
            self.nets_.append(g.eval())
        del self._pools
        self.log_zs_ = self._log_zs()
        return self

    def log_z(self, method: str = "auto", **how: int) -> LogZ:
        """log ∫ exp f with its standard error, by the best means that the space allows: that of the fit.

        Arguments:
            method: "enumerate", "grid", "importance" or "annealed" computes it anew, as further arguments do.
            how: draws of importance sampling; chains and levels of annealing.
        """
        check_is_fitted(self)
        zs = self.log_zs_ if method == "auto" and not how else self._log_zs(method=method, **how)
        if len(zs) == 1:
            return zs[0]
        value = math.log(sum(math.exp(z.value - zs[0].value) for z in zs) / len(zs)) + zs[0].value
        words = ", ".join(dict.fromkeys(z.method for z in zs))
        return LogZ(value, sum(z.stderr for z in zs) / len(zs), min(z.ess for z in zs), words)

    def log_prob(self, X: ArrayLike) -> Any:
        """log ρ of each row per unit of the user's real columns, (n,): NumPy of NumPy, a tensor of a tensor."""
        x = self._encoded(X)
        with torch.no_grad():
            values = torch.cat([self._log_prob(part) for part in x.split(BATCH)])
        return _like(X, values + self.space.log_det)

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """The mean of ``log_prob`` over rows: scikit-learn's score. Report it with its standard error."""
        return float(np.mean(np.asarray(torch.as_tensor(self.log_prob(X)).cpu())))

    def grad_log_density(self, X: ArrayLike) -> Any:
        """∇ log ρ per unit of the user's real columns, (n, *space.shape); nan in discrete columns, which have none."""
        x = self._encoded(X)
        scales = [getattr(column, "scale", math.nan) for column in self.space.columns]
        grad = grad_log_density(self._log_prob, x, BATCH) / torch.tensor(scales, device=x.device)
        return _like(X, grad.unflatten(-1, self.space.shape))

    def sample(
        self,
        n: int,
        *,
        method: str = "auto",
        steps: int = 500,
        random_state: int | None = None,
        diagnostics: bool = False,
    ) -> Any:
        """n rows (n, *space.shape) in the user's units.

        Arguments:
            n: how many.
            method: "exact" (finite spaces), "resampling" of draws of the base, "chain", or "auto": the first of them
                that is good enough.
            steps: of a chain; its first half adapts.
            random_state: of the draws.
            diagnostics: True returns :class:`~ctem.energy_model.drawing.Draws`: the rows, how they were made,
                acceptance, effective draws, and R-hat of chains (which needs the extra ``mcmc``).
        """
        check_is_fitted(self)
        if n < 1:
            raise ValueError(f"n: expected at least 1 row; got {n}.")
        generator = self._generator(random_state)
        owner = torch.randint(len(self.nets_), (n,), generator=generator, device=generator.device)
        x, worst = torch.empty(n, self.space.dim, device=generator.device), None
        for k in owner.unique().tolist():
            how: dict[str, Any] = {"method": method, "steps": steps, "diagnostics": diagnostics}
            rows = owner == k
            drawn = draw_rows(self.potential(k), self.space, self.base_, int(rows.sum()), generator, **how)
            x[rows], worst = drawn.X.to(x), _worse(worst, drawn)
        X = self.space.decode(x)
        return X if not diagnostics or worst is None else worst._replace(X=X)

    def potential(self, member: int = 0) -> LogPotential:
        """f of encoded rows (n, d) as a function: for the samplers, the constants and the losses of this library."""
        check_is_fitted(self)
        return tilted(self._base, self.nets_[member])

    def save(self, path: str | Path) -> None:
        """Write the model to one file (safetensors with a JSON header); see :meth:`load`."""
        check_is_fitted(self)
        save(self, path)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        net: Net | None = None,
        base: Proposal | None = None,
        kernel: Kernel | None = None,
        rule: str | Rule | Objective | None = None,
        device: str = "auto",
    ) -> EnergyModel:
        """The model that ``save`` wrote. Nothing in the file is run.

        A net, base, kernel or rule of your own is code, which a file does not hold: give it again. Weights of the net
        come from the file; kernel and rule are needed only to fit again.
        """
        return load(cls, path, net, base, kernel, rule, device)

    def _check(self) -> None:
        if not isinstance(self.space, Space):
            raise TypeError(f"space: expected a ctem.Space; got {self.space!r}.")
        if self.net is not None and (isinstance(self.net, type) or not callable(self.net)):
            raise TypeError(f"net: expected a module or a function of rows; got {self.net!r}.")
        if self.kernel is not None and self.kernel.space != self.space:
            raise ValueError(f"kernel: expected one on {self.space!r}; got one on {self.kernel.space!r}.")
        if self.comparisons < 1 or self.folds < 1:
            raise ValueError(
                f"comparisons, folds: expected at least 1; got {self.comparisons}, {self.folds}."
            )
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(
                f"validation_fraction: expected a share in [0, 1); got {self.validation_fraction}."
            )
        if self.draws is not None and self.draws < 2:
            raise ValueError(f"draws: expected at least 2, or None; got {self.draws}.")
        find_rule(self.rule)
        checked_recipe(self.recipe, self.space)

    def _adopt(self, x: Tensor) -> None:
        """What is kept of the rows: a law to draw from, and where they lie."""
        if len(x) < 2:
            raise ValueError(f"X: expected at least 2 rows; got {len(x)}.")
        spread = x.std(0)
        odd = [j for j in self.space.reals if not WIDE[0] <= float(spread[j]) <= WIDE[1]]
        if self.net is None and odd:
            warnings.warn(
                f"column {self.space.names[odd[0]]!r} has standard deviation {float(spread[odd[0]]):g} in the units of "
                "the space, which is hard to learn from; Space.standardised(X) brings it to 1.",
                UserWarning,
                stacklevel=3,
            )
        given = copy.deepcopy(self.base).to(x.device) if isinstance(self.base, nn.Module) else self.base
        self.base_: Any = FittedBase(self.space, x) if given is None else given
        self.box_: Box = box_around(self.space, x)

    def _splits(self, x: Tensor, X_val: ArrayLike | None) -> list[tuple[Tensor, Tensor | None]]:
        """Rows to learn from and rows to stop by, for each network."""
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(self.seed_)).to(x.device)
        if self.folds > 1:
            if X_val is not None:
                raise ValueError("X_val: expected None with folds > 1, which stop by parts of X; got rows.")
            if len(x) < 2 * self.folds:
                raise ValueError(f"X: expected at least 2 rows for each of {self.folds} folds; got {len(x)}.")
            parts = order.tensor_split(self.folds)
            rest = [torch.cat([p for i, p in enumerate(parts) if i != k]) for k in range(self.folds)]
            return [(x[seen], x[out]) for seen, out in zip(rest, parts, strict=True)]
        if X_val is not None:
            return [(x, self.space.encode(X_val, device=x.device))]
        count = int(self.validation_fraction * len(x))
        return [(x[order[count:]], x[order[:count]])] if count else [(x, None)]

    def _trained(
        self,
        g: Shaped,
        x: Tensor,
        held_out: Tensor | None,
        member: int,
        callbacks: Sequence[Callable[[Look], Any]],
    ) -> History:
        if not g.trainable:
            return History()
        recipe = checked_recipe(self.recipe, self.space)
        recipe = replace(recipe, seed=self.seed_ + member)
        if held_out is None:
            recipe = replace(recipe, patience=None, worthwhile=None)

        def look(history: History, net: nn.Module) -> bool:
            held = history.held_out[-1] if history.held_out else None
            seen = Look(history.step[-1], history.loss[-1], held, history.seconds, member, net)
            return True in [callback(seen) for callback in callbacks]

        return train(
            g,
            self._loss,
            x,
            recipe,
            held_out=held_out,
            progress=bool(self.verbose),
            look=look if callbacks else None,
        )

    def _loss(self, g: nn.Module, x: Tensor, generator: torch.Generator) -> Tensor:
        rule, m = find_rule(self.rule), self.comparisons
        if isinstance(rule, Objective):
            return rule(tilted(self._base, g), x, generator)
        if self.kernel_ is None:
            base = self._pools[not g.training] if self._pools else self.base_
            return tilt_loss(g, x, base, generator, m, rule)
        return pair_loss(tilted(self._base, g), x, self.kernel_, generator, m, rule)

    def _drawn_before(self) -> tuple[Pool, Pool] | None:
        """Draws of the base to train with, and others to stop by."""
        if self.draws is None or self.kernel_ is not None:
            return None
        rows = self.base_.sample(self.draws, self._generator(self.seed_ + 1))
        held = max(1, len(rows) // 10)
        return Pool(rows[held:]), Pool(rows[:held])

    @property
    def _base(self) -> Proposal | None:
        """b of f = log b + g, on the device of the fit."""
        return None if self.base is None else self.base_

    def _log_zs(self, **how: Any) -> list[LogZ]:
        generator = self._generator(self.seed_)
        if self.draws is not None:  # of a base that is slow: its chains would take hours
            method = "importance" if best_method(self.space) == "importance" else "auto"
            how = {"draws": self.draws, "method": method} | how
        potentials = [self.potential(k) for k in range(len(self.nets_))]
        return [compute_log_z(f, self.space, self.base_, self.box_, generator, **how) for f in potentials]

    def _log_prob(self, x: Tensor) -> Tensor:
        """log ρ of encoded rows, float64, differentiable."""
        by_fold = [self.potential(k)(x).double() - log_z.value for k, log_z in enumerate(self.log_zs_)]
        return torch.stack(by_fold).logsumexp(0) - math.log(len(by_fold))

    def _encoded(self, X: ArrayLike) -> Tensor:
        check_is_fitted(self)
        return self.space.encode(X, device=self.device_)

    def _generator(self, random_state: int | None) -> torch.Generator:
        seed = (
            self.seed_ if random_state is None else int(check_random_state(random_state).randint(2**31 - 1))
        )
        return torch.Generator(self.device_).manual_seed(seed)


def _worse(one: Draws | None, other: Draws) -> Draws:
    """Of two sets of draws the numbers that promise less."""
    if one is None or one.r_hat is None or other.r_hat is None or one.ess is None or other.ess is None:
        return other if one is None or other.weights_ess < one.weights_ess else one
    return other._replace(
        weights_ess=min(one.weights_ess, other.weights_ess),
        r_hat=torch.maximum(one.r_hat, other.r_hat),
        ess=torch.minimum(one.ess, other.ess),
    )


def _like(X: Any, values: Tensor) -> Any:
    """Values as the rows came: a tensor on their device, or NumPy."""
    return values.to(X.device) if isinstance(X, Tensor) else values.cpu().numpy()
