"""What heads do: scores of attention patterns, each with what a head that looks everywhere alike would get."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from utils.corpus import repeated_tokens
from utils.model import AttentionOnly


@torch.no_grad()
def patterns(model: AttentionOnly, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "layer batch head dest src"]:
    """The attention patterns of all layers."""
    if model.cfg.n_layers == 0:
        raise ValueError("A model with no layers has no heads, so there is nothing to score.")
    _, cache = model.run_with_cache(tokens.to(model.W_E.device), names_filter=lambda name: name.endswith("hook_pattern"))
    return torch.stack([cache["pattern", layer] for layer in range(model.cfg.n_layers)])


def previous_token_score(model: AttentionOnly, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "layer head"]:
    """How much of its attention a head puts on the token just before, on average."""
    if tokens.shape[-1] < 2:
        raise ValueError("The score of the previous token needs at least two tokens.")
    return patterns(model, tokens).diagonal(-1, dim1=-2, dim2=-1).mean((1, 3))


def induction_score(
    model: AttentionOnly, n_docs: int = 32, repeats: int = 3, generator: Generator | None = None
) -> Float[Tensor, "layer head"]:
    """Attention to the token after the last copy of this one, on random repeats, from the second copy on.

    The periods are mixed, so that a head which looks a fixed distance back does not pass. Without a generator the repeats are
    the same at every call.
    """
    totals, count = 0.0, 0
    for period, tokens in random_repeats(model, n_docs, repeats, generator or torch.Generator().manual_seed(0)):
        stripe = patterns(model, tokens).diagonal(1 - period, dim1=-2, dim2=-1)[..., 2:]  # dest − src = period − 1
        totals = totals + stripe.sum((1, 3))
        count += stripe.shape[1] * stripe.shape[3]
    return totals / count


def random_repeats(
    model: AttentionOnly, n_docs: int, repeats: int, generator: Generator
) -> Iterator[tuple[int, Int[Tensor, "doc seq"]]]:
    """Four periods, from half of what fits the context to all of it, with a quarter of the documents each."""
    longest = (model.cfg.n_ctx - 1) // repeats
    for period in torch.linspace(max(2, longest // 2), longest, 4).int().tolist():
        yield period, repeated_tokens(max(1, n_docs // 4), period, repeats, model.cfg.d_vocab, generator)


SCORES = {"previous_token": previous_token_score, "induction": induction_score}


@torch.no_grad()
def chance(score: str, model: AttentionOnly, *args, **kwargs) -> float:
    """What a head that looks at all tokens so far alike would score, on the same text: chance("induction", model)."""
    if score not in SCORES:
        raise ValueError(f"There is no score {score!r}; there are {', '.join(SCORES)}.")
    uniform = AttentionOnly(model.cfg)
    for block in uniform.blocks:
        block.attn.W_Q.zero_()  # all scores 0: softmax spreads the attention evenly
    return SCORES[score](uniform, *args, **kwargs).mean().item()
