"""The pictures of ``figures.py``, drawn from its arrays; the only file here that needs matplotlib."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from continuous_sets import TARGETS, exam
from ctem.targets import grid

FINE, COARSE = 80, 14  # points a side, of the colours and of the arrows
SWEEP_C = tuple(float(c) for c in np.geomspace(0.1, 1.5, 7))

Arrays = dict[tuple[str, str], NDArray[np.float64]]  # by set and system


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Write all arrays as one file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    memory = io.BytesIO()
    np.savez_compressed(memory, **{"|".join(key): value.astype(np.float32) for key, value in arrays.items()})
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(memory.getvalue())
    os.replace(temporary, path)


def load_arrays(path: Path) -> Arrays:
    """Undo ``save_arrays``."""
    with np.load(path, allow_pickle=False) as file:
        return {(key.partition("|")[0], key.partition("|")[2]): file[key] for key in file.files}


def field_points(name: str, points: int) -> tuple[Tensor, Tensor]:
    """A square of points, and the rows they stand for: themselves, or the slice x₃ = … = x_d = 0."""
    target = TARGETS[name]
    square = grid(target.bounds if target.space.dim == 2 else (-2.0, 5.0), points).X
    return square, torch.nn.functional.pad(square, (0, target.space.dim - 2))


def heading(system: str) -> str:
    """The column of a system: one for a flow, however many steps it was given."""
    return system.split(", ")[0] if system.endswith(" steps") else system


def draw(figure: str, arrays: Arrays, folder: Path) -> None:
    """One picture: a line of panels for every set, a column for every system."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    arrays = {(name, heading(system)): value for (name, system), value in arrays.items()}
    names, systems = list(dict.fromkeys(n for n, _ in arrays)), list(dict.fromkeys(s for _, s in arrays))
    size = {"curves": (1.9, 1.7), "sweep": (2.6, 2.4)}.get(figure, (1.6, 1.65))
    lines, columns = (len(names), len(systems)) if figure != "sweep" else (1, len(names))
    picture, axes = plt.subplots(
        lines, columns, figsize=(size[0] * columns, size[1] * lines), layout="constrained", squeeze=False
    )
    for i, name in enumerate(names):
        for j, system in enumerate(systems):
            axis = axes[0, i] if figure == "sweep" else axes[i, j]
            if (name, system) in arrays:
                PANELS[figure](axis, name, system, arrays)
            axis.set_title(name if figure == "sweep" else system, fontsize=6)
        axes[0 if figure == "sweep" else i, 0].set_ylabel(
            "ISE ×1e-2" if figure == "sweep" else name, fontsize=8
        )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"table1-{figure}.png"
    picture.savefig(path, dpi=110)
    plt.close(picture)
    print(f"picture: {path}", flush=True)


def bare(axis) -> None:
    axis.set_xticks([])
    axis.set_yticks([])


def density_panel(axis, name: str, system: str, arrays: Arrays) -> None:
    """One colour scale for a set: the truth's."""
    axis.imshow(
        arrays[name, system].T, origin="lower", cmap="magma", vmin=0, vmax=float(exam(name).truth.max())
    )
    bare(axis)


def score_panel(axis, name: str, system: str, arrays: Arrays) -> None:
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


def langevin_panel(axis, name: str, system: str, arrays: Arrays) -> None:
    """Samples over the contours of the truth; of a mixture, of its marginal on the first two columns."""
    target = TARGETS[name]
    bounds = target.bounds if target.space.dim == 2 else (-4.0, 7.0)
    square = grid(bounds, 100)
    if target.space.dim == 2:
        p = target.log_density(square.X).exp()
    else:
        p = (-torch.cdist(square.X, target.centres[:, :2]).square() / 2).exp().mean(1)
    x = np.linspace(*bounds, 100)
    axis.contour(x, x, p.view(100, 100).T, levels=5, colors="grey", linewidths=0.4)
    axis.scatter(*arrays[name, system].T, s=0.4, c="tab:red", alpha=0.5)
    axis.set(xlim=bounds, ylim=bounds)
    bare(axis)


def sweep_panel(axis, name: str, system: str, arrays: Arrays) -> None:
    """Mean and standard deviation over seeds against c."""
    values = arrays[name, system]
    spread = values.std(1, ddof=1) if values.shape[1] > 1 else np.zeros(len(values))
    axis.errorbar(SWEEP_C, values.mean(1), spread, marker="o", markersize=2, linewidth=0.8, capsize=2)
    axis.set(xscale="log", xlabel="c")
    axis.tick_params(labelsize=6)


def curve_panel(axis, name: str, system: str, arrays: Arrays) -> None:
    """True error (red, logarithmic) and held-out loss (blue, its own scale); dotted lines mark the lowest points."""
    steps, loss, error = arrays[name, system]
    for values, colour, side in ((error, "tab:red", axis), (loss, "tab:blue", axis.twinx())):
        side.plot(steps, values, color=colour, linewidth=0.8)
        side.axvline(steps[int(values.argmin())], color=colour, linewidth=0.6, linestyle=":")
        side.tick_params(labelsize=5, labelcolor=colour, axis="y")
    axis.set(yscale="log")
    axis.set_xticks([steps[0], steps[-1]])
    ends = [float(error.min()), float(error[0]), float(error[-1])]
    axis.set_yticks(ends, [f"{e:.2g}" for e in ends])
    axis.minorticks_off()
    axis.tick_params(labelsize=5, axis="x")


PANELS: dict[str, Callable[..., None]] = {
    "densities": density_panel,
    "scores": score_panel,
    "langevin": langevin_panel,
    "sweep": sweep_panel,
    "curves": curve_panel,
}
