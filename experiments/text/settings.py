"""Texts as chunks of codes, and how much ``energy.py`` spends on them."""

from __future__ import annotations

import gzip
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ctem import Recipe, Space
from ctem.datasets.downloads import root

FILES = {"tinyshakespeare": "tinyshakespeare.txt.gz", "text8": "text8_prefix.txt.gz"}
MADE_UP = "made-up text"
SHARES = (0.9, 0.95)  # where validation and test text begin


class Size(NamedTuple):
    """How much is spent."""

    width: int
    depth: int
    heads: int
    drop: float
    batch: int  # chunks of a step, and as many draws in a step of the energy
    pool: int  # draws of the base that an energy is learned against
    fresh: int  # draws for log Z
    recipe: Recipe
    energy: Recipe


RECIPE = Recipe(
    steps=20_000,
    learning_rate=1e-3,
    warmup=100,
    weight_decay=0.1,
    clip=1.0,
    evaluate_every=50,
    batch_size=128,
)
FULL = Size(
    384,
    6,
    6,
    0.2,
    128,
    32_768,
    65_536,
    RECIPE,
    replace(RECIPE, learning_rate=2e-4),
)
QUICK = FULL._replace(
    width=32,
    depth=2,
    heads=2,
    drop=0.0,
    pool=2000,
    fresh=2000,
    recipe=Recipe(steps=2000, learning_rate=3e-3, clip=1.0, evaluate_every=20, batch_size=32),
    energy=Recipe(steps=2000, learning_rate=1e-3, clip=1.0, evaluate_every=20, batch_size=64),
)


class Text(NamedTuple):
    """Chunks of codes (n, length): those of the training text overlap, those of the other parts do not."""

    name: str
    symbols: str
    space: Space
    train: Tensor
    valid: Tensor
    test: Tensor

    def read(self, x: Tensor) -> list[str]:
        """Rows as text."""
        return ["".join(self.symbols[code] for code in row) for row in x.long().tolist()]


def load_text(name: str, length: int, folder: str | None, device: str) -> Text:
    """A text of FOLDER/text, or one that is made up, in chunks: the first 90 % to learn from, then 5 % and 5 %."""
    if name == MADE_UP:
        content = made_up(20_000)
    else:
        path = root(folder) / "text" / FILES[name]
        if not path.exists():
            raise SystemExit(f"--data: expected a folder with text/{path.name}; got {root(folder)}.")
        content = gzip.decompress(path.read_bytes()).decode("ascii")
    symbols = "".join(sorted(set(content)))
    place = {symbol: code for code, symbol in enumerate(symbols)}
    codes = torch.tensor([place[symbol] for symbol in content], dtype=torch.float32, device=device)
    first, second = (int(share * len(codes)) for share in SHARES)
    apart = [part.unfold(0, length, length).contiguous() for part in (codes[first:second], codes[second:])]
    space = Space.sequence(len(symbols), length)
    return Text(name, symbols, space, codes[:first].unfold(0, length, 1), *apart)


def made_up(count: int, seed: int = 0) -> str:
    """So many characters of sentences whose words come in pairs that rhyme: a law that looks far ahead."""
    rng = np.random.default_rng(seed)
    words = ["bat", "cat", "rat", "bee", "see", "tree", "bone", "cone", "tone"]
    ends = ["at", "ee", "one"]
    parts: list[str] = []
    while sum(map(len, parts)) < count:
        end = ends[rng.integers(3)]
        alike = [word for word in words if word.endswith(end)]
        parts.append(f"a {alike[rng.integers(3)]} and a {alike[rng.integers(3)]}. ")
    return "".join(parts)[:count]
