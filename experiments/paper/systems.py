"""What Table 1 fits besides baselines, and fits kept on disk for the figures.

CTEM-S and CTEM-G are the paper's: networks on raw rows, many as one program, trained to the last step. Ours is
``experiments.paper.pairwise.fit_pairwise`` table by table. Everything of it is decided by rows that a network has not
seen: the step and the weight decay by the out-of-fold loss, which is a proper score for one kernel, and what changes
the kernel by out-of-fold nats, which compare between kernels.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ctem import MLP, ProductBase, Real, Space, brier, grad_log_density, mean_std, train
from ctem.benchmarks.targets import grid
from ctem.energies import MLPs
from ctem.partition import LogZ, log_z_grid, log_z_importance
from ctem.training import PAPER_2D, PAPER_HIGH_D, History
from experiments.paper.baselines import KDE, Flow
from experiments.paper.pairwise import DRAWS, RECIPE, PairwiseDensity, fit_pairwise, folds_of
from experiments.paper.sets import (
    BRIEF,
    TARGETS,
    Density,
    Fitted,
    Group,
    Table,
    hold_out,
    space_of,
    tables,
    together,
    units,
)
from experiments.results import ROOT

PAPER_C = {
    "CTEM-S": dict(zip(TARGETS, (0.50, 0.75, 0.75, 0.50, 0.08, 0.20), strict=True)),
    "CTEM-G": dict(zip(TARGETS, (0.30, 1.00, 1.50, 0.30, 0.02, 0.04), strict=True)),
}
BATCH = 2**16  # rows evaluated at once


class Steps:
    """The paper's comparisons y = x − 2ε_k u and its loss, for members that have a scale each.

    Arguments:
        scales: ε of every member.
        sphere: u on the unit sphere; else u ~ N(0, I).
        device: where the rows are.
        comparisons: m for each row, an even number: u and −u.
    """

    def __init__(self, scales: Sequence[float], sphere: bool, device: str, comparisons: int = 4):
        self.scales = torch.tensor(scales, device=device).view(-1, 1, 1, 1)
        self.sphere, self.comparisons = sphere, comparisons

    def __call__(self, f: MLPs, x: Tensor, generator: torch.Generator) -> Tensor:
        """The mean over members, for rows x (K, n, d)."""
        return self.each(f, x, generator).mean()

    def each(self, f: MLPs, x: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of every member (K,)."""
        k, n, d = x.shape
        u = torch.randn(k, self.comparisons // 2, n, d, generator=generator, device=x.device)
        u = nn.functional.normalize(u, dim=-1) if self.sphere else u
        y = x.unsqueeze(1) - 2 * self.scales * torch.cat([u, -u], dim=1)
        values = f(torch.cat([x.unsqueeze(1), y], dim=1).flatten(1, 2)).view(k, -1, n)
        return brier(values[:, :1] - values[:, 1:]).mean((1, 2))


class Energy:
    """The density exp(f − log Z) of one log-potential, in the user's units.

    Arguments:
        f: of encoded rows (n, d).
        space: the units of X.
        log_z: its constant in the user's units; the ``normalise`` functions find it.
    """

    def __init__(self, f: nn.Module, space: Space, log_z: float = 0.0):
        self.f, self.log_z = f, log_z
        self.device = next(f.parameters()).device
        self.location, self.scale = units(space).to(self.device)

    def values(self, X: Tensor) -> Tensor:
        """f at rows on the device, float64 (n,); differentiable in X."""
        return self.f(((X - self.location) / self.scale).float()).double()

    def log_density(self, X: Tensor) -> Tensor:
        with torch.no_grad():
            values = [self.values(part) for part in X.to(self.device).split(BATCH)]
        return torch.cat(values).cpu() - self.log_z

    def slope(self, X: Tensor) -> Tensor:
        return grad_log_density(self.values, X)

    @property
    def facts(self) -> dict[str, Any]:
        return {"width": self.f.layers[0].out_features, "log_z": self.log_z}

    def state(self) -> dict[str, Tensor]:
        """The tensors it is made of, if f is an MLP; with ``facts`` enough for ``restored``."""
        return {**self.f.state_dict(), "units": torch.stack([self.location, self.scale])}

    @classmethod
    def restored(cls, state: dict[str, Tensor], facts: dict[str, Any]) -> Energy:
        space = space_of(state.pop("units"))
        f = MLP(space, facts["width"])
        f.load_state_dict(state)
        return cls(f.to(next(iter(state.values())).device), space, facts["log_z"])


def normalise_on_square(energy: Energy, bounds: tuple[float, float], points: int = 201) -> None:
    """The paper's constant: the trapezoidal rule on the evaluation square."""
    plane = Space([Real(), Real()])
    energy.log_z = log_z_grid(
        energy.values, plane, bounds, points, dtype=torch.float64, device=energy.device
    ).value


def normalise_by_importance(energy: Energy, space: Space, draws: int, seed: int = 0) -> LogZ:
    """The constant by draws from the normal fitted to the rows, N(location, scale²) of the space."""
    location, scale = units(space).to(energy.device)
    found = log_z_importance(
        lambda xi: energy.values(location + scale * xi),
        ProductBase(space).to(energy.device),
        draws,
        torch.Generator(energy.device).manual_seed(seed),
    )
    energy.log_z = found.value - space.log_det
    return found


def normalise(energy: Energy, table: Table, quick: bool) -> dict[str, float]:
    """On the evaluation square in the plane, by importance sampling in more dimensions."""
    if table.space.dim == 2:
        normalise_on_square(energy, TARGETS[table.name].bounds)
        return {}
    return log_z_facts(normalise_by_importance(energy, table.space, 2000 if quick else DRAWS))


def log_z_facts(found: LogZ) -> dict[str, float]:
    """How well a constant is known that rests on draws."""
    if not math.isfinite(found.ess):
        return {}
    return {"standard error of log Z": found.stderr, "effective samples of log Z": found.ess}


STOP = {"evaluate_every": 500, "patience": 4}  # of a recipe that ends after its lowest held-out loss


def fit_paper(
    group: Group, rows: list[Table], device: str, quick: bool, stopped: bool = False
) -> Iterator[Fitted]:
    """CTEM-S and CTEM-G on raw rows; ε = c σ̄ with the paper's c for the set.

    All rows train to the last step, as in the paper; or, stopped, nine tenths of them train, and the weights are those
    with the lowest loss of held-out comparisons, the mean over the members.
    """
    recipe = PAPER_2D if group.dim == 2 else PAPER_HIGH_D
    recipe = replace(recipe, **STOP) if stopped else recipe
    recipe = replace(recipe, **BRIEF) if quick else recipe
    raw, tables = TARGETS[group.names[0]].space, [torch.as_tensor(t.X).float() for t in rows]
    x, weights = together(tables, device)
    held_out = hold_out(x, weights) if stopped else None
    note = ", stopped by held-out loss" if stopped else ""
    for system, c in PAPER_C.items():
        began = time.perf_counter()
        scales = [c[table.name] * mean_std(X) for table, X in zip(rows, tables, strict=True)]
        net = MLPs(raw, len(rows), 32 if quick else group.width).to(device)
        loss = Steps(scales, system == "CTEM-S", device)
        history = train(net, loss, x, recipe, held_out=held_out, weights=weights, cuda_graph=x.is_cuda)
        seconds = time.perf_counter() - began
        step = {"step of the lowest held-out loss": float(history.best_step)} if stopped else {}
        found = [Energy(net.member(k), raw) for k in range(len(rows))]
        facts = [normalise(energy, table, quick) | step for energy, table in zip(found, rows, strict=True)]
        yield Fitted(f"{system}{note}", found, facts, seconds)


FRESH, FRESH_SEED = 20_000, 10_000  # rows by which whole densities are compared
CHOICE_SEEDS = {2: range(100, 101), 10: range(100, 103), 30: range(100, 102)}  # no seeds of a table
JUDGED = 1024  # of these at once
CHOICE_FOLDS = 5  # candidates are compared with fewer folds than are used, for speed
DEFAULTS: dict[str, Any] = {
    k: fit_pairwise.__kwdefaults__[k] for k in ("depth", "folds", "weight_decays", "rates", "rule", "recipe")
}
CANDIDATES: dict[str, dict[str, Any]] = {
    "default": {},
    "Brier": {"rule": brier},
    "β = 0.25": {"rates": (0.25,)},
    "β = 0.35, 0.15": {"rates": (0.35, 0.15)},
    "learning rate 2e-3": {"recipe": replace(RECIPE, learning_rate=2e-3)},
    "EMA 0.998": {"recipe": replace(RECIPE, ema=0.998)},
    "2500 steps": {"recipe": replace(RECIPE, steps=2500)},
}
CHOICES: dict[str, dict[str, Any]] = {  # settings of each set are chosen among these, on other seeds
    "3 layers, 8 folds": {"weight_decays": (0.2, 1.0)},
    "3 layers, 32 folds": {"weight_decays": (0.2, 1.0), "folds": 32},
    "2 layers, 32 folds": {"weight_decays": (0.2, 1.0), "folds": 32, "depth": 2},
}


class Ours:
    """A pairwise density of real columns in the user's units."""

    def __init__(self, density: PairwiseDensity):
        self.density, self.device = density, density.base.log_table.device
        self.location, self.scale = units(density.space).to(self.device)
        net = density.net
        self.facts = {"members": net.members, "width": net.width, "depth": net.depth}

    def encoded(self, X: Tensor) -> Tensor:
        return ((X.to(self.device) - self.location) / self.scale).float()

    def log_density(self, X: Tensor) -> Tensor:
        return (self.density.log_prob(self.encoded(X)) + self.density.space.log_det).cpu()

    def slope(self, X: Tensor) -> Tensor:
        return self.density.grad_log_prob(self.encoded(X)) / self.scale

    def hyvarinen(self, X: Tensor) -> Tensor:
        """|∇ log ρ|² + 2 Δ log ρ at rows (n,); its mean is the Fisher divergence less a constant."""
        return torch.cat([self._hyvarinen(part) for part in X.to(self.device).split(JUDGED)])

    def _hyvarinen(self, X: Tensor) -> Tensor:
        X = X.clone().requires_grad_(True)
        total = self.density.values(self.encoded(X)).logsumexp(0).sum()
        (slope,) = torch.autograd.grad(total, X, create_graph=True)
        found = slope.detach().square().sum(1)
        for j in range(X.shape[1]):
            (curved,) = torch.autograd.grad(slope[:, j].sum(), X, retain_graph=True)
            found = found + 2 * curved[:, j]
        return found

    def state(self) -> dict[str, Tensor]:
        """The tensors it is made of; with ``facts`` enough for ``restored``."""
        log_z = torch.tensor([log_z.value for log_z in self.density.log_zs], dtype=torch.float64)
        own = {"units": torch.stack([self.location, self.scale]), "log_z": log_z}
        return {**self.density.net.state_dict(), **own}

    @classmethod
    def restored(cls, state: dict[str, Tensor], facts: dict[str, Any]) -> Ours:
        space, log_z = space_of(state.pop("units")), state.pop("log_z")
        net = MLPs(space, facts["members"], facts["width"], facts["depth"])
        net.load_state_dict(state)
        log_zs = [LogZ(value, 0.0, float("inf"), "kept") for value in log_z.tolist()]
        base = ProductBase(space).to(log_z.device)
        return cls(PairwiseDensity(net.to(log_z.device), base, log_zs, History(), {}))


def settings_of(changes: dict[str, Any]) -> dict[str, Any]:
    """The default with changes, for the record."""
    found = DEFAULTS | changes
    return found | {"rule": found["rule"].__name__, "recipe": asdict(found["recipe"])}


def fit_table(table: Table, width: int, device: str, quick: bool, **changes: Any) -> PairwiseDensity:
    """The default, or one with changes, on one table."""
    if quick:
        width, recipe = 32, replace(DEFAULTS["recipe"], **BRIEF)
        changes |= {"folds": 2, "recipe": recipe, "log_z_draws": 2000}
    x = table.space.encode(table.X).to(device)
    return fit_pairwise(table.space, x, seed=table.seed, width=width, **changes)


def fit_ours(group: Group, rows: list[Table], device: str, quick: bool) -> Iterator[Fitted]:
    """The default on every table."""
    began = time.perf_counter()
    found = [fit_table(table, group.width, device, quick) for table in rows]
    seconds, folds = time.perf_counter() - began, found[0].net.members
    densities, facts = [Ours(density) for density in found], [facts_of(density) for density in found]
    yield Fitted(f"ours, plain, {folds} folds", densities, facts, seconds)


def facts_of(density: PairwiseDensity) -> dict[str, float]:
    """What was chosen, and how well the constant is known."""
    return {
        **log_z_facts(density.log_z),
        "step chosen out of fold": float(density.history.best_step),
        "weight decay chosen out of fold": density.settings["weight_decay"],
        "layers": float(density.net.depth),
        "folds": float(density.net.members),
    }


def out_of_fold_nats(density: PairwiseDensity, table: Table) -> float:
    """Mean log-density of the rows under the network that did not see them: comparable between kernels."""
    x = table.space.encode(table.X).to(density.base.log_table.device)
    each = density.log_prob_each(x).cpu() + table.space.log_det
    folds = folds_of(len(x), density.settings["folds"], table.seed)
    return float(sum(each[k, fold].sum() for k, fold in enumerate(folds))) / sum(map(len, folds))


def held_out_distance(density: Ours, table: Table) -> float:
    """The distance of the table less a term that only the truth knows, by fresh rows; the truth is not read.

        ∫ (ρ − ρ*)² = ∫ ρ² − 2 E* ρ + …                             in the plane, on the square, × 100
        E* |∇ log ρ − ∇ log ρ*|² = E* [|∇ log ρ|² + 2 Δ log ρ] + …  in more dimensions (Hyvärinen 2005)

    E* is the mean over rows that no network has seen.
    """
    target = TARGETS[table.name]
    X = torch.as_tensor(target.sample(FRESH, seed=FRESH_SEED + table.seed))
    if table.space.dim > 2:
        return float(density.hyvarinen(X).mean())
    square, (low, high) = grid(target.bounds), target.bounds
    own = density.log_density(square.X).exp().square() * square.weights
    inside = (X.clamp(low, high) == X).all(1)
    return 100 * float(own.sum() - 2 * (density.log_density(X).exp() * inside).mean())


def choice_of(name: str, group: Group, seeds: range, device: str, quick: bool) -> dict[str, float]:
    """The held-out distance of every candidate on one set, the mean over seeds that no table uses."""
    rows = [table for table in tables(group, seeds, quick) if table.name == name]
    found = {}
    for label, changes in list(CHOICES.items())[-2 if quick else 0 :]:
        each = [
            held_out_distance(Ours(fit_table(table, group.width, device, quick, **changes)), table)
            for table in rows
        ]
        found[label] = sum(each) / len(each)
        print(f"{name}, {label}: held-out distance {found[label]:.4f} less a constant", flush=True)
    return found


def fit_chosen(group: Group, rows: list[Table], device: str, quick: bool) -> Iterator[Fitted]:
    """Every table by the settings that have the lowest held-out distance on other seeds of its set."""
    seeds = CHOICE_SEEDS[group.dim]
    names = dict.fromkeys(table.name for table in rows)
    scores = {name: choice_of(name, group, seeds[:1] if quick else seeds, device, quick) for name in names}
    chosen = {name: min(of, key=of.__getitem__) for name, of in scores.items()}
    began, densities, facts = time.perf_counter(), [], []
    for table in rows:
        density = fit_table(table, group.width, device, quick, **CHOICES[chosen[table.name]])
        densities.append(Ours(density))
        judged = {f"held-out distance less a constant, {k}": v for k, v in scores[table.name].items()}
        facts.append(facts_of(density) | judged)
    yield Fitted("ours, chosen", densities, facts, time.perf_counter() - began)


def candidate_nats(
    changes: dict[str, Any], group: Group, seeds: range, device: str, quick: bool
) -> dict[str, list[float]]:
    """Out-of-fold nats of every set, one value a seed; step and weight decay are as the default chooses."""
    found: dict[str, list[float]] = {}
    for table in tables(group, seeds, quick):
        density = fit_table(table, group.width, device, quick, **({"folds": CHOICE_FOLDS} | changes))
        found.setdefault(table.name, []).append(out_of_fold_nats(density, table))
    return found


FITS = ROOT / "build" / "fits"  # git ignores it
KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Energy, Ours, Flow, KDE)}


def save_fit(folder: Path, dataset: str, system: str, density: Density) -> bool:
    """Write one density, whole or not at all; False for a kind that cannot be kept."""
    kind = type(density).__name__
    if kind not in KINDS:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, dataset, system)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    state = {k: v.detach().cpu().contiguous() for k, v in density.state().items()}
    facts = {"kind": kind, "system": system, "dataset": dataset, "facts": json.dumps(density.facts)}
    save_file(state, temporary, metadata=facts)
    os.replace(temporary, path)
    return True


def load_fits(folder: Path, dataset: str, device: str) -> dict[str, Density]:
    """All kept densities of a data set, by system."""
    found = {}
    for path in sorted(folder.glob(_name(dataset, "*"))):
        with safe_open(path, "pt") as file:
            facts = file.metadata()
            state = {k: file.get_tensor(k).to(torch.device(device)) for k in file.keys()}  # noqa: SIM118
        found[facts["system"]] = KINDS[facts["kind"]].restored(state, json.loads(facts["facts"]))
    return found


def _path(folder: Path, dataset: str, system: str) -> Path:
    return folder / _name(dataset, system)


def _name(dataset: str, system: str) -> str:
    return f"{dataset}--{system}.safetensors".replace(" ", "_").replace(",", "")
