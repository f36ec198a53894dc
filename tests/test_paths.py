"""Sums over paths and over terms of scores, against loops, a forward pass by hand and TransformerLens' own model."""

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from transformer_lens.model_bridge import TransformerBridge

from tests.helpers import config, few, rng
from tests.test_model import documents, exactly
from tests.test_surgery import begin, by_hand, lens, our_models, refused, smeared, text
from utils.anatomy import all_heads
from utils.model import AttentionOnly
from utils.paths import expand_logits, expand_scores, freeze, term_importance
from utils.training import load_model, planted_language


@torch.no_grad()
def naive_stream(model, tokens: Tensor, path: tuple, start: Tensor | None = None) -> Tensor:
    """What went through the heads of a path, one document, one place and one source at a time."""
    _, cache = model.run_with_cache(tokens)
    documents = []
    for b, stream in enumerate(begin(model, tokens)[0] if start is None else start):
        for layer, head in path:
            carried = stream @ model.W_V[layer, head] @ model.W_O[layer, head]
            rows = enumerate(cache["pattern", layer][b, head].tolist())
            stream = torch.stack([sum(row[src] * carried[src] for src in range(t + 1)) for t, row in rows])
        documents.append(stream)
    return torch.stack(documents)


def every_path(model, before: int | None = None) -> list[tuple]:
    layers = range(model.cfg.n_layers if before is None else before)
    ways = product(*([None, *((layer, head) for head in range(model.cfg.n_heads))] for layer in layers))
    return sorted((tuple(filter(None, way)) for way in ways), key=lambda path: (len(path), path))


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    return -logits.log_softmax(-1)[:, :-1].gather(-1, tokens[:, 1:, None]).mean()


def picked(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.gather(-1, targets[..., None])[..., 0]


def cached_scores(model, tokens: Tensor, at: tuple) -> Tensor:
    """The model's own, 0 where it may not look."""
    return model.run_with_cache(tokens)[1]["attn_scores", at[0]][:, at[1]].tril().nan_to_num(neginf=0)


def a_head(data, model) -> tuple[int, int]:
    return data.draw(st.sampled_from(all_heads(model)))


# Paths


@few
@given(st.data())
def test_paths_sum_to_the_model_in_all_and_by_order(data):
    model = data.draw(our_models())
    tokens = data.draw(documents(model))
    expansion, orders = expand_logits(model, tokens), [0.0] * (model.cfg.n_layers + 1)
    assert expansion.paths == every_path(model)
    assert len(expansion.paths) == (1 + model.cfg.n_heads) ** model.cfg.n_layers
    for path in expansion.paths:
        orders[len(path)] = orders[len(path)] + expansion.logits(path)
    assert_close(sum(orders), model(tokens), **exactly)
    assert_close(expansion.total(), model(tokens), **exactly)
    for order, logits in enumerate(orders):
        assert_close(expansion.total(order), logits, **exactly)


@few
@given(st.data())
def test_a_path_equals_a_loop_over_places_and_heads(data):
    model = data.draw(our_models())
    tokens, path = data.draw(documents(model)), data.draw(st.sampled_from(every_path(model)))
    expansion = expand_logits(model, tokens)
    assert_close(expansion.logits(path), naive_stream(model, tokens, path) @ model.W_U, **exactly)
    pattern = expansion.pattern(path)
    assert_close(pattern.sum(-1), torch.ones_like(pattern[..., 0]), **exactly)
    assert (pattern.triu(1) == 0).all()


@few
@given(st.data())
def test_attribution_is_the_targets_part_of_each_path_and_divides_by_source(data):
    model = data.draw(our_models())
    tokens, path = data.draw(documents(model)), data.draw(st.sampled_from(every_path(model)))
    expansion, targets = expand_logits(model, tokens), text(model, *tokens.shape, seed=1)
    attribution = expansion.attribution(targets)
    assert_close(attribution.sum(0), picked(model(tokens), targets), **exactly)
    for other, scores in zip(expansion.paths, attribution, strict=True):
        assert_close(scores, picked(expansion.logits(other), targets), **exactly)
    by_source = expansion.by_source(path, targets)
    assert_close(by_source.sum(-1), attribution[expansion.paths.index(path)], **exactly)
    assert (by_source.triu(1) == 0).all()
    src = data.draw(st.integers(0, tokens.shape[1] - 1))
    alone = begin(model, tokens)[0] * F.one_hot(torch.tensor(src), tokens.shape[1])[:, None]
    assert_close(by_source[..., src], picked(naive_stream(model, tokens, path, alone) @ model.W_U, targets), **exactly)


@few
@given(st.data())
def test_total_through_a_head_is_the_sum_of_the_paths_with_it(data):
    model = data.draw(our_models(least=1))
    expansion = expand_logits(model, data.draw(documents(model)))
    head, order = a_head(data, model), data.draw(st.integers(1, model.cfg.n_layers))
    paths = [path for path in expansion.paths if head in path]
    assert_close(expansion.total(through=head), sum(map(expansion.logits, paths)), **exactly)
    of_order = sum(expansion.logits(path) for path in paths if len(path) == order)
    assert_close(expansion.total(order, through=head), of_order, **exactly)


@few
@given(st.data())
def test_a_frozen_model_is_the_model_without_attention_of_its_own(data):
    model = data.draw(our_models())
    tokens = data.draw(documents(model))
    frozen, others = freeze(model, tokens), text(model, *tokens.shape, seed=1)
    one_hot = F.one_hot(tokens, model.cfg.d_vocab).double()
    assert_close(frozen(one_hot), model(tokens), **exactly)
    x, y = torch.randn(2, *one_hot.shape, generator=rng(2), dtype=torch.float64)
    nothing = frozen(torch.zeros_like(x))
    assert_close(frozen(2 * x - 3 * y), 2 * frozen(x) - 3 * frozen(y) + 2 * nothing, **exactly)
    if model.cfg.positions == "qk":
        assert (nothing == 0).all()
    _, cache = model.run_with_cache(tokens)  # other tokens, looked at as these were
    hooks = [(lambda name: name.endswith("pattern"), lambda pattern, hook: cache[hook.name])]
    expected = model.run_with_hooks(others, fwd_hooks=hooks)
    assert_close(frozen(F.one_hot(others, model.cfg.d_vocab).double()), expected, **exactly)


@few
@given(st.data())
def test_importance_equals_a_slow_account_of_losses(data):
    model = data.draw(our_models())
    tokens = data.draw(documents(model, least=2))
    expansion, importance, layers = expand_logits(model, tokens), term_importance(model, tokens), range(model.cfg.n_layers)
    orders = [sum(expansion.logits(p) for p in expansion.paths if len(p) == n) for n in range(model.cfg.n_layers + 1)]
    nats = torch.stack([loss_of(sum(orders[: n + 1]), tokens) for n in range(len(orders))])
    uniform = nats.new_tensor([math.log(model.cfg.d_vocab)])
    assert_close(expansion.losses(), nats, **exactly)
    assert_close(importance.by_order, torch.cat([uniform, nats[:-1]]) - nats, **exactly)
    assert_close(importance.by_order.sum(0, keepdim=True), uniform - model.loss(tokens), **exactly)
    singles = [sum(expansion.logits(((layer, head),)) for head in range(model.cfg.n_heads)) for layer in layers]
    alone = [nats[0] - loss_of(orders[0] + singles[layer], tokens) for layer in layers]
    others = [orders[0] + sum(singles[other] for other in layers if other != layer) for layer in layers]
    assert_close(importance.alone, nats.new_tensor(alone), **exactly)
    assert_close(importance.given, nats.new_tensor([loss_of(rest, tokens) - nats[1] for rest in others]), **exactly)
    start, _ = begin(model, tokens)
    for kind in "QK":
        blind = by_hand(model, tokens, lambda reader, at, x, written, kind=kind: start if reader == kind else x)
        assert importance.cut[kind] == pytest.approx((loss_of(blind, tokens) - nats[-1]).item(), abs=1e-10)


# Scores


@few
@given(st.data())
def test_a_term_of_scores_equals_a_loop_over_places(data):
    model = data.draw(our_models(least=1))
    tokens, at = data.draw(documents(model)), a_head(data, model)
    scores, terms = expand_scores(model, tokens, *at), ["tok", "pos", *every_path(model, before=at[0])[1:]]
    assert scores.terms == terms
    query, key = data.draw(st.sampled_from(terms)), data.draw(st.sampled_from(terms))
    named = {"tok": model.W_E[tokens], "pos": model.W_pos[: tokens.shape[1]].expand(len(tokens), -1, -1)}
    q, k = (named[term] if term in named else naive_stream(model, tokens, term) for term in (query, key))
    q, k = (q @ model.W_Q[at]).tolist(), smeared(model, at, k @ model.W_K[at]).tolist()
    for b, document in enumerate(scores.term(query, key).tolist()):
        for dest, src in product(range(tokens.shape[1]), repeat=2):
            by_loop = sum(x * y for x, y in zip(q[b][dest], k[b][src])) / math.sqrt(model.cfg.d_head)
            assert document[dest][src] == pytest.approx(by_loop, abs=1e-10)


@few
@given(st.data())
def test_terms_sum_to_scores_in_all_and_by_composition(data):
    model = data.draw(our_models(least=1).filter(lambda model: (1 + model.cfg.n_heads) ** (model.cfg.n_layers - 1) < 10))
    tokens, at = data.draw(documents(model)), a_head(data, model)
    scores, groups = expand_scores(model, tokens, *at), dict.fromkeys(["none", "Q", "K", "Q+K"], torch.zeros(()))
    for query, key in product(scores.terms, repeat=2):
        group = "+".join(kind for kind, term in zip("QK", (query, key)) if isinstance(term, tuple)) or "none"
        groups[group] = groups[group] + scores.term(query, key)
    by_composition = scores.by_composition()
    assert list(by_composition) == list(groups)
    for name, expected in groups.items():
        assert_close(by_composition[name], expected.double().expand_as(by_composition[name]), **exactly)
        assert at[0] > 0 or name == "none" or (by_composition[name] == 0).all()
    assert scores.total().isfinite().all()
    for total in (scores.total(), sum(groups.values()), sum(by_composition.values())):
        assert_close(total.tril(), cached_scores(model, tokens, at), **exactly)


def test_a_third_layer_has_terms_of_order_two():
    model = AttentionOnly(config(n_layers=3))
    terms = expand_scores(model, text(model), 2, 0).terms
    assert [term for term in terms if len(term) == 2] == [((0, i), (1, j)) for i in (0, 1) for j in (0, 1)]


# Trained weights, laziness, TransformerLens


@pytest.mark.parametrize("name", ["planted-1l", "planted-2l"])
def test_sums_are_exact_at_trained_weights(name):
    model, tokens = load_model(name), planted_language().sample(3, 40, rng(0)).tokens
    expansion, targets, nearly = expand_logits(model, tokens), tokens.roll(-1, 1), dict(rtol=0, atol=1e-4)
    logits = model(tokens)
    assert_close(sum(map(expansion.logits, expansion.paths)), logits, **nearly)
    assert_close(expansion.total(), logits, **nearly)
    assert_close(expansion.attribution(targets).sum(0), picked(logits, targets), **nearly)
    assert_close(freeze(model, tokens)(F.one_hot(tokens, model.cfg.d_vocab).float()), logits, **nearly)
    for at in all_heads(model):
        assert_close(expand_scores(model, tokens, *at).total().tril(), cached_scores(model, tokens, at), **nearly)


class Sizes(TorchDispatchMode):
    """How many numbers each operation hands out."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.largest = max(getattr(self, "largest", 0), out.numel() if isinstance(out, Tensor) else 0)
        return out


def largest(work: Callable) -> int:
    with Sizes() as sizes:
        work()
    return sizes.largest


def test_nothing_large_is_formed_unless_asked_for():
    model = AttentionOnly(config(n_heads=9, d_vocab=2000))
    tokens, vocabulary = text(model, 3, 9), 2000 * 3 * 9  # one path's logits: 54,000 numbers; all 100 paths': 5,400,000
    assert largest(lambda: expand_logits(model, tokens)) <= vocabulary
    expansion = expand_logits(model, tokens)
    assert largest(lambda: expansion.attribution(tokens)) <= model.W_U.numel()  # 16,000; 100 streams would be 21,600
    assert largest(lambda: expansion.logits(((0, 3), (1, 4)))) <= vocabulary
    assert largest(lambda: expansion.total(order=1)) <= vocabulary
    assert largest(expansion.total) <= vocabulary


@pytest.mark.parametrize("changes", [{}, dict(n_layers=1, n_heads=3), dict(n_layers=3, d_model=6), dict(d_model=12)])
def test_sums_are_exact_on_transformer_lens_own_model(changes):
    model = lens(**changes)
    tokens, targets = text(model), text(model, seed=1)
    expansion, (logits, cache) = expand_logits(model, tokens), model.run_with_cache(tokens)
    assert expansion.paths == [*every_path(model), "bias"]
    assert_close(sum(map(expansion.logits, expansion.paths)), logits, **exactly)
    assert_close(expansion.total(), logits, **exactly)
    orders = sum(expansion.total(order) for order in range(model.cfg.n_layers + 1))
    assert_close(orders + expansion.logits("bias"), logits, **exactly)
    through = sum(expansion.logits(path) for path in expansion.paths if path != "bias" and (0, 1) in path)
    assert_close(expansion.total(through=(0, 1)), through, **exactly)
    attribution = expansion.attribution(targets)
    assert_close(attribution, torch.stack([picked(expansion.logits(p), targets) for p in expansion.paths]), **exactly)
    assert_close(freeze(model, tokens)(F.one_hot(tokens, model.cfg.d_vocab).double()), logits, **exactly)
    assert_close(expansion.losses()[-1], loss_of(logits, tokens), **exactly)
    for at in all_heads(model):
        scores = expand_scores(model, tokens, *at)  # by the pattern: TransformerLens' hook_attn_scores has probabilities
        pattern = scores.total().masked_fill(torch.ones(6, 6).triu(1) > 0, -torch.inf).softmax(-1)
        assert_close(pattern, cache["pattern", at[0]][:, at[1]], **exactly)
        if len(scores.terms) < 10:
            assert_close(sum(scores.term(*pair) for pair in product(scores.terms, repeat=2)), scores.total(), **exactly)


# Bad input


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        (((2, 0),), r"There is no head \(2, 0\): this model has 2 layers of 2 heads"),
        (((0, -1),), r"There is no head \(0, -1\)"),
        ((0, 1), r"A head is a pair \(layer, head\) such as \(1, 0\), not 0"),
        (((0, 1, 1),), r"A head is a pair .*not \(0, 1, 1\)"),
        (((1, 0), (0, 1)), r"The path \(\(1, 0\), \(0, 1\)\) does not go up"),
        (((0, 0), (0, 1)), r"The path \(\(0, 0\), \(0, 1\)\) does not go up"),
    ],
)
def test_a_path_that_cannot_be_is_named(path, sentence):
    model = AttentionOnly(config())
    expansion = expand_logits(model, text(model))
    for call in (expansion.logits, expansion.pattern, lambda path: expansion.by_source(path, text(model))):
        with refused(sentence):
            call(path)


@pytest.mark.parametrize("start", [expand_logits, freeze, term_importance, lambda m, t: expand_scores(m, t, 0, 0)])
def test_models_and_tokens_without_an_exact_sum_are_refused(start):
    shape = dict(n_layers=2, n_heads=2, d_model=8, d_head=4, d_vocab=7, n_ctx=9)
    more = dict(attn_only=False, d_mlp=16, act_fn="relu", normalization_type="LN")
    bridge, model = TransformerBridge.boot_native(shape | more, device="cpu"), AttentionOnly(config())
    with refused("This model has MLPs and normalisation LN, so a sum over paths of heads would not be exact"):
        start(bridge, text(bridge))
    for tokens in (torch.zeros(6, dtype=torch.long), torch.zeros(2, 6), torch.ones(2, 6) > 0):
        with refused(rf"Tokens must be integers \[batch, seq\].*got {tokens.dtype}"):
            start(model, tokens)
    with refused("Tokens run from 0 to 6; got 7"):
        start(model, torch.full((1, 2), 7))


def test_targets_orders_heads_and_terms_that_do_not_exist_are_named():
    model = AttentionOnly(config())
    expansion = expand_logits(model, text(model))
    for call in (expansion.attribution, lambda targets: expansion.by_source((), targets)):
        with refused(r"Targets must be shaped as the tokens, \[2, 6\]; got \[2, 5\]"):
            call(text(model, seq=5))
        with refused(r"Tokens must be integers .*got torch.float32"):
            call(torch.zeros(2, 6))
        for token in (-1, 7):
            with refused(f"Tokens run from 0 to 6; got {token}"):
                call(torch.full((2, 6), token))
    for order in (-1, 3):
        with refused(f"There is no path of order {order}: with 2 layers, orders are 0 … 2"):
            expansion.total(order)
    with refused(r"There is no head \(0, 5\)"):
        expansion.total(through=(0, 5))
    for at in ((2, 0), (-1, 0), (0, 2)):
        with refused(rf"There is no head \({at[0]}, {at[1]}\)"):
            expand_scores(model, text(model), *at)
    for term in ("noise", "bias", ((1, 0),), (), ((0, 5),)):
        with refused(r"Head \(1, 0\) has no term .* its terms are \['tok', 'pos', \(\(0, 0\),\)"):
            expand_scores(model, text(model), 1, 0).term("tok", term)
    with refused("A loss needs at least two tokens"):
        term_importance(model, text(model, seq=1))


def test_targets_of_any_integer_type_will_do():
    model = AttentionOnly(config()).double()
    expansion, targets = expand_logits(model, text(model)), text(model, seed=1)
    assert torch.equal(expansion.attribution(targets.to(torch.int16)), expansion.attribution(targets))


def test_a_mixture_of_another_shape_is_refused():
    model = AttentionOnly(config()).double()
    with refused(r"A mixture has a weight for each token of the vocabulary, \(2, 6, 7\); got \(1, 6, 7\)"):
        freeze(model, text(model))(torch.zeros(1, 6, 7).double())


@pytest.mark.parametrize("build", [lambda: AttentionOnly(config()).double(), lens], ids=["ours", "theirs"])
def test_a_picture_of_paths_adds_up(build):
    model = build()
    tokens = text(model)
    expansion, targets = expand_logits(model, tokens), text(model, seed=1)
    picture = expansion.picture(targets, doc=1)
    assert picture["paths"][:2] == ["direct path", "0.0"]
    assert "0.1 → 1.0" in picture["paths"]
    assert_close(picture["attribution"].sum(0), model(tokens)[1].gather(1, targets[1, :, None])[:, 0].detach())
    from_tokens = slice(None, -1) if build is lens else slice(None)  # biases come from no token
    assert_close(picture["sources"].sum(-1)[from_tokens], picture["attribution"][from_tokens])
    assert_close(picture["patterns"].sum(-1)[from_tokens], torch.ones_like(picture["attribution"][from_tokens]))
