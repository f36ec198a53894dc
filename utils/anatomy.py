"""What the algebra needs of a model, ours or TransformerLens': weights under the paper's names, patterns, heads that exist."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from utils.model import AttentionOnly, check_tokens

Head = tuple[int, int]  # (layer, head)
Path = tuple[Head, ...]  # heads in the order in which they pass information on; () is the direct path
Model = AttentionOnly | TransformerBridge


@dataclass(frozen=True)
class Weights:
    """Matrices, biases (zeros where a model has none), how positions come in, and how scores are scaled."""

    W_E: Float[Tensor, "d_vocab d_model"]
    W_pos: Float[Tensor, "n_ctx d_model"]
    W_U: Float[Tensor, "d_model d_vocab"]
    W_Q: Float[Tensor, "layer head d_model d_head"]
    W_K: Float[Tensor, "layer head d_model d_head"]
    W_V: Float[Tensor, "layer head d_model d_head"]
    W_O: Float[Tensor, "layer head d_head d_model"]
    b_Q: Float[Tensor, "layer head d_head"]
    b_K: Float[Tensor, "layer head d_head"]
    b_V: Float[Tensor, "layer head d_head"]
    b_O: Float[Tensor, "layer d_model"]
    b_U: Float[Tensor, " d_vocab"]
    alpha: Float[Tensor, "layer head"] | None  # of smeared keys
    biased: bool
    in_stream: bool  # positions are part of the stream; else they come to queries and keys alone
    scale: float  # scores are divided by it


def weights(model: Model) -> Weights:
    """A model's weights, without gradients."""
    cfg, matrices = model.cfg, ("W_E", "W_pos", "W_U", "W_Q", "W_K", "W_V", "W_O")
    found = {name: getattr(model, name).detach() for name in matrices}
    if isinstance(model, AttentionOnly):
        smeared = cfg.smeared_keys and cfg.n_layers > 0
        alpha = torch.stack([block.attn.alpha.detach() for block in model.blocks]) if smeared else None
        options = dict(biased=False, in_stream=cfg.positions == "stream", scale=cfg.d_head**0.5)
        return Weights(**found, **no_biases(found["W_Q"], found["W_U"]), alpha=alpha, **options)
    biases = {name: getattr(model, name).detach() for name in ("b_Q", "b_K", "b_V", "b_O", "b_U")}
    scale = 1.0 if not cfg.use_attn_scale else cfg.attn_scale if cfg.attn_scale > 0 else cfg.d_head**0.5
    return Weights(**found, **biases, alpha=None, biased=True, in_stream=True, scale=scale)


def no_biases(W_Q: Tensor, W_U: Tensor) -> dict[str, Tensor]:
    n_layers, n_heads, d_model, d_head = W_Q.shape
    inner = W_Q.new_zeros(n_layers, n_heads, d_head)
    return dict(b_Q=inner, b_K=inner, b_V=inner, b_O=W_Q.new_zeros(n_layers, d_model), b_U=W_U.new_zeros(W_U.shape[1]))


def check_exact(model: Model) -> None:
    """A sum over paths is the whole model only where there is nothing but attention."""
    cfg = model.cfg
    if isinstance(model, AttentionOnly):
        return
    obstacles = {"MLPs": not cfg.attn_only, f"normalisation {cfg.normalization_type}": bool(cfg.normalization_type)}
    obstacles[f"{cfg.positional_embedding_type} positions"] = cfg.positional_embedding_type != "standard"
    there = [name for name, present in obstacles.items() if present]
    if there:
        raise ValueError(
            f"This model has {' and '.join(there)}, so a sum over paths of heads would not be exact. What works: "
            "AttentionOnly, or a TransformerBridge with attn_only=True, normalization_type=None and standard positions."
        )


@torch.no_grad()
def patterns(model: Model, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "layer batch head dest src"]:
    """The attention patterns of all layers."""
    check_tokens(tokens, model.cfg)
    tokens = tokens.to(model.W_E.device)
    if model.cfg.n_layers == 0:
        return model.W_E.new_empty(0, len(tokens), model.cfg.n_heads, tokens.shape[1], tokens.shape[1])
    _, cache = model.run_with_cache(tokens, names_filter=lambda name: name.endswith("hook_pattern"))
    return torch.stack([cache["pattern", layer] for layer in range(model.cfg.n_layers)])


def all_heads(model: Model, before: int | None = None) -> list[Head]:
    """Every head, or those in the layers before one."""
    layers = range(model.cfg.n_layers if before is None else before)
    return [(layer, head) for layer in layers for head in range(model.cfg.n_heads)]


def check_head(model: Model, head: Head) -> Head:
    """The head itself, if the model has it."""
    cfg = model.cfg
    if not isinstance(head, tuple) or len(head) != 2 or not all(isinstance(index, int) for index in head):
        raise ValueError(f"A head is a pair (layer, head) such as (1, 0), not {head!r}.")
    if not (0 <= head[0] < cfg.n_layers and 0 <= head[1] < cfg.n_heads):
        raise ValueError(f"There is no head {head}: this model has {cfg.n_layers} layers of {cfg.n_heads} heads, from (0, 0).")
    return head


def check_path(model: Model, path: Iterable[Head]) -> Path:
    """The path itself, if its heads exist and each is in a later layer than the one before."""
    path = tuple(check_head(model, head) for head in path)
    if any(later[0] <= earlier[0] for earlier, later in pairwise(path)):
        raise ValueError(f"The path {path} does not go up: each head must be in a later layer than the one before it.")
    return path
