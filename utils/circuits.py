"""What the weights alone say, before any token is read: who looks for what, and what is said once it is found."""

from typing import NamedTuple

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor
from transformer_lens import FactoredMatrix

from utils.anatomy import Model, check_head, weights
from utils.composition import (  # noqa: F401, names of this room's contract
    composition_baseline,
    composition_scores,
    k_composed_qk,
    subspace_overlap,
    virtual_ov,
    virtual_weights,
)

BLOCK = 1024  # rows of a token table that are formed at a time


def direct_path(model: Model) -> FactoredMatrix:
    """W_E W_U [token, out]: what a token adds to the logits of the next one without any head's help."""
    return FactoredMatrix(model.W_E, model.W_U)


def full_qk(model: Model, layer: int, head: int) -> FactoredMatrix:
    """W_E W_QK W_Eᵀ / √d_head: row, destination token; column, source token; entry, the token part of the score."""
    w, at = weights(model), check_head(model, (layer, head))
    return FactoredMatrix(w.W_E @ w.W_Q[at] / w.scale, (w.W_E @ w.W_K[at]).mT)


def full_ov(model: Model, layer: int, head: int) -> FactoredMatrix:
    """W_E W_OV W_U: row, source token; column, what attending to it adds to the logit of each token."""
    w, at = weights(model), check_head(model, (layer, head))
    return FactoredMatrix(w.W_E @ w.W_V[at], w.W_O[at] @ w.W_U)


# Copying


def eigenvalues(model: Model) -> Complex[Tensor, "layer head d_head"]:
    """Of every head's W_E W_OV W_U, those that can differ from 0: of W_O (W_U W_E) W_V, which is d_head × d_head."""
    w = weights(model)
    return torch.linalg.eigvals(w.W_O @ (w.W_U @ w.W_E) @ w.W_V)


def positivity(values: Complex[Tensor, "... n"]) -> Float[Tensor, "..."]:
    """Σλ / Σ|λ|: 1 if all eigenvalues are positive, −1 if all are negative, 0 if there are none."""
    return torch.nan_to_num(values.real.sum(-1) / values.abs().sum(-1))


def copying_score(matrix: FactoredMatrix) -> float:
    """Σλ / Σ|λ| of a square token table, through the small product of its factors."""
    return positivity(torch.linalg.eigvals(matrix.BA.detach())).item()


def copying_scores(model: Model) -> Float[Tensor, "layer head"]:
    """Of every head's OV circuit."""
    return positivity(eigenvalues(model))


def raised_share(matrix: FactoredMatrix) -> float:
    """The share of tokens whose own entry, on the diagonal, is above 0."""
    return (diagonal(matrix) > 0).double().mean().item()


def top_share(matrix: FactoredMatrix, k: int = 1) -> float:
    """The share of tokens whose own entry is among the k largest of its row. Chance is k / d_vocab."""
    blocks = torch.arange(matrix.ldim, device=matrix.A.device).split(BLOCK)
    rows = ((matrix.A[own] @ matrix.B, own[:, None]) for own in blocks)
    beaten_by = [(row > row.gather(1, own)).sum(1) for row, own in rows]
    return (torch.cat(beaten_by) < k).double().mean().item()


def diagonal(matrix: FactoredMatrix) -> Float[Tensor, " token"]:
    return (matrix.A * matrix.B.mT).sum(-1).detach()


class Eigenvector(NamedTuple):
    """A mixture of tokens that the matrix turns into itself times `value`."""

    value: complex
    tokens: Int[Tensor, " k"]  # those on the side of its strongest token, most first
    weights: Float[Tensor, " k"]  # their parts, the largest being 1


def eigenvectors(matrix: FactoredMatrix, n: int = 5, k: int = 10) -> list[Eigenvector]:
    """The n mixtures x of source tokens with x M = λx and the largest |λ|, each as its k largest tokens.

    With λ > 0, tokens of one sign raise one another; the strongest token's sign is taken as positive. A complex one is turned
    so that its strongest token is real; its conjugate says the same and is left out.
    """
    values, small = torch.linalg.eig(matrix.BA.detach().mT)  # y (BA) = λy, so that x = yB has x (AB) = λx
    there = values.abs() > torch.finfo(matrix.B.dtype).eps ** 0.5 * values.abs().max()  # the rest is 0 but for rounding
    order = [i for i in values.abs().argsort(descending=True).tolist() if values[i].imag >= 0 and there[i]][:n]
    vectors = small[:, order].mT @ matrix.B.detach().to(small.dtype)
    vectors = (vectors / vectors.gather(1, vectors.abs().argmax(1, keepdim=True))).real
    return [Eigenvector(values[i].item(), *reversed(v.topk(min(k, len(v))))) for i, v in zip(order, vectors)]


# Skip-trigrams


class SkipTrigrams(NamedTuple):
    """What one source does, best first: destinations and outs are ranked each on their own."""

    destinations: Int[Tensor, " k"]
    scores: Float[Tensor, " k"]  # of attention, above the destination's mean over all sources
    outs: Int[Tensor, " k"]
    logits: Float[Tensor, " k"]  # above the mean over all outs


def centred(matrix: FactoredMatrix) -> FactoredMatrix:
    """Each row less its mean, which a softmax over the row cannot see."""
    return FactoredMatrix(matrix.A, matrix.B - matrix.B.mean(-1, keepdim=True))


def skip_trigrams(model: Model, layer: int, head: int, source: int, k: int = 10) -> SkipTrigrams:
    """Where a source token is looked at from most, and what it then says most: [source] … [destination] → [out]."""
    qk, ov = centred(full_qk(model, layer, head)), centred(full_ov(model, layer, head))
    if not 0 <= source < qk.rdim:
        raise ValueError(f"There is no token {source}: tokens run from 0 to {qk.rdim - 1}.")
    looks, says = ((row.topk(min(k, len(row)))) for row in (qk.A @ qk.B[:, source], ov.A[source] @ ov.B))
    return SkipTrigrams(looks.indices, looks.values, says.indices, says.values)


def top_skip_trigrams(
    model: Model, layer: int, head: int, k: int = 100
) -> tuple[Int[Tensor, "k source_destination_out"], Float[Tensor, " k"]]:
    """A head's k strongest triples: attention score times logit, each above its row's mean and above 0.

    Of one source, the pair (its i-th destination, its j-th out) can be among the best k only if i × j ≤ k.
    """
    qk, ov = centred(full_qk(model, layer, head)), centred(full_ov(model, layer, head))
    rank = 1 + torch.arange(min(k, qk.ldim), device=qk.A.device)
    i, j = (rank[:, None] * rank <= k).nonzero(as_tuple=True)
    found = []
    for sources in torch.arange(qk.rdim, device=qk.A.device).split(BLOCK):
        looks, says = (qk.A @ qk.B[:, sources]).mT.topk(len(rank)), (ov.A[sources] @ ov.B).topk(len(rank))
        scores, best = (looks.values.relu()[:, i] * says.values.relu()[:, j]).flatten().topk(min(k, len(sources) * len(i)))
        row, pair = best // len(i), best % len(i)
        triples = torch.stack([sources[row], looks.indices[row, i[pair]], says.indices[row, j[pair]]], dim=1)
        found.append((triples[scores > 0], scores[scores > 0]))
    triples, scores = map(torch.cat, zip(*found))
    order = scores.argsort(descending=True)[:k]
    return triples[order], scores[order]
