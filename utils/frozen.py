"""A model with its attention fixed: then it is linear, (Id + layer₀)(Id + layer₁)… applied to the embedding."""

from collections.abc import Callable
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from utils.anatomy import Head, Model, Path, check_exact, patterns, weights

Stream = Float[Tensor, "*more batch seq d_model"]
Logits = Float[Tensor, "batch seq d_vocab"]


class Frozen:
    """A model whose attention patterns are those it has on some tokens, whatever then flows through it.

    Weights are as they are: made inside `ablate`, it has the patterns of the ablated model and the weights of the whole one.
    """

    def __init__(self, model: Model, tokens: Int[Tensor, "batch seq"]):
        check_exact(model)
        self.model, self.weights, self.patterns = model, weights(model), patterns(model, tokens)
        self.tokens = tokens.to(self.weights.W_E.device).long()

    def start(self, tokens: Float[Tensor, "batch seq d_model"]) -> Stream:
        """Where paths begin: embedded tokens, and positions if they are part of the stream."""
        return tokens + self.positions if self.weights.in_stream else tokens

    @cached_property
    def embedded(self) -> Stream:
        return self.weights.W_E[self.tokens]

    @property
    def positions(self) -> Float[Tensor, "seq d_model"]:
        return self.weights.W_pos[: self.tokens.shape[1]]

    def moved(self, x: Stream, layer: int) -> Float[Tensor, "*more batch head seq d_head"]:
        """A x W_V for each head: what it takes from where it looks."""
        values = torch.einsum("...bsd,hde->...bhse", x, self.weights.W_V[layer])
        return torch.einsum("bhts,...bhse->...bhte", self.patterns[layer], values)

    def written(self, z: Float[Tensor, "*more batch head seq d_head"], layer: int) -> Stream:
        """What all heads of a layer add to the stream."""
        return torch.einsum("...bhse,hed->...bsd", z, self.weights.W_O[layer])

    def along(self, path: Path) -> Stream:
        """The stream that went through these heads, one after the other."""
        x = self.start(self.embedded)
        for layer, head in path:
            W_V, W_O = self.weights.W_V[layer, head], self.weights.W_O[layer, head]
            x = self.patterns[layer][:, head] @ (x @ W_V) @ W_O
        return x

    def orders(self, without: Head | None = None, before: int | None = None) -> Float[Tensor, "order batch seq d_model"]:
        """A residual stream for each order of paths, in one pass: a layer takes order n to order n + 1."""
        streams = self.start(self.embedded)[None]
        for layer in range(len(self.patterns) if before is None else before):
            z = self.moved(streams, layer)
            if without is not None and without[0] == layer:
                z[:, :, without[1]] = 0
            streams = F.pad(streams, (0, 0) * 3 + (0, 1)) + F.pad(self.written(z, layer), (0, 0) * 3 + (1, 0))
        return streams

    def bias(self, before: int | None = None) -> Float[Tensor, " d_model"]:
        """What biases have put into the stream: the same vector everywhere, as rows of patterns sum to 1."""
        w, x = self.weights, self.weights.b_O.new_zeros(self.weights.W_E.shape[1])
        for layer in range(len(self.patterns) if before is None else before):
            values = torch.einsum("d,hde->he", x, w.W_V[layer]) + w.b_V[layer]
            x = x + torch.einsum("he,hed->d", values, w.W_O[layer]) + w.b_O[layer]
        return x

    def unembed(self, x: Stream, biases: bool) -> Logits:
        logits = x @ self.weights.W_U
        return logits + self.bias() @ self.weights.W_U + self.weights.b_U if biases else logits


def freeze(model: Model, tokens: Int[Tensor, "batch seq"]) -> Callable[[Float[Tensor, "batch seq d_vocab"]], Logits]:
    """The model with its attention fixed: a function of token mixtures, linear unless positions are in the stream."""
    frozen = Frozen(model, tokens)

    def run(mixture: Float[Tensor, "batch seq d_vocab"]) -> Logits:
        expected = (*frozen.tokens.shape, len(frozen.weights.W_E))
        if mixture.shape != expected:
            raise ValueError(
                f"A mixture has a weight for each token of the vocabulary, {expected}; got {tuple(mixture.shape)}."
            )
        x = frozen.start(mixture @ frozen.weights.W_E)
        for layer in range(len(frozen.patterns)):
            x = x + frozen.written(frozen.moved(x, layer), layer)
        return frozen.unembed(x, biases=True)

    return run
