"""The rows of the benchmark: each is a median, and what is compared is measured in turns in the same run."""

import pkgutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import median
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

import utils
from bench.rivals import check_twin, lens_model, plain_twin, train_lens, train_plain
from utils.corpus import Kind, Sample
from utils.loop import train
from utils.training import RECIPES, Recipe, planted_language

RECIPE = RECIPES["planted-2l"]
RATES = 1e-2, 3e-3, 1e-3  # the likeliest first: a rate is given up once it has taken more steps than the best so far
EVERY = 25  # steps between two looks at the names


@dataclass
class Row:
    """A line of the table. With `bound`, `other` was stopped before it got there: it and the ratio are lower bounds."""

    what: str
    ours: float
    other: float | None
    ratio: float | None
    target: str
    median_of: int
    met: bool | None  # None without a target
    bound: bool = False


def budget(what: str, times: list[float], most: float) -> Row:
    """Seconds that have to stay under a limit."""
    ours = median(times)
    return Row(what, ours, None, None, f"< {most:g} s", len(times), ours < most)


def duel(what: str, ours: list[float], other: list[float], least: float = 0.0) -> Row:
    """Two speeds; without a least ratio, for the record."""
    ratio = median(ours) / median(other)
    target, met = (f"≥ {least:g}", ratio >= least) if least else ("none", None)
    return Row(what, median(ours), median(other), ratio, target, len(ours), met)


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def imports(runs: int = 3) -> Iterator[Row]:
    """Each module of `utils`, imported by a Python that has just started (whose own start counts too)."""
    for module in pkgutil.iter_modules(utils.__path__, "utils."):
        start = partial(subprocess.run, [sys.executable, "-c", f"import {module.name}"], check=True)
        times = [seconds(start) for _ in range(runs)]
        yield budget(f"import {module.name}, s", times, 4)


def sampling(runs: int = 3) -> Iterator[Row]:
    """A million tokens of the planted language."""
    generator = torch.Generator().manual_seed(0)
    times = [seconds(lambda: planted_language().sample(15_625, 64, generator)) for _ in range(runs)]
    yield budget("sampling 1,000,000 planted tokens, s", times, 2)


def recipes() -> Iterator[Row]:
    """Whole recipes by the clock on the wall, documents and checkpoints included."""
    for name, most in {"planted-0l": 10, "planted-1l": 25, "planted-2l": 60}.items():
        run = partial(RECIPES[name].train, RECIPES[name].model(), progress=False)
        yield budget(f"training {name}, s", [seconds(run)], most)


def speeds(rounds: int = 7, steps: int = 100) -> Iterator[Row]:
    """Training, in turns: our loop, TransformerLens', plain torch. A first round warms up and does not count."""
    batches = sampled(RECIPE, steps)
    for fused in (False, True):
        check_twin(RECIPE.model(), batches[0], fused)
    timed = [[batches.numel() / seconds(run) for run in contenders(batches)] for _ in range(rounds + 1)]
    ours, lens, plain, fused = map(list, zip(*timed[1:]))
    yield duel("training, tokens/s, against TransformerLens", ours, lens, 1.1)
    yield duel("training, tokens/s, against plain torch", ours, plain, 0.9)
    yield duel("training, tokens/s, against plain torch with fused attention, which forms no pattern", ours, fused)


def contenders(batches: Int[Tensor, "step doc seq"]) -> list[Callable[[], object]]:
    """New models, each with a loop that is ready to go over the batches."""
    model = RECIPE.model()
    return [
        partial(train, model, batches.__getitem__, len(batches), RECIPE.lr, progress=False),
        partial(train_lens, lens_model(model.cfg), batches, RECIPE.lr),
        partial(train_plain, plain_twin(model, fused=False), batches, RECIPE.lr),
        partial(train_plain, plain_twin(model, fused=True), batches, RECIPE.lr),
    ]


def sampled(recipe: Recipe, steps: int) -> Int[Tensor, "step doc seq"]:
    """The recipe's own documents, drawn beforehand."""
    batches = planted_language().batches(recipe.n_docs, recipe.seed)
    return torch.stack([batches(step) for step in range(steps)])


def learning(seeds: int = 3) -> Iterator[Row]:
    """How soon repeated names are within 1 nat of their floor: our recipe, and TransformerLens at the best of its rates."""
    pairs = [race(replace(RECIPE, seed=seed)) for seed in range(seeds)]
    ours, lens = (sorted(times)[seeds // 2] for times in zip(*pairs))
    ratio, met = lens.seconds / ours.seconds, not ours.stopped and lens.seconds >= 2 * ours.seconds
    what = f"repeated names learnt, s ({ours.steps} and {lens.steps} steps)"
    yield Row(what, ours.seconds, lens.seconds, ratio, "≥ 2", seeds, met, bound=lens.stopped)


class Time(NamedTuple):
    """How long it took; the smaller the better, and one that was stopped before it got there comes after all others."""

    stopped: bool
    seconds: float
    steps: int


def race(recipe: Recipe) -> tuple[Time, Time]:
    """Both on the same documents. A rate of TransformerLens' may take as many steps as the best before it, and no more."""
    batches = sampled(recipe, recipe.steps)
    ours = ours_until_learnt(recipe, batches)
    best = lens_until_learnt(recipe, batches, RATES[0], recipe.steps)
    for rate in RATES[1:]:
        best = min(best, lens_until_learnt(recipe, batches, rate, best.steps))
    return ours, best


def ours_until_learnt(recipe: Recipe, batches: Int[Tensor, "step doc seq"]) -> Time:
    model = recipe.model()
    run = partial(train, model, batches.__getitem__, recipe.steps, recipe.lr, progress=False)
    return until_learnt(model, run, recipe.steps)


def lens_until_learnt(recipe: Recipe, batches: Int[Tensor, "step doc seq"], rate: float, cap: int) -> Time:
    model = lens_model(recipe.model().cfg)
    return until_learnt(model, partial(train_lens, model, batches, rate), cap)


def until_learnt(model: nn.Module, run: Callable[[], object], cap: int) -> Time:
    """Run a training loop until the model has learnt the names, or for `cap` steps."""
    watch = Watch(model, cap)
    try:
        run()
    except Over:
        pass
    return Time(not watch.learnt, time.perf_counter() - watch.started, watch.steps)


class Over(Exception):
    """Leaves a training loop from within."""


class Watch:
    """Looks at a model every few steps of whatever loop trains it, and stops the clock while it looks."""

    def __init__(self, model: nn.Module, cap: int):
        self.cap, self.steps, self.looking, self.learnt = cap, 0, False, False
        model.register_forward_pre_hook(self.before_step)
        self.started = time.perf_counter()

    def before_step(self, model: nn.Module, inputs: tuple) -> None:
        if self.looking:
            return
        if self.steps % EVERY == 0:
            self.look(model)
        if self.learnt or self.steps == self.cap:
            raise Over
        self.steps += 1

    def look(self, model: nn.Module) -> None:
        since, self.looking = time.perf_counter(), True
        self.learnt = name_loss(model) <= planted_language().floor(Kind.NAME_REPEAT) + 1
        self.looking = False
        self.started += time.perf_counter() - since


@torch.no_grad()
def name_loss(model: nn.Module) -> float:
    """Nats: the loss on repeated names, of a model of either make."""
    sample = fresh_sample()
    repeated = sample.kind[:, 1:] == Kind.NAME_REPEAT
    return F.cross_entropy(model(sample.tokens)[:, :-1][repeated], sample.tokens[:, 1:][repeated]).item()


@cache
def fresh_sample() -> Sample:
    """Documents that no model was trained on."""
    return planted_language().sample(256, 64, torch.Generator().manual_seed(2021))
