"""What ``mnist.py`` does with a trained energy besides samples: likelihood, outliers, filling in, denoising, cost."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctem.matching.noise import Noise
from ctem.partition import log_z_levels
from ctem.samplers import (
    Denoise,
    FlipJump,
    LangevinFlips,
    PathFlips,
    Renoise,
    anneal_bits,
)
from experiments.images.judge import Judge, Likelihood, auroc, rotated
from experiments.images.run import Run
from experiments.images.settings import FIRST, shuffled

NOISE, DRAWS = 0.5, 16  # the level that denoising starts from, and draws of the clean image
SPARE = 45  # seconds that are kept for what comes after likelihoods and curves


def likelihood(run: Run) -> None:
    """Test nats: exact by the chain rule with a clock per pixel, else between the two ends of a bracket."""
    rows = shuffled(run.bits.test)[: run.scale.likelihood_rows]
    if run.chained:
        _exact(run, rows)
    else:
        _bracket(run, rows)
    run.add("test nats", Likelihood.of(run.base.log_prob(rows)).mean, system="the base: independent pixels")


def _exact(run: Run, rows: Tensor) -> None:
    """The chain rule in as many random orders as there is time for, one by one and as a mixture."""
    each: list[Tensor] = []
    for order in run.chain.orders(run.scale.orders, torch.Generator().manual_seed(0)):
        began = time.perf_counter()
        each.append(run.chain.log_prob(rows, order))
        run.add(f"test nats, exact, random order {len(each)}", Likelihood.of(each[-1]).mean)
        if run.deadline.left < 1.2 * (time.perf_counter() - began) + SPARE:
            break
    found = Likelihood.of(torch.stack(each).logsumexp(0) - math.log(len(each)))
    run.add(f"test nats, exact, mixture of {len(each)} orders", found.mean)
    run.add(f"test nats, exact: standard error over {len(rows)} images", found.stderr)


def _bracket(run: Run, rows: Tensor) -> None:
    """−f(x, s) + log Z at the smallest level, log Z by annealing down from the base and up from samples.

    The ends are in order in expectation only. The law at the smallest level is noised, which costs a little on clean
    digits.
    """
    scale, f, generator = run.scale, run.g.log_density, run.generator
    began = time.perf_counter()
    out = anneal_bits(f, run.base.sample(scale.chains, generator), run.ladder(), run.exact_moves(), generator)
    pace = (time.perf_counter() - began) / out.evaluations
    moves = [
        LangevinFlips(2),
        PathFlips(1, flips=4),
    ]  # and the weight: 8 evaluations a station, there and back
    stations = min(scale.stations, max(20, int((run.deadline.left - SPARE) / (16 * 1.2 * pace))))
    found = log_z_levels(f, run.base, out.x, run.ladder(stations), out.tuned(moves), generator)
    nats = Likelihood.of(run.scores(rows))
    run.add("test nats, annealing down, optimistic end", nats.mean + found.lower.value)
    run.add("test nats, annealing up, pessimistic end", nats.mean + found.upper.value)
    run.add("test nats: standard error of log Z, the larger", max(end.stderr for end in found))
    run.add(f"test nats: standard error over {len(rows)} images", nats.stderr)
    if run.job.temporal:
        run.add("test nats, one pass, self-normalised", nats.mean)
    run.settings["log Z"] = {
        "down": found.lower._asdict(),
        "up": found.upper._asdict(),
        "stations": stations,
    }


def use(run: Run, judge: Judge) -> None:
    """Outliers, filling in and denoising."""
    _detect(run)
    _fill_in(run, judge)
    if not run.chained:
        _denoise(run)


def _detect(run: Run) -> None:
    """Outliers by log-density, and the test digits at its two ends."""
    test = shuffled(run.bits.test)[:2000]
    scores = run.scores(test)
    strange = {
        "digits turned by 90°": rotated(test, run.shape),
        "independent pixels": run.base.sample(len(test), run.generator),
        "coin flips": torch.rand(test.shape, generator=run.generator, device=test.device).round(),
    }
    for name, rows in strange.items():
        run.add(f"AUROC against {name}", auroc(scores, run.scores(rows)))
    ranked = test[scores.argsort(descending=True)]
    run.keep("likely", ranked[:FIRST], ranked[-FIRST:].flip(0))


def _fill_in(run: Run, judge: Judge) -> None:
    """The lower half of test digits is hidden and drawn given the upper one."""
    test, labels = (shuffled(part, seed=1)[: run.scale.tried] for part in (run.bits.test, run.bits.labels))
    given = torch.arange(test.shape[1], device=test.device) < test.shape[1] // 2
    filled = [_filled(run, test, given) for _ in range(2)]
    run.keep("inpainting", test, torch.where(given, test, 0.5), *filled)
    agree = [judge.accuracy(rows, labels) for rows in filled]
    run.add("lower half filled in: classifier sees the true class", sum(agree) / 2)
    run.add("lower half filled in: pixels that two draws differ in", _differing(*filled))


def _filled(run: Run, x: Tensor, given: Tensor) -> Tensor:
    if run.chained:
        return run.chain.sample(len(x), run.generator, given=torch.where(given, x, math.nan)).x
    start = torch.where(given, x, run.base.sample(len(x), run.generator))
    return run.drawn(start, run.exact_moves(), run.ladder(), fixed=given)[0]


def _denoise(run: Run) -> None:
    """Test digits at level s are cleaned by draws of x_t given z, ∝ ρ_t(x) q_{s−t}(z|x), with t falling from s to 0.

    The pixel-wise majority of the draws is the answer.
    """
    test, noise = shuffled(run.bits.test)[: run.scale.tried], Noise(run.base).to(run.device)
    z = noise.sample(test, torch.full_like(test[:, 0], NOISE), run.generator)
    seen = z.repeat(DRAWS, 1)

    def posterior(x: Tensor, level: Tensor) -> Tensor:
        away = NOISE - level
        ink, blank = (noise.column_log_prob(seen, torch.full_like(seen, v), away) for v in (1.0, 0.0))
        return run.g.log_density(x, level) + (x * ink + (1 - x) * blank).sum(-1)

    levels = [s for s in run.ladder() if s < 0.9 * NOISE]
    out = anneal_bits(posterior, seen, levels, run.exact_moves(), run.generator, batch_size=len(seen))
    clean = out.x.view(DRAWS, *z.shape).mean(0).gt(0.5).float()
    run.keep("denoising", test, z, clean)
    run.add("denoising: wrong pixels an image before", _differing(z, test))
    run.add("denoising: wrong pixels an image after", _differing(clean, test))


def _differing(a: Tensor, b: Tensor) -> float:
    return float((a != b).sum(1).double().mean())


def curves(run: Run, judge: Judge) -> None:
    """Quality against evaluations of the energy, for every sampler; the dear ones last, while there is time."""
    points: dict[str, list[list[float]]] = {}
    if run.chained:
        points["chain rule"] = [[float(run.chain_cost), *judge.quick(run.samples[: run.scale.curve_samples])]]
    seconds = 0.0  # an evaluation
    for budget in () if run.chained else run.scale.budgets:
        for name, (moves, levels) in _samplers(run, budget).items():
            if run.deadline.left < 1.5 * seconds * budget + 20:
                run.settings.setdefault("left out for time", []).append(f"{name}, {budget} evaluations")
                continue
            began = time.perf_counter()
            x, out = run.drawn(run.base.sample(run.scale.curve_samples, run.generator), moves, levels)
            points.setdefault(name, []).append([out.evaluations + 2.0, *judge.quick(x)])
            seconds = (time.perf_counter() - began) / out.evaluations
            print(f"{run.objective}: {name}: {points[name][-1]}", flush=True)
    for name, values in points.items():
        run.arrays[f"curve|{name}"] = np.array(values)
    count = run.scale.curve_samples  # a Fréchet distance depends on it
    top1, distance = judge.quick(judge.test[:count])[0], judge.quick(judge.fresh[:count])[1]
    run.arrays["curve real"] = np.array([top1, distance])
    run.settings["cost: evaluations, top-1, Fréchet distance"] = points


def _samplers(run: Run, budget: int) -> dict[str, tuple[list[Any], list[float]]]:
    """Every sampler with about so many evaluations; a gradient counts as one."""
    base, ladder = run.base, run.ladder(min(run.scale.levels, max(5, budget // 10)))

    def times(cost: int) -> int:
        return max(1, round(budget / len(ladder) / cost))

    ours = [Denoise(base), LangevinFlips(times(4)), PathFlips(times(6), flips=4)]
    return {
        "uniform flips, Metropolis (paper)": ([FlipJump(times(1))], ladder),
        "Langevin flips": ([LangevinFlips(times(2))], ladder),
        "Gibbs with gradients": ([PathFlips(times(2), flips=1)], ladder),
        "paths of up to 8 flips": ([PathFlips(times(2), flips=8)], ladder),
        "noise and back": ([Renoise(base, times(4))], ladder),
        "reverse diffusion, inexact": ([Denoise(base)], run.ladder(max(3, budget // 2))),
        "reverse diffusion, Langevin, paths": (ours, ladder),
    }
