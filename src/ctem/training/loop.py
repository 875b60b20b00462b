"""The one training loop: AdamW, a learning-rate schedule, EMA, early stopping by held-out loss, resume.

The loss is a proper scoring rule, so for any one kernel its held-out value may choose when to stop: no
normaliser and no ground truth are needed.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from ctem.training.checkpoints import fingerprint, read_checkpoint, write_checkpoint
from ctem.training.devices import DropoutState, StepGraph

__all__ = ["PAPER_2D", "PAPER_HIGH_D", "History", "Loss", "Recipe", "train"]

Loss = Callable[[Any, Tensor, torch.Generator], Tensor]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How long and how fast to train.

    Arguments:
        steps: at most this many updates.
        batch_size: rows per update (of each member, if there are several), drawn with replacement.
        learning_rate: of Adam.
        schedule: "constant" (the paper's) or "cosine" down to zero.
        weight_decay: decoupled; 0 is plain Adam.
        ema: decay of the averaged weights that are evaluated and returned; 0 turns averaging off.
        clip: largest gradient norm, or None.
        evaluate_every: steps between held-out evaluations, checkpoints and history rows.
        patience: stop after this many evaluations without a better held-out loss, or None.
        seed: of batches and comparisons.

    >>> Recipe(steps=100).batch_size
    256
    """

    steps: int = 5000
    batch_size: int = 256
    learning_rate: float = 1e-3
    schedule: Literal["constant", "cosine"] = "cosine"
    weight_decay: float = 0.0
    ema: float = 0.0
    clip: float | None = None
    evaluate_every: int = 250
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "evaluate_every", "patience"):
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

    def rate(self, step: int) -> float:
        """The learning rate at a step, relative to the first."""
        return 0.5 * (1 + math.cos(math.pi * step / self.steps)) if self.schedule == "cosine" else 1.0

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
    seconds: float = 0.0


def train(
    f: nn.Module,
    loss: Loss,
    x: Tensor,
    recipe: Recipe,
    *,
    held_out: Tensor | None = None,
    weights: Tensor | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
    cuda_graph: bool = False,
) -> History:
    """Fit the parameters of f in place by minimising loss(f, rows, generator) over batches of x.

    With held-out rows, the weights with the lowest held-out loss are left in f. With a checkpoint path the
    run can be killed at any time: the same call goes on where it stopped, to the same bits on the CPU.

    Arguments:
        f: the log-potential.
        loss: e.g. ``lambda f, x, generator: pair_loss(f, x, kernel, generator)``.
        x: encoded rows (n, d).
        recipe: how long and how fast.
        held_out: encoded rows for early stopping, (n, d) or (members, n, d).
        weights: relative weight of each row of x (n,); or (members, n), one set for each member of an ensemble: then
            loss is given rows (members, n, d), and held_out has this shape too.
        checkpoint: file to write every ``evaluate_every`` steps and to resume from; one file per loss.
        progress: show a bar with loss and rate.
        cuda_graph: capture a step once and replay it. Several times faster for small networks on a GPU; the loss
            must not wait for the device (ColumnComparisons, LevelComparisons, and the Gaussian and Sphere kernels do
            not).

    >>> from ctem.energies import MLP
    >>> from ctem.matching.kernels import Gaussian
    >>> from ctem.matching.losses import pair_loss
    >>> from ctem.spaces import Real, Space
    >>> space = Space([Real()])
    >>> x = torch.randn(500, 1, generator=torch.Generator().manual_seed(0))
    >>> kernel = Gaussian(space, 0.5)
    >>> loss = lambda f, x, generator: pair_loss(f, x, kernel, generator)
    >>> train(MLP(space, width=8), loss, x, Recipe(steps=20, evaluate_every=10)).step
    [10, 20]
    """
    if x.ndim != 2 or len(x) < 2:
        raise ValueError(f"x: expected at least 2 encoded rows (n, d); got shape {tuple(x.shape)}.")
    if held_out is not None and held_out.shape[-2] == 0:
        raise ValueError("held_out: expected at least 1 row, or None; got none.")
    if recipe.patience is not None and held_out is None:
        raise ValueError("patience: early stopping needs held_out rows; got None.")
    if not any(p.requires_grad for p in f.parameters()):
        raise ValueError("f: expected parameters to train; got none that require a gradient.")
    run = _Run(f, loss, x, recipe, held_out, weights, cuda_graph)
    path = None if checkpoint is None else Path(checkpoint)
    mark = "" if path is None else fingerprint(asdict(recipe), f, x, held_out, weights)
    if path is not None and path.exists():
        run.restore(*read_checkpoint(path, mark))
    with _bar(progress) as bar:
        task = bar.add_task("training", total=recipe.steps, loss="") if bar else None
        while run.step < recipe.steps and not run.history.stopped_early:
            run.advance()
            if path is not None:
                write_checkpoint(path, mark, *run.snapshot())
            if bar and task is not None:
                bar.update(task, completed=run.step, loss=run.status())
    run.finish()
    return run.history


class _Run:
    """The state of one training run; ``advance`` goes to the next evaluation."""

    def __init__(
        self,
        f: nn.Module,
        loss: Loss,
        x: Tensor,
        recipe: Recipe,
        held_out: Tensor | None,
        weights: Tensor | None,
        cuda_graph: bool,
    ):
        if cuda_graph and not x.is_cuda:
            raise ValueError(f"cuda_graph: expected rows on a CUDA device; got {x.device}.")
        self.f, self.loss, self.x, self.recipe, self.held_out = f, loss, x, recipe, held_out
        self.cumulative = None if weights is None else _cumulative(weights, x)
        if held_out is not None and held_out.shape[:-2] != self._leading:
            raise ValueError(
                f"held_out: expected shape {(*self._leading, 'n', x.shape[1])}; got {tuple(held_out.shape)}."
            )
        self.parameters = [p for p in f.parameters() if p.requires_grad]
        self.rate = torch.tensor(recipe.learning_rate, device=x.device)
        self.fresh = torch.tensor(1.0, device=x.device)  # weight of the new parameters in the average
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            self.rate,
            weight_decay=recipe.weight_decay,
            fused=True,
            capturable=x.is_cuda,
        )
        self.average = copy.deepcopy(f) if recipe.ema else None
        self.generator = torch.Generator(x.device).manual_seed(recipe.seed)
        self.dropout = DropoutState(x.device, recipe.seed)
        self.graph: StepGraph | None = None
        self.cuda_graph = cuda_graph
        self.best: dict[str, Tensor] | None = None
        self.history = History()
        self.step = 0

    @property
    def _leading(self) -> tuple[int, ...]:
        """The axis of members, if there is one."""
        return () if self.cumulative is None else tuple(self.cumulative.shape[:-1])

    @property
    def current(self) -> nn.Module:
        """The network that is evaluated and kept: the averaged one if there is one."""
        return self.average if self.average is not None else self.f

    def advance(self) -> None:
        """Train up to the next multiple of ``evaluate_every``, then evaluate."""
        began, first = time.perf_counter(), self.step
        every = self.recipe.evaluate_every
        end = min(self.recipe.steps, (self.step // every + 1) * every)
        with self.dropout:
            losses = [self._step(step) for step in range(first, end)]
        values = torch.stack(losses).tolist()  # one synchronisation for the whole stretch
        for step, value in enumerate(values, first):
            if not math.isfinite(value):
                raise FloatingPointError(
                    f"loss is {value} at step {step} (learning_rate={self.recipe.learning_rate:g}); "
                    "try a smaller learning rate, or look for nan in x."
                )
        self.step = end
        self._record(sum(values) / len(values))
        self.history.seconds += time.perf_counter() - began

    def _step(self, step: int) -> Tensor:
        self.rate.fill_(self.recipe.learning_rate * self.recipe.rate(step))
        self.fresh.fill_(self.recipe.fresh(step))
        if not self.cuda_graph or step < 3:  # torch wants a few plain steps before a capture
            return self._update()
        if self.graph is None:
            self.graph = StepGraph(self._update, self.generator)
        return self.graph.replay()

    def _update(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        value = self.loss(self.f, self._batch(), self.generator)
        value.backward()
        if self.recipe.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
        self.optimizer.step()
        if self.average is not None:
            averaged = [p.data for p in self.average.parameters() if p.requires_grad]
            change = torch._foreach_sub([p.data for p in self.parameters], averaged)
            torch._foreach_mul_(change, self.fresh)
            torch._foreach_add_(averaged, change)
        return value.detach()

    def _batch(self) -> Tensor:
        shape, device = (*self._leading, self.recipe.batch_size), self.x.device
        if self.cumulative is None:
            return self.x[torch.randint(len(self.x), shape, generator=self.generator, device=device)]
        u = torch.rand(shape, generator=self.generator, dtype=torch.float64, device=device)
        row = torch.searchsorted(self.cumulative, u, right=True).clamp(max=len(self.x) - 1)
        return self.x[row]

    def _record(self, loss: float) -> None:
        if self.average is not None:  # only parameters are averaged; buffers are as they are
            for kept, now in zip(self.average.buffers(), self.f.buffers(), strict=True):
                kept.copy_(now)
        history = self.history
        history.step.append(self.step)
        history.loss.append(loss)
        if self.held_out is None:
            return
        value = self._held_out_loss(self.held_out)
        if not math.isfinite(value):
            raise FloatingPointError(
                f"held-out loss is {value} at step {self.step}; look for nan in held_out."
            )
        history.held_out.append(value)
        if value < history.best_loss:
            history.best_loss, history.best_step = value, self.step
            self.best = {k: v.detach().clone() for k, v in self.current.state_dict().items()}
        patience = self.recipe.patience
        since = (self.step - history.best_step) // self.recipe.evaluate_every
        history.stopped_early = patience is not None and since >= patience

    def _held_out_loss(self, rows: Tensor) -> float:
        """The loss on the held-out rows with the same comparisons every time, so that values compare."""
        generator = torch.Generator(rows.device).manual_seed(self.recipe.seed + 1)
        model, mode = self.current, self.current.training
        model.eval()
        with torch.no_grad():
            parts = [self.loss(model, part, generator) * part.shape[-2] for part in rows.split(8192, -2)]
        model.train(mode)
        return float(torch.stack(parts).sum()) / rows.shape[-2]

    def finish(self) -> None:
        """Leave the chosen weights in f."""
        self.f.load_state_dict(self.best if self.best is not None else self.current.state_dict())

    def status(self) -> str:
        """The text beside the bar."""
        rate = self.step / max(self.history.seconds, 1e-9)
        held = f"  held-out {self.history.held_out[-1]:.4f}" if self.history.held_out else ""
        return f"loss {self.history.loss[-1]:.4f}{held}  {rate:.0f} steps/s"

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that the rest of the run depends on."""
        tensors = {f"model.{k}": v for k, v in self.f.state_dict().items()}
        if self.average is not None:
            tensors |= {f"average.{k}": v for k, v in self.average.state_dict().items()}
        if self.best is not None:
            tensors |= {f"best.{k}": v for k, v in self.best.items()}
        for i, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{i}.{k}": v for k, v in state.items()}
        tensors["generator"] = self.generator.get_state()
        tensors["dropout"] = self.dropout.state
        return tensors, {"step": self.step, "history": asdict(self.history)}

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Undo ``snapshot``."""

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        self.f.load_state_dict(part("model."))
        if self.average is not None:
            self.average.load_state_dict(part("average."))
        self.best = part("best.") or None
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in part("adam.").items():
            i, name = key.split(".")
            moments.setdefault(int(i), {})[name] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        self.generator.set_state(tensors["generator"])
        self.dropout.state = tensors["dropout"]
        self.step, self.history = facts["step"], History(**facts["history"])


def _cumulative(weights: Tensor, x: Tensor) -> Tensor:
    weights = weights.to(x.device, torch.float64)
    fine = weights.ndim in (1, 2) and weights.shape[-1] == len(x)
    fine = fine and bool((weights.isfinite() & (weights >= 0)).all()) and bool((weights.sum(-1) > 0).all())
    if not fine:
        raise ValueError(
            f"weights: expected ({len(x)},) or (members, {len(x)}) finite numbers ≥ 0, not all 0; "
            f"got {tuple(weights.shape)}."
        )
    total = weights.cumsum(-1)
    return (total / total[..., -1:]).contiguous()


def _bar(show: bool) -> Any:
    if not show:
        return nullcontext()
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    return Progress(*columns, TextColumn("{task.fields[loss]}"))
