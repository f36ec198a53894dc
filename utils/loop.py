"""Training: a loop that shows what it does, can be interrupted, and goes on where it stopped."""

import io
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import torch
from IPython.display import DisplayHandle
from jaxtyping import Int
from torch import Tensor
from tqdm import tqdm

from utils.corpus import Kind, Sample
from utils.model import AttentionOnly, write


@dataclass
class History:
    """What happened in training; give it back to `train` to go on where it stopped."""

    loss: list[float] = field(default_factory=list)  # nats, one a step
    tokens: int = 0
    seconds: float = 0.0  # of training alone, without evaluations
    evaluations: list[dict] = field(default_factory=list)  # {"step": …, and whatever `evaluate` returned}
    checkpoints: list[tuple[int, dict]] = field(default_factory=list)  # (step, state_dict)
    optimizer: dict | None = field(default=None, repr=False)


def train(
    model: AttentionOnly,
    batches: Callable[[int], Int[Tensor, "doc seq"]],
    steps: int,
    lr: float = 1e-2,
    *,
    warmup: int = 50,
    weight_decay: float = 0.01,
    evaluate: Callable[[AttentionOnly], dict] | None = None,
    every: int = 50,
    checkpoint_at: Iterable[int] = (),
    history: History | None = None,
    keep: Path | None = None,
    progress: bool = True,
) -> History:
    """AdamW; the learning rate rises for `warmup` steps, then falls in a straight line to 0 at `steps`.

    `batches(step)` gives the tokens of a step. An interrupt stops after the current step and returns the history; the same
    call with `history=history` goes on as if nothing had happened. So does the same call in a new process, if the file
    `keep` is there: the state is written into it every 100 steps.
    """
    if steps < 1 or every < 1:
        raise ValueError(f"Training needs at least one step, and evaluations at least one apart; got {steps} and {every}.")
    history, wanted = history or recalled(keep, model) or History(), set(checkpoint_at)
    optimizer = torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.98), weight_decay=weight_decay, fused=True)
    if history.optimizer:
        optimizer.load_state_dict(history.optimizer)
    memory = Memory(model, optimizer, history, keep)

    def look(step: int) -> None:
        if step in wanted:
            history.checkpoints.append((step, snapshot(model)))
        if evaluate and (step % every == 0 or step == steps):
            history.evaluations.append({"step": step, **evaluate(model)})

    with Bar(total=steps, initial=memory.step, disable=not progress) as bar, interruptible() as stopped, memory.kept():
        if memory.step == 0:
            look(0)
        for step in range(memory.step, steps):
            rate = lr * min((step + 1) / max(warmup, 1), 1 - step / steps)
            sound = update(model, optimizer, rate, batches(step), history)
            memory.judge(step, sound, due=step % 100 == 99 or step + 1 == steps)
            bar.advance(history)
            look(step + 1)
            if stopped():
                break
    if len(history.loss) < steps:
        print(f"Stopped after {len(history.loss)} of {steps} steps. Call train(…, history=history) to go on.")
    return history


def recalled(file: Path | None, model: AttentionOnly) -> History | None:
    """The history in a file of an earlier process, its weights put into the model; None if there is no such file."""
    if file is None or not file.exists():
        return None
    state = torch.load(file, weights_only=True)
    model.load_state_dict(state.pop("weights"))
    return History(**state)


class Memory:
    """The last state that was known to be sound, to go back to when a loss is not finite."""

    def __init__(self, model: AttentionOnly, optimizer: torch.optim.Optimizer, history: History, file: Path | None):
        self.model, self.optimizer, self.history, self.file = model, optimizer, history, file
        if not self.renew():
            raise ValueError("The model has weights that are not finite; load it again, or start from a new one.")

    def renew(self) -> bool:
        """Remember the state as it is now; False, and nothing changes, if a weight is not finite."""
        if not all(weight.isfinite().all() for weight in self.model.parameters()):
            return False
        self.step, self.weights = len(self.history.loss), snapshot(self.model)
        self.state = deepcopy(self.optimizer.state_dict())
        self.totals = self.history.tokens, self.history.seconds
        if self.file and self.step:
            content = io.BytesIO()
            torch.save({"weights": self.weights, **vars(self.history), "optimizer": self.state}, content)
            write(self.file, content.getvalue())
        return True

    def judge(self, step: int, sound: bool, due: bool) -> None:
        """Raise, with everything put back, if this step was not sound; remember it if that is due."""
        if not sound or (due and not self.renew()):
            self.restore()
            lr = self.optimizer.defaults["lr"]
            raise ValueError(
                f"The loss at step {step} is not finite: lower lr ({lr:g}). The model is back at step {self.step}."
            )

    def restore(self) -> None:
        self.model.load_state_dict(self.weights)
        self.optimizer.load_state_dict(self.state)
        del self.history.loss[self.step :]
        self.history.tokens, self.history.seconds = self.totals
        self.history.evaluations[:] = [row for row in self.history.evaluations if row["step"] <= self.step]
        self.history.checkpoints[:] = [(step, weights) for step, weights in self.history.checkpoints if step <= self.step]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """However the training ends, the history has the optimizer's state, so that it can go on."""
        try:
            yield
        finally:
            self.history.optimizer = self.optimizer.state_dict()


class Bar(tqdm):
    """A progress bar on standard output; in a notebook, one line that is drawn anew, there and in exported pages."""

    shown = False

    def __init__(self, **options):
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        self.handle = DisplayHandle() if hasattr(shell, "kernel") and not options["disable"] else None
        file = io.StringIO() if self.handle else sys.stdout
        super().__init__(file=file, ncols=100, ascii=False, mininterval=0.5, unit="step", **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if self.handle is None:
            super().display(msg, pos)
        else:
            show = self.handle.update if self.shown else self.handle.display
            show({"text/plain": msg or str(self)}, raw=True)
            self.shown = True

    def advance(self, history: History) -> None:
        """One step further; show the loss and the speed."""
        self.set_postfix_str(f"loss {history.loss[-1]:.3f}, {history.tokens / history.seconds:,.0f} tokens/s", refresh=False)
        self.update()


def update(model: AttentionOnly, optimizer: torch.optim.Optimizer, rate: float, tokens: Tensor, history: History) -> bool:
    """One step; False, with the weights untouched, if the loss is not finite."""
    started = time.perf_counter()
    loss = model.loss(tokens.to(model.W_E.device))
    if not math.isfinite(loss.item()):
        return False
    optimizer.param_groups[0]["lr"] = rate
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.loss.append(loss.item())
    history.tokens += tokens.numel()
    history.seconds += time.perf_counter() - started
    return True


def snapshot(model: AttentionOnly) -> dict[str, Tensor]:
    """A copy of the weights as they are now."""
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Let an interrupt wait for the end of the current step; yields a function that tells whether one came."""
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # signals reach the main thread alone
        yield came.is_set
        return
    usual = signal.signal(signal.SIGINT, lambda *_: came.set())
    try:
        yield came.is_set
    finally:
        signal.signal(signal.SIGINT, usual)


@torch.no_grad()
def loss_by_kind(model: AttentionOnly, sample: Sample) -> dict[str, float]:
    """Mean loss in nats over the tokens of each kind: {"BIGRAM": …, "SKIP_TRIGRAM": …, …}."""
    device = model.W_E.device
    loss, kind = model.loss(sample.tokens.to(device), per_token=True).cpu(), sample.kind[:, 1:]
    return {k.name: loss[kind == k].mean().item() for k in Kind if (kind == k).any()}
