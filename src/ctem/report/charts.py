"""Small inline SVG pictures, drawn from arrays; colours come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from ctem.report.axes import Tick, nice

__all__ = ["curves", "diagonal", "heat", "histograms", "points"]

WIDTH, HEIGHT = 340, 190
DWARFS = 5  # times the next bar
Vector = NDArray[np.float64]


class _Box:
    """A picture with a frame; places in [0, 1]² go to its inside, y upwards."""

    def __init__(self, label: str, width: int = WIDTH, height: int = HEIGHT, left: int = 12, under: int = 26):
        self.label, self.width, self.height = label, width, height
        self.left, self.right, self.top, self.bottom = left, width - 12, 10, height - under
        self.parts: list[str] = []

    def x(self, share: float) -> float:
        return round(self.left + share * (self.right - self.left), 1)

    def y(self, share: float) -> float:
        return round(self.bottom - min(share, 1.0) * (self.bottom - self.top), 1)

    def add(self, part: str) -> None:
        self.parts.append(part)

    def floor(self) -> None:
        self.add(f'<path class="axis" d="M{self.left} {self.bottom}H{self.right}"/>')

    def below(self, ticks: Sequence[Tick]) -> None:
        if len(ticks) > 2 and all(len(text) > 12 for _, text in ticks):  # they would run into each other
            ticks = (ticks[0], ticks[-1])
        longest = 14 if len(ticks) > 2 else 20
        for share, text in ticks:
            anchor = "start" if share < 0.06 else "end" if share > 0.94 else "middle"
            x = self.x(share)
            self.add(f'<path class="axis" d="M{x} {self.bottom}v4"/>')
            self.add(
                f'<text x="{x}" y="{self.bottom + 17}" text-anchor="{anchor}">{_cut(text, longest)}</text>'
            )

    def beside(self, ticks: Sequence[Tick], longest: int = 6) -> None:
        for share, text in ticks:
            self.add(f'<path class="grid" d="M{self.left} {self.y(share)}H{self.right}"/>')
            at = f'x="{self.left - 6}" y="{self.y(share) + 3.5}"'
            self.add(f'<text {at} text-anchor="end">{_cut(text, longest)}</text>')

    def svg(self) -> str:
        head = f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(self.label)}">'
        return head + "".join(self.parts) + "</svg>"


def histograms(
    label: str,
    real: Vector,
    sampled: Vector,
    ticks: Sequence[Tick],
    gap: float = 0.0,
    width: int = WIDTH,
) -> str:
    """Shares of slots: the real ones as bars, the sampled ones as an outline; ``gap`` parts listed values.

    One bar that would dwarf the others is cut, and its shares are written beside it.

    >>> histograms("age", np.array([0.5, 0.5]), np.array([0.4, 0.6]), []).count("<path")
    3
    """
    box, k = _Box(label, width), len(real)
    highest = np.sort(np.maximum(real, sampled))[::-1]
    cut = k > 2 and highest[0] > DWARFS * highest[1] > 0
    top = max(float(highest[1] * 2.5 if cut else highest[0]), 1e-9)

    def bars(shares: Vector) -> list[str]:
        ends = [(box.x((i + gap) / k), box.x((i + 1 - gap) / k)) for i in range(k)]
        heights = [box.y(share / top) for share in shares.tolist()]
        return [f"M{a} {box.bottom}V{y}H{b}V{box.bottom}" for (a, b), y in zip(ends, heights, strict=True)]

    outline = "".join(bars(sampled))
    if not gap:
        steps = [f"V{box.y(share / top)}H{box.x((i + 1) / k)}" for i, share in enumerate(sampled.tolist())]
        outline = f"M{box.x(0)} {box.bottom}{''.join(steps)}V{box.bottom}"
    box.add(f'<path class="real" d="{"".join(bars(real))}"/>')
    box.floor()
    box.add(f'<path class="line" d="{outline}"/>')
    if cut:
        i = int(np.maximum(real, sampled).argmax())
        box.add(_beside_bar(box, i, k, f"{real[i]:.0%}, sampled {sampled[i]:.0%}"))
    box.below(ticks)
    return box.svg()


def curves(
    label: str, steps: Sequence[int], train: Sequence[float], held_out: Sequence[float], best: int
) -> str:
    """Training loss and held-out loss by step, with the best step marked; a high start is cut off.

    >>> curves("loss", [1, 2], [0.9, 0.5], [0.8, 0.6], 2).count("<circle")
    1
    """
    box = _Box(label, 460, 240, left=52)
    both = np.array([*train, *held_out])
    both = both[np.isfinite(both)]
    low, high = float(both.min()), float(np.quantile(both, 0.97))
    pad = 0.08 * (high - low) or 0.5
    low, high, last = low - pad, high + pad, max(steps)
    box.beside([((v - low) / (high - low), f"{v:.6g}") for v in nice(low, high)], 8)
    box.below([(v / last, f"{v:.0f}") for v in nice(0, last)])
    for name, values in (("faint", train), ("line", held_out)):
        known = [
            (s / last, (v - low) / (high - low)) for s, v in zip(steps, values, strict=False) if v <= high
        ]
        if known:
            path = "L".join(f"{box.x(x)} {box.y(y)}" for x, y in known)
            box.add(f'<path class="{name}" d="M{path}"/>')
    if best in steps and held_out:
        at = (held_out[list(steps).index(best)] - low) / (high - low)
        box.add(f'<circle class="dot" cx="{box.x(best / last)}" cy="{box.y(at)}" r="4"/>')
    return box.svg()


def points(
    label: str,
    kind: str,
    x: Vector,
    y: Vector,
    below: Sequence[Tick],
    beside: Sequence[Tick],
    longest: int = 6,
) -> str:
    """Points at places in [0, 1]²; nan is left out. ``kind`` is "real" or "sampled".

    >>> points("pair", "real", np.array([0.5, np.nan]), np.array([0.5, 0.5]), [], []).count("h0")
    1
    """
    box = _Box(label, 300, 250, left=14 + 6 * longest)
    box.beside(beside, longest)
    box.floor()
    box.below(below)
    known = ~(np.isnan(x) | np.isnan(y))
    dots = "".join(
        f"M{box.x(a)} {box.y(b)}h0" for a, b in zip(x[known].tolist(), y[known].tolist(), strict=True)
    )
    box.add(f'<path class="points {kind}" d="{dots}"/>')
    return box.svg()


def heat(
    label: str,
    kind: str,
    shares: Vector,
    top: float,
    below: Sequence[str],
    beside: Sequence[str],
    longest: int = 12,
) -> str:
    """A table of shares (columns, rows) as shades up to ``top``, the first row at the top.

    >>> heat("pair", "real", np.array([[0.5, 0.0], [0.0, 0.5]]), 0.5, "ab", "cd").count("<rect")
    2
    """
    columns, rows = shares.shape
    left = 14 + 6 * longest
    wide = (288 - left) / columns
    # degrees: flat where the labels fit, steeper the closer they stand
    angle = 0 if 6.2 * max(map(len, below)) <= wide else 40 if wide >= 18 else 60
    under = 16 + int(6.2 * min(12, max(map(len, below))) * math.sin(math.radians(angle))) if angle else 26
    box = _Box(label, 300, 224 + under, left=left, under=under)
    high = (box.bottom - box.top) / rows
    for i, j in np.argwhere(shares > 0.004 * top):
        at = f'x="{box.x(i / columns)}" y="{box.y((rows - j) / rows)}"'
        size = f'width="{max(wide - 1.5, 1):.1f}" height="{max(high - 1.5, 1):.1f}"'
        box.add(f'<rect class="cell {kind}" {at} {size} opacity="{(shares[i, j] / top) ** 0.6:.2f}"/>')
    for j, text in enumerate(beside):
        at = f'x="{box.left - 6}" y="{box.y((rows - j - 0.5) / rows) + 3.5}"'
        box.add(f'<text {at} text-anchor="end">{_cut(text, longest)}</text>')
    for i, text in enumerate(below):
        box.add(_foot(box.x((i + 0.5) / columns), box.bottom + 12, text, angle))
    return box.svg()


def diagonal(label: str, x: Vector, y: Vector, x_name: str, y_name: str) -> str:
    """Points that should lie on the diagonal, both axes from 0 to the same end.

    >>> diagonal("pairs", np.array([0.1]), np.array([0.2]), "real", "sampled").count("h0")
    1
    """
    box = _Box(label, 340, 320, left=44)
    top = max(float(x.max(initial=0)), float(y.max(initial=0)), 1e-3) * 1.06
    ticks = [(v / top, f"{v:.6g}") for v in nice(0, top)]
    box.beside(ticks)
    box.below(ticks)
    box.add(f'<path class="guide" d="M{box.x(0)} {box.y(0)}L{box.x(1)} {box.y(1)}"/>')
    dots = "".join(
        f"M{box.x(a)} {box.y(b)}h0" for a, b in zip((x / top).tolist(), (y / top).tolist(), strict=True)
    )
    box.add(f'<path class="points sampled large" d="{dots}"/>')
    box.add(
        f'<text class="name" x="{box.right}" y="{box.bottom - 7}" text-anchor="end">{escape(x_name)}</text>'
    )
    box.add(f'<text class="name" x="{box.left + 6}" y="{box.top + 8}">{escape(y_name)}</text>')
    return box.svg()


def _beside_bar(box: _Box, i: int, k: int, words: str) -> str:
    """Words at the top of bar i of k, on the side with more room."""
    right = i < k / 2
    x = box.x((i + 1) / k) + 6 if right else box.x(i / k) - 6
    return (
        f'<text x="{x}" y="{box.top + 9}" text-anchor="{"start" if right else "end"}">{escape(words)}</text>'
    )


def _foot(x: float, y: float, text: str, angle: int) -> str:
    if not angle:
        return f'<text x="{x}" y="{y + 3}" text-anchor="middle">{escape(text)}</text>'
    turn = f'transform="rotate(-{angle} {x} {y})" text-anchor="end"'
    return f'<text x="{x + 3}" y="{y}" {turn}>{_cut(text, 12)}</text>'


def _cut(text: str, longest: int) -> str:
    return escape(text if len(text) <= longest else text[: max(longest - 1, 1)] + "…")
