"""Ablations and cuts, against a forward pass by hand; the hooks they leave behind: none."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import product

import jaxtyping
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close
from transformer_lens.model_bridge import TransformerBridge

from bench.rivals import lens_model
from tests.helpers import config, few, rng
from tests.test_model import documents, exactly, models
from utils.anatomy import all_heads
from utils.model import AttentionOnly
from utils.surgery import ablate, cut


@cache
def lens(**changes) -> TransformerBridge:
    """TransformerLens' own model, with random weights and all the biases it can have, in float64."""
    model = lens_model(config(**changes)).double()
    model.unembed.original_component.bias = nn.Parameter(torch.empty(model.cfg.d_vocab, dtype=torch.float64))
    for seed, weight in enumerate(model.parameters()):
        weight.data = 0.3 * torch.randn(weight.shape, generator=rng(seed), dtype=torch.float64)
    return model


def text(model, batch: int = 2, seq: int = 6, seed: int = 0) -> Tensor:
    return torch.randint(model.cfg.d_vocab, (batch, seq), generator=rng(seed))


@contextmanager
def refused(sentence: str) -> Iterator[None]:
    """A ValueError with this in it, as students get it: without the type checker of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        with pytest.raises(ValueError, match=sentence):
            yield


def begin(model, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The stream before the first layer, and what queries and keys get on top of it."""
    x, places = model.W_E[tokens].detach(), model.W_pos[: tokens.shape[1]].detach()
    in_stream = not isinstance(model, AttentionOnly) or model.cfg.positions == "stream"
    return (x + places, torch.zeros_like(places)) if in_stream else (x, places)


def smeared(model, at: tuple, keys: Tensor) -> Tensor:
    if not getattr(model.cfg, "smeared_keys", False):
        return keys
    own = model.blocks[at[0]].attn.alpha[at[1]].sigmoid()
    return torch.cat([keys[:, :1], own * keys[:, 1:] + (1 - own) * keys[:, :-1]], dim=1)


@torch.no_grad()
def by_hand(
    model,
    tokens: Tensor,
    sees: Callable = lambda kind, at, stream, written: stream,
    looks: Callable = lambda at, pattern: pattern,
    takes: Callable = lambda at, z: z,
) -> Tensor:
    """The forward pass head by head; each may see another stream, look elsewhere, or take something else from there."""

    def bias(name: str, *at: int) -> Tensor | float:
        return 0.0 if isinstance(model, AttentionOnly) else getattr(model, f"b_{name}")[at]

    (x, places), written = begin(model, tokens), {}
    future = torch.ones(tokens.shape[1], tokens.shape[1]).triu(1) > 0
    for layer in range(model.cfg.n_layers):
        for at in product([layer], range(model.cfg.n_heads)):
            q, k, v = (sees(kind, at, x, written) + (0 if kind == "V" else places) for kind in "QKV")
            q, k, v = (part @ getattr(model, f"W_{kind}")[at] + bias(kind, *at) for kind, part in zip("QKV", (q, k, v)))
            scores = q @ smeared(model, at, k).mT / math.sqrt(model.cfg.d_head)
            pattern = looks(at, scores.masked_fill(future, -torch.inf).softmax(-1))
            written[at] = takes(at, pattern @ v) @ model.W_O[at]
        x = x + sum(written[layer, head] for head in range(model.cfg.n_heads)) + bias("O", layer)
    return x @ model.W_U + bias("U")


@st.composite
def our_models(draw, least: int = 0) -> AttentionOnly:
    """Ours, with keys that each layer smears in its own way."""
    model = draw(models(least))
    for layer, block in enumerate(model.blocks):
        if block.attn.alpha is not None:
            block.attn.alpha.data += layer
    return model


@st.composite
def cases(draw, least: int = 1) -> tuple:
    """A model, ours or TransformerLens', and a text for it."""
    theirs = st.sampled_from([dict(n_layers=2), dict(n_layers=3, n_heads=3, d_model=6)]).map(lambda sizes: lens(**sizes))
    model = draw(our_models(least) | theirs)
    return model, draw(documents(model))


def some_heads(data, model) -> list[tuple[int, int]]:
    return data.draw(st.lists(st.sampled_from(all_heads(model)), min_size=1, max_size=4, unique=True))


@few
@given(cases(least=0))
def test_the_pass_by_hand_is_the_model(case):
    model, tokens = case
    assert_close(by_hand(model, tokens), model(tokens), **exactly)


@few
@given(st.data())
def test_zero_is_a_head_that_writes_nothing(data):
    model, tokens = data.draw(cases())
    heads = some_heads(data, model)
    with ablate(model, heads) as same, ablate(model, heads, "zero"):
        assert same is model
        assert_close(model(tokens), by_hand(model, tokens, takes=lambda at, z: z * (at not in heads)), **exactly)
    with ablate(model, heads[0]):
        once = model(tokens)
    if isinstance(model, AttentionOnly):
        edited = copy.deepcopy(model)
        edited.blocks[heads[0][0]].attn.W_O.data[heads[0][1]] = 0
        assert_close(once, edited(tokens), **exactly)


@few
@given(st.data())
def test_mean_is_a_head_that_writes_its_mean_over_the_reference(data):
    model, tokens = data.draw(cases())
    heads, reference, taken = some_heads(data, model), data.draw(documents(model)), {}
    by_hand(model, reference, takes=lambda at, z: taken.setdefault(at, z))
    means = {at: sum(row for document in z for row in document) / reference.numel() for at, z in taken.items()}
    expected = by_hand(model, tokens, takes=lambda at, z: means[at].expand_as(z) if at in heads else z)
    with ablate(model, heads, "mean", reference):
        assert_close(model(tokens), expected, **exactly)


@few
@given(st.data())
def test_pattern_is_a_head_that_looks_as_over_the_reference_or_everywhere_alike(data):
    model, tokens = data.draw(cases())
    heads, n, seen = some_heads(data, model), tokens.shape[1], {}
    reference = data.draw(documents(model, least=n))
    by_hand(model, reference, looks=lambda at, pattern: seen.setdefault(at, pattern))
    mean = {at: sum(pattern)[:n, :n] / len(reference) for at, pattern in seen.items()}
    even = [[1 / (dest + 1) if src <= dest else 0.0 for src in range(n)] for dest in range(n)]
    even = torch.tensor(even, dtype=torch.float64)
    with ablate(model, heads, "pattern", reference):
        expected = by_hand(model, tokens, looks=lambda at, own: mean[at].expand_as(own) if at in heads else own)
        assert_close(model(tokens), expected, **exactly)
    with ablate(model, heads, "pattern"):
        expected = by_hand(model, tokens, looks=lambda at, own: even.expand_as(own) if at in heads else own)
        assert_close(model(tokens), expected, **exactly)


@pytest.mark.parametrize("kind", "QKV")
@few
@given(data=st.data())
def test_a_cut_hides_heads_from_one_reader_of_another(data, kind):
    model, tokens = data.draw(cases(least=2))
    second = data.draw(st.sampled_from(all_heads(model)).filter(lambda at: at[0] > 0))
    hidden = data.draw(st.lists(st.sampled_from(all_heads(model, before=second[0])), min_size=1, unique=True))

    def sees(reader: str, at: tuple, stream: Tensor, written: dict) -> Tensor:
        return stream - sum(written[head] for head in hidden) if (reader, at) == (kind, second) else stream

    with ExitStack() as cuts:
        assert all(cuts.enter_context(cut(model, first, second, kind)) is model for first in hidden)
        assert_close(model(tokens), by_hand(model, tokens, sees), **exactly)


@pytest.mark.parametrize("how", ["zero", "mean", "pattern"])
def test_gradients_flow_past_an_ablated_head(how):
    model, kept = AttentionOnly(config()).double(), []
    intact = model.run_with_cache(text(model))[1]
    place = f"blocks.1.attn.hook_{'pattern' if how == 'pattern' else 'v'}"
    model.add_hook(place, lambda activation, hook: kept.append(activation))
    with ablate(model, (1, 0), how, reference=text(model, seed=1)):
        kept.clear()
        model.loss(text(model)).backward()
    assert torch.equal(kept[0], intact[place]), "what somebody else took from the same place was changed"
    assert (model.blocks[1].attn.W_Q.grad[0] == 0).all()
    assert (model.blocks[1].attn.W_Q.grad[1] != 0).any()


def test_a_silent_head_has_nothing_to_cut():
    model = AttentionOnly(config()).double()
    with ablate(model, (0, 1)):
        silent = model(text(model))
        with cut(model, (0, 1), (1, 0)):
            assert_close(model(text(model)), silent, **exactly)


# Hooks


def hooks(model) -> int:
    points = {id(point): point for point in model.hook_dict.values()}.values()
    return sum(len(point.fwd_hooks) + len(point._forward_hooks) for point in points)


@pytest.mark.parametrize("how", ["zero", "mean"])
@pytest.mark.parametrize("kind", "QKV")
def test_a_cut_around_an_ablated_head_takes_nothing_away(how, kind):
    model = AttentionOnly(config()).double()
    tokens = text(model)
    with torch.no_grad(), ablate(model, (0, 0), how, reference=tokens):
        alone = model(tokens)
        with cut(model, (0, 0), (1, 0), kind):
            within = model(tokens)
    with torch.no_grad(), cut(model, (0, 0), (1, 0), kind), ablate(model, (0, 0), how, reference=tokens):
        assert_close(model(tokens), within, atol=1e-12, rtol=0)
    if how == "zero":
        assert_close(within, alone, atol=1e-12, rtol=0)


@torch.no_grad()
def test_the_same_cut_twice_is_one_cut():
    model = AttentionOnly(config()).double()
    tokens, whole = text(model), model(text(model))
    with cut(model, (0, 1), (1, 0)):
        once = model(tokens)
        with cut(model, (0, 1), (1, 0)):
            assert torch.equal(model(tokens), once)
        assert torch.equal(model(tokens), once)
    assert torch.equal(model(tokens), whole)
    assert not torch.equal(once, whole)


def test_a_tuple_of_heads_is_as_good_as_a_list():
    model = AttentionOnly(config()).double()
    with torch.no_grad(), ablate(model, ((0, 1), (1, 0))):
        both = model(text(model))
    with torch.no_grad(), ablate(model, [(0, 1), (1, 0)]):
        assert torch.equal(model(text(model)), both)


SURGERY = {
    "zero": lambda model: ablate(model, (0, 1)),
    "mean": lambda model: ablate(model, [(0, 0), (1, 1)], "mean", text(model, seed=1)),
    "pattern": lambda model: ablate(model, (1, 0), "pattern"),
    "cut": lambda model: cut(model, (0, 1), (1, 0)),
}


@pytest.mark.parametrize("build", [lambda: AttentionOnly(config()).double(), lens], ids=["ours", "theirs"])
@pytest.mark.parametrize("outer", SURGERY)
def test_no_hook_is_left_behind_and_a_users_own_survives(build, outer):
    model, calls = build(), []
    tokens, before = text(model), hooks(model)
    intact = model(tokens)
    for inner in SURGERY.values():
        with SURGERY[outer](model), inner(model):
            assert not torch.equal(model(tokens), intact)
        with pytest.raises(KeyError, match="mine"), SURGERY[outer](model), inner(model):  # noqa: PT012
            model(tokens)
            raise KeyError("mine")
        assert hooks(model) == before
        assert torch.equal(model(tokens), intact)
    model.add_hook("blocks.0.attn.hook_z", lambda z, hook: calls.append(hook.name))
    with SURGERY[outer](model):
        calls.clear()
        model(tokens)
        assert len(calls) == 1
    model(tokens)
    assert len(calls) == 2
    model.reset_hooks()
    assert hooks(model) == before


# Bad input


@pytest.mark.parametrize("build", [lambda: AttentionOnly(config()), lens], ids=["ours", "theirs"])
@pytest.mark.parametrize(
    ("surgery", "sentence"),
    [
        (lambda model: ablate(model, (0, 0), "median"), "There is no ablation 'median'; there are zero, mean, pattern"),
        (lambda model: ablate(model, (0, 0), "mean"), r'how="mean" needs the tokens over which to take the mean'),
        (lambda model: ablate(model, (0, 2)), r"There is no head \(0, 2\): this model has 2 layers of 2 heads"),
        (lambda model: ablate(model, [(0, 0), (-1, 0)]), r"There is no head \(-1, 0\)"),
        (lambda model: ablate(model, [0, 1]), r"A head is a pair \(layer, head\) such as \(1, 0\), not \[0, 1\]"),
        (lambda model: ablate(model, (0, 0), "pattern", text(model)[0]), r"Tokens must be integers \[batch, seq\].*\[6\]"),
        (
            lambda model: ablate(model, (0, 0), "pattern", text(model, seq=4)),
            "The reference has 4 tokens.* where 6 tokens look",
        ),
        (lambda model: cut(model, (0, 0), (1, 0), "k"), "Composition is of kind .* not 'k'"),
        (lambda model: cut(model, (0, 0), (2, 0)), r"There is no head \(2, 0\)"),
        (lambda model: cut(model, (1, 0), (0, 0)), r"The path \(\(1, 0\), \(0, 0\)\) does not go up"),
        (lambda model: cut(model, (1, 0), (1, 1)), r"The path \(\(1, 0\), \(1, 1\)\) does not go up"),
    ],
)
def test_what_cannot_be_done_is_refused_and_leaves_no_hook(build, surgery, sentence):
    model = build()
    before = hooks(model)
    with refused(sentence), surgery(model):
        model(text(model))
    assert hooks(model) == before
