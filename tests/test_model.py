"""The model against the paper's equations written as loops, and what it says to bad input."""

import errno
import inspect
import json
import math
import os
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor
from torch.testing import assert_close

from tests.helpers import config, few, rng, same_weights
from utils.model import AttentionOnly, AttentionOnlyConfig, load, save

exactly = dict(rtol=0, atol=1e-10)


@st.composite
def models(draw, least: int = 0) -> AttentionOnly:
    """Models of odd shapes in float64; d_model may be smaller or larger than heads × d_head."""
    sizes = [draw(st.integers(least, 3)), *(draw(st.integers(1, high)) for high in (5, 9, 4, 7))]
    options = draw(st.integers(0, 99)), draw(st.sampled_from(["qk", "stream"])), draw(st.booleans())
    model = AttentionOnly(AttentionOnlyConfig(*sizes, 9, *options)).double()
    for name, weight in model.state_dict().items():
        if name.endswith("alpha"):
            weight.copy_(torch.randn(weight.shape, generator=rng(1)))
    return model


@st.composite
def documents(draw, model: AttentionOnly, least: int = 1) -> Tensor:
    shape = draw(st.integers(1, 3)), draw(st.integers(least, 9))
    return torch.randint(model.cfg.d_vocab, shape, generator=rng(draw(st.integers(0, 99))))


def naive_logits(model: AttentionOnly, document: list[int]) -> Tensor:
    """The paper's equations for one document: one layer, one head, one query, one source at a time."""
    cfg, weights = model.cfg, model.state_dict()
    stream = [weights["embed.W_E"][token] for token in document]
    places = [weights["pos_embed.W_pos"][t] for t in range(len(document))]
    if cfg.positions == "stream":
        stream, places = [x + place for x, place in zip(stream, places)], [0.0] * len(document)
    for layer in range(cfg.n_layers):
        added = [torch.zeros(cfg.d_model, dtype=torch.float64) for _ in document]
        for head in range(cfg.n_heads):
            W_Q, W_K, W_V, W_O = (weights[f"blocks.{layer}.attn.W_{name}"][head] for name in "QKVO")
            keys = [(x + place) @ W_K for x, place in zip(stream, places)]
            if cfg.smeared_keys:
                own = 1 / (1 + math.exp(-weights[f"blocks.{layer}.attn.alpha"][head].item()))
                keys = [keys[0], *(own * key + (1 - own) * before for before, key in pairwise(keys))]
            for dest in range(len(document)):
                query = (stream[dest] + places[dest]) @ W_Q
                attention = [math.exp((query @ keys[src]).item() / math.sqrt(cfg.d_head)) for src in range(dest + 1)]
                for src in range(dest + 1):
                    added[dest] += attention[src] / sum(attention) * (stream[src] @ W_V @ W_O)
        stream = [x + more for x, more in zip(stream, added)]
    return torch.stack([x @ weights["unembed.W_U"] for x in stream])


@few
@given(st.data())
def test_logits_equal_the_equations_written_as_loops(data):
    model = data.draw(models())
    tokens = data.draw(documents(model))
    expected = torch.stack([naive_logits(model, document) for document in tokens.tolist()])
    assert_close(model(tokens), expected, **exactly)


@few
@given(st.data())
def test_loss_is_minus_the_log_softmax_of_the_next_token(data):
    model = data.draw(models())
    tokens = data.draw(documents(model, least=2))
    logits, per_token = model(tokens).tolist(), model.loss(tokens, per_token=True)
    assert per_token.shape == (len(tokens), tokens.shape[1] - 1)
    for b, document in enumerate(tokens.tolist()):
        for t, target in enumerate(document[1:]):
            by_hand = math.log(sum(math.exp(logit) for logit in logits[b][t])) - logits[b][t][target]
            assert per_token[b, t].item() == pytest.approx(by_hand, abs=1e-10)
    assert model.loss(tokens).item() == pytest.approx(per_token.mean().item(), abs=1e-12)


@few
@given(st.data())
def test_patterns_sum_to_one_and_never_look_ahead(data):
    model = data.draw(models(least=1))
    tokens = data.draw(documents(model))
    logits, cache = model.run_with_cache(tokens)
    assert_close(logits, model(tokens), **exactly)
    for layer in range(model.cfg.n_layers):
        pattern = cache["pattern", layer]
        assert pattern.shape == (len(tokens), model.cfg.n_heads, tokens.shape[1], tokens.shape[1])
        assert_close(pattern.sum(-1), torch.ones_like(pattern[..., 0]), **exactly)
        assert (pattern.triu(1) == 0).all()
        assert (pattern >= 0).all()


@few
@given(st.data())
def test_later_tokens_do_not_change_earlier_logits(data):
    model = data.draw(models())
    tokens = data.draw(documents(model, least=2))
    cut = data.draw(st.integers(1, tokens.shape[1] - 1))
    changed = tokens.clone()
    changed[:, cut:] = (changed[:, cut:] + 1) % model.cfg.d_vocab
    assert_close(model(tokens)[:, :cut], model(changed)[:, :cut], **exactly)
    assert_close(model(tokens)[:, :cut], model(tokens[:, :cut]), **exactly)


@few
@given(models())
def test_weights_have_the_shapes_of_the_contract(model):
    cfg = model.cfg
    assert model.W_E.shape == (cfg.d_vocab, cfg.d_model)
    assert model.W_U.shape == (cfg.d_model, cfg.d_vocab)
    assert model.W_pos.shape == (cfg.n_ctx, cfg.d_model)
    for weight in (model.W_Q, model.W_K, model.W_V):
        assert weight.shape == (cfg.n_layers, cfg.n_heads, cfg.d_model, cfg.d_head)
    assert model.W_O.shape == (cfg.n_layers, cfg.n_heads, cfg.d_head, cfg.d_model)
    assert model.QK.shape == model.OV.shape == (cfg.n_layers, cfg.n_heads, cfg.d_model, cfg.d_model)


def test_qk_and_ov_are_products_of_the_heads_own_weights():
    model = AttentionOnly(config(n_heads=3)).double()
    for layer, block in enumerate(model.blocks):
        for head in range(3):
            W_Q, W_K, W_V, W_O = (getattr(block.attn, f"W_{name}")[head] for name in "QKVO")
            assert_close(model.QK.AB[layer, head], W_Q @ W_K.T, **exactly)
            assert_close(model.OV.AB[layer, head], W_V @ W_O, **exactly)


def test_state_dict_has_exactly_the_names_of_the_contract():
    heads = [f"blocks.{layer}.attn.W_{name}" for layer in range(2) for name in "QKVO"]
    ends = ["embed.W_E", "pos_embed.W_pos", "unembed.W_U"]
    assert set(AttentionOnly(config()).state_dict()) == {*ends, *heads}
    assert set(AttentionOnly(config(n_layers=0)).state_dict()) == set(ends)
    smeared = AttentionOnly(config(smeared_keys=True)).state_dict()
    assert set(smeared) == {*ends, *heads, "blocks.0.attn.alpha", "blocks.1.attn.alpha"}
    assert smeared["blocks.1.attn.W_O"].shape == (2, 4, 8)


def test_the_cache_speaks_transformer_lens():
    tokens = torch.tensor([[0, 1, 2], [3, 4, 5]])
    _, cache = AttentionOnly(config()).run_with_cache(tokens)
    for name in ("q", "k", "v", "z"):
        assert cache[name, 1].shape == (2, 3, 2, 4)
    assert cache["attn_scores", 0].shape == (2, 2, 3, 3)
    assert_close(cache["resid_post", 0], cache["resid_pre", 0] + cache["attn_out", 0])
    assert_close(cache["resid_pre", 1], cache["resid_post", 0])


def test_weights_follow_the_seed_alone():
    torch.manual_seed(1)
    one = AttentionOnly(config(seed=3))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again, other = AttentionOnly(config(seed=3)), AttentionOnly(config(seed=4))
    assert torch.equal(torch.get_rng_state(), state), "building a model moved torch's global generator"
    assert same_weights(one, again)
    assert all(not torch.equal(weight, other.state_dict()[name]) for name, weight in one.state_dict().items())


def test_without_layers_qk_positions_change_nothing():
    model = AttentionOnly(config(n_layers=0))
    logits = model(torch.full((1, 9), 5))
    assert_close(logits, (model.W_E[5] @ model.W_U).expand(1, 9, -1))


def test_qk_positions_reach_scores_but_not_values():
    tokens = torch.full((1, 9), 5)
    _, cache = AttentionOnly(config()).run_with_cache(tokens)
    assert_close(cache["v", 0], cache["v", 0][:, :1].expand(-1, 9, -1, -1))
    assert_close(cache["resid_pre", 0], cache["resid_pre", 0][:, :1].expand(-1, 9, -1))
    assert (cache["k", 0][:, 1:] - cache["k", 0][:, :1]).abs().max() > 0.1
    _, cache = AttentionOnly(config(positions="stream")).run_with_cache(tokens)
    assert (cache["v", 0][:, 1:] - cache["v", 0][:, :1]).abs().max() > 0.1


def test_smearing_leaves_the_first_key_and_mixes_the_others_with_the_one_before():
    tokens = torch.randint(7, (2, 6), generator=rng(0))
    plain, smeared = AttentionOnly(config()), AttentionOnly(config(smeared_keys=True))
    with torch.no_grad():
        smeared.blocks[0].attn.alpha.copy_(torch.tensor([2.0, -1.0]))
    before, after = (model.run_with_cache(tokens)[1]["k", 0] for model in (plain, smeared))
    own = torch.tensor([2.0, -1.0]).sigmoid()[:, None]
    assert torch.equal(before[:, 0], after[:, 0])
    assert_close(after[:, 1:], own * before[:, 1:] + (1 - own) * before[:, :-1])


def test_tokens_of_any_integer_type_read_alike():
    model, tokens = AttentionOnly(config()), torch.tensor([[0, 1, 2], [3, 4, 5]])
    assert torch.equal(model(tokens.int()), model(tokens))
    assert torch.equal(model.loss(tokens.int()), model.loss(tokens))


# Saving and loading


@few
@given(models(), st.sampled_from([torch.float32, torch.float64]))
def test_a_saved_model_comes_back_exactly(tmp_path_factory, model, dtype):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save(model.to(dtype), path)
    loaded = load(path)
    assert same_weights(loaded, model)
    assert loaded.cfg == model.cfg
    assert not loaded.training
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_saving_replaces_the_file_that_was_there(tmp_path):
    first, second = AttentionOnly(config(seed=1)), AttentionOnly(config(seed=2))
    save(first, tmp_path / "model")
    save(second, str(tmp_path / "model"))
    assert same_weights(load(str(tmp_path / "model")), second)


def fail(monkeypatch, owner, name: str, error: OSError, halfway: bool = False) -> None:
    """Let a file operation fail; `halfway`, after it wrote half."""
    usual = getattr(owner, name)

    def failing(path, content=b""):
        if halfway:
            usual(path, content[: len(content) // 2])
        raise error

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.parametrize(
    ("owner", "name", "error", "halfway"),
    [
        (Path, "write_bytes", OSError(errno.ENOSPC, "No space left on device"), True),
        (Path, "write_bytes", PermissionError(errno.EACCES, "Permission denied"), False),
        (Path, "write_bytes", OSError(errno.EROFS, "Read-only file system"), False),
        (os, "replace", OSError(errno.EACCES, "Permission denied"), False),
    ],
    ids=["full disk", "read-only folder", "read-only disk", "locked file"],
)
def test_a_failed_save_says_so_and_keeps_the_old_file(tmp_path, monkeypatch, owner, name, error, halfway):
    path = tmp_path / "model.safetensors"
    save(AttentionOnly(config(seed=1)), path)
    old = path.read_bytes()
    fail(monkeypatch, owner, name, error, halfway)
    with pytest.raises(OSError, match=f"Could not write .*model.safetensors .*{error.strerror}.* nothing was changed"):
        save(AttentionOnly(config(seed=2)), path)
    assert path.read_bytes() == old
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_failed_first_save_leaves_nothing(tmp_path, monkeypatch):
    fail(monkeypatch, Path, "write_bytes", OSError(errno.ENOSPC, "No space left on device"), halfway=True)
    with pytest.raises(OSError, match="No space left on device"):
        save(AttentionOnly(config()), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_saving_into_a_folder_that_is_not_there_says_so(tmp_path):
    with pytest.raises(OSError, match=r"Could not write .*No such file or directory"):
        save(AttentionOnly(config()), tmp_path / "nowhere" / "model")


def test_loading_what_is_not_there_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no model at .*nothing-here"):
        load(tmp_path / "nothing-here")
    with pytest.raises(FileNotFoundError, match="There is no model at"):
        load(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_loading_a_truncated_file_says_so(tmp_path, keep):
    save(AttentionOnly(config()), tmp_path / "model")
    (tmp_path / "model").write_bytes((tmp_path / "model").read_bytes()[:keep])
    with pytest.raises(ValueError, match="model is damaged or not a model of this course"):
        load(tmp_path / "model")


@pytest.mark.parametrize("content", [b"garbage", bytes(1000), b"\xff" * 1000, b"\x08" + bytes(7) + b"{}      "])
def test_loading_garbage_says_so(tmp_path, content):
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(ValueError, match="model is damaged or not a model of this course"):
        load(tmp_path / "model")


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {},
        {"config": "null"},
        {"config": "[]"},
        {"config": "not json"},
        {"config": "{}"},
        {"config": '{"n_layers": "2"}'},
    ],
)
def test_loading_somebody_elses_safetensors_says_so(tmp_path, metadata):
    save_file({"embed.W_E": torch.ones(2, 2)}, tmp_path / "model", metadata)
    with pytest.raises(ValueError, match="model is damaged or not a model of this course"):
        load(tmp_path / "model")


@pytest.mark.parametrize("changes", [{"n_layers": 1}, {"d_model": 5}, {"smeared_keys": True}, {"n_heads": -1}, {"extra": 1}])
def test_loading_weights_that_do_not_fit_their_config_says_so(tmp_path, changes):
    model = AttentionOnly(config())
    save_file(model.state_dict(), tmp_path / "model", {"config": json.dumps(asdict(model.cfg) | changes)})
    with pytest.raises(ValueError, match="model is damaged or not a model of this course"):
        load(tmp_path / "model")


# Bad input


@pytest.mark.parametrize("token", [-1, 7, 1000])
def test_a_token_out_of_the_vocabulary_is_named(token):
    with pytest.raises(ValueError, match=f"Tokens run from 0 to 6; got {token}"):
        AttentionOnly(config())(torch.tensor([[0, 1], [token, 2]]))


def test_a_sequence_longer_than_the_context_is_refused():
    with pytest.raises(ValueError, match="A sequence of 10 tokens is longer than n_ctx = 9"):
        AttentionOnly(config())(torch.zeros(1, 10, dtype=torch.long))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_an_empty_batch_is_refused(shape):
    with pytest.raises(ValueError, match=r"Tokens must be integers .*not empty"):
        AttentionOnly(config())(torch.zeros(shape, dtype=torch.long))


@pytest.mark.parametrize(
    "tokens",
    [torch.zeros(2, 3), torch.zeros(3, dtype=torch.long), torch.zeros(1, 2, 3, dtype=torch.long), torch.ones(2, 3) > 0],
)
def test_tokens_of_a_wrong_type_or_shape_are_refused(tokens):
    forward = inspect.unwrap(AttentionOnly.forward)  # as students call it: without the type checker of these tests
    with pytest.raises(ValueError, match=r"Tokens must be integers \[batch, seq\]"):
        forward(AttentionOnly(config()), tokens)


@pytest.mark.parametrize("per_token", [True, False])
def test_a_loss_needs_two_tokens(per_token):
    with pytest.raises(ValueError, match="A loss needs at least two tokens"):
        AttentionOnly(config()).loss(torch.zeros(2, 1, dtype=torch.long), per_token)


@pytest.mark.parametrize("name", ["n_heads", "d_model", "d_head", "d_vocab", "n_ctx"])
def test_sizes_must_be_at_least_one(name):
    for size in (0, -3):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, not {size}"):
            config(**{name: size})


def test_a_negative_number_of_layers_is_refused():
    with pytest.raises(ValueError, match="n_layers must be at least 0, not -1"):
        config(n_layers=-1)


def test_unknown_positions_are_refused():
    with pytest.raises(ValueError, match=r"positions must be .qk. or .stream., not 'rotary'"):
        config(positions="rotary")
