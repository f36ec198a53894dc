"""Exact sums: logits over paths through heads, attention scores over pairs of terms, and what each order of paths is worth.

Multiply out (Id + layer₀)(Id + layer₁)… and there is a term for every path. Each is formed only when it is asked for.
"""

import math
from contextlib import ExitStack
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from utils.anatomy import Head, Model, Path, all_heads, check_head, check_path
from utils.frozen import Frozen, Logits, Stream, freeze  # noqa: F401, freeze belongs to this room's contract
from utils.model import check_tokens, next_token_loss, smear
from utils.surgery import cut


def all_paths(model: Model, before: int | None = None) -> list[Path]:
    """Every way up through the layers before one, with at most one head of each; a layer's new paths after all others."""
    paths = [()]
    for layer in range(model.cfg.n_layers if before is None else before):
        paths += [(*path, (layer, head)) for path in paths for head in range(model.cfg.n_heads)]
    return paths


def sorted_paths(paths: list[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: (len(path), path))


def spelled(path: Path) -> str:
    """A path in prose: 0.3 → 1.4."""
    return " → ".join(f"{layer}.{head}" for layer, head in path) or "direct path"


class Expansion(Frozen):
    """Logits as a sum over paths. A path is a tuple of heads; biases, if a model has them, are a last one called "bias"."""

    @cached_property
    def paths(self) -> list[Path | str]:
        """By order, then lexicographic: (), ((0, 0),), …, ((0, 3), (1, 4))."""
        return sorted_paths(all_paths(self.model)) + ["bias"] * self.weights.biased

    def logits(self, path: Path | str) -> Logits:
        """What one path adds."""
        if path == "bias" and self.weights.biased:
            return self.unembed(torch.zeros_like(self.embedded), biases=True)
        return self.unembed(self.along(check_path(self.model, path)), biases=False)

    def total(self, order: int | None = None, through: Head | None = None) -> Logits:
        """The sum of all paths, of those of one order, or of those through one head. Biases have no order and no head."""
        streams = self.orders()
        if order is not None and not 0 <= order < len(streams):
            raise ValueError(
                f"There is no path of order {order}: with {len(streams) - 1} layers, orders are 0 … {len(streams) - 1}."
            )
        if through is not None:
            streams = streams - self.orders(without=check_head(self.model, through))
        chosen = streams.sum(0) if order is None else streams[order]
        return self.unembed(chosen, biases=order is None and through is None)

    def attribution(self, targets: Int[Tensor, "batch seq"]) -> Float[Tensor, "path batch seq"]:
        """What each path adds to the logit of targets[b, t] at [b, t], in the order of `paths`."""
        read = self.read(targets)
        streams = self.start(self.embedded)[None]
        scores = [(streams * read).sum(-1)]
        for layer in range(len(self.patterns)):
            z = self.moved(streams, layer)  # of the paths so far; what they write is only formed for layers to come
            wanted = torch.einsum("btd,hed->bhte", read, self.weights.W_O[layer])
            scores.append(torch.einsum("pbhte,bhte->phbt", z, wanted).flatten(0, 1))
            if layer + 1 < len(self.patterns):
                new = torch.einsum("pbhse,hed->phbsd", z, self.weights.W_O[layer])
                streams = torch.cat([streams, new.flatten(0, 1)])
        if self.weights.biased:
            scores.append((read @ self.bias() + self.weights.b_U[targets.long()])[None])
        place = {path: i for i, path in enumerate([*all_paths(self.model), "bias"])}
        return torch.cat(scores)[[place[path] for path in self.paths]]

    def pattern(self, path: Path) -> Float[Tensor, "batch dest src"]:
        """Where a path brings information from: the product of its heads' patterns, a pattern itself."""
        n = self.tokens.shape[1]
        moves = torch.eye(n, dtype=self.patterns.dtype, device=self.patterns.device).expand(len(self.tokens), n, n)
        for layer, head in check_path(self.model, path):
            moves = self.patterns[layer][:, head] @ moves
        return moves

    def by_source(self, path: Path, targets: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch dest src"]:
        """One path's attribution, by the earlier token it comes from: summed over `src` it is `attribution`."""
        carried = self.start(self.embedded)
        for head in check_path(self.model, path):
            carried = carried @ self.weights.W_V[head] @ self.weights.W_O[head]
        return self.pattern(path) * (self.read(targets) @ carried.mT)

    def picture(self, targets: Int[Tensor, "batch seq"], doc: int = 0) -> dict[str, list[str] | Tensor]:
        """One document for `views.path_explorer`: names of paths, attribution, and by source, patterns and contributions."""
        nowhere = self.embedded.new_zeros([self.tokens.shape[1]] * 2)  # where biases come from
        parts = [(self.pattern(path)[doc], self.by_source(path, targets)[doc]) for path in self.paths if path != "bias"]
        patterns, sources = (torch.stack([*part, *[nowhere] * self.weights.biased]) for part in zip(*parts))
        names = ["biases" if path == "bias" else spelled(path) for path in self.paths]
        return {"paths": names, "attribution": self.attribution(targets)[:, doc], "patterns": patterns, "sources": sources}

    def read(self, targets: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq d_model"]:
        """The direction of the stream that raises each target's logit."""
        if targets.shape != self.tokens.shape:
            raise ValueError(f"Targets must be shaped as the tokens, {list(self.tokens.shape)}; got {list(targets.shape)}.")
        check_tokens(targets, self.model.cfg)
        return self.weights.W_U.mT[targets.long()]

    def losses(self) -> Float[Tensor, " order"]:
        """Nats with the paths of order 0, of orders 0 and 1, and so on up to all."""
        return torch.stack([self.loss(x) for x in self.orders().cumsum(0)])

    def loss(self, x: Stream) -> Float[Tensor, ""]:
        return next_token_loss(self.unembed(x, biases=True), self.tokens)


def expand_logits(model: Model, tokens: Int[Tensor, "batch seq"]) -> Expansion:
    """The logits of a model on some tokens, as a sum over paths."""
    return Expansion(model, tokens)


class Scores:
    """Scores of one head as a sum over pairs of terms: "tok", "pos", a path of earlier heads, or "bias", on either side."""

    def __init__(self, frozen: Frozen, head: Head):
        self.frozen, self.head = frozen, head
        earlier = sorted_paths(all_paths(frozen.model, before=head[0])[1:])
        self.terms = ["tok", "pos", *earlier, *["bias"] * frozen.weights.biased]

    def term(self, query: str | Path, key: str | Path) -> Float[Tensor, "batch dest src"]:
        """One term for the query, one for the key. Future sources are not masked."""
        return self.meet(self.project("Q", query), self.project("K", key))

    def by_composition(self) -> dict[str, Float[Tensor, "batch dest src"]]:
        """By who uses what earlier heads wrote: nobody, the query, the key, both. The four sum to the scores."""
        direct = ["tok", "pos", *["bias"] * self.frozen.weights.biased]
        q, k = (sum(self.project(kind, term) for term in direct) for kind in "QK")
        heads = self.frozen.orders(before=self.head[0])[1:].sum(0)
        q_heads, k_heads = self.project("Q", heads), self.project("K", heads)
        pairs = {"none": (q, k), "Q": (q_heads, k), "K": (q, k_heads), "Q+K": (q_heads, k_heads)}
        return {name: self.meet(*pair) for name, pair in pairs.items()}

    def total(self) -> Float[Tensor, "batch dest src"]:
        """All terms: the model's scores, where src ≤ dest."""
        return sum(self.by_composition().values())

    def project(self, kind: str, part: str | Path | Stream) -> Float[Tensor, "batch seq d_head"]:
        """A part of the stream as this head's queries or keys see it."""
        w = self.frozen.weights
        W, b = (w.W_Q, w.b_Q) if kind == "Q" else (w.W_K, w.b_K)
        x, is_bias = (part, False) if isinstance(part, Tensor) else (self.stream(part), part == "bias")
        seen = x @ W[self.head] + b[self.head] if is_bias else x @ W[self.head]
        if kind == "Q" or w.alpha is None:
            return seen
        return smear(seen[:, :, None], w.alpha[self.head].view(1))[:, :, 0]

    def stream(self, term: str | Path) -> Stream:
        if term not in self.terms:
            raise ValueError(f"Head {self.head} has no term {term!r} in its scores; its terms are {self.terms}.")
        named = {"tok": self.frozen.embedded, "pos": self.frozen.positions, "bias": self.frozen.bias(before=self.head[0])}
        return named[term].expand_as(self.frozen.embedded) if isinstance(term, str) else self.frozen.along(term)

    def meet(self, q: Tensor, k: Tensor) -> Float[Tensor, "batch dest src"]:
        return q @ k.mT / self.frozen.weights.scale


def expand_scores(model: Model, tokens: Int[Tensor, "batch seq"], layer: int, head: int) -> Scores:
    """The scores of one head on some tokens, as a sum over terms of query and key."""
    return Scores(Frozen(model, tokens), check_head(model, (layer, head)))


class Importance(NamedTuple):
    """What parts of the sum are worth, in nats of loss, with patterns as they are (but for `cut`)."""

    by_order: Float[Tensor, " order"]  # gained by each order's paths on top of those before; order 0, on a uniform guess
    alone: Float[Tensor, " layer"]  # gained by a layer's heads on top of the direct path alone
    given: Float[Tensor, " layer"]  # gained by a layer's heads on top of the direct path and all other single heads
    cut: dict[str, float]  # lost when no query ("Q"), or no key ("K"), sees an earlier head


def term_importance(model: Model, tokens: Int[Tensor, "batch seq"]) -> Importance:
    """The paper's question: how much do direct path, single heads and virtual heads matter? And layers, and composition?"""
    expansion = expand_logits(model, tokens)
    losses, direct = expansion.losses(), expansion.start(expansion.embedded)
    layers = range(model.cfg.n_layers)
    singles = [expansion.written(expansion.moved(direct, layer), layer) for layer in layers]
    alone = [losses[0] - expansion.loss(direct + single) for single in singles]
    given = [expansion.loss(direct + sum(singles) - single) - losses[1] for single in singles]
    uniform = losses.new_tensor([math.log(expansion.weights.W_U.shape[1])])
    by_order = torch.cat([uniform, losses]).diff().neg()
    lost = {kind: loss_without(model, expansion.tokens, kind) - losses[-1].item() for kind in "QK"}
    return Importance(by_order, losses.new_tensor(alone), losses.new_tensor(given), lost)


@torch.no_grad()
def loss_without(model: Model, tokens: Int[Tensor, "batch seq"], kind: str) -> float:
    """The loss when no head composes in one of the three ways."""
    with ExitStack() as cuts:
        for second in all_heads(model):
            for first in all_heads(model, before=second[0]):
                cuts.enter_context(cut(model, first, second, kind))
        return next_token_loss(model(tokens), tokens).item()
