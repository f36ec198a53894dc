"""What one head can hand to a later one, from the weights alone, and what chance would hand over."""

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from transformer_lens import FactoredMatrix

from utils.anatomy import Head, Model, Weights, check_path, weights
from utils.model import AttentionOnly, AttentionOnlyConfig

Pairs = Float[Tensor, "layer head layer2 head2"]  # from → to; 0 where from is not earlier
BLOCK = 100  # random draws at a time


def virtual_ov(model: Model, first: Head, second: Head) -> FactoredMatrix:
    """W_OV¹ W_OV² [d_model, d_model]: what the virtual head does to what it moves."""
    w, (first, second) = weights(model), check_path(model, (first, second))
    return FactoredMatrix(w.W_V[first], w.W_O[first] @ w.W_V[second] @ w.W_O[second])


def k_composed_qk(model: Model, first: Head, second: Head) -> FactoredMatrix:
    """W_E W_QK² W_OV¹ᵀ W_Eᵀ: row, destination token; column, the token that `first` moved into the key."""
    w, (first, second) = weights(model), check_path(model, (first, second))
    moved = w.W_E @ w.W_V[first] @ (w.W_O[first] @ w.W_K[second])
    return FactoredMatrix(w.W_E @ w.W_Q[second], moved.mT)


def virtual_weights(model: Model, first: Head, second: Head, kind: str) -> Float[Tensor, "d_head d_head2"]:
    """W_O¹ W_Q², W_O¹ W_K² or W_O¹ W_V²: what the second head reads of what the first writes."""
    w, (first, second) = weights(model), check_path(model, (first, second))
    return w.W_O[first] @ reader(w, kind)[0][second]


def subspace_overlap(one: Float[Tensor, "k d_model"], other: Float[Tensor, "m d_model"]) -> tuple[float, float]:
    """Mean squared cosine between the spaces that two sets of rows span, 0 … 1, and what random spaces would give."""
    bases = [basis(rows.detach()) for rows in (one, other)]
    dims = [len(rows) for rows in bases]
    if min(dims) == 0:
        raise ValueError("A matrix of zeros spans no space, so nothing can overlap with it.")
    return ((bases[0] @ bases[1].mT).square().sum() / min(dims)).item(), max(dims) / one.shape[1]


def basis(rows: Float[Tensor, "k d_model"]) -> Float[Tensor, "rank d_model"]:
    _, values, directions = torch.linalg.svd(rows, full_matrices=False)
    return directions[values > values.max() * max(rows.shape) * torch.finfo(rows.dtype).eps]


# Composition scores: ‖W_OV¹ M‖ / (‖W_OV¹‖ ‖M‖), where M is W_QK² for Q, W_QK²ᵀ for K and W_OV² for V


def reader(w: Weights, kind: str) -> tuple[Tensor, Tensor]:
    """(inner, outer) with M = inner outerᵀ; the stream is read by `inner`."""
    kinds = {"Q": (w.W_Q, w.W_K), "K": (w.W_K, w.W_Q), "V": (w.W_V, w.W_O.mT)}
    if kind not in kinds:
        raise ValueError(f'Composition is of kind "Q", "K" or "V", not {kind!r}.')
    return kinds[kind]


def written(W_V: Tensor, W_O: Tensor) -> Float[Tensor, "... d_head d_model"]:
    """W_V W_O without the orthonormal part on its left, which no norm can see."""
    return torch.linalg.qr(W_V, mode="r").R @ W_O


def read(inner: Tensor, outer: Tensor) -> Float[Tensor, "... d_model d_head"]:
    """M without the orthonormal part on its right."""
    return inner @ torch.linalg.qr(outer, mode="r").R.mT


def composition_scores(model: Model, kind: str) -> Pairs:
    """How much of what a head writes a later head reads, from → to. Random matrices give about 1 / √d_model, not 0."""
    w = weights(model)
    first, second = written(w.W_V, w.W_O), read(*reader(w, kind))
    norms = first.norm(dim=(-2, -1))[..., None, None] * second.norm(dim=(-2, -1))
    scores = torch.zeros_like(norms)
    for layer in range(1, len(first)):
        heads = second[layer].transpose(0, 1)  # (d_model, head, d_head): one product for all pairs
        products = (first[:layer].flatten(0, 2) @ heads.flatten(1)).view(layer * len(first[0]), -1, *heads.shape[1:])
        scores[:layer, :, layer] = products.square().sum((1, 3)).sqrt().view_as(scores[:layer, :, layer])
    return torch.nan_to_num(scores / norms)


def composition_baseline(
    model: Model, kind: str, n: int = 1000, generator: Generator | None = None, against: str = "rotations"
) -> tuple[Pairs, Pairs, Pairs]:
    """(mean, sd, max) of n draws by chance. Without a generator the draws are the same at every call.

    "rotations": the second head is turned at random against the first, so that both keep their singular values;
    "gaussian": two heads of the same shapes with normal weights, as in the paper. A model's own start is the third thing
    to compare with: composition_scores(AttentionOnly(model.cfg), kind).
    """
    draws = {"rotations": rotated, "gaussian": gaussian}
    if n < 2:
        raise ValueError(f"A baseline needs at least 2 draws to have a spread, not {n}.")
    if against not in draws:
        raise ValueError(f"There is no baseline {against!r}; there are {', '.join(draws)}.")
    pairs = composition_scores(model, kind)
    if not len(pairs):
        return pairs, pairs, pairs
    scores = draws[against](model, kind, n, generator or torch.Generator().manual_seed(0))
    layers = torch.arange(len(pairs), device=pairs.device)
    earlier = (layers[:, None] < layers)[:, None, :, None].expand_as(pairs)
    return tuple(moment * earlier for moment in (scores.mean(0), scores.std(0), scores.amax(0)))


def rotated(model: Model, kind: str, n: int, generator: Generator) -> Float[Tensor, "draw layer head layer2 head2"]:
    """‖S¹ U S²‖ / (‖S¹‖ ‖S²‖), S the singular values and U the corner of a random rotation that they see."""
    w = weights(model)
    shares = [torch.linalg.svdvals(x).square() for x in (written(w.W_V, w.W_O), read(*reader(w, kind)))]
    one, other = (torch.nan_to_num(x / x.sum(-1, keepdim=True)) for x in shares)  # (layer, head, rank)
    scores = []
    for draws in torch.arange(n).split(BLOCK):
        normal = torch.randn(len(draws), w.W_Q.shape[2], one.shape[-1], generator=generator, dtype=one.dtype).to(one.device)
        corner = torch.linalg.qr(normal).Q[:, : other.shape[-1]].square()  # (draw, rank of M, rank of W_OV)
        scores.append(torch.einsum("lhi,nji,mkj->nlhmk", one, corner, other).sqrt())
    return torch.cat(scores)


def gaussian(model: Model, kind: str, n: int, generator: Generator) -> Float[Tensor, "draw 1 1 1 1"]:
    """One pair of heads at a time, as an untrained AttentionOnly has them."""
    seeds = torch.randint(2**31, (n,), generator=generator).tolist()
    pair = [AttentionOnlyConfig(2, 1, model.cfg.d_model, model.cfg.d_head, d_vocab=1, n_ctx=1, seed=seed) for seed in seeds]
    return torch.stack([composition_scores(AttentionOnly(config), kind)[:1, :, 1:] for config in pair]).to(model.W_E)
