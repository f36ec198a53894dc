"""What the weights say, against tables of all tokens formed in full."""

import inspect
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from transformer_lens import FactoredMatrix

from bench.rivals import lens_model
from tests.helpers import config, few, rng
from tests.test_composition import heads_rewritten, own_weights, shapes, stream_turned
from tests.test_model import exactly, models
from utils import circuits
from utils.anatomy import all_heads, check_head
from utils.circuits import (
    copying_score,
    copying_scores,
    direct_path,
    eigenvalues,
    eigenvectors,
    full_ov,
    full_qk,
    raised_share,
    skip_trigrams,
    top_share,
    top_skip_trigrams,
)
from utils.model import AttentionOnly


def tables(model, layer: int, head: int) -> tuple[Tensor, Tensor]:
    """[destination, source] and [source, out], from d_model × d_model matrices, as in the paper."""
    W_Q, W_K, W_V, W_O = own_weights(model, layer, head)
    W_E, W_U = model.W_E.detach(), model.W_U.detach()
    return W_E @ (W_Q @ W_K.T) @ W_E.T / model.cfg.d_head**0.5, W_E @ (W_V @ W_O) @ W_U


def assert_same_set(one: Tensor, other: Tensor) -> None:
    """Equal as sets of complex numbers, but for zeros."""
    left = other.tolist() + [0j] * len(one)
    for value in sorted([*one.tolist(), *[0j] * len(other)], key=abs, reverse=True):
        nearest = min(left, key=lambda x: abs(x - value))
        assert abs(nearest - value) < 1e-6, f"{value} is not among {left}"
        left.remove(nearest)


@st.composite
def matrices(draw, least: int = 1, whole: bool = False) -> FactoredMatrix:
    """Square tables of up to 8 tokens through up to 6 dimensions; of whole numbers, there are many ties."""
    tokens, inner = draw(st.integers(least, 8)), draw(st.integers(1, 6))
    generator, shapes = rng(draw(st.integers(0, 999))), [(tokens, inner), (inner, tokens)]
    if whole:
        return FactoredMatrix(*(torch.randint(-2, 3, shape, generator=generator).double() for shape in shapes))
    return FactoredMatrix(*(torch.randn(shape, generator=generator).double() for shape in shapes))


@few
@given(models())
def test_circuits_equal_tables_formed_in_full(model):
    assert_close(direct_path(model).AB, model.W_E @ model.W_U, **exactly)
    for at in all_heads(model):
        for circuit, table in zip((full_qk(model, *at), full_ov(model, *at)), tables(model, *at)):
            assert_close(circuit.AB, table, **exactly)
            assert circuit.mdim == model.cfg.d_head, "the table was formed in full"


@few
@given(models(least=1))
def test_full_qk_is_the_score_a_destination_gives_a_source_where_positions_are_silent(model):
    pairs = torch.cartesian_prod(*2 * [torch.arange(model.cfg.d_vocab)])  # documents of two tokens: source, destination
    with torch.no_grad():
        model.W_pos.zero_()
        if model.cfg.smeared_keys:
            model.blocks[0].attn.alpha.fill_(100)  # a key is its token's own
    scores = model.run_with_cache(pairs)[1]["attn_scores", 0][:, :, 1, 0]
    for head in range(model.cfg.n_heads):
        assert_close(scores[:, head], full_qk(model, 0, head).AB[pairs[:, 1], pairs[:, 0]], **exactly)


@few
@given(models())
def test_a_token_alone_gets_the_direct_path_and_the_full_ov_of_every_head_of_the_first_layer(model):
    model.blocks = model.blocks[:1]
    with torch.no_grad():
        model.W_pos.zero_()
    table = direct_path(model).AB + sum(full_ov(model, *at).AB for at in all_heads(model) if at[0] == 0)
    assert_close(model(torch.arange(model.cfg.d_vocab)[:, None])[:, 0], table, **exactly)


# Copying


@few
@given(models())
def test_eigenvalues_and_copying_scores_equal_those_of_the_table(model):
    values, scores = eigenvalues(model), copying_scores(model)
    assert scores.shape == (model.cfg.n_layers, model.cfg.n_heads)
    for at in all_heads(model):
        dense = torch.linalg.eigvals(tables(model, *at)[1])
        assert_same_set(values[at], dense)
        score = (dense.sum() / dense.abs().sum()).real.item()
        assert scores[at].item() == pytest.approx(score, abs=1e-6)
        assert copying_score(full_ov(model, *at)) == pytest.approx(score, abs=1e-6)


def test_copying_scores_of_known_matrices():
    eye, shift = torch.eye(6), torch.eye(6).roll(1, 0)
    for matrix, score in [(eye, 1), (-eye, -1), (shift, 0), (0 * eye, 0), (torch.diag(torch.tensor([3.0, -1, 0])), 0.5)]:
        assert copying_score(FactoredMatrix(matrix, torch.eye(len(matrix)))) == pytest.approx(score, abs=1e-6)
    model = AttentionOnly(config())
    model.blocks[0].attn.W_O.data[1] = 0
    assert (copying_scores(model) == 0).tolist() == [[False, True], [False, False]]


@few
@given(matrices(whole=True), st.integers(1, 9), st.integers(1, 9))
def test_shares_equal_loops_over_rows(matrix, k, block):
    rows = list(enumerate(matrix.AB.tolist()))
    with patch.object(circuits, "BLOCK", block):
        assert raised_share(matrix) == pytest.approx(sum(row[i] > 0 for i, row in rows) / len(rows))
        best = sum(row[i] in sorted(row, reverse=True)[:k] for i, row in rows)
        assert top_share(matrix, k) == pytest.approx(best / len(rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_does_not_let_an_entry_beat_itself(dtype):
    rows = torch.nn.functional.normalize(torch.randn(500, 16, generator=rng(0)), dim=1).to(dtype)
    assert top_share(FactoredMatrix(rows, rows.T.contiguous())) == 1


def whole_vector(vector: circuits.Eigenvector, matrix: FactoredMatrix) -> Tensor:
    """x from its real part: if x M = λx and λ = a + ib, then Im x = (a Re x − Re x M) / b."""
    real = torch.zeros(matrix.ldim).double().scatter(0, vector.tokens, vector.weights)
    if vector.value.imag == 0:
        return real + 0j
    return torch.complex(real, (vector.value.real * real - real @ matrix.AB) / vector.value.imag)


@few
@given(matrices(), st.integers(1, 7))
def test_eigenvectors_are_mixtures_that_the_table_only_scales(matrix, n):
    found = eigenvectors(matrix, n, k=99)
    dense = sorted((abs(x) for x in torch.linalg.eigvals(matrix.AB).tolist() if x.imag >= 0), reverse=True)
    strongest = [size for size in dense if size > 1e-6 * dense[0]][:n]
    assert [abs(vector.value) for vector in found][: len(strongest)] == pytest.approx(strongest, abs=1e-8)
    assert len(strongest) <= len(found) <= n
    for vector in found:
        x = whole_vector(vector, matrix)
        assert_close(x @ (matrix.AB + 0j), vector.value * x, rtol=0, atol=1e-6)
        assert vector.value.imag >= 0, "the conjugate says the same"
        assert x.abs().max().item() == pytest.approx(1, abs=1e-6)
        assert x[vector.tokens[0]].item() == pytest.approx(1, abs=1e-6)


@few
@given(matrices(least=2), st.integers(1, 7))
def test_eigenvectors_list_the_strongest_tokens_first(matrix, k):
    for few_tokens, all_tokens in zip(eigenvectors(matrix, 1, k), eigenvectors(matrix, 1, matrix.ldim)):
        assert few_tokens.weights.tolist() == sorted(all_tokens.weights.tolist(), reverse=True)[:k]
        assert few_tokens.tokens.tolist() == all_tokens.tokens.tolist()[:k]


def test_a_table_of_zeros_has_no_eigenvectors_that_are_not_numbers():
    for vector in eigenvectors(FactoredMatrix(torch.zeros(5, 2), torch.zeros(2, 5))):
        assert vector.weights.isfinite().all()


# Skip-trigrams


def centred_tables(model, layer: int, head: int) -> tuple[Tensor, Tensor]:
    qk, ov = tables(model, layer, head)
    return qk - qk.mean(1, keepdim=True), ov - ov.mean(1, keepdim=True)


@few
@given(models(least=1), st.integers(1, 9))
def test_skip_trigrams_are_the_top_of_a_column_of_qk_and_of_a_row_of_ov(model, k):
    for at in all_heads(model):
        qk, ov = centred_tables(model, *at)
        for source in range(model.cfg.d_vocab):
            found = skip_trigrams(model, *at, source, k)
            for tokens, values, row in [
                (found.destinations, found.scores, qk[:, source]),
                (found.outs, found.logits, ov[source]),
            ]:
                assert_close(values, row.sort(descending=True).values[:k], **exactly)
                assert_close(row[tokens], values, **exactly)
                assert len(set(tokens.tolist())) == len(tokens)


@few
@given(models(least=1), st.sampled_from([1, 2, 3, 5, 8, 20, 500]), st.integers(1, 9))
def test_top_skip_trigrams_are_the_top_of_all_triples(model, k, block):
    at = model.cfg.n_layers - 1, model.cfg.n_heads - 1
    qk, ov = (table.relu() for table in centred_tables(model, *at))
    everything = qk.T[:, :, None] * ov[:, None, :]  # (source, destination, out)
    expected = everything[everything > 1e-12].sort(descending=True).values[:k]
    with patch.object(circuits, "BLOCK", block):
        triples, scores = top_skip_trigrams(model, *at, k)
    assert_close(scores, expected, **exactly)
    assert_close(everything[tuple(triples.T)], scores, **exactly)
    assert len({tuple(triple) for triple in triples.tolist()}) == len(triples)


# The same in other bases, and for TransformerLens' models


@few
@given(models(), st.sampled_from([stream_turned, heads_rewritten]))
def test_a_change_of_basis_changes_no_circuit(model, rewritten):
    other = rewritten(model)
    assert_close(direct_path(other).AB, direct_path(model).AB, **exactly)
    assert_close(copying_scores(other), copying_scores(model), rtol=0, atol=1e-6)
    for at in all_heads(model):
        assert_close(full_qk(other, *at).AB, full_qk(model, *at).AB, **exactly)
        assert_close(full_ov(other, *at).AB, full_ov(model, *at).AB, **exactly)


@pytest.mark.parametrize("shape", shapes)
def test_a_bridge_has_the_same_circuits_as_in_transformer_lens(shape):
    bridge, closely = lens_model(config(**shape)), dict(rtol=0, atol=1e-5)
    assert_close(direct_path(bridge).AB, bridge.W_E @ bridge.W_U, **closely)
    for at in all_heads(bridge):
        qk, ov = tables(bridge, *at)
        assert_close(full_qk(bridge, *at).AB, qk, **closely)
        assert_close(full_ov(bridge, *at).AB, ov, **closely)
        values = (bridge.W_E @ bridge.OV[at] @ bridge.W_U).eigenvalues.detach()
        assert_same_set(eigenvalues(bridge)[at], values)
        score = (values.sum() / values.abs().sum()).real.item()
        assert copying_scores(bridge)[at].item() == pytest.approx(score, abs=1e-5)
        assert_close(skip_trigrams(bridge, *at, 2, 1).logits, (ov[2].max() - ov[2].mean())[None], **closely)
        assert len(top_skip_trigrams(bridge, *at, 3)[1]) == 3


# Bad input


@pytest.mark.parametrize("at", [(2, 0), (0, 2), (-1, 0), (0, -1)])
def test_a_head_that_does_not_exist_is_named(at):
    functions = full_qk, full_ov, top_skip_trigrams, lambda *head: skip_trigrams(*head, source=0)
    for function in functions:
        with pytest.raises(ValueError, match=rf"There is no head \({at[0]}, {at[1]}\): this model has 2 layers of 2 heads"):
            function(AttentionOnly(config()), *at)
        with pytest.raises(ValueError, match="this model has 0 layers"):
            function(AttentionOnly(config(n_layers=0)), 0, 0)


@pytest.mark.parametrize("head", [0, [0, 0], (0,), (0, 0, 0), "0.0"])
def test_what_is_not_a_head_is_refused(head):
    with pytest.raises(ValueError, match=r"A head is a pair \(layer, head\) such as \(1, 0\), not"):
        inspect.unwrap(check_head)(AttentionOnly(config()), head)


@pytest.mark.parametrize("source", [-1, 7, 1000])
def test_a_source_that_does_not_exist_is_named(source):
    with pytest.raises(ValueError, match=f"There is no token {source}: tokens run from 0 to 6"):
        skip_trigrams(AttentionOnly(config()), 0, 0, source)
