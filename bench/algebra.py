"""The algebra's rows: beside TransformerLens, beside forming everything, and beside a forward pass."""

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median

import torch
from jaxtyping import Int
from torch import Tensor

from bench.rivals import lens_model
from bench.rows import Row, budget, seconds
from utils.circuits import composition_scores, copying_scores
from utils.model import AttentionOnly, AttentionOnlyConfig
from utils.paths import expand_logits

Run = Callable[[], object]


def in_turns(rounds: int, *runs: Run) -> list[list[float]]:
    """Milliseconds of each, in turns; a first round warms up and does not count."""
    timed = [[1000 * seconds(run) for run in runs] for _ in range(rounds + 1)]
    return [list(times) for times in zip(*timed[1:])]


def faster(what: str, ours: list[float], other: list[float], least: float) -> Row:
    """How many times as long the other takes."""
    ratio = median(other) / median(ours)
    return Row(what, median(ours), median(other), ratio, f"≥ {least:g}", len(ours), ratio >= least)


def passes(what: str, ours: list[float], forward: list[float], most: float) -> Row:
    """How many forward passes ours takes."""
    ratio = median(ours) / median(forward)
    return Row(what, median(ours), median(forward), ratio, f"≤ {most:g}", len(ours), ratio <= most)


def model_and_tokens(layers: int = 2, heads: int = 8, tokens: int = 64) -> tuple[AttentionOnly, Int[Tensor, "batch seq"]]:
    """d_model 128, vocabulary 1,024, batch 8; the heads share the width of the stream."""
    model = AttentionOnly(AttentionOnlyConfig(layers, heads, 128, 128 // heads, 1024, tokens)).requires_grad_(False)
    return model, torch.randint(1024, (8, tokens), generator=torch.Generator().manual_seed(0))


def composition(rounds: int = 3) -> Iterator[Row]:
    """12 layers of 12 heads, as in GPT-2 small."""
    model = lens_model(AttentionOnlyConfig(12, 12, 768, 64, d_vocab=64, n_ctx=16))
    ours, lens = in_turns(rounds, lambda: composition_scores(model, "K"), lambda: model.all_composition_scores("K"))
    difference = (composition_scores(model, "K") - model.all_composition_scores("K").scores).abs().max().item()
    if difference > 1e-6:
        raise ValueError(f"Composition scores differ from TransformerLens' by {difference:.1e}.")
    yield faster("composition scores of 12 × 12 heads at 768, ms, against TransformerLens", ours, lens, 12)


def formed(model: AttentionOnly, tokens: Int[Tensor, "batch seq"]) -> Tensor:
    """Every path's attribution the plain way: its logits, then those of the targets."""
    expansion = expand_logits(model, tokens)
    return torch.stack([expansion.logits(path).gather(2, tokens[..., None])[..., 0] for path in expansion.paths])


def expansions(rounds: int = 15) -> Iterator[Row]:
    model, tokens = model_and_tokens()
    runs = (lambda: expand_logits(model, tokens).attribution(tokens), lambda: model(tokens), lambda: formed(model, tokens))
    ours, forward, plain = in_turns(rounds, *runs)
    yield passes("attribution of all 81 paths, ms, against a forward pass", ours, forward, 4)
    yield faster("attribution of all 81 paths, ms, against forming each path's logits", ours, plain, 8)
    yield from (orders(layers, rounds) for layers in (2, 3))


def orders(layers: int, rounds: int) -> Row:
    model, tokens = model_and_tokens(layers)
    ours, forward = in_turns(rounds, lambda: expand_logits(model, tokens).losses(), lambda: model.loss(tokens))
    what = f"losses of all orders, {layers} layers, ms, against a forward pass with its loss"
    return passes(what, ours, forward, layers + 2)


def copying(rounds: int = 3) -> Iterator[Row]:
    """24 heads at the paper's size. Memory: the highest the process has held, above what it held before."""
    model = AttentionOnly(AttentionOnlyConfig(2, 12, 768, 64, d_vocab=50_000, n_ctx=16)).requires_grad_(False)
    before = highest_memory(reset=True)
    (times,) = in_turns(rounds, lambda: copying_scores(model))
    yield budget("copying scores of 24 heads, vocabulary 50,000, s", [ms / 1000 for ms in times], 3)
    if before is not None:
        grown = highest_memory() - before
        yield Row("the same, MB above the weights", grown, None, None, "< 500", 1, grown < 500)


def highest_memory(reset: bool = False) -> float | None:
    """MB, where Linux tells; with `reset`, from now on."""
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not status.exists():
        return None
    if reset:
        clear.write_text("5")
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024


GROWTH = {"heads": (2, 4, 8, 16, 32), "layers": (1, 2, 3), "tokens": (32, 64, 128, 256, 512)}


def growth(rounds: int = 5) -> list[list[str]]:
    """A table: what attribution and orders cost as one size grows, beside a forward pass; last, the exponent of a fit."""
    lines = [["ms as … grows", "of", *pad([]), "exponent"]]
    for size, values in GROWTH.items():
        costs = [costs_at(rounds, **{size: value}) for value in values]
        lines.append([size, "", *pad(map(str, values)), ""])
        for name, times in zip(("forward pass", "losses of all orders", "attribution of all paths"), zip(*costs)):
            lines.append(["", name, *pad(f"{ms:.1f}" for ms in times), f"{exponent(values, times):.2f}"])
    return lines


def costs_at(rounds: int, **size: int) -> list[float]:
    model, tokens = model_and_tokens(**size)
    runs = (
        lambda: model(tokens),
        lambda: expand_logits(model, tokens).losses(),
        lambda: expand_logits(model, tokens).attribution(tokens),
    )
    return [median(times) for times in in_turns(rounds, *runs)]


def pad(cells: Iterable[str], width: int = 5) -> list[str]:
    cells = list(cells)
    return cells + [""] * (width - len(cells))


def exponent(sizes: tuple[int, ...], times: tuple[float, ...]) -> float:
    """The slope of log time over log size, by least squares."""
    x, y = ([math.log(value) for value in values] for values in (sizes, times))
    mean = sum(x) / len(x)
    return sum((a - mean) * b for a, b in zip(x, y)) / sum((a - mean) ** 2 for a in x)
