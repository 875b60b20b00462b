"""The figures of the continuous half: densities, score fields, Langevin samples, scale sweep, training curves.

    python -m experiments.paper.table1 --device cuda      (first: it keeps the fits of seed 0 in build/fits)
    python -m experiments.paper.figures --device cuda [--only densities scores langevin sweep curves] [--quick]
    python -m experiments.paper.figures --only scores langevin --sets "10-D mixture" --name flows-10d

What is computed goes to build/figures/NAME.npz and its numbers to experiments/results/figures-NAME.json; pictures are
drawn from the former into docs/. ``--stage compute`` and ``--stage draw`` do one without the other, so that the
machine that computes needs no matplotlib. With ``--name`` both files have it in their names, and a picture has the
panels of all of them: fits that come later, from another machine, need no others again.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctem.benchmarks.targets import grid
from ctem.training import PAPER_2D
from experiments.paper.computed import (
    CHAINS,
    COARSE,
    COMPUTE,
    DSM_NOISE,
    FINE,
    LANGEVIN_STEPS,
    STEP,
    SWEEP_C,
    Job,
    Panels,
    field_points,
)
from experiments.paper.sets import GROUPS, TARGETS, exam
from experiments.paper.systems import FITS
from experiments.paper.systems import settings_of as settings_of_ours
from experiments.paper.table1 import FAMILIES, Run, table1
from experiments.results import QUICK, ROOT, arguments, load_arrays, replace_bytes, save_arrays, staged, write

DOCS = ROOT / "docs"
ARRAYS = FITS.parent / "figures"
DPI = 100
ERROR, LOSS = "tab:red", "tab:blue"
COLUMNS = (
    *("truth", "fresh rows", "Silverman", "CV-KDE", "SD-KDE", "RealNVP", "NSF", "DSM", "CTEM-S", "CTEM-G"),
    *("ours, plain", "ours, shared clock", "ours"),
)
CAPTIONS = {
    "densities": "Densities learned from seed 0, in the colours of the truth.",
    "scores": "∇ log ρ of seed 0: its length in colour (logarithmic, on the truth's scale), its direction as arrows; "
    "of 10-D and 30-D the slice x₃ = … = x_d = 0.",
    "langevin": "1000 Langevin chains from N(0, 4I) with each system's score of seed 0 (fresh rows: new data instead), "
    "over contours of the truth; of 10-D and 30-D the first two columns.",
    "sweep": "c, the scale of the comparisons in standard deviations (mean and standard deviation over seeds)",
    "curves": "training step\n(the true error is the ISE ×1e-2, of 10-D and 30-D the Fisher divergence)",
}


def save_panels(path: Path, arrays: Panels) -> None:
    """Write all arrays as one file, whole or not at all."""
    save_arrays(path, {"|".join(key): value.astype(np.float32) for key, value in arrays.items()})


def load_panels(path: Path) -> Panels:
    """Undo ``save_panels``."""
    return {(key.partition("|")[0], key.partition("|")[2]): value for key, value in load_arrays(path).items()}


def heading(system: str) -> str:
    """The column of a system: one for a flow, however many steps it was given."""
    return system.split(", ")[0] if system.endswith(" steps") else system


def in_two(system: str) -> str:
    """A long name on two lines, so that it stays above its panel."""
    return system if len(system) < 16 else ",\n".join(system.rsplit(", ", 1))


def place(system: str) -> int:
    """The truth first, then the peers, the paper's two, and ours."""
    return next((i for i, start in enumerate(COLUMNS) if system.startswith(start)), len(COLUMNS))


def panels(figure: str, arrays: Panels) -> list[list[tuple[str, str]]]:
    """Set and system of every panel: a line for a set and a column for a system; the sweep's stand in one line."""
    names = list(dict.fromkeys(name for name, _ in arrays))
    systems = sorted(dict.fromkeys(system for _, system in arrays), key=place)
    lines = [[(name, system) for system in systems] for name in names]
    return [[panel for line in lines for panel in line]] if figure == "sweep" else lines


def draw(figure: str, arrays: Panels, folder: Path) -> None:
    """One picture of all panels, with what they show written below."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    arrays = {(name, heading(system)): value for (name, system), value in arrays.items()}
    lines = panels(figure, arrays)
    width, height = {"curves": (1.9, 1.6), "sweep": (2.6, 2.4)}.get(figure, (1.4, 1.4))
    size = (width * len(lines[0]), height * len(lines) + 0.5)
    picture, axes = plt.subplots(len(lines), len(lines[0]), figsize=size, layout="constrained", squeeze=False)
    for i, line in enumerate(lines):
        for axis, (name, system) in zip(axes[i], line, strict=True):
            if (name, system) in arrays:
                PANELS[figure](axis, name, system, arrays)
            else:
                blank(axis)
            if i == 0:
                axis.set_title(name if figure == "sweep" else in_two(system), fontsize=7)
        axes[i, 0].set_ylabel("ISE ×1e-2 of CTEM-G" if figure == "sweep" else line[0][0], fontsize=8)
    picture.align_ylabels(axes[:, 0])
    if figure == "curves":
        curve_legend(picture)
    picture.supxlabel(CAPTIONS[figure], fontsize=8)
    save(picture, folder / f"table1-{figure}.png")
    plt.close(picture)


def save(picture, path: Path) -> None:
    """As a PNG of 256 colours, the means of what they stand for: a third of the size."""
    from PIL import Image

    memory, small = io.BytesIO(), io.BytesIO()
    picture.savefig(memory, dpi=DPI)
    colours = Image.open(memory).convert("RGB").quantize(256, kmeans=1, dither=Image.Dither.NONE)
    colours.save(small, "PNG", optimize=True)
    replace_bytes(path, small.getvalue())
    print(f"picture: {path} ({path.stat().st_size / 1e6:.2f} MB)", flush=True)


def blank(axis) -> None:
    """A panel of a system that was not run on the set."""
    axis.text(0.5, 0.5, "not run", color="grey", fontsize=7, ha="center", va="center")
    axis.set(frame_on=False, box_aspect=1)
    bare(axis)


def bare(axis) -> None:
    axis.set_xticks([])
    axis.set_yticks([])


def density_panel(axis, name: str, system: str, arrays: Panels) -> None:
    """One colour scale for a set: the truth's."""
    axis.imshow(
        arrays[name, system].T, origin="lower", cmap="magma", vmin=0, vmax=float(exam(name).truth.max())
    )
    bare(axis)


def score_panel(axis, name: str, system: str, arrays: Panels) -> None:
    """Magnitude in colour, logarithmic, on the truth's scale; direction as arrows."""

    def magnitude(system: str) -> NDArray[np.float64]:
        return np.log10(np.maximum(arrays[name, system][: FINE**2], 1e-3)).reshape(FINE, FINE)

    low, high = np.quantile(magnitude("truth"), (0.02, 0.98))
    at, _ = field_points(name, COARSE)
    edge = (float(at.min()), float(at.max()))
    axis.imshow(magnitude(system).T, origin="lower", extent=edge + edge, cmap="viridis", vmin=low, vmax=high)
    arrows = arrays[name, system][FINE**2 :].reshape(-1, 2)
    axis.quiver(*at.numpy().T, *arrows.T, color="white", width=0.008)
    bare(axis)


def langevin_panel(axis, name: str, system: str, arrays: Panels) -> None:
    """Samples over the contours of the truth; of a mixture, of its marginal on the first two columns."""
    target = TARGETS[name]
    low, high = bounds = target.bounds if target.space.dim == 2 else (-4.0, 7.0)
    square = grid(bounds, 100)
    if target.space.dim == 2:
        p = target.log_density(square.X).exp()
    else:
        p = (-torch.cdist(square.X, target.centres[:, :2]).square() / 2).exp().mean(1)
    x, X = np.linspace(*bounds, 100), arrays[name, system]
    axis.contour(x, x, p.view(100, 100).T, levels=5, colors="grey", linewidths=0.4)
    axis.scatter(*X.T, s=0.4, c="tab:red", alpha=0.5)
    gone = len(X) - int(((low < X) & (high > X)).all(1).sum())  # nan is gone too
    if gone > len(X) / 2:
        note = f"{gone} of {len(X)} outside"
        axis.text(0.5, 0.05, note, transform=axis.transAxes, color="grey", fontsize=6, ha="center")
    axis.set(xlim=bounds, ylim=bounds, box_aspect=1)
    bare(axis)


def sweep_panel(axis, name: str, system: str, arrays: Panels) -> None:
    """Mean and standard deviation over seeds against c."""
    values = arrays[name, system]
    spread = values.std(1, ddof=1) if values.shape[1] > 1 else np.zeros(len(values))
    axis.errorbar(SWEEP_C, values.mean(1), spread, marker="o", markersize=2, linewidth=0.8, capsize=2)
    axis.set(xscale="log")
    axis.set_xticks(SWEEP_C, [f"{c:.2g}" for c in SWEEP_C])
    axis.minorticks_off()
    axis.tick_params(labelsize=6)


def curve_panel(axis, name: str, system: str, arrays: Panels) -> None:
    """True error (red, logarithmic) and held-out loss (blue, its own scale); dotted lines mark the lowest points."""
    steps, loss, error = arrays[name, system]
    other = axis.twinx()
    for values, colour, side in ((error, ERROR, axis), (loss, LOSS, other)):
        side.plot(steps, values, color=colour, linewidth=0.8)
        side.axvline(steps[int(values.argmin())], color=colour, linewidth=0.6, linestyle=":")
        side.tick_params(labelsize=6, labelcolor=colour, axis="y")
    axis.set(yscale="log")
    ends = apart([float(error.min()), float(error.max()), float(error[0]), float(error[-1])])
    axis.set_yticks(ends, [f"{e:.3g}" for e in ends])
    axis.minorticks_off()
    axis.set_xticks([steps[0], steps[-1]])
    axis.tick_params(labelsize=6, axis="x")
    other.locator_params(axis="y", nbins=4)


def apart(values: list[float]) -> list[float]:
    """Those of the values that leave room for a label on a logarithmic axis, the first ones before the others."""
    room, kept = 0.1 * np.log(max(values) / min(values)), values[:1]
    for value in values[1:]:
        if all(abs(np.log(value / other)) > room for other in kept):
            kept.append(value)
    return kept


def curve_legend(picture) -> None:
    """Which line is which, above all panels."""
    from matplotlib.lines import Line2D

    lines = {
        "true error (left)": (ERROR, "-"),
        "loss on held-out rows (right)": (LOSS, "-"),
        "where each is lowest": ("grey", ":"),
    }
    handles = [Line2D([], [], color=c, linestyle=style, label=text) for text, (c, style) in lines.items()]
    picture.legend(handles=handles, loc="outside upper center", ncols=3, fontsize=8, frameon=False)


PANELS: dict[str, Callable[..., None]] = {
    "densities": density_panel,
    "scores": score_panel,
    "langevin": langevin_panel,
    "sweep": sweep_panel,
    "curves": curve_panel,
}


def settings_of(figure: str) -> dict[str, Any]:
    return {
        "densities": {},
        "scores": {"DSM noise": DSM_NOISE},
        "langevin": {"chains": CHAINS, "step": STEP, "steps": LANGEVIN_STEPS},
        "sweep": {"c": SWEEP_C, "recipe": asdict(PAPER_2D)},
        "curves": {"held out": 0.1, "paper": asdict(PAPER_2D), "ours": settings_of_ours({})},
    }[figure]


def compute(figure: str, job: Job, out: Path, arrays: Path, end: str = "") -> None:
    """Run one figure, and leave its arrays and numbers in files with this end of their names."""
    began, computed = time.perf_counter(), COMPUTE[figure](job)
    save_panels(arrays / f"{figure}{end}.npz", computed.arrays)
    wall = time.perf_counter() - began
    print(f"{figure}: {wall:.0f} s", flush=True)
    if computed.records:
        settings = settings_of(figure)
        write(f"figures-{figure}{end}", settings, computed.records, job.device, wall, out, quick=job.quick)


def computed_arrays(figure: str, folder: Path) -> Panels:
    """The arrays of a figure from all runs; of two that have a panel, the newer."""
    found: Panels = {}
    for path in sorted(folder.glob(f"{figure}*.npz"), key=lambda path: path.stat().st_mtime):
        found |= load_panels(path)
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="*", choices=COMPUTE, default=list(COMPUTE), help="which figures")
    parser.add_argument("--sets", nargs="*", choices=TARGETS, help="which sets (default: all)")
    parser.add_argument("--name", help="of the files of this run, after the figure's")
    parser.add_argument("--stage", choices=("both", "compute", "draw"), default="both", help="do half of it")
    parser.add_argument("--fits", type=Path, help="folder of table1's fits (default: build/fits)")
    parser.add_argument("--arrays", type=Path, help="folder of the arrays (default: build/figures)")
    args = parser.parse_args()
    fits = args.fits or (FITS / "quick" if args.quick else FITS)
    arrays = args.arrays or (QUICK if args.quick else ARRAYS)
    names = args.sets or (["Spiral", "2-Gaussian", "10-D mixture"] if args.quick else list(TARGETS))
    seeds = range(args.seeds or (1 if args.quick else 5))
    job = Job(names, args.device, args.quick, fits, seeds, denoisers=not args.name)
    end = f"-{args.name}" if args.name else ""
    if args.stage != "draw":
        with staged(args.out) as out:
            if args.quick:
                table1(list(FAMILIES), GROUPS[:2], Run(range(1), args.device, True, out, fits))
            for figure in args.only:
                compute(figure, job, out, arrays, end)
    for figure in args.only if args.stage != "compute" else ():
        draw(figure, computed_arrays(figure, arrays), QUICK if args.quick else DOCS)


if __name__ == "__main__":
    main()
