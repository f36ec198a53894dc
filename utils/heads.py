"""What heads do: scores of attention patterns, each with what a head that looks everywhere alike would get."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from utils.anatomy import Model, all_heads, patterns, weights
from utils.corpus import repeated_tokens
from utils.model import next_token_loss
from utils.surgery import ablate, cut  # noqa: F401, both belong to this room's contract

Scores = Float[Tensor, "layer head"]


def looks(model: Model, tokens: Int[Tensor, "batch seq"], least: int = 1) -> Float[Tensor, "layer batch head dest src"]:
    """The patterns to score, where there are heads and tokens enough."""
    if model.cfg.n_layers == 0:
        raise ValueError("A model with no layers has no heads, so there is nothing to score.")
    if tokens.shape[-1] < least:
        raise ValueError(f"This score needs at least {['one token', 'two tokens'][least - 1]}.")
    return patterns(model, tokens)


def previous_token_score(model: Model, tokens: Int[Tensor, "batch seq"]) -> Scores:
    """How much of its attention a head puts on the token just before, on average; also Olsson et al.'s definition."""
    return looks(model, tokens, least=2).diagonal(-1, dim1=-2, dim2=-1).mean((1, 3))


def current_token_score(model: Model, tokens: Int[Tensor, "batch seq"]) -> Scores:
    """How much of its attention a head leaves on the token where it is, on average."""
    return looks(model, tokens).diagonal(dim1=-2, dim2=-1).mean((1, 3))


def first_token_score(model: Model, tokens: Int[Tensor, "batch seq"]) -> Scores:
    """How much of its attention a head rests on the first token, on average over the tokens after it."""
    return looks(model, tokens, least=2)[..., 1:, 0].mean((1, 3))


def induction_score(model: Model, n_docs: int = 32, repeats: int = 3, generator: Generator | None = None) -> Scores:
    """Attention to the token after the last copy of this one, on random repeats, from the second copy on.

    The periods are mixed, so that a head which looks a fixed distance back does not pass. Without a generator the repeats are
    the same at every call.
    """
    totals, count = 0.0, 0
    for period, tokens in random_repeats(model, n_docs, repeats, generator or torch.Generator().manual_seed(0)):
        stripe = looks(model, tokens).diagonal(1 - period, dim1=-2, dim2=-1)[..., 2:]  # dest − src = period − 1
        totals = totals + stripe.sum((1, 3))
        count += stripe.shape[1] * stripe.shape[3]
    return totals / count


def random_repeats(
    model: Model, n_docs: int, repeats: int, generator: Generator
) -> Iterator[tuple[int, Int[Tensor, "doc seq"]]]:
    """Four periods, from half of what fits the context to all of it, with a quarter of the documents each."""
    longest = longest_period(model, repeats)
    for period in torch.linspace(max(2, longest // 2), longest, 4).int().tolist():
        yield period, repeated_tokens(max(1, n_docs // 4), period, repeats, model.cfg.d_vocab, generator)


def longest_period(model: Model, repeats: int) -> int:
    if repeats < 2:
        raise ValueError(f"A repeat needs at least two copies, not {repeats}.")
    longest = min((model.cfg.n_ctx - 1) // repeats, model.cfg.d_vocab - 1)
    if longest < 2:
        raise ValueError(f"{repeats} repeats of two different tokens do not fit n_ctx = {model.cfg.n_ctx}.")
    return longest


def prefix_matching_score(model: Model, n_docs: int = 10, repeats: int = 4, generator: Generator | None = None) -> Scores:
    """Olsson et al.'s: attention to the tokens after *all* earlier copies of this one, 25 random tokens four times over.

    A head that looks at any of the copies gets up to 1. The period is one and the same, so a head that looks a fixed
    distance back passes too: `induction_score` tells them apart. Fewer than 25 tokens where the context is short.
    """
    period = min(25, longest_period(model, repeats))
    generator = generator or torch.Generator().manual_seed(0)
    pattern = looks(model, repeated_tokens(n_docs, period, repeats, model.cfg.d_vocab, generator))
    stripes = [pattern.diagonal(1 - n * period, dim1=-2, dim2=-1)[..., 2:].sum(-1) for n in range(1, repeats)]
    return sum(stripes).mean(1) / (period * (repeats - 1))


def copying_in_logits(model: Model, n_docs: int = 10, generator: Generator | None = None) -> Scores:
    """Olsson et al.'s: of what a head raises among 25 random tokens, how much goes to those it looks at, −1 … 1.

    r = raised(looked at) / (raised(looked at) + raised(all in the sample)) runs from 0 to 1/2 and is stretched to 4r − 1.
    """
    generator = generator or torch.Generator().manual_seed(0)
    tokens = repeated_tokens(n_docs, longest_sample(model), 1, model.cfg.d_vocab, generator)[:, 1:].to(model.W_E.device)
    pattern, w = looks(model, tokens), weights(model)
    _, cache = model.run_with_cache(tokens, names_filter=lambda name: name.endswith("hook_z"))
    z = torch.stack([cache["z", layer].detach() for layer in range(len(pattern))])
    read = (w.W_U - w.W_U.mean(1, keepdim=True)).mT[tokens]  # raised above the mean of all logits
    raised = torch.einsum("lbthe,lhed,bsd->lbhts", z, w.W_O, read).relu()
    looked_at = (pattern * raised).sum(-1)
    return (4 * torch.nan_to_num(looked_at / (looked_at + raised.sum(-1))) - 1).mean((1, 3))


def longest_sample(model: Model) -> int:
    return min(25, model.cfg.n_ctx, model.cfg.d_vocab - 1)


@torch.no_grad()
def value_weighted(model: Model, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "layer batch head dest src"]:
    """Patterns times the size of what is moved, ‖v W_O‖ over each head's largest: attention that carries nothing fades."""
    pattern, W_O = looks(model, tokens), weights(model).W_O
    _, cache = model.run_with_cache(tokens.to(W_O.device), names_filter=lambda name: name.endswith("hook_v"))
    values = torch.stack([cache["v", layer] for layer in range(len(pattern))])
    size = torch.einsum("lbshe,lhed->lbhsd", values, W_O).norm(dim=-1)
    return pattern * (size / size.amax((1, 3), keepdim=True).clamp_min(1e-30))[..., None, :]


def in_context_score(model: Model, tokens: Int[Tensor, "batch seq"], early: int, late: int) -> float:
    """Nats: the loss on the token at `late` less the loss on the token at `early`. Below 0: the context helps.

    Olsson et al. take 50 and 500. A model that uses no context gets 0 where the text is alike at both places.
    """
    if not 1 <= early < late < tokens.shape[-1]:
        raise ValueError(f"Needed: 1 ≤ early < late ≤ {tokens.shape[-1] - 1}, the last token; got {early} and {late}.")
    with torch.no_grad():
        losses = next_token_loss(model(tokens), tokens, per_token=True).mean(0)
    return (losses[late - 1] - losses[early - 1]).item()


SCORES = {
    "previous_token": previous_token_score,
    "current_token": current_token_score,
    "first_token": first_token_score,
    "induction": induction_score,
    "prefix_matching": prefix_matching_score,
    "copying_in_logits": copying_in_logits,
}


def chance(score: str, model: Model, *args, **kwargs) -> float:
    """What heads that look at all tokens so far alike would score, on the same text: chance("induction", model).

    For "copying_in_logits", where looking is not the question: what heads would that raise whatever they like.
    """
    if score not in SCORES:
        raise ValueError(f"There is no score {score!r}; there are {', '.join(SCORES)}.")
    if score == "copying_in_logits":
        return 4 / (1 + longest_sample(model)) - 1
    with ablate(model, all_heads(model), "pattern"):
        return SCORES[score](model, *args, **kwargs).mean().item()
