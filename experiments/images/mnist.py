"""Binary MNIST: energies of 784 bits, trained in minutes; samples, an exact likelihood, and what else they can do.

    python -m experiments.images.mnist --side 8                                           two cores, under 5 minutes
    python -m experiments.images.mnist --side 28 --device cuda --objective soft slopes    one H200, 11 minutes
    python -m experiments.images.mnist --side 8 --stage pictures                          draws a former run again

Objectives: ``soft`` and ``constant`` target at one shared noise level, ``paper`` (constant target, its levels, learning
rate and batch, as many epochs as the time allows), ``spacetime`` (soft target, levels joined, so that one pass is
normalised up to training error) and ``slopes`` (a clock per pixel, from first-order comparisons of all hidden pixels at
once, ``experiments.images.firstorder``: exact likelihood by the chain rule, samples without MCMC). Time is given in
seconds, and steps follow from it. Each objective writes a results file, main numbers first, and what was drawn into
--build; pictures show all objectives whose arrays are there.

The paper does not say how it binarised: here a pixel is ink if its grey value is at least half. Likelihoods are on the
fixed binarisation of the benchmark, whose test rows are sorted by class: 1000 of them are drawn at random.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.matching.noise import Noise
from ctem.partition import log_z_levels
from ctem.samplers import Denoise, FlipJump, LangevinFlips, PathFlips, Renoise, anneal_bits
from experiments.images.judge import Judge, Likelihood, auroc, differing, rotated, train_classifier
from experiments.images.run import Deadline, Run
from experiments.images.settings import FIRST, SCALES, Images, Scale, load_images, quick, shuffled
from experiments.results import ROOT, Arrays, arguments, load_arrays, staged

BUILD = ROOT / "build"
CHAINED = "slopes"  # sampled by the chain rule
TITLES = {
    "soft": "soft target",
    "constant": "constant target",
    "paper": "paper's configuration",
    "spacetime": "space-time",
    "slopes": "a clock per pixel, slopes",
}
SPARE, KEPT = 20, 45  # seconds: without which late stages are left out; for what comes after
NOISE, DRAWS = 0.5, 16  # the level that denoising starts from, and draws of the clean image


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
        if run.deadline.left < 1.2 * (time.perf_counter() - began) + KEPT:
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
    stations = min(scale.stations, max(20, int((run.deadline.left - KEPT) / (16 * 1.2 * pace))))
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
    run.add("lower half filled in: pixels that two draws differ in", differing(*filled))


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
    run.add("denoising: wrong pixels an image before", differing(z, test))
    run.add("denoising: wrong pixels an image after", differing(clean, test))


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


STAGES: dict[str, Callable[[Run, Judge], None]] = {
    "train": lambda run, judge: run.train(),
    "sample": lambda run, judge: run.sample(),
    "evaluate": Run.evaluate,
    "likelihood": lambda run, judge: likelihood(run),
    "use": use,
    "curves": curves,
}
LATE = ("likelihood", "use", "curves")  # left out if hardly any time is left


def parsed() -> Any:
    parser = arguments(__doc__)
    parser.add_argument("--side", type=int, choices=(28, 8), help="pixels (default: 28, with --quick 8)")
    parser.add_argument(
        "--data", help="folder of mnist/, binarized_mnist/ (default: $CTEM_DATA, or a download)"
    )
    parser.add_argument("--objective", nargs="+", choices=tuple(SCALES[28].jobs), default=["soft", "slopes"])
    parser.add_argument("--minutes", type=float, help="of the whole call; training gets its share")
    parser.add_argument("--steps", type=int, help="of training (default: as many as its seconds allow)")
    parser.add_argument("--stage", nargs="+", choices=(*STAGES, "pictures"), default=[*STAGES, "pictures"])
    parser.add_argument("--build", type=Path, help="folder of weights and arrays (default: build)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.side = args.side or (8 if args.quick else 28)
    args.build = args.build or (args.out if args.quick else BUILD)
    return args


def judged(images: Images, scale: Scale) -> dict[str, Judge]:
    """A classifier trained now, and a judge for each binarisation."""
    shape, how = (scale.side, scale.side), scale.classifier
    classifier = train_classifier(images.grey, images.labels, shape, **how)
    return {k: Judge(classifier, bits.train, bits.test, scale.samples) for k, bits in images.bits.items()}


def stage(run: Run, name: str, judge: Judge) -> None:
    """Do one stage and write what is known."""
    began = time.perf_counter()
    if name in LATE and run.deadline.left < SPARE:
        run.settings.setdefault("left out for time", []).append(name)
        return run.save()
    STAGES[name](run, judge)
    if run.device.startswith("cuda"):
        torch.cuda.synchronize()
    run.settings["seconds"][name] = round(time.perf_counter() - began, 2)
    print(f"{run.objective}: {name} took {run.settings['seconds'][name]} s", flush=True)
    return run.save()


def run_all(args: Any, out: Path) -> None:
    """Every stage of every objective, and the pictures, into one folder."""
    scale = quick(SCALES[args.side]) if args.quick else SCALES[args.side]
    minutes = args.minutes or scale.minutes
    deadline, share = Deadline(60 * minutes), minutes / scale.minutes
    images = load_images(args.side, args.data, args.device)
    judges = judged(images, scale)
    print(f"data and classifier took {deadline.spent:.1f} s", flush=True)
    runs = [Run(name, scale, images, args, out, deadline, share) for name in args.objective]
    for run in runs:
        if "train" not in args.stage:
            run.restore()
        for name in (name for name in STAGES if name in args.stage and name not in LATE):
            stage(run, name, judges[run.job.bits])
    for name in (name for name in LATE if name in args.stage):
        for run in runs:
            stage(run, name, judges[run.job.bits])
    if "pictures" in args.stage:
        draw_all(scale.name, kept_arrays(args.build, scale.name), run.shape, out)


def kept_arrays(folder: Path, name: str) -> dict[str, Arrays]:
    """What the latest run of every objective has drawn, by objective."""
    paths = {objective: folder / f"{name}-{objective}.npz" for objective in TITLES}
    return {objective: load_arrays(path) for objective, path in paths.items() if path.exists()}


def tiles(rows: NDArray[Any], shape: tuple[int, int], columns: int) -> NDArray[np.float64]:
    """Rows of bits as one picture, ink dark, ``columns`` images a line with a pixel of grey between them."""
    lines = -(-len(rows) // columns)
    height, width = shape
    canvas = np.full((lines * (height + 1) + 1, columns * (width + 1) + 1), 0.75)
    for i, image in enumerate(rows):
        top, left = (i // columns) * (height + 1) + 1, (i % columns) * (width + 1) + 1
        canvas[top : top + height, left : left + width] = 1 - image.reshape(shape)
    return canvas


def draw_all(name: str, arrays: dict[str, Arrays], shape: tuple[int, int], folder: Path) -> list[Path]:
    """Every picture that the arrays (by objective) allow; the paths that were written."""
    written = [_draw_samples(arrays, shape, folder / f"{name}-samples.png")]
    for part, titles in (
        ("inpainting", ("digit", "given", "filled", "filled again")),
        ("denoising", ("digit", "noisy", "denoised")),
        ("likely", ("most likely", "least likely")),
    ):
        shown = {key: one for key, one in arrays.items() if f"{part} 0" in one}
        if shown:
            written.append(_draw_lines(shown, part, titles, shape, folder / f"{name}-{part}.png"))
    curves = {key: one for key, one in arrays.items() if any(k.startswith("curve|") for k in one)}
    if curves:
        written.append(_draw_curves(curves, folder / f"{name}-curves.png"))
    return written


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _show(axis: Any, picture: NDArray[Any], title: str) -> None:
    axis.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axis.set_title(title, fontsize=9)
    axis.axis("off")


def _save(plt: Any, figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _draw_samples(arrays: dict[str, Arrays], shape: tuple[int, int], path: Path) -> Path:
    plt = _pyplot()
    panels: list[tuple[str, NDArray[Any]]] = [("real test digits", next(iter(arrays.values()))["real"])]
    panels += [(TITLES[key], one["samples"]) for key, one in arrays.items()]
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(3.3 * columns, 3.5 * lines), layout="constrained", squeeze=False
    )
    for axis, (title, rows) in zip(axes.flat, panels, strict=False):
        _show(axis, tiles(rows[:100], shape, 10), title)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    return _save(plt, figure, path)


def _draw_lines(
    arrays: dict[str, Arrays], part: str, titles: tuple[str, ...], shape: tuple[int, int], path: Path
) -> Path:
    """One panel for each objective: a line of ten images for every title."""
    plt = _pyplot()
    figure, axes = plt.subplots(
        len(arrays),
        1,
        figsize=(5, (0.5 * len(titles) + 0.5) * len(arrays)),
        layout="constrained",
        squeeze=False,
    )
    for axis, (key, one) in zip(axes[:, 0], arrays.items(), strict=True):
        rows = np.concatenate([one[f"{part} {i}"][:10] for i in range(len(titles))])
        _show(axis, tiles(rows, shape, 10), f"{TITLES[key]}: {', '.join(titles)}")
    return _save(plt, figure, path)


def _draw_curves(arrays: dict[str, Arrays], path: Path) -> Path:
    """Mean confidence and Fréchet distance against evaluations of the energy, a line for each sampler.

    The chain rule is one point, so it goes where the other samplers are, if there are any; an objective with one point
    for every sampler gives way to those with lines.
    """
    plt = _pyplot()
    lines = {
        k: v for k, v in arrays.items() if any(len(p) > 1 for n, p in v.items() if n.startswith("curve|"))
    }
    arrays = {k: v for k, v in arrays.items() if k in lines or k == CHAINED} if lines else arrays
    chain = {k: v for one in arrays.values() for k, v in one.items() if k == "curve|chain rule"}
    arrays = {key: one | chain for key, one in arrays.items() if key != CHAINED or len(arrays) == 1}
    figure, axes = plt.subplots(
        len(arrays), 2, figsize=(9, 3.2 * len(arrays)), layout="constrained", squeeze=False
    )
    for line, (key, one) in zip(axes, arrays.items(), strict=True):
        for name in (k for k in one if k.startswith("curve|")):
            points = one[name][one[name][:, 0].argsort()]
            for axis, column in zip(line, (1, 2), strict=True):
                axis.plot(points[:, 0], points[:, column], marker="o", ms=3, label=name.partition("|")[2])
        for axis, value, title in zip(line, one["curve real"], ("top-1", "Fréchet distance"), strict=True):
            axis.axhline(value, color="0.6", lw=1, ls="--", label="real digits")
            axis.set_xscale("log")
            axis.xaxis.set_minor_formatter("")  # labels between the decades would overlap
            axis.set_xlabel("evaluations of the energy, a sample")
            axis.set_title(f"{TITLES[key]}: {title}", fontsize=9)
        line[1].set_yscale("log")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    return _save(plt, figure, path)


def main() -> None:
    args = parsed()
    with staged(args.out) as out:
        run_all(args, out)


if __name__ == "__main__":
    main()
