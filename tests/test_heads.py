"""Scores of heads, on heads whose pattern is known in advance, and against loops and TransformerLens' detector."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from transformer_lens.head_detector import (
    compute_head_attention_similarity_score,
    get_induction_head_detection_pattern,
    get_previous_token_head_detection_pattern,
)

from tests.helpers import config, few, rng
from tests.test_model import documents, exactly, models
from tests.test_surgery import lens, refused, text
from utils.anatomy import all_heads
from utils.circuits import direct_path
from utils.corpus import repeated_tokens
from utils.heads import (
    SCORES,
    chance,
    copying_in_logits,
    current_token_score,
    first_token_score,
    in_context_score,
    induction_score,
    patterns,
    prefix_matching_score,
    previous_token_score,
    value_weighted,
)
from utils.model import AttentionOnly, AttentionOnlyConfig
from utils.paths import expand_logits


@torch.no_grad()
def looks_at(where: Callable[[int], int], copies: float = 1.0) -> AttentionOnly:
    """One head that looks at where(t) from t, by position alone, and copies, or with −1 does the opposite."""
    n_ctx, d_vocab = 40, 30  # the stream: a dimension for each position, then one for each token
    model = AttentionOnly(AttentionOnlyConfig(1, 1, n_ctx + d_vocab, n_ctx, d_vocab, n_ctx))
    for weight in model.parameters():
        weight.zero_()
    attn, tokens = model.blocks[0].attn, torch.arange(d_vocab)
    model.W_E[tokens, n_ctx + tokens] = model.W_U[n_ctx + tokens, tokens] = 1
    attn.W_V[0, n_ctx + tokens, tokens], attn.W_O[0, tokens, n_ctx + tokens] = 1, copies
    for t in range(n_ctx):
        model.W_pos[t, t], attn.W_Q[0, t, t] = 1, 1000
        if 0 <= where(t) <= t:
            attn.W_K[0, where(t), t] = 1
    return model


def looks_back(distance: int) -> AttentionOnly:
    return looks_at(lambda t: t - distance)


def test_a_head_that_looks_one_back_is_a_previous_token_head():
    tokens = torch.randint(0, 30, (2, 40), generator=torch.Generator().manual_seed(0))
    assert previous_token_score(looks_back(1), tokens).item() > 0.99
    assert previous_token_score(looks_back(2), tokens).item() < 0.05


def test_a_fixed_distance_is_not_induction():
    """A decoy for one period fails when periods are mixed."""
    assert max(induction_score(looks_back(distance)).item() for distance in range(5, 13)) < 0.5


def test_heads_that_stay_and_heads_that_rest_are_told_apart():
    stays, rests, tokens = looks_back(0), looks_at(lambda t: 0), torch.randint(0, 30, (2, 40), generator=rng(0))
    assert current_token_score(stays, tokens).item() > 0.99
    assert first_token_score(rests, tokens).item() > 0.99
    assert current_token_score(rests, tokens).item() == pytest.approx(1 / 40, abs=1e-6)  # on the first token itself
    assert first_token_score(stays, tokens).item() < 0.01


def test_prefix_matching_passes_a_fixed_distance_and_counts_any_copy():
    """Nine tokens fit four times into 40: one copy back is a distance of 8, two copies back one of 17."""
    assert prefix_matching_score(looks_back(8)).item() > 0.99
    assert prefix_matching_score(looks_at(lambda t: t - 17 if t > 18 else t)).item() == pytest.approx(2 / 3, abs=1e-6)
    assert prefix_matching_score(looks_back(1)).item() < 0.01


def test_copying_in_logits_runs_from_minus_one_to_one():
    for where in (lambda t: t, lambda t: 0, lambda t: t - 1):
        assert copying_in_logits(looks_at(where)).item() > 0.9
        assert copying_in_logits(looks_at(where, copies=-1)).item() == pytest.approx(-1, abs=0.05)
    assert copying_in_logits(looks_back(0)).item() == pytest.approx(1, abs=1e-6)
    assert copying_in_logits(looks_back(0), generator=rng(3)).item() == pytest.approx(1, abs=1e-6)
    assert copying_in_logits(
        looks_back(
            0,
        ),
        n_docs=1,
    ).item() == pytest.approx(1, abs=1e-6)
    assert copying_in_logits(looks_at(lambda t: t, copies=0)).item() == -1


@few
@given(st.data())
def test_scores_equal_naive_loops(data):
    model = data.draw(models(least=1))
    tokens = data.draw(documents(model, least=2))
    found = [score(model, tokens) for score in (previous_token_score, current_token_score, first_token_score)]
    batch, n = range(len(tokens)), tokens.shape[1]
    for layer, pattern in enumerate(patterns(model, tokens)):
        for head in range(model.cfg.n_heads):
            previous = [pattern[b, head, t, t - 1].item() for b in batch for t in range(1, n)]
            current = [pattern[b, head, t, t].item() for b in batch for t in range(n)]
            first = [pattern[b, head, t, 0].item() for b in batch for t in range(1, n)]
            for score, looks in zip(found, (previous, current, first)):
                assert score[layer, head].item() == pytest.approx(sum(looks) / len(looks), abs=1e-12)


@pytest.mark.parametrize(
    "build", [lambda: AttentionOnly(config(n_ctx=31, d_vocab=20)).double(), lambda: lens(n_ctx=31, d_vocab=20)]
)
def test_prefix_matching_equals_a_naive_loop(build):
    model, total, count = build(), 0.0, 0
    tokens = repeated_tokens(3, 7, 4, 20, rng(5))  # 31 is 1 + 4 × 7 and a bit: seven is the longest period
    pattern = patterns(model, tokens)
    for document in range(3):
        for dest in range(8, tokens.shape[1]):
            copies = [t for t in range(dest) if tokens[document, t] == tokens[document, dest]]
            total += sum(pattern[:, document, :, dest, copy + 1] for copy in copies)
            count += 1
    assert_close(prefix_matching_score(model, n_docs=3, generator=rng(5)), total / count, **exactly)


@pytest.mark.parametrize("sizes", [dict(d_vocab=40, n_ctx=30), dict(d_vocab=12, n_ctx=30), dict(d_vocab=40, n_ctx=6)])
def test_copying_in_logits_equals_a_naive_loop(sizes):
    for model in (AttentionOnly(config(**sizes)).double(), lens(**sizes)):
        n = min(25, sizes["n_ctx"], sizes["d_vocab"] - 1)
        tokens, expected = repeated_tokens(2, n, 1, sizes["d_vocab"], rng(1))[:, 1:], torch.zeros(2, 2, dtype=torch.float64)
        cache = model.run_with_cache(tokens)[1]
        for layer, head, b, t in torch.cartesian_prod(*map(torch.arange, (2, 2, 2, n))).tolist():
            logits = cache["z", layer][b, t, head] @ model.W_O[layer, head] @ model.W_U
            raised = [max(0.0, (logits[token] - logits.mean()).item()) for token in tokens[b]]
            looked_at = sum(p * r for p, r in zip(cache["pattern", layer][b, head, t].tolist(), raised))
            ratio = looked_at / (looked_at + sum(raised)) if sum(raised) else 0.0
            expected[layer, head] += (4 * ratio - 1) / (2 * n)
        assert_close(copying_in_logits(model, n_docs=2, generator=rng(1)), expected, **exactly)


def detected(model, tokens: Tensor, expected: Callable) -> Tensor:
    """TransformerLens' score of every head, the mean over documents."""
    how = dict(exclude_bos=False, exclude_current_token=False, error_measure="mul")
    scores = [
        [[compute_head_attention_similarity_score(p, expected(tokens[[b]]), **how) for p in heads] for heads in layer]
        for b, layer in enumerate(patterns(model, tokens).transpose(0, 1))
    ]
    return torch.tensor(scores, dtype=torch.float64).mean(0)


def test_scores_agree_with_transformer_lens_detector():
    """Theirs is a share of *all* attention, n rows that sum to 1: so it divides also by the first row, which has nothing
    before it, and by the rows of the first copy, which repeat nothing. Ours divides by the rows that can score."""
    for model in (AttentionOnly(config(n_ctx=31, d_vocab=20)).double(), lens(n_ctx=31, d_vocab=20)):
        tokens = text(model, seq=31)
        theirs = detected(model, tokens, get_previous_token_head_detection_pattern)
        assert_close(previous_token_score(model, tokens), theirs * 31 / 30, **exactly)
        theirs = detected(model, repeated_tokens(3, 7, 4, 20, rng(5)), get_induction_head_detection_pattern)
        assert_close(prefix_matching_score(model, n_docs=3, generator=rng(5)), theirs * 29 / 21, **exactly)


@few
@given(st.data())
def test_the_in_context_score_is_late_less_early(data):
    model = data.draw(models())
    tokens = data.draw(documents(model, least=3))
    late = data.draw(st.integers(2, tokens.shape[1] - 1))
    early = data.draw(st.integers(1, late - 1))
    log_probs = model(tokens).log_softmax(-1)
    nats = {t: sum(-log_probs[b, t - 1, token].item() for b, token in enumerate(tokens[:, t])) for t in (early, late)}
    expected = (nats[late] - nats[early]) / len(tokens)
    assert in_context_score(model, tokens, early, late) == pytest.approx(expected, abs=1e-10)


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


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("positions", ["qk", "stream"])
def test_chance_is_what_an_even_look_at_everything_scores(name, positions):
    model = AttentionOnly(config(n_heads=3, d_vocab=30, n_ctx=41, positions=positions)).double()
    args = [text(model, seq=9)] if name.endswith("_token") else []
    expected = chance(name, model, *args)
    for name_of, weight in model.state_dict().items():
        weight.abs_().mul_(not name_of.endswith("W_Q"))  # no queries: all keys are alike
    model.W_U.data[:] = torch.arange(30) > 0  # and all tokens but ¶ are raised alike
    assert_close(SCORES[name](model, *args), torch.full((2, 3), expected, dtype=torch.float64), **exactly)


def test_chance_of_looking_one_back_and_at_the_next_copy_by_arithmetic():
    for model in (AttentionOnly(config(n_ctx=31, d_vocab=20)).double(), lens(n_ctx=31, d_vocab=20)):
        even = [1 / (t + 1) for t in range(31)]
        assert chance("previous_token", model, text(model)) == pytest.approx(sum(even[1:6]) / 5, abs=1e-12)
        assert chance("current_token", model, text(model)) == pytest.approx(sum(even[:6]) / 6, abs=1e-12)
        after_a_copy = [even[t] for period in (5, 6, 8, 10) for t in range(period + 1, 3 * period + 1)]
        assert chance("induction", model) == pytest.approx(sum(after_a_copy) / len(after_a_copy), abs=1e-12)
        assert not any(point.fwd_hooks for point in model.hook_dict.values())


def test_paths_that_end_in_a_head_are_transformer_lens_head_results():
    ours, theirs = AttentionOnly(config()).double(), lens()
    for model in (ours, theirs):
        expansion = expand_logits(model, text(model))
        results = model.run_with_cache(text(model))[1].stack_head_results()
        for at, result in zip(all_heads(model), results, strict=True):
            if model is theirs:  # a head's result also holds what it makes of biases
                result = result - (expansion.bias(before=at[0]) @ model.W_V[at] + model.b_V[at]) @ model.W_O[at]
            ending = sum(expansion.logits(path) for path in expansion.paths if path != "bias" and path[-1:] == (at,))
            assert_close(ending, result @ model.W_U, **exactly)


def test_the_direct_path_is_the_model_without_layers():
    model = AttentionOnly(AttentionOnlyConfig(0, 1, 6, 3, 20, 16)).double()
    tokens = torch.randint(0, 20, (3, 7))
    assert torch.allclose(direct_path(model).AB[tokens], model(tokens), atol=1e-12)


def test_bad_input_gets_a_sentence():
    bare, model = AttentionOnly(config(n_layers=0)), AttentionOnly(config())
    for name, score in SCORES.items():
        with refused("no layers has no heads"):
            score(bare, *[text(bare)] * name.endswith("_token"))
    for score in (previous_token_score, first_token_score):
        with refused("at least two tokens"):
            score(model, text(model, seq=1))
    for tokens in (text(model)[0], text(model) * 1.0):
        with refused(rf"Tokens must be integers \[batch, seq\].*got {tokens.dtype}"):
            current_token_score(model, tokens)
    with refused("There is no score 'luck'; there are previous_token, current_token"):
        chance("luck", model)
    with refused("5 repeats of two different tokens do not fit n_ctx = 9"):
        induction_score(model, repeats=5)
    with refused("5 repeats of two different tokens do not fit n_ctx = 9"):
        prefix_matching_score(model, repeats=5)


@pytest.mark.parametrize(("early", "late"), [(0, 3), (3, 3), (4, 3), (1, 6), (-1, 3)])
def test_an_early_or_late_token_that_is_not_there_is_named(early, late):
    model = AttentionOnly(config())
    with refused(f"Needed: 1 ≤ early < late ≤ 5, the last token; got {early} and {late}"):
        in_context_score(model, text(model), early, late)


@pytest.mark.parametrize("score", [induction_score, prefix_matching_score])
@pytest.mark.parametrize("repeats", [0, 1])
def test_a_repeat_needs_two_copies(score, repeats):
    with pytest.raises(ValueError, match=f"A repeat needs at least two copies, not {repeats}"):
        score(AttentionOnly(config()), repeats=repeats)


def test_value_weighted_patterns_are_attention_times_the_size_of_what_is_moved():
    model = AttentionOnly(config()).double()
    tokens = text(model)
    cache, found = model.run_with_cache(tokens)[1], value_weighted(model, tokens)
    for layer in range(2):
        for head in range(2):
            moved = cache["v", layer][:, :, head] @ model.W_O[layer, head]  # (batch, src, d_model)
            sizes = moved.norm(dim=-1) / moved.norm(dim=-1).max()
            assert torch.allclose(found[layer, :, head], patterns(model, tokens)[layer, :, head] * sizes[:, None])
