"""Take something away from a model for a while: a head, its pattern, or one path from a head to another."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from utils.anatomy import Head, Model, check_exact, check_head, check_path, patterns, weights
from utils.composition import reader
from utils.model import smear

Hook = tuple[str, Callable]  # where, and what to do there
CUTS: WeakKeyDictionary[Model, set] = WeakKeyDictionary()  # those in force: what is cut already is not taken away twice


@contextmanager
def ablate(
    model: Model, heads: Head | Sequence[Head], how: str = "zero", reference: Int[Tensor, "batch seq"] | None = None
) -> Iterator[Model]:
    """Heads without what they do: `with ablate(model, (0, 3)): model.loss(tokens)`.

    "zero": they write nothing. "mean": they write, everywhere, their mean over the reference tokens. "pattern": they look
    where they look on average over the reference tokens, whatever they now read; without a reference, everywhere alike.
    """
    ways = {"zero": silenced, "mean": averaged, "pattern": redirected}
    if how not in ways:
        raise ValueError(f"There is no ablation {how!r}; there are {', '.join(ways)}.")
    chosen = [check_head(model, head) for head in ([heads] if heads and isinstance(heads[0], int) else heads)]
    with model.hooks(fwd_hooks=[hook for head in chosen for hook in ways[how](model, head, reference)]):
        yield model


def silenced(model: Model, head: Head, reference: Tensor | None) -> list[Hook]:
    return writes(head, 0.0)


def writes(head: Head, value: Tensor | float) -> list[Hook]:
    """A head that moves one and the same thing everywhere; set at its values too, for a `cut` that watches it to see."""
    return [replaced(place(head, part), (slice(None), slice(None), head[1]), lambda _: value) for part in ("v", "z")]


def averaged(model: Model, head: Head, reference: Tensor | None) -> list[Hook]:
    if reference is None:
        raise ValueError('how="mean" needs the tokens over which to take the mean: ablate(…, "mean", reference=tokens).')
    with torch.no_grad():
        _, cache = model.run_with_cache(reference, names_filter=place(head, "z"))
    return writes(head, cache["z", head[0]][:, :, head[1]].mean((0, 1)))


def redirected(model: Model, head: Head, reference: Tensor | None) -> list[Hook]:
    n = model.cfg.n_ctx
    if reference is None:
        even = torch.ones(n, n, dtype=model.W_E.dtype, device=model.W_E.device).tril()
        mean = even / even.sum(-1, keepdim=True)
    else:
        mean = patterns(model, reference)[head[0]][:, head[1]].mean(0)

    def corner(pattern: Tensor) -> Tensor:
        if pattern.shape[-1] > len(mean):
            raise ValueError(f"The reference has {len(mean)} tokens: too few to say where {pattern.shape[-1]} tokens look.")
        return mean[: pattern.shape[-1], : pattern.shape[-1]]

    return [replaced(place(head, "pattern"), (slice(None), head[1]), corner)]


def replaced(name: str, where: tuple, value: Callable[[Tensor], Tensor | float]) -> Hook:
    """A hook that puts a value into a part of an activation."""

    def hook(activation: Tensor, hook: HookPoint) -> Tensor:
        activation = activation.clone()
        activation[where] = value(activation)
        return activation

    return name, hook


def place(head: Head, activation: str) -> str:
    return f"blocks.{head[0]}.attn.hook_{activation}"


@contextmanager
def cut(model: Model, first: Head, second: Head, kind: str = "K") -> Iterator[Model]:
    """The second head's keys (queries "Q", values "V") do not see what the first writes; everybody else does."""
    check_exact(model)
    w, (first, second) = weights(model), check_path(model, (first, second))
    matrix, seen = reader(w, kind)[0][second], []

    def watch(z: Tensor, hook: HookPoint) -> None:
        seen[:] = [z[:, :, first[1]] @ w.W_O[first]]

    def take_away(activation: Tensor, hook: HookPoint) -> Tensor:
        part = torch.zeros_like(activation)
        part[:, :, second[1]] = seen[0] @ matrix
        return activation - (smear(part, w.alpha[second[0]]) if kind == "K" and w.alpha is not None else part)

    active, this = CUTS.setdefault(model, set()), (first, second, kind)
    hooks = [] if this in active else [(place(first, "z"), watch), (place(second, kind.lower()), take_away)]
    CUTS[model] = active | {this}
    try:
        with model.hooks(fwd_hooks=hooks):
            yield model
    finally:
        CUTS[model] = active
