"""What several test files need."""

import torch
from hypothesis import settings
from torch import Tensor

from utils.corpus import Sample
from utils.model import AttentionOnly, AttentionOnlyConfig

torch.set_num_threads(1)  # the models here are too small to gain from more, and a busy machine makes them wait
few = settings(max_examples=50, deadline=None)


def config(**changes) -> AttentionOnlyConfig:
    """A config small enough for any test."""
    return AttentionOnlyConfig(**{**dict(n_layers=2, n_heads=2, d_model=8, d_head=4, d_vocab=7, n_ctx=9), **changes})


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def same_weights(one: AttentionOnly | dict, other: AttentionOnly | dict) -> bool:
    """Bit for bit, names and types included."""
    one, other = (x if isinstance(x, dict) else x.state_dict() for x in (one, other))
    same = (one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one)
    return one.keys() == other.keys() and all(same)


@torch.no_grad()
def losses(model: AttentionOnly, sample: Sample) -> Tensor:
    """Loss of each token but ¶, [doc, seq − 1], a few documents at a time."""
    return torch.cat([model.loss(tokens, per_token=True) for tokens in sample.tokens.split(512)])
