"""The figures that train: the error against the scale of comparisons, and against the step."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from batched import Member, Networks, Pairs, train
from continuous_sets import GROUPS, TARGETS, Group, Table, exam, tables
from crossfit import PLAIN
from ctem import brier, log_score, mean_std
from ctem.metrics import fisher_divergence, ise
from drawing import SWEEP_C
from figure_job import Computed, Job
from learned import Energy, grad_of
from results import Record, summarise
from table1 import paper_member

SWEEP_SETS = ("Spiral", "Banana", "Two Rings")
PAPERS = "CTEM-G"


def planar_error(energy: Energy, name: str) -> float:
    """ISE ×1e-2, normalised on the evaluation square as the paper does."""
    X, truth, weights, _ = exam(name)
    with torch.no_grad():
        f = energy.values(X.to(energy.device))[0].cpu()
    return 100 * ise((f - (f + weights.log()).logsumexp(0)).exp(), truth, weights)


def compute_sweep(job: Job) -> Computed:
    """ISE of CTEM-G against c on a geometric grid, as the paper trains it."""
    names = [n for n in SWEEP_SETS if n in job.names]
    group = GROUPS[0]._replace(names=tuple(names), rows=200 if job.quick else 1000)
    keys = [(name, c, seed) for name in names for c in SWEEP_C for seed in job.seeds]
    members = [sweep_member(name, c, seed, group.rows) for name, c, seed in keys]
    networks, recipe = Networks(2, job.width(group)), job.recipe(group)
    pairs = Pairs(networks, members, job.device)
    last = train(networks, members, pairs, replace(recipe, evaluate_every=recipe.steps)).parameters[-1]
    found: dict[tuple[str, float], list[float]] = {}
    for (name, c, _), p in zip(keys, last, strict=True):
        energy = Energy(networks, p.unsqueeze(0), TARGETS[name].space, tilted=False)
        found.setdefault((name, c), []).append(planar_error(energy, name))
    records = [summarise(n, f"CTEM-G, c = {c:.3g}", "ISE ×1e-2", v) for (n, c), v in found.items()]
    return Computed(records, {(n, "CTEM-G"): np.array([found[n, c] for c in SWEEP_C]) for n in names})


def sweep_member(name: str, c: float, seed: int, rows: int) -> Member:
    x = torch.as_tensor(TARGETS[name].sample(rows, seed)).float()
    return Member(x=x, scale=c * mean_std(x), seed=seed)


class Curve(NamedTuple):
    """One run: held-out loss and true error at every evaluation."""

    steps: list[int]
    held_out: list[float]
    error: list[float]


def split(x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """90 % of the rows to train on, 10 % held out."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return x[order[len(x) // 10 :]], x[order[: len(x) // 10]]


def curve_members(rows: list[Table], paper: bool) -> dict[tuple[int, str], Member]:
    """By table and system: CTEM-G as the paper trains it, or ours with each weight decay, on 90 % of the rows."""
    members = {}
    for i, table in enumerate(rows):
        member = (
            paper_member(PAPERS, table) if paper else Member(x=table.space.encode(table.X), seed=table.seed)
        )
        kept, held_out = split(member.x, table.seed)
        member = replace(member, x=kept, held_out=held_out)
        if paper:
            members[i, PAPERS] = member
            continue
        for decay in PLAIN.weight_decays:
            members[i, f"ours, weight decay {decay:g}"] = replace(member, weight_decay=decay)
    return members


def true_error(energy: Energy, table: Table) -> float:
    """ISE ×1e-2 in the plane, Fisher divergence in more dimensions."""
    if table.space.dim == 2:
        return planar_error(energy, table.name)
    X, _, _, slope = exam(table.name)
    return fisher_divergence(grad_of(energy, X), slope)


def curves_of(group: Group, job: Job, paper: bool) -> dict[tuple[str, str], Curve]:
    """Seed 0 of every set of the group, by set and system, trained together."""
    rows = [t for t in tables(group, range(1), job.quick) if t.name in job.names]
    recipe = job.recipe(group, None if paper else PLAIN.recipe)
    recipe = replace(recipe, evaluate_every=recipe.steps // (2 if job.quick else 40))
    networks = Networks(group.dim, job.width(group), squares=PLAIN.squares and not paper)
    members = curve_members(rows, paper)
    rule = log_score if PLAIN.log_rule and not paper else brier
    rates = () if paper else PLAIN.rates
    pairs = Pairs(networks, list(members.values()), job.device, rates=rates, rule=rule)
    trained = train(networks, list(members.values()), pairs, recipe)
    found = {}
    for k, (i, system) in enumerate(members):
        space = TARGETS[rows[i].name].space if paper else rows[i].space
        energies = [Energy(networks, p[k : k + 1], space, tilted=not paper) for p in trained.parameters]
        errors = [true_error(energy, rows[i]) for energy in energies]
        found[rows[i].name, system] = Curve(trained.steps, trained.held_out[:, k].tolist(), errors)
    return found


def compute_curves(job: Job) -> Computed:
    """Held-out loss and true error against the step: where the one is lowest, so nearly is the other."""
    records, arrays = [], {}
    for paper in (True, False):
        for group in job.groups():
            for (name, system), curve in curves_of(group, job, paper).items():
                arrays[name, system] = np.array(curve)
                records += curve_records(system, name, curve)
    return Computed(records, arrays)


def curve_records(system: str, name: str, curve: Curve) -> list[Record]:
    error = "ISE ×1e-2" if TARGETS[name].space.dim == 2 else "Fisher divergence"
    chosen, best = int(np.argmin(curve.held_out)), int(np.argmin(curve.error))
    values = {
        "step of the lowest held-out loss": float(curve.steps[chosen]),
        "step of the lowest error": float(curve.steps[best]),
        f"{error} at the lowest held-out loss": curve.error[chosen],
        f"{error}, lowest": curve.error[best],
        f"{error} at the last step": curve.error[-1],
    }
    return [summarise(name, system, metric, [value]) for metric, value in values.items()]
