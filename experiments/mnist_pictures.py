"""The pictures of ``mnist.py``, drawn from the arrays it leaves in the build folder.

    python experiments/mnist_pictures.py --data 8 [--build build] [--out experiments/results]

Samples of every objective beside real digits, a hidden half filled in, noise taken away, the most and the least likely
test digits, and what a better sample costs in evaluations of the energy.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from results import arguments

__all__ = ["draw_all", "load_arrays", "save_arrays", "tiles"]

Arrays = dict[str, NDArray[Any]]
BUILD = Path("build")
CHAINED = ("clocks", "slopes")  # sampled by the chain rule
TITLES = {
    "soft": "soft target",
    "constant": "constant target",
    "paper": "paper's configuration",
    "spacetime": "space-time",
    "clocks": "a clock per pixel, chain rule",
    "slopes": "a clock per pixel, slopes",
}


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Write all arrays as one npz file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    memory = io.BytesIO()
    np.savez_compressed(memory, **arrays)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(memory.getvalue())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_arrays(path: Path) -> Arrays:
    """Undo ``save_arrays``."""
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


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
    folder.mkdir(parents=True, exist_ok=True)
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
    arrays = {k: v for k, v in arrays.items() if k in lines or k in CHAINED} if lines else arrays
    chain = {k: v for one in arrays.values() for k, v in one.items() if k == "curve|chain rule"}
    arrays = {key: one | chain for key, one in arrays.items() if key not in CHAINED or len(arrays) == 1}
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
    parser = arguments(__doc__)
    parser.add_argument("--data", type=int, choices=(28, 8), default=8, help="pixels a side")
    parser.add_argument("--build", type=Path, default=BUILD, help="folder of the arrays")
    args = parser.parse_args()
    name = "mnist" if args.data == 28 else "digits"
    found = {key: args.build / f"{name}-{key}.npz" for key in TITLES}
    arrays = {key: load_arrays(path) for key, path in found.items() if path.exists()}
    if not arrays:
        raise SystemExit(f"{args.build} holds no {name}-*.npz; run experiments/mnist.py first.")
    for path in draw_all(name, arrays, (args.data, args.data), args.out):
        print(path)


if __name__ == "__main__":
    main()
