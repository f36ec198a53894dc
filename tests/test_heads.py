"""Scores of heads, on heads whose pattern is known in advance."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from utils.circuits import direct_path
from utils.corpus import repeated_tokens
from utils.heads import chance, induction_score, patterns, previous_token_score
from utils.model import AttentionOnly, AttentionOnlyConfig


def looks_back(distance: int, n_ctx: int = 40) -> AttentionOnly:
    """One head that looks a fixed distance back, by position alone."""
    model = AttentionOnly(AttentionOnlyConfig(1, 1, n_ctx, n_ctx, 30, n_ctx))
    with torch.no_grad():
        model.W_E.zero_()
        model.W_pos.copy_(torch.eye(n_ctx))
        model.blocks[0].attn.W_Q.copy_(1000 * torch.eye(n_ctx))
        model.blocks[0].attn.W_K.copy_(torch.eye(n_ctx).roll(distance, 1)[None])
    return model


def test_a_head_that_looks_one_back_is_a_previous_token_head():
    tokens = torch.randint(0, 30, (2, 40), generator=torch.Generator().manual_seed(0))
    assert previous_token_score(looks_back(1), tokens).item() > 0.99
    assert previous_token_score(looks_back(2), tokens).item() < 0.05


def test_a_fixed_distance_is_not_induction():
    """A decoy for one period fails when periods are mixed."""
    assert max(induction_score(looks_back(distance)).item() for distance in range(5, 13)) < 0.5


@given(st.integers(1, 3), st.integers(1, 4), st.integers(2, 9), st.integers(1, 3))
def test_scores_equal_naive_loops(n_layers, n_heads, period, batch):
    model = AttentionOnly(AttentionOnlyConfig(n_layers, n_heads, 6, 3, 20, 40)).double()
    tokens = repeated_tokens(batch, period, 2, 20, torch.Generator().manual_seed(period))
    previous = previous_token_score(model, tokens)
    for layer, pattern in enumerate(patterns(model, tokens)):
        for head in range(n_heads):
            looks = [pattern[b, head, t, t - 1].item() for b in range(batch) for t in range(1, tokens.shape[1])]
            assert previous[layer, head].item() == pytest.approx(sum(looks) / len(looks), abs=1e-12)


def test_the_induction_score_equals_a_naive_loop():
    model = AttentionOnly(AttentionOnlyConfig(2, 2, 6, 3, 20, 31)).double()
    total, count, generator = torch.zeros(2, 2).double(), 0, torch.Generator().manual_seed(9)
    for period in (5, 6, 8, 10):
        tokens = repeated_tokens(2, period, 3, 20, generator)
        pattern = patterns(model, tokens)
        for document in range(2):
            for dest in range(period + 1, tokens.shape[1]):
                last_copy = max(t for t in range(dest) if tokens[document, t] == tokens[document, dest])
                total += pattern[:, document, :, dest, last_copy + 1]
                count += 1
    score = induction_score(model, n_docs=8, generator=torch.Generator().manual_seed(9))
    assert torch.allclose(score, total / count, atol=1e-12)


def test_chance_is_what_an_even_look_at_everything_scores():
    model = AttentionOnly(AttentionOnlyConfig(1, 3, 6, 3, 20, 16))
    tokens = torch.randint(0, 20, (2, 9))
    even = sum(1 / (t + 1) for t in range(1, 9)) / 8
    assert chance("previous_token", model, tokens) == pytest.approx(even, abs=1e-6)
    assert 0 < chance("induction", model) < 0.5


def test_the_direct_path_is_the_model_without_layers():
    model = AttentionOnly(AttentionOnlyConfig(0, 1, 6, 3, 20, 16)).double()
    tokens = torch.randint(0, 20, (3, 7))
    assert torch.allclose(direct_path(model).AB[tokens], model(tokens), atol=1e-12)


def test_bad_input_gets_a_sentence():
    with pytest.raises(ValueError, match="no layers has no heads"):
        previous_token_score(AttentionOnly(AttentionOnlyConfig(0, 1, 4, 2, 9, 8)), torch.zeros(1, 3, dtype=torch.long))
    model = AttentionOnly(AttentionOnlyConfig(1, 1, 4, 2, 9, 8))
    with pytest.raises(ValueError, match="at least two tokens"):
        previous_token_score(model, torch.zeros(1, 1, dtype=torch.long))
    with pytest.raises(ValueError, match="There is no score 'luck'"):
        chance("luck", model)
