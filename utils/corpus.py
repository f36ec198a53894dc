"""Where tokens come from: a language whose rules are known, random repeats, and the library of the Python that runs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from planted.exact import Tally
from planted.grammar import FAMILIES, PLACES, Grammar
from planted.reader import Kind, Reader
from utils.library import PythonLibrary, python_library

__all__ = ["Kind", "PlantedLanguage", "PythonLibrary", "Sample", "python_library", "repeated_tokens"]


@dataclass(frozen=True)
class Sample:
    """Documents, and which rule governs each of their tokens: kind[:, t] is of tokens[:, t]."""

    tokens: Int[Tensor, "doc seq"]
    kind: Int[Tensor, "doc seq"]


class PlantedLanguage:
    """A language whose every token has a known reason. `n_ctx` is the document length that floors and bigrams are for."""

    def __init__(self, seed: int = 0, n_ctx: int = 64):
        if n_ctx < 8:
            raise ValueError(f"Documents need at least 8 tokens for every rule to have its turn; got n_ctx = {n_ctx}.")
        self.grammar, self.n_ctx = Grammar(seed), n_ctx
        self.vocab = self.grammar.vocab

    def sample(self, n_docs: int, n_ctx: int, generator: Generator) -> Sample:
        """Documents drawn token by token from what the ideal reader expects."""
        if n_docs < 1 or n_ctx < 1:
            raise ValueError(f"A sample needs at least one document of one token; got {n_docs} of {n_ctx}.")
        reader = Reader(self.grammar, n_docs)
        tokens, kind = torch.zeros(2, n_docs, n_ctx, dtype=torch.long)
        chance = torch.rand(n_ctx, n_docs, 1, generator=generator, dtype=torch.float64)
        for t in range(1, n_ctx):
            probs, kind[:, t] = reader.expect()
            ladder = probs.cumsum(1)
            tokens[:, t] = torch.searchsorted(ladder, chance[t] * ladder[:, -1:], right=True).squeeze(1)
            reader.read(tokens[:, t])
        return Sample(tokens, kind)

    def log_probs(self, tokens: Int[Tensor, "doc seq"]) -> Float[Tensor, "doc seq token"]:
        """What the ideal reader would say next, after each token: exact, aligned with a model's logits."""
        return torch.stack([probs.log() for probs, _ in self.read(tokens)], dim=1)

    def kinds(self, tokens: Int[Tensor, "doc seq"]) -> Int[Tensor, "doc seq"]:
        """Which rule governs each token of a text that somebody else wrote."""
        after = torch.stack([kind for _, kind in self.read(tokens)], dim=1)
        return torch.cat([torch.zeros_like(after[:, :1]), after[:, :-1]], dim=1)

    def read(self, tokens: Int[Tensor, "doc seq"]):
        """Read along: after each token, yield the next one's distribution and kind."""
        if (
            tokens.ndim != 2
            or tokens.numel() == 0
            or tokens[:, 0].any()
            or not 0 <= tokens.min() <= tokens.max() < len(self.vocab)
        ):
            raise ValueError(f"Documents are [doc, seq] tokens below {len(self.vocab)} that begin with 0 ({self.vocab[0]}).")
        reader = Reader(self.grammar, len(tokens))
        for token in tokens.cpu().long().T[1:]:
            yield reader.expect()
            reader.read(token)
        yield reader.expect()

    @cached_property
    def truth(self) -> Tally:
        """Expected counts, entropies and pairs of a document, summed exactly (about a second, once)."""
        return Tally(self.grammar, self.n_ctx)

    def floor(self, kind: Kind | None = None) -> float:
        """Nats: the mean entropy of the exact distribution over this kind's tokens; of all tokens but ¶ without a kind."""
        kinds = [kind] if kind is not None else list(Kind)[1:]
        return (self.truth.entropy[kinds].sum() / self.truth.count[kinds].sum()).item()

    @cached_property
    def bigrams(self) -> Float[Tensor, "current next"]:
        """log P(next | current) over everything planted: the best that a model without context can say."""
        return (self.truth.pairs / self.truth.pairs.sum(1, keepdim=True)).log()

    @property
    def bigram_floor(self) -> float:
        """Nats: the loss of that best table, over all tokens but ¶."""
        pairs = self.truth.pairs
        return -(torch.where(pairs > 0, pairs * self.bigrams, 0.0).sum() / pairs.sum()).item()

    @cached_property
    def skip_trigrams(self) -> list[tuple[int, int, int]]:
        """The planted (source, destination, out): keep … in → mind, and all the others."""
        places = self.grammar.ids(PLACES).tolist()
        verbs = enumerate(self.grammar.ids(FAMILIES[0]).tolist(), start=1)
        return [(verb, place, self.grammar.rules[0, key, place].item()) for key, verb in verbs for place in places]

    def encode(self, text: str) -> Int[Tensor, "1 seq"]:
        """Tokens of a text, words apart by spaces, with ¶ put before it."""
        unknown = [word for word in text.split() if word not in self.grammar.id]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not a word of this language; its words are in `language.vocab`.")
        return self.grammar.ids([self.vocab[0], *text.split()])[None]

    def decode(self, tokens: Int[Tensor, " seq"]) -> list[str]:
        return [self.vocab[token] for token in tokens.tolist()]

    def batches(self, n_docs: int = 64, seed: int = 0, chunk: int = 128) -> Callable[[int], Int[Tensor, "doc seq"]]:
        """Fresh documents for every training step: batches(step) is the same whenever it is asked for."""

        @lru_cache(maxsize=1)
        def sheet(number: int) -> Tensor:
            generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
            return self.sample(chunk * n_docs, self.n_ctx, generator).tokens.view(chunk, n_docs, -1)

        return lambda step: sheet(step // chunk)[step % chunk]


def repeated_tokens(
    n_docs: int, period: int, repeats: int, d_vocab: int, generator: Generator, bos: int = 0
) -> Int[Tensor, "doc seq"]:
    """`bos`, then `period` different random tokens (1 … d_vocab − 1), over and over: [doc, 1 + period * repeats]."""
    if min(n_docs, period, repeats) < 1 or period > d_vocab - 1:
        raise ValueError(
            f"Repeats need n_docs, period, repeats ≥ 1 and period ≤ d_vocab − 1 = {d_vocab - 1} different tokens; "
            f"got {n_docs}, {period}, {repeats}."
        )
    once = 1 + torch.rand(n_docs, d_vocab - 1, generator=generator).argsort(1)[:, :period]
    return torch.cat([torch.full((n_docs, 1), bos), once.repeat(1, repeats)], dim=1)
