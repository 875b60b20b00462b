"""The one training loop: AdamW, a learning-rate schedule, EMA, early stopping by held-out loss, resume.

The loss is a proper scoring rule, so for any one kernel its held-out value may choose when to stop: no
normaliser and no ground truth are needed.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from ctem.persistence.sealed import part
from ctem.spaces import as_rows
from ctem.training.adamw import AdamW
from ctem.training.borrowed import each_add_, each_mul_, each_sub
from ctem.training.checkpoints import fingerprint, read_checkpoint, write_checkpoint
from ctem.training.devices import DropoutState, StepGraph
from ctem.training.processes import team
from ctem.training.progress import showing
from ctem.training.recipe import History, Recipe

__all__ = ["Look", "Loss", "Refresh", "train"]

Loss = Callable[[Any, Tensor, torch.Generator], Tensor]
Refresh = Callable[[Tensor, int], None]
Look = Callable[[History, nn.Module], bool | None]
APART = 1_000_003  # between the seeds of the parts of a batch
LOOKS = 8  # evaluations before it is known what is worthwhile
FEWEST_LOOKS = 12  # evaluations before a deadline
LOOK_SHARE = 4.0  # times as long as an evaluation takes, that is trained before it


def train(
    f: nn.Module,
    loss: Loss,
    x: ArrayLike,
    recipe: Recipe,
    *,
    held_out: ArrayLike | None = None,
    weights: Tensor | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
    cuda_graph: bool = False,
    deadline: float | None = None,
    pace: float | None = None,
    refresh: Refresh | None = None,
    look: Look | None = None,
) -> History:
    """Fit the parameters of f in place by minimising loss(f, rows, generator) over batches of x.

    With held-out rows, the weights with the lowest held-out loss are left in f. With a checkpoint path the
    run can be killed at any time: the same call goes on where it stopped, to the same bits on the CPU. Ctrl-C ends
    training and keeps the weights of the last evaluation, or the best; before the first there is nothing to keep.

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
        deadline: end by this moment of ``time.perf_counter``, after one step at least. As many steps are planned as
            fit, at most the recipe's; the plan is made again after every evaluation, by the time that the last steps
            took, and the rate falls to zero over the steps that are left. A killed run goes on with its plan.
        pace: seconds that a step is expected to take, for the first plan.
        refresh: called as refresh(x, step) before each stretch of steps, to write other rows into x in place where a
            table has more than fit into memory. What x then holds depends on the step alone, so that a killed run goes
            on to the same bits.
        look: called as look(history, network) after each evaluation, with the network that was evaluated, for logs and
            pictures; training ends if it returns True.

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
    x, held_out = as_rows(x), None if held_out is None else as_rows(held_out)
    _check(f, x, recipe, held_out)
    if refresh is not None:
        refresh(x, 0)
    here = team()
    if recipe.shards % here.ranks:
        recipe = replace(recipe, shards=here.ranks * recipe.shards)
    here.align(f)
    run = _Run(f, loss, x, recipe, held_out, weights, cuda_graph and here.ranks == 1)
    path = None if checkpoint is None else Path(checkpoint)
    mark = "" if path is None else fingerprint(asdict(recipe), f, x, held_out, weights)
    kept = here.agreed(lambda: read_checkpoint(path, mark) if path is not None and path.exists() else None)
    if kept is not None:
        run.restore(*kept)

    def kept_in_file() -> None:
        if path is not None:
            state = run.snapshot()
            if here.first:
                write_checkpoint(path, mark, *state)

    with showing("training", recipe.steps, progress and here.first) as report:
        while run.going_on(deadline):
            try:
                if refresh is not None:
                    refresh(x, run.step)
                run.plan(deadline, pace)
                run.advance(deadline)
            except KeyboardInterrupt:
                run.interrupt()
                break
            kept_in_file()
            report(run.step, run.status())
            if look is not None and look(run.history, run.current) is True:
                break
    if run.late:
        kept_in_file()
    run.finish()
    return run.history


def _check(f: nn.Module, x: Tensor, recipe: Recipe, held_out: Tensor | None) -> None:
    """An error where a training could not begin."""
    if x.ndim != 2 or len(x) < 2:
        raise ValueError(f"x: expected at least 2 encoded rows (n, d); got shape {tuple(x.shape)}.")
    if held_out is not None and held_out.shape[-2] == 0:
        raise ValueError("held_out: expected at least 1 row, or None; got none.")
    if held_out is None and not recipe.patience is recipe.worthwhile is None:
        raise ValueError("patience, worthwhile: early stopping needs held_out rows; got None.")
    if not any(p.requires_grad for p in f.parameters()):
        raise ValueError("f: expected parameters to train; got none that require a gradient.")


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
        self.optimizer = AdamW(self.parameters, self.rate, recipe.weight_decay)
        self.average = copy.deepcopy(f) if recipe.ema else None
        self.team = team()
        self.shards = range(self.team.rank, recipe.shards, self.team.ranks)  # of every batch, by this process
        seeds = [recipe.seed + APART * shard for shard in self.shards]
        self.generators = [torch.Generator(x.device).manual_seed(seed) for seed in seeds]
        self.dropout = DropoutState(x.device, recipe.seed + APART * self.team.rank)
        self.graph: StepGraph | None = None
        self.cuda_graph = cuda_graph
        self.best: dict[str, Tensor] | None = None
        self.history = History()
        self.step = 0
        self.steps, self.planned_at, self.planned_from = recipe.steps, 0, 0.0
        self.warmup, self.late = recipe.warmup, False
        self.began, self.look_seconds, self.step_seconds, self.stretch = time.perf_counter(), 0.0, 0.0, 1

    @property
    def _leading(self) -> tuple[int, ...]:
        """The axis of members, if there is one."""
        return () if self.cumulative is None else tuple(self.cumulative.shape[:-1])

    @property
    def current(self) -> nn.Module:
        """The network that is evaluated and kept: the averaged one if there is one."""
        return self.average if self.average is not None else self.f

    def going_on(self, deadline: float | None) -> bool:
        """Whether there is more to do, and time for it; one step always is."""
        if deadline is not None and self.step > 0 and not self.late:
            needed = self.look_seconds + self.step_seconds
            self.late = self.team.agreed(lambda: time.perf_counter() + needed > deadline)
        return self.step < self.steps and not self.history.stopped_early and not self.late

    def plan(self, deadline: float | None, pace: float | None) -> None:
        """Plan as many steps as fit until the deadline, at most the recipe's."""
        if self.step_seconds:
            pace = self.step_seconds + self.look_seconds / self.stretch
        if deadline is None or pace is None:
            return
        left = self.team.agreed(lambda: max(1, int((deadline - time.perf_counter()) / pace)))
        steps = min(self.recipe.steps, self.step + left)
        if steps != self.steps:
            self.planned_at, self.planned_from, self.steps = self.step, self._progress(self.step), steps
            self.warmup = min(self.recipe.warmup, steps // 4)

    def _progress(self, step: int) -> float:
        """The share of the schedule that is over: linear from where the plan was made last to its end."""
        over = (step - self.planned_at) / (self.steps - self.planned_at)
        return self.planned_from + (1 - self.planned_from) * over

    def interrupt(self) -> None:
        """Report what is kept of a training that the user has ended; without anything to keep, that is the end."""
        if not self.history.step:
            raise KeyboardInterrupt
        self.history.interrupted = True
        self.graph = None
        kept = self.history.best_step if self.best is not None else self.history.step[-1]
        warnings.warn(
            f"training was interrupted after {self.step} of {self.recipe.steps} steps; the weights of step {kept} "
            "are kept.",
            stacklevel=3,
        )

    def advance(self, deadline: float | None = None) -> None:
        """Train up to the next multiple of ``evaluate_every``, or as long as there is time; then evaluate."""
        began, first = time.perf_counter(), self.step
        every = self.recipe.evaluate_every
        end = min(self.steps, (self.step // every + 1) * every, self._half_way())
        until = self._stretch(deadline)
        losses: list[Tensor] = []
        with self.dropout:
            while first + len(losses) < end and (not losses or time.perf_counter() < until):
                losses.append(self._step(first + len(losses)))
        values = torch.stack(losses).tolist()  # one synchronisation for the whole stretch
        for step, value in enumerate(values, first):
            if not math.isfinite(value):
                raise FloatingPointError(
                    f"loss is {value} at step {step} (learning_rate={self.recipe.learning_rate:g}); "
                    "try a smaller learning rate, or look for nan in x."
                )
        self.step = first + len(values)
        trained = time.perf_counter()
        self._record(sum(values) / len(values))
        now = time.perf_counter()
        self.step_seconds, self.look_seconds = (trained - began) / len(values), now - trained
        self.stretch = len(values)
        self.history.seconds += now - began

    def _half_way(self) -> int:
        """Where the plan is looked at again, if time may be gained that could be used."""
        if self.steps == self.recipe.steps:
            return self.steps
        worth = math.ceil(LOOK_SHARE * self.look_seconds / max(self.step_seconds, 1e-9))
        return self.step + max(1, (self.steps - self.step) // 2, worth)

    def _stretch(self, deadline: float | None) -> float:
        """The moment when steps should pause for an evaluation, so that there are several before the deadline."""
        if deadline is None or self.x.is_cuda or self.team.ranks > 1:  # no clock that all see
            return math.inf
        longest = max((deadline - self.began) / FEWEST_LOOKS, LOOK_SHARE * self.look_seconds)
        return min(time.perf_counter() + longest, deadline - self.look_seconds)

    def _step(self, step: int) -> Tensor:
        self.rate.fill_(self.recipe.learning_rate * self.recipe.rate(step, self._progress(step), self.warmup))
        self.fresh.fill_(self.recipe.fresh(step))
        if not self.cuda_graph or step < 3:  # torch wants a few plain steps before a capture
            return self._update()
        if self.graph is None:
            self.graph = StepGraph(self._update, *self.generators)
        return self.graph.replay()

    def _update(self) -> Tensor:
        self.optimizer.zero_grad()
        value = torch.stack([self._backward(generator) for generator in self.generators]).sum()
        self.team.add([value, *(p.grad for p in self.parameters if p.grad is not None)])
        if self.recipe.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
        self.optimizer.step()
        if self.average is not None:
            averaged = [p.data for p in self.average.parameters() if p.requires_grad]
            change = each_sub([p.data for p in self.parameters], averaged)
            each_mul_(change, self.fresh)
            each_add_(averaged, change)
        return value

    def _backward(self, generator: torch.Generator) -> Tensor:
        """Add the gradient of one part of a batch; its part of the loss."""
        value = self.loss(self.f, self._batch(generator), generator) / self.recipe.shards
        value.backward()
        return value.detach()

    def _batch(self, generator: torch.Generator) -> Tensor:
        size = -(-self.recipe.batch_size // self.recipe.shards)
        shape, device = (*self._leading, size), self.x.device
        if self.cumulative is None:
            return self.x[torch.randint(len(self.x), shape, generator=generator, device=device)]
        u = torch.rand(shape, generator=generator, dtype=torch.float64, device=device)
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
        rows = self.held_out
        value = self.team.agreed(lambda: self._held_out_loss(rows))
        if not math.isfinite(value):
            raise FloatingPointError(
                f"held-out loss is {value} at step {self.step}; look for nan in held_out."
            )
        history.held_out.append(value)
        if value < history.best_loss:
            history.best_loss, history.best_step = value, self.step
            self.best = {k: v.detach().clone() for k, v in self.current.state_dict().items()}
        history.stopped_early = self._out_of_patience() or self._gains_little()

    def _out_of_patience(self) -> bool:
        """Whether the held-out loss has not been better for long, and does not come down again, as after a bad step."""
        held, patience = self.history.held_out, self.recipe.patience
        since = (self.step - self.history.best_step) // self.recipe.evaluate_every
        return patience is not None and since >= patience and held[-1] >= held[-2]

    def _gains_little(self) -> bool:
        held, worthwhile = self.history.held_out, self.recipe.worthwhile
        if worthwhile is None or len(held) < LOOKS or self.step < LOOKS * self.recipe.evaluate_every:
            return False
        return min(held[: len(held) // 2]) - min(held) < worthwhile

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
        tensors |= {f"adam.{k}": v for k, v in self.optimizer.state().items()}
        state = {
            _named("generator", s): g.get_state() for s, g in zip(self.shards, self.generators, strict=True)
        }
        state[_named("dropout", self.team.rank)] = self.dropout.state
        for part_of_state in self.team.gathered(state):
            tensors |= part_of_state
        plan = [self.steps, self.planned_at, self.planned_from, self.warmup, self.late]
        return tensors, {"step": self.step, "history": asdict(self.history), "plan": plan}

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Undo ``snapshot``."""
        self.f.load_state_dict(part(tensors, "model."))
        if self.average is not None:
            self.average.load_state_dict(part(tensors, "average."))
        self.best = part(tensors, "best.") or None
        self.optimizer.restore(part(tensors, "adam."))
        for shard, generator in zip(self.shards, self.generators, strict=True):
            generator.set_state(tensors[_named("generator", shard)])
        self.dropout.state = tensors[_named("dropout", self.team.rank)]
        self.step, self.history = facts["step"], History(**facts["history"])
        self.steps, self.planned_at, self.planned_from, self.warmup, self.late = facts["plan"]


def _named(what: str, number: int) -> str:
    return f"{what}.{number}" if number else what


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
