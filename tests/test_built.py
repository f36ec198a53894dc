"""An induction head set by hand: every instrument must give the answer known in advance."""

import math

import pytest
import torch

from tests.helpers import rng
from utils.circuits import (
    composition_baseline,
    composition_scores,
    copying_score,
    copying_scores,
    full_ov,
    full_qk,
    k_composed_qk,
    top_skip_trigrams,
    virtual_ov,
)
from utils.corpus import repeated_tokens
from utils.heads import (
    ablate,
    chance,
    copying_in_logits,
    current_token_score,
    cut,
    first_token_score,
    in_context_score,
    induction_score,
    patterns,
    prefix_matching_score,
    previous_token_score,
)
from utils.model import AttentionOnly, AttentionOnlyConfig
from utils.paths import expand_logits, expand_scores, term_importance

V, N, SHARP = 30, 61, 200.0  # tokens, positions, and a score so large that softmax takes the largest
PREVIOUS, IDLE, INDUCTION, OTHER = (0, 0), (0, 1), (1, 0), (1, 1)


def built() -> AttentionOnly:
    """The stream holds [this token | the token before | position]. Heads 0.1 and 1.1 look everywhere alike, write nothing."""
    config = AttentionOnlyConfig(n_layers=2, n_heads=2, d_model=2 * V + N, d_head=N, d_vocab=V, n_ctx=N)
    model = AttentionOnly(config).double()
    this, before, place = range(V), range(V, 2 * V), range(2 * V, 2 * V + N)
    first, second = (block.attn for block in model.blocks)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.W_E[:, this], model.W_U[this], model.W_pos[:, place] = eye(V), 10 * eye(V), eye(N)
        first.W_Q[0, place], first.W_K[0, place] = SHARP * eye(N), eye(N).roll(1, 1)  # position t looks for t − 1
        first.W_K[0, 2 * V + N - 1] = 0  # nothing comes after the last position
        first.W_V[0, this, :V], first.W_O[0, :V, before] = eye(V), eye(V)
        second.W_Q[0, this, :V], second.W_K[0, before, :V] = SHARP * eye(V), eye(V)  # this token meets the one before
        second.W_V[0, this, :V], second.W_O[0, :V, this] = eye(V), 3 * eye(V)
    return model


def eye(n: int) -> torch.Tensor:
    return torch.eye(n, dtype=torch.float64)


MODEL, PERIOD = built(), 20
TOKENS = repeated_tokens(8, PERIOD, 2, V, rng(0))


def repeat_loss() -> float:
    with torch.no_grad():
        return MODEL.loss(TOKENS, per_token=True)[:, PERIOD + 1 :].mean().item()


def test_detectors_of_attention():
    assert previous_token_score(MODEL, TOKENS)[PREVIOUS].item() == pytest.approx(1, abs=1e-6)
    two, three = (induction_score(MODEL, repeats=repeats)[INDUCTION].item() for repeats in (2, 3))
    assert two == pytest.approx(1, abs=1e-6)
    assert three == pytest.approx(3 / 4, abs=0.01)  # in the third copy it looks at both earlier ones alike
    assert prefix_matching_score(MODEL)[INDUCTION].item() == pytest.approx(1, abs=1e-6)
    for score, name in ((induction_score, "induction"), (prefix_matching_score, "prefix_matching")):
        found = score(MODEL)
        assert found[IDLE].item() == found[OTHER].item() == pytest.approx(chance(name, MODEL))
        assert found[PREVIOUS].item() < 1e-6


def test_heads_that_look_everywhere_alike_get_what_chance_gives():
    scores = {"previous_token": previous_token_score, "current_token": current_token_score, "first_token": first_token_score}
    for name, score in scores.items():
        found = score(MODEL, TOKENS)
        assert found[IDLE].item() == found[OTHER].item() == pytest.approx(chance(name, MODEL, TOKENS))


def test_the_previous_token_head_says_nothing_itself_and_the_induction_head_copies():
    assert copying_scores(MODEL).flatten().tolist() == pytest.approx([0, 0, 1, 0])
    assert copying_score(full_ov(MODEL, *INDUCTION)) == pytest.approx(1)
    assert torch.equal(full_ov(MODEL, *INDUCTION).AB, 30 * eye(V))
    found = copying_in_logits(MODEL)
    assert found[INDUCTION].item() > found[PREVIOUS].item() == found[IDLE].item() == -1


def test_only_keys_compose_and_only_these_two_heads():
    """W_OV⁰ and W_QK¹ᵀ are partial identities of rank V that fit: √V / (√V √V)."""
    for kind in "QKV":
        scores = composition_scores(MODEL, kind)
        expected = 1 / math.sqrt(V) if kind == "K" else 0.0
        assert scores[*PREVIOUS, *INDUCTION].item() == pytest.approx(expected, abs=1e-12)
        assert scores.count_nonzero().item() == (kind == "K")
    mean, sd, most = (moment[*PREVIOUS, *INDUCTION].item() for moment in composition_baseline(MODEL, "K", n=200))
    assert mean == pytest.approx(1 / math.sqrt(2 * V + N), rel=0.01)
    assert (1 / math.sqrt(V) - mean) / sd > 20
    assert most < 1 / math.sqrt(V)


def test_tokens_alone_do_not_tell_the_induction_head_where_to_look_but_the_composed_circuit_does():
    assert full_qk(MODEL, *INDUCTION).AB.count_nonzero() == 0
    assert len(top_skip_trigrams(MODEL, *INDUCTION)[0]) == 0
    composed = k_composed_qk(MODEL, PREVIOUS, INDUCTION)
    assert torch.equal(composed.AB, SHARP * eye(V))
    assert copying_score(composed) == pytest.approx(1)


def test_the_stripe_is_one_term_of_the_score():
    scores = expand_scores(MODEL, TOKENS, *INDUCTION)
    stripe = {pair: scores.term(*pair).diagonal(1 - PERIOD, dim1=1, dim2=2)[:, 2:] for pair in pairs(scores.terms)}
    assert torch.allclose(stripe.pop(("tok", (PREVIOUS,))), torch.tensor(SHARP / math.sqrt(N)).double())
    assert all(term.count_nonzero() == 0 for term in stripe.values())
    groups = scores.by_composition()
    assert {name for name, part in groups.items() if part.count_nonzero()} == {"K"}


def pairs(terms: list) -> list[tuple]:
    return [(query, key) for query in terms for key in terms]


def test_the_virtual_head_adds_nothing_and_single_heads_everything():
    expansion = expand_logits(MODEL, TOKENS)
    assert torch.equal(virtual_ov(MODEL, PREVIOUS, INDUCTION).AB, torch.zeros(2 * V + N, 2 * V + N).double())
    assert expansion.total(order=2).count_nonzero() == 0
    assert torch.allclose(expansion.total(order=0) + expansion.logits((INDUCTION,)), MODEL(TOKENS))
    importance = term_importance(MODEL, TOKENS)
    assert importance.by_order[2].item() == importance.alone[0].item() == importance.given[0].item() == 0
    assert importance.alone[1].item() == importance.given[1].item() == importance.by_order[1].item() > 1
    assert importance.cut["Q"] == 0
    assert importance.cut["K"] > 1


def test_the_source_of_a_repeat_is_the_token_itself_one_period_ago():
    targets = torch.cat([TOKENS[:, 1:], TOKENS[:, :1]], dim=1)
    source = expand_logits(MODEL, TOKENS).by_source((INDUCTION,), targets)[:, PERIOD + 1 : -1]
    assert (source.argmax(-1) == torch.arange(2, PERIOD + 1)).all()
    assert torch.allclose(source.amax(-1), torch.tensor(30.0).double())


@pytest.mark.parametrize("how", ["zero", "mean", "pattern"])
@pytest.mark.parametrize("head", [PREVIOUS, INDUCTION])
def test_without_either_head_the_repeat_is_lost(head, how):
    whole = repeat_loss()
    assert whole < 0.01
    with ablate(MODEL, head, how, reference=TOKENS if how == "mean" else None):
        assert repeat_loss() > whole + 5
    assert repeat_loss() == whole


@pytest.mark.parametrize("how", ["zero", "mean", "pattern"])
def test_without_the_others_nothing_changes(how):
    whole = repeat_loss()
    with ablate(MODEL, [IDLE, OTHER], how, reference=TOKENS if how == "mean" else None):
        assert repeat_loss() == whole


def test_it_is_the_path_into_the_keys_that_matters():
    whole, stripe = repeat_loss(), induction_score(MODEL)[INDUCTION].item()
    with cut(MODEL, PREVIOUS, INDUCTION, "K"):
        assert repeat_loss() > whole + 5
        assert induction_score(MODEL)[INDUCTION].item() == pytest.approx(chance("induction", MODEL))
        assert previous_token_score(MODEL, TOKENS)[PREVIOUS].item() == pytest.approx(1, abs=1e-6)
    for kind in "QV":
        with cut(MODEL, PREVIOUS, INDUCTION, kind):
            assert repeat_loss() == pytest.approx(whole)
            assert induction_score(MODEL)[INDUCTION].item() == pytest.approx(stripe)


def test_context_helps_once_the_text_repeats():
    assert in_context_score(MODEL, TOKENS, early=PERIOD, late=PERIOD + 5) < -5
    assert in_context_score(MODEL, TOKENS, early=PERIOD + 5, late=2 * PERIOD) == pytest.approx(0, abs=1e-6)


def test_where_there_is_no_earlier_copy_it_looks_at_everything_alike():
    pattern = patterns(MODEL, TOKENS)[1, :, 0, 1:PERIOD]
    assert torch.allclose(
        pattern, torch.ones(N, N).double().tril()[1:PERIOD, : TOKENS.shape[1]].div(torch.arange(2, PERIOD + 1)[:, None])
    )
