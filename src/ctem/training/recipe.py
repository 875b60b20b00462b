"""How long and how fast to train, and what came of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["PAPER_2D", "PAPER_HIGH_D", "History", "Recipe"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How long and how fast to train.

    Arguments:
        steps: at most this many updates.
        batch_size: rows per update (of each member, if there are several), drawn with replacement.
        learning_rate: of Adam.
        schedule: "constant" (the paper's) or "cosine" down to zero.
        warmup: steps over which the rate rises to its height.
        weight_decay: decoupled; 0 is plain Adam.
        ema: decay of the averaged weights that are evaluated and returned; 0 turns averaging off.
        clip: largest gradient norm, or None.
        evaluate_every: steps between held-out evaluations, checkpoints and history rows.
        patience: stop after this many evaluations without a better held-out loss, once it falls no more, or None.
        worthwhile: stop when the later half of the steps has lowered the held-out loss by less than this, or None.
        seed: of batches and comparisons.
        shards: parts of a batch, each with random numbers of its own; several processes share them evenly, and the same
            number of parts in one process gives the same training.

    >>> Recipe(steps=100).batch_size
    256
    """

    steps: int = 5000
    batch_size: int = 256
    learning_rate: float = 1e-3
    schedule: Literal["constant", "cosine"] = "cosine"
    warmup: int = 0
    weight_decay: float = 0.0
    ema: float = 0.0
    clip: float | None = None
    evaluate_every: int = 250
    patience: int | None = None
    worthwhile: float | None = None
    seed: int = 0
    shards: int = 1

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "evaluate_every", "patience", "shards"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected at least 1; got {value}.")
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay: expected ≥ 0; got {self.weight_decay}.")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip: expected a norm > 0; got {self.clip}.")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate: expected > 0; got {self.learning_rate}.")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema: expected a decay in [0, 1); got {self.ema}.")
        if self.schedule not in ("constant", "cosine"):
            raise ValueError(f"schedule: expected 'constant' or 'cosine'; got {self.schedule!r}.")

    def rate(self, step: int, progress: float | None = None, warmup: int | None = None) -> float:
        """The learning rate at a step, relative to the highest.

        Arguments:
            progress: the share of the steps that is over, where it is not that of ``steps``.
            warmup: the steps over which it rises, where they are not those above.
        """
        over, warmup = (
            step / self.steps if progress is None else progress,
            self.warmup if warmup is None else warmup,
        )
        rising = min(1.0, (step + 1) / warmup) if warmup else 1.0
        return rising * (0.5 * (1 + math.cos(math.pi * over)) if self.schedule == "cosine" else 1.0)

    def fresh(self, step: int) -> float:
        """The weight of new parameters in the average: it looks back over a tenth of the steps, or less by ``ema``."""
        return max(1 - self.ema, 9 / (10 + step)) if step else 1.0


PAPER_2D = Recipe(steps=15_000, learning_rate=1e-4, schedule="constant")
PAPER_HIGH_D = Recipe(steps=30_000, learning_rate=1e-4, schedule="constant")


@dataclass
class History:
    """What happened: one entry per evaluation, and why training ended.

    >>> History().best_step
    0
    """

    step: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    best_step: int = 0
    best_loss: float = math.inf
    stopped_early: bool = False
    interrupted: bool = False
    seconds: float = 0.0
