"""``check``: a log-potential in, a verdict out."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ctem.checking.faults import missing_mode, not_of, overfitted, unadjusted, wrong_constant
from ctem.checking.potential import Counted
from ctem.checking.record import Check, Side
from ctem.checking.sides import (
    Base,
    Chains,
    annealed_side,
    chains_for,
    fit_proposal,
    fitted_base,
    proposal_sides,
    wide_base,
)
from ctem.checking.stein import stein_test
from ctem.densities.anyorder import Settings
from ctem.energy_model.constants import best_method, box_around, compute_log_z
from ctem.energy_model.drawing import draw_rows
from ctem.partition.strips import log_z_strip
from ctem.spaces import MAX_STATES, Space
from ctem.tables.answers.density import find_device

__all__ = ["BUDGETS", "Budget", "check"]

TOLERANCE = 0.5  # nats between the two sides, beyond which there is no statement
SURE = 3.0  # standard errors around each side
FEWEST = 10.0  # effective draws of a side that is believed
GIVEN = 4000  # of the given samples that are looked at
MAX_ANYORDER = 1024  # columns
NEARER = 0.5  # nats that a fitted base must gain on the wide one to be worth another way up


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much a check may spend.

    Arguments:
        chains: of the annealing in both directions, and samples.
        levels: temperatures on the way.
        moves: at each temperature.
        steps: of training of the any-order proposal; 0 does without it.
        draws: of the proposal.

    >>> Budget(chains=200).levels
    300
    """

    chains: int = 2000
    levels: int = 300
    moves: int = 2
    steps: int = 1500
    draws: int = 20_000


BUDGETS = {
    "quick": Budget(chains=600, levels=80, moves=1, steps=0, draws=5000),
    "default": Budget(),
    "long": Budget(chains=4096, levels=2000, moves=5, steps=6000, draws=100_000),
}


def check(
    log_potential: Callable[[Tensor], Tensor],
    space: Space,
    samples: ArrayLike | None = None,
    budget: str | Budget = "default",
    *,
    claimed: float | None = None,
    train: ArrayLike | None = None,
    test: ArrayLike | None = None,
    lattice: tuple[int, int] | None = None,
    random_state: int = 0,
    device: str = "auto",
) -> Check:
    """What can be certified of a log-potential f, ρ ∝ exp f: its constant, and that samples, constant and fit are right.

    log Z is exact where all states can be added up, or a grid holds all the mass. Else samples are drawn by annealing
    from a wide base, and log Z is bounded from below (annealing up, draws of an any-order density fitted to the samples)
    and from above (annealing down from samples, the same density weighed at samples). Every transition is
    Metropolis-adjusted. Where the sides disagree no number is given.

    Arguments:
        log_potential: any function from rows (n, *space.shape), encoded, to (n,): a network, or a plain function.
            ``ctem.checking.from_energy`` and ``from_arrays`` make one of energies, NumPy and JAX.
        space: what a row is.
        samples: rows that claim to be samples of ρ, in the user's units; they are tested.
        budget: "quick", "default", "long" or a :class:`~ctem.checking.Budget`.
        claimed: a log Z that somebody reports; 0 for a function that claims to be normalised.
        train, test: rows that were fitted and rows that were not, to see overfitting.
        lattice: height and width, where the columns are sites of a lattice, row after row, and f couples neighbouring
            rows alone, open or on a torus: log Z is then exact by transfer matrices, up to about 10 bits a row.
        random_state: of everything random.
        device: "auto" (CUDA where there is one), "cpu", "cuda".

    >>> from ctem.spaces import Category
    >>> print(check(lambda x: x.sum(-1), Space([Category(2)] * 3), claimed=4.0))
    certified: log Z = 3.9398 (exact, enumerate)
    ! The claimed log Z = 4.0000 is wrong: it lies 0.0602 nats above what was found, [3.9398, 3.9398], and understates every likelihood.
    - All 8 states were added up.
    """  # noqa: E501
    began, place = time.perf_counter(), find_device(device)
    spent = BUDGETS[_known(budget)] if isinstance(budget, str) else budget
    f = Counted(log_potential, space)
    referee = _Referee(f, space, spent, random_state, place)
    rows = {
        name: None if X is None else space.encode(X, device=place)
        for name, X in (("samples", samples), ("train", train), ("test", test))
    }
    statement = referee.on_lattice(lattice) if lattice else referee.constant(rows["samples"])
    faults = referee.faults(rows["samples"])
    if claimed is not None and statement["low"] is not None and statement["high"] is not None:
        faults.append(wrong_constant(claimed, statement["low"], statement["high"]))
    if rows["train"] is not None and rows["test"] is not None:
        faults.append(overfitted(f, rows["train"], rows["test"]))
    return Check(
        faults=tuple(each for each in faults if each),
        space=repr(space),
        evaluations=f.evaluations,
        seconds=time.perf_counter() - began,
        seed=random_state,
        **statement,
    )


class _Referee:
    """One check: samples are drawn once, when something needs them."""

    def __init__(self, f: Counted, space: Space, budget: Budget, seed: int, device: torch.device):
        self.f, self.space, self.budget, self.seed = f, space, budget, seed
        self.generator = torch.Generator(device).manual_seed(seed)
        self.chains: Chains | None = None
        self.wide: Base | None = None
        self.rows: Tensor | None = None
        self.effective = 0.0
        self.sides: list[Side] = []

    def constant(self, samples: Tensor | None) -> dict[str, Any]:
        """log Z exactly where that can be, else from both sides."""
        method = best_method(self.space)
        if method == "importance":
            return self._bracketed(samples)
        rows = (
            self._drawn(samples)
            if method == "grid"
            else torch.zeros(2, self.space.dim, device=self.generator.device)
        )
        box = box_around(self.space, torch.cat([rows, *([] if samples is None else [samples])]))
        nothing = wide_base(self.space, None, self.generator.device)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            log_z = compute_log_z(self.f, self.space, nothing, box, self.generator, method=method)
        if caught:
            return _unknown(method, [f"{w.message}" for w in caught])
        how = (
            f"All {self.space.n_states:,} states were added up."
            if method == "enumerate"
            else (
                "A grid holds the mass: neither twice its width nor half its points change log Z by more than "
                f"{log_z.stderr:.1g}."
            )
        )
        near = 2 * log_z.stderr
        return _statement("certified", [how], method, log_z.value, log_z.stderr, near, math.inf, ())

    def on_lattice(self, lattice: tuple[int, int]) -> dict[str, Any]:
        """log Z by transfer matrices; an error where f is no sum of terms of neighbouring rows."""
        log_z = log_z_strip(self.f, self.space, lattice, self.generator)
        how = (
            f"The transfer matrices of {lattice[0]} × {lattice[1]} sites were multiplied; a sum of terms of "
            f"neighbouring rows differs from the log-potential by {log_z.stderr:.1g} at most, at random states."
        )
        near = 2 * log_z.stderr
        return _statement("certified", [how], log_z.method, log_z.value, log_z.stderr, near, math.inf, ())

    def faults(self, samples: Tensor | None) -> list[str | None]:
        """What is wrong with the given samples."""
        if samples is None:
            return []
        order = torch.randperm(len(samples), generator=self.generator, device=samples.device)
        x, drawn = samples[order[:GIVEN]], self._drawn(samples)
        assert self.chains is not None
        local = unadjusted(self.f, self.space, x, self.chains)
        elsewhere = missing_mode(self.space, x, drawn, self.effective, self.seed)
        return [local or elsewhere or not_of(stein_test(self.f, self.space, x, self.generator))]

    def _drawn(self, samples: Tensor | None) -> Tensor:
        """Samples of the potential by annealing from a wide base, chosen by their weights and moved on."""
        if self.rows is None:
            budget, base = self.budget, wide_base(self.space, samples, self.generator.device)
            self.wide = base
            self.chains = chains_for(self.f, self.space, budget.levels, budget.moves, self.generator)
            if self.space.n_states <= MAX_STATES:
                drawn = draw_rows(self.f, self.space, base, budget.chains, self.generator, method="exact")
                self.rows, self.effective = drawn.X, float(budget.chains)
                return self.rows
            log_w, x = self.chains.up(base, budget.chains)
            side = annealed_side(log_w, "low")
            self.sides.append(side._replace(method="annealing up from a wide base"))
            self.effective = side.ess
            weight = log_w.softmax(0).float()
            chosen = torch.multinomial(weight, len(x), replacement=True, generator=self.generator)
            self.rows = self.chains.settle(x[chosen], 20)
        return self.rows

    def _bracketed(self, samples: Tensor | None) -> dict[str, Any]:
        drawn, budget = self._drawn(samples), self.budget
        assert self.chains is not None
        fitting, judged = drawn[::2], drawn[1::2]
        wide, base = self.wide, fitted_base(self.space, fitting)
        assert wide is not None
        if float((base.log_prob(judged) - wide.log_prob(judged)).mean()) > NEARER:
            log_w, _ = self.chains.up(base, budget.chains)
            self.sides += [annealed_side(log_w, "low"), annealed_side(self.chains.down(base, judged), "high")]
        else:
            self.sides.append(annealed_side(self.chains.down(wide, drawn), "high"))
        proposals = [base]
        whole_line = not (self.space.angles or self.space.bounded)
        if budget.steps and whole_line and self.space.dim <= MAX_ANYORDER:
            reals = len(self.space.reals)
            settings = Settings.suited(len(fitting), self.space.dim, reals=reals).changed(
                len(fitting), steps=budget.steps, members=2, orders=1
            )
            proposals.append(fit_proposal(self.space, fitting, settings, self.seed))  # type: ignore[arg-type]
        self.sides += proposal_sides(self.f, proposals[-1], judged, budget.draws, self.generator)
        return judged_sides(self.sides)


def judged_sides(sides: Sequence[Side]) -> dict[str, Any]:
    """The verdict on estimates that err to two sides: the tightest of each is believed.

    >>> low, high = Side("up", "low", 2.00, 0.01, 500.0), Side("down", "high", 2.01, 0.01, 500.0)
    >>> judged_sides([low, high])["verdict"]
    'bracketed'
    """
    lows, highs = ([s for s in sides if s.side == end and s.ess >= FEWEST] for end in ("low", "high"))
    if not lows or not highs:
        return _unknown(
            "both sides", ["One side has no ten effective draws: a larger budget may help."], sides
        )
    low, high = (
        max(lows, key=lambda s: s.value - SURE * s.se),
        min(highs, key=lambda s: s.value + SURE * s.se),
    )
    bottom, top = low.value - SURE * low.se, high.value + SURE * high.se
    names = f"{low.method} from below, {high.method} from above"
    numbers = (
        f"{low.value:.3f} ± {low.se:.3f} ({low.method}) and {high.value:.3f} ± {high.se:.3f} ({high.method})"
    )
    if bottom > top:
        crossed = f"The two sides cross: the lower is {numbers.replace(' and ', ', the upper ')}."
        return _unknown(names, [f"{crossed} The chains have not found the whole law: quote neither."], sides)
    if top - bottom > TOLERANCE:
        apart = f"The two sides are {top - bottom:.2f} nats apart: {numbers}."
        return _unknown(
            names, [f"{apart} A larger budget, or a better sampler, may bring them together."], sides
        )
    reason, near = f"Two estimates that err to different sides agree: {numbers}.", (top - bottom) / 2
    value, ess = (bottom + top) / 2, min(low.ess, high.ess)
    return _statement("bracketed", [reason], names, value, near / SURE, near, ess, sides)


def _statement(
    verdict: str,
    reasons: list[str],
    method: str,
    value: float,
    se: float,
    near: float,
    ess: float,
    sides: Sequence[Side],
) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "reasons": tuple(reasons),
        "method": method,
        "value": value,
        "se": se,
        "low": value - near,
        "high": value + near,
        "ess": None if math.isinf(ess) else ess,
        "sides": tuple(sides),
    }


def _unknown(method: str, reasons: list[str], sides: Sequence[Side] = ()) -> dict[str, Any]:
    nothing: dict[str, Any] = dict.fromkeys(("value", "se", "low", "high", "ess"))
    return {
        "verdict": "unknown",
        "reasons": tuple(reasons),
        "method": method,
        "sides": tuple(sides),
    } | nothing


def _known(budget: str) -> str:
    if budget not in BUDGETS:
        raise ValueError(
            f"budget: expected one of {list(BUDGETS)} or a ctem.checking.Budget; got {budget!r}."
        )
    return budget
