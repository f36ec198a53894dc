"""What heads hand to later heads, against products of d_model × d_model matrices formed in full."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from bench.rivals import lens_model
from tests.helpers import config, few, rng
from tests.test_model import exactly, models
from utils.anatomy import all_heads
from utils.composition import (
    composition_baseline,
    composition_scores,
    k_composed_qk,
    subspace_overlap,
    virtual_ov,
    virtual_weights,
)
from utils.model import AttentionOnly

kinds = pytest.mark.parametrize("kind", ["Q", "K", "V"])
each_kind = st.sampled_from(["Q", "K", "V"])
shapes = [dict(), dict(n_heads=3, d_model=5, d_head=3, d_vocab=11), dict(n_layers=3, n_heads=1, d_model=4, d_head=6)]


def own_weights(model, layer: int, head: int) -> list[Tensor]:
    """A head's W_Q, W_K, W_V, W_O."""
    return [getattr(model, f"W_{name}")[layer, head].detach() for name in "QKVO"]


def dense(model, at: tuple[int, int]) -> dict[str, Tensor]:
    """[d_model, d_model] for each kind: what a row vector of the stream meets when the head reads it; V is W_OV."""
    W_Q, W_K, W_V, W_O = own_weights(model, *at)
    return {"Q": W_Q @ W_K.T, "K": (W_Q @ W_K.T).T, "V": W_V @ W_O}


def pairs(model) -> list:
    return [(first, second) for first in all_heads(model) for second in all_heads(model) if first[0] < second[0]]


def share(product: Tensor, one: Tensor, other: Tensor) -> float:
    return (product.norm() / (one.norm() * other.norm())).item()


def orthogonal(size: int, generator: torch.Generator) -> Tensor:
    """A random rotation or reflection, each as likely as any other: hence the signs."""
    Q, R = torch.linalg.qr(torch.randn(size, size, generator=generator).double())
    return Q * R.diagonal().sign()


@torch.no_grad()
def stream_turned(model: AttentionOnly) -> AttentionOnly:
    """The same model in another basis of the residual stream."""
    model, R = copy.deepcopy(model), orthogonal(model.cfg.d_model, rng(1))
    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            weight.copy_(weight @ R if name.endswith(("W_E", "W_pos", "W_O")) else R.T @ weight)
    return model


@torch.no_grad()
def heads_rewritten(model: AttentionOnly) -> AttentionOnly:
    """The same model in another, skewed basis inside each head: one for queries and keys, one for values."""
    model, generator, size = copy.deepcopy(model), rng(2), model.cfg.d_head
    for layer, head in all_heads(model):
        one, other = (orthogonal(size, generator) * torch.linspace(0.5, 2, size).double() for _ in range(2))
        attn = model.blocks[layer].attn
        attn.W_Q[head] @= one
        attn.W_K[head] @= torch.linalg.inv(one).T
        attn.W_V[head] @= other
        attn.W_O[head] = torch.linalg.inv(other) @ attn.W_O[head]
    return model


@few
@given(models(), each_kind)
def test_composition_scores_equal_norms_of_whole_matrices(model, kind):
    scores = composition_scores(model, kind)
    assert scores.shape == 2 * (model.cfg.n_layers, model.cfg.n_heads)
    for first, second in pairs(model):
        writes, reads = dense(model, first)["V"], dense(model, second)[kind]
        assert scores[first + second].item() == pytest.approx(share(writes @ reads, writes, reads), abs=1e-10)
        scores[first + second] = 0
    assert (scores == 0).all(), "a head that is not earlier cannot be read"


@kinds
def test_wrong_orders_and_transposes_would_be_noticed(kind):
    """Among them the paper's erratum: ‖W_QK²ᵀ W_OV¹‖ for K."""
    model = AttentionOnly(config()).double()
    for first, second in pairs(model):
        score, writes = composition_scores(model, kind)[first + second].item(), dense(model, first)["V"]
        M = dense(model, second)
        wrong = [M[kind] @ writes, writes @ M[kind].T, writes.T @ M[kind], *(writes @ M[x] for x in "QKV" if x != kind)]
        assert all(abs(share(product, writes, M[kind]) - score) > 1e-4 for product in wrong)


@kinds
def test_a_head_that_reads_where_another_writes_composes_in_its_own_kind_alone(kind):
    """Everything in a direction of its own but for one: only W_O¹ and one matrix of the second head meet."""
    model = AttentionOnly(config(n_heads=1, d_model=6, d_head=1))
    for weight in (weight for block in model.blocks for weight in block.attn.parameters()):
        weight.data.zero_()
    first, second = (block.attn for block in model.blocks)
    first.W_V.data[0, 0], first.W_O.data[0, :, 1] = 3, 5
    for name, direction in zip("QKV", (2, 3, 4)):
        getattr(second, f"W_{name}").data[0, 1 if name == kind else direction] = 7
    second.W_O.data[0, :, 5] = 2
    assert {x: composition_scores(model, x)[0, 0, 1, 0].item() for x in "QKV"} == {x: float(x == kind) for x in "QKV"}
    wrong = dense(model, (1, 0))[kind] @ dense(model, (0, 0))["V"]
    assert wrong.norm() == 0, "the erratum's order would see nothing"


@kinds
def test_a_head_without_weights_gives_zero_and_not_nan(kind):
    model = AttentionOnly(config(n_heads=3))
    before = composition_scores(model, kind), *composition_baseline(model, kind, 5)
    model.blocks[0].attn.W_V.data[1] = 0
    for weight in model.blocks[1].attn.parameters():
        weight.data[2] = 0
    after = composition_scores(model, kind), *composition_baseline(model, kind, 5)
    for one, other in zip(before, after):
        one[0, 1], one[:, :, 1, 2] = 0, 0
        assert_close(other, one)


@kinds
@pytest.mark.parametrize("shape", shapes)
def test_scores_equal_transformer_lens(kind, shape):
    bridge = lens_model(config(**shape))
    assert_close(composition_scores(bridge, kind), bridge.all_composition_scores(kind).scores.detach(), rtol=0, atol=1e-6)
    assert [moment.shape for moment in composition_baseline(bridge, kind, 3)] == 3 * [2 * bridge.W_Q.shape[:2]]


# What chance would give


@few
@given(models(), each_kind, st.integers(2, 9))
def test_the_baseline_is_that_of_explicit_rotations_between_the_heads(model, kind, n):
    d_model, rank = model.cfg.d_model, min(model.cfg.d_model, model.cfg.d_head)
    normal = torch.randn(n, d_model, rank, generator=rng(3), dtype=torch.float64)
    moments = composition_baseline(model, kind, n, rng(3))
    assert all(moment.shape == composition_scores(model, kind).shape for moment in moments)
    for first, second in pairs(model):
        writes, reads = dense(model, first)["V"], dense(model, second)[kind]
        here, there = torch.linalg.svd(writes).Vh, torch.linalg.svd(reads).U
        scores = []
        for U in torch.linalg.qr(normal, mode="complete").Q:
            R = here.T @ U.T @ there.T  # turns the directions that the second head reads against those the first writes
            assert_close(R @ R.T, torch.eye(d_model).double(), **exactly)
            scores.append(share(writes @ R @ reads, writes, reads))
        scores = torch.tensor(scores, dtype=torch.float64)
        for moment, expected in zip(moments, (scores.mean(), scores.std(), scores.max())):
            assert moment[first + second].item() == pytest.approx(expected.item(), abs=1e-8)
            moment[first + second] = 0
    assert all((moment == 0).all() for moment in moments)


@kinds
@pytest.mark.parametrize(("d_model", "d_head"), [(9, 3), (5, 8)])
def test_the_baseline_is_that_of_uniform_rotations(kind, d_model, d_head):
    model, generator, n = AttentionOnly(config(n_heads=1, d_model=d_model, d_head=d_head)).double(), rng(5), 4000
    writes, reads = dense(model, (0, 0))["V"], dense(model, (1, 0))[kind]
    uniform = torch.tensor([share(writes @ orthogonal(d_model, generator) @ reads, writes, reads) for _ in range(n)])
    mean, sd, most = (moment[0, 0, 1, 0].item() for moment in composition_baseline(model, kind, n))
    assert mean == pytest.approx(uniform.mean().item(), abs=5 * sd / math.sqrt(n))
    assert sd == pytest.approx(uniform.std().item(), rel=0.1)
    assert mean < most == pytest.approx(uniform.max().item(), rel=0.1)
    assert mean**2 + sd**2 == pytest.approx(1 / d_model, rel=0.05), "the mean square of chance is 1 / d_model"


@kinds
def test_gaussian_heads_give_one_over_the_root_of_d_model(kind):
    model = AttentionOnly(config(n_layers=3, d_model=24, d_head=6))
    model.blocks[0].attn.W_V.data *= torch.linspace(0, 9, 6)  # which it does not see: it knows the shapes alone
    moments, earlier = composition_baseline(model, kind, 300, against="gaussian"), composition_scores(model, kind) > 0
    assert all((moment[~earlier] == 0).all() and len(moment[earlier].unique()) == 1 for moment in moments)
    mean, sd, most = (moment.max().item() for moment in moments)
    assert mean == pytest.approx(24**-0.5, rel=0.03)
    assert mean**2 + sd**2 == pytest.approx(1 / 24, rel=0.05)
    assert mean + 2 * sd < most < mean + 6 * sd


@pytest.mark.parametrize("against", ["rotations", "gaussian"])
def test_without_a_generator_the_draws_are_the_same_at_every_call(against):
    model, state = AttentionOnly(config()), torch.get_rng_state()
    one, again = (composition_baseline(model, "K", 150, against=against)[0] for _ in range(2))
    assert torch.equal(one, again)
    assert torch.equal(torch.get_rng_state(), state), "the baseline moved torch's global generator"
    generator = rng(7)
    assert not torch.equal(*(composition_baseline(model, "K", 150, generator, against)[0] for _ in range(2)))


@kinds
def test_a_planted_pair_stands_out_against_both_baselines(kind):
    model = AttentionOnly(config(n_heads=4, d_model=32, d_head=8))
    getattr(model.blocks[1].attn, f"W_{kind}").data[2] = model.blocks[0].attn.W_O.data[3].T
    scores = composition_scores(model, kind)[0, :, 1]
    for against in ("rotations", "gaussian"):
        mean, sd, most = (moment[0, :, 1] for moment in composition_baseline(model, kind, 300, against=against))
        out = ((scores - mean) / sd).abs() > 6
        assert out.nonzero().tolist() == [[3, 2]]
        assert (scores > most)[3, 2]


# Virtual heads


@few
@given(models())
def test_virtual_heads_equal_products_of_whole_matrices(model):
    W_E = model.W_E
    for first, second in pairs(model):
        one, other = dense(model, first), dense(model, second)
        assert_close(virtual_ov(model, first, second).AB, one["V"] @ other["V"], **exactly)
        assert_close(k_composed_qk(model, first, second).AB, W_E @ other["Q"] @ one["V"].T @ W_E.T, **exactly)
        assert virtual_ov(model, first, second).mdim == k_composed_qk(model, first, second).mdim == model.cfg.d_head
        for kind, weight in zip("QKV", own_weights(model, *second)):
            assert_close(virtual_weights(model, first, second, kind), own_weights(model, *first)[3] @ weight, **exactly)


@few
@given(models(), st.sampled_from([stream_turned, heads_rewritten]), each_kind)
def test_a_change_of_basis_changes_no_composition(model, rewritten, kind):
    other = rewritten(model)
    assert_close(composition_scores(other, kind), composition_scores(model, kind), rtol=0, atol=1e-8)
    for one, same in zip(composition_baseline(model, kind, 9), composition_baseline(other, kind, 9)):
        assert_close(one, same, rtol=0, atol=1e-8)
    for pair in pairs(model):
        assert_close(k_composed_qk(other, *pair).AB, k_composed_qk(model, *pair).AB, **exactly)
        if rewritten is stream_turned:
            assert_close(virtual_weights(other, *pair, kind), virtual_weights(model, *pair, kind), **exactly)
        else:
            assert_close(virtual_ov(other, *pair).AB, virtual_ov(model, *pair).AB, **exactly)


@few
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_overlap_is_the_mean_squared_cosine_of_the_principal_angles(d_model, k, m, seed):
    one, other = (torch.randn(rows, d_model, generator=rng(seed + rows)).double() for rows in (k, m))
    bases = [torch.linalg.qr(rows.T).Q for rows in (one, other)]
    cosines = torch.linalg.svdvals(bases[0].T @ bases[1])
    overlap, by_chance = subspace_overlap(one, other)
    assert overlap == pytest.approx(cosines.square().mean().item(), abs=1e-8)
    assert by_chance == pytest.approx(max(min(k, d_model), min(m, d_model)) / d_model)
    assert subspace_overlap(other, one) == pytest.approx((overlap, by_chance), abs=1e-8)
    mixed = torch.randn(k + 3, k, generator=rng(seed)).double() @ one  # the same space, of lower rank than rows
    assert subspace_overlap(mixed, other) == pytest.approx((overlap, by_chance), abs=1e-6)
    assert subspace_overlap(mixed, one)[0] == pytest.approx(1, abs=1e-6)
    R = orthogonal(d_model, rng(seed))
    assert subspace_overlap(one @ R, other @ R) == pytest.approx((overlap, by_chance), abs=1e-8)


def test_overlap_of_known_and_of_random_spaces():
    eye = torch.eye(6)
    assert subspace_overlap(eye[:2], eye[2:5]) == pytest.approx((0, 0.5))
    assert subspace_overlap(eye[:2], eye[1:5]) == pytest.approx((0.5, 4 / 6))
    assert subspace_overlap(eye[[0, 0]], torch.stack([eye[0] + eye[1], 0 * eye[0]])) == pytest.approx((0.5, 1 / 6))
    draws = [subspace_overlap(*torch.randn(8, 12, generator=rng(seed)).split([3, 5])) for seed in range(300)]
    overlap, by_chance = torch.tensor(draws).mean(0).tolist()
    assert overlap == pytest.approx(by_chance, rel=0.03)


# Bad input


@pytest.mark.parametrize("function", [virtual_ov, k_composed_qk, lambda *pair: virtual_weights(*pair, "K")])
def test_a_pair_that_does_not_exist_or_does_not_go_up_is_refused(function):
    for pair in [((1, 0), (0, 0)), ((0, 0), (0, 1)), ((1, 1), (1, 1))]:
        with pytest.raises(ValueError, match="does not go up: each head must be in a later layer than the one before"):
            function(AttentionOnly(config()), *pair)
    for pair in [((2, 0), (1, 0)), ((0, 2), (1, 0)), ((0, 0), (-1, 0)), ((0, 0), (1, -1))]:
        with pytest.raises(ValueError, match=r"There is no head \(.*(2|-1).*\): this model has 2 layers of 2 heads"):
            function(AttentionOnly(config()), *pair)


@pytest.mark.parametrize("kind", ["O", "k", "", "QK"])
def test_an_unknown_kind_is_refused(kind):
    for function in (composition_scores, composition_baseline, lambda x, kind: virtual_weights(x, (0, 0), (1, 0), kind)):
        with pytest.raises(ValueError, match=f'Composition is of kind "Q", "K" or "V", not {kind!r}'):
            function(AttentionOnly(config()), kind)


def test_an_unknown_baseline_is_refused():
    with pytest.raises(ValueError, match="There is no baseline 'luck'; there are rotations, gaussian"):
        composition_baseline(AttentionOnly(config()), "K", against="luck")


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (0, 0)])
def test_nothing_overlaps_with_zeros(sizes):
    with pytest.raises(ValueError, match="A matrix of zeros spans no space"):
        subspace_overlap(*(size * torch.eye(4)[:2] for size in sizes))
