"""The planted language: exact tables against a large sample, and the reader against one written in plain Python."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from planted.grammar import (
    AGAIN,
    ASKS,
    BEGIN,
    CLOSE,
    ENOUGH,
    FAMILIES,
    GOALS,
    INITIALS,
    LENGTHS,
    MARK,
    MEET,
    OBEY,
    OPEN,
    PAIRS,
    PLACES,
    SHIFTS,
    STRICT,
    SYLLABLES,
    THINGS,
    VERBS,
    WHOLE,
    WORDS,
)
from tests.helpers import few, rng
from utils.corpus import Kind, PlantedLanguage, repeated_tokens

LANGUAGE = PlantedLanguage(seed=0)
VOCAB = LANGUAGE.vocab
TEXT, ROLL = 0, 1


@pytest.fixture(scope="module")
def large() -> SimpleNamespace:
    """20,000 documents, with what the ideal reader thought of each token before it came (from the second token on)."""
    sample = LANGUAGE.sample(20_000, 64, rng(10_000))
    columns = []
    for tokens in sample.tokens.split(500):
        log_probs, targets = LANGUAGE.log_probs(tokens)[:, :-1], tokens[:, 1:]
        surprise = -log_probs.gather(2, targets[..., None]).squeeze(2)
        probs = log_probs.exp_()
        prob, best = probs.max(2)
        columns.append((surprise, torch.special.entr(probs).sum(2), probs.sum(2), prob, best == targets))
    names = "surprise", "entropy", "total", "prob", "right"
    thought = {name: torch.cat(column) for name, column in zip(names, zip(*columns))}
    return SimpleNamespace(sample=sample, kind=sample.kind[:, 1:], targets=sample.tokens[:, 1:], **thought)


def z(residual: Tensor, n_blocks: int = 100) -> Tensor:
    """How many standard errors a mean over documents is from 0; the error comes from blocks of documents."""
    blocks = residual.double().unflatten(0, (n_blocks, -1)).mean(1)
    mean, error = blocks.mean(0), blocks.std(0) / n_blocks**0.5
    return torch.where(mean.abs() < 1e-9, 0.0, mean / error)


planted = [kind for kind in Kind if kind is not Kind.BEGIN]
by_kind = pytest.mark.parametrize("kind", planted, ids=lambda kind: kind.name)


# The exact tables against the sample


@by_kind
def test_a_document_has_as_many_tokens_of_a_kind_as_the_tally_says(large, kind):
    residual = (large.kind == kind).sum(1) - LANGUAGE.truth.count[kind]
    assert abs(z(residual)) < 4


@by_kind
def test_the_floor_of_a_kind_is_the_mean_entropy_of_its_tokens(large, kind):
    residual = ((large.kind == kind) * (large.entropy - LANGUAGE.floor(kind))).sum(1)
    assert abs(z(residual)) < 4


@by_kind
def test_the_ideal_reader_loses_the_floor(large, kind):
    residual = ((large.kind == kind) * (large.surprise - LANGUAGE.floor(kind))).sum(1)
    assert abs(z(residual)) < 4


@by_kind
def test_the_likeliest_token_comes_as_often_as_predicted(large, kind):
    residual = ((large.kind == kind) * (large.right.double() - large.prob)).sum(1)
    assert abs(z(residual)) < 4


def test_the_floor_of_everything_is_the_mean_over_all_kinds(large):
    assert abs(z((large.surprise - LANGUAGE.floor()).sum(1))) < 4
    counts = LANGUAGE.truth.count[1:].tolist()
    floor = sum(count * LANGUAGE.floor(kind) for count, kind in zip(counts, planted)) / sum(counts)
    assert LANGUAGE.floor() == pytest.approx(floor, abs=1e-12)


def test_pairs_come_as_often_as_the_tally_says(large):
    """Frequent pairs one by one (the mean square of honest z-scores is 1); rare ones, and all, by first or second token."""
    size, expected = len(VOCAB), LANGUAGE.truth.pairs
    codes = large.sample.tokens[:, :-1] * size + large.targets
    observed = torch.stack([block.flatten().bincount(minlength=size**2) for block in codes.chunk(100)]).double() / 200
    off = observed.view(100, size, size) - expected
    assert (off[:, expected == 0] == 0).all()
    often = expected > 100 / 20_000
    scores = z(off[:, often])
    assert len(scores) > 1000
    assert scores.abs().max() < 6
    assert 0.85 < scores.square().mean() < 1.15
    for sums in (off.sum(1), off.sum(2), (off * ~often).sum(1), (off * ~often).sum(2)):
        assert z(sums).abs().max() < 5


def test_the_best_bigram_table_loses_the_bigram_floor(large):
    loss = -LANGUAGE.bigrams[large.sample.tokens[:, :-1], large.targets]
    assert abs(z(loss.mean(1) - LANGUAGE.bigram_floor)) < 4
    assert loss.mean() > large.surprise.mean() + 1


def test_a_bigram_table_learned_from_other_documents_is_worse(large):
    size = len(VOCAB)
    learn, test = (large.sample.tokens[:, :-1] * size + large.targets).chunk(2)
    counts = 0.1 + learn.flatten().bincount(minlength=size**2).view(size, size).double()
    learned = (counts / counts.sum(1, keepdim=True)).log()
    worse = LANGUAGE.bigrams.flatten()[test] - learned.flatten()[test]
    assert 0.005 < worse.mean() < 0.1


def test_bigram_rows_are_distributions():
    assert LANGUAGE.bigrams.shape == (len(VOCAB), len(VOCAB))
    torch.testing.assert_close(LANGUAGE.bigrams.exp().sum(1), torch.ones(len(VOCAB)).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_ctx", [8, 9, 16])
def test_another_document_length_has_tables_of_its_own(n_ctx):
    language = PlantedLanguage(n_ctx=n_ctx)
    kind = language.sample(4000, n_ctx, rng(20_000)).kind
    assert language.truth.count.sum().item() == pytest.approx(n_ctx, abs=1e-6)
    assert language.truth.pairs.sum().item() == pytest.approx(n_ctx - 1, abs=1e-6)
    assert language.truth.count[Kind.BEGIN] == 1
    counts = torch.stack([(kind == k).sum(1) for k in Kind], dim=1)
    assert z(counts - language.truth.count).abs().max() < 4


# The ideal reader


def test_the_readers_rows_are_distributions(large):
    torch.testing.assert_close(large.total, torch.ones_like(large.total), rtol=0, atol=1e-12)


def test_the_reader_thinks_every_sampled_token_possible(large):
    assert large.surprise.isfinite().all()
    certain = (large.kind == Kind.NAME_REPEAT) | (large.kind == Kind.NAME_END)
    assert certain.sum() > 100_000
    assert (large.surprise[certain] == 0).all()
    assert (large.targets[large.kind == Kind.NAME_END] == VOCAB.index(CLOSE)).all()


def test_kinds_are_read_off_the_text(large):
    assert torch.equal(LANGUAGE.kinds(large.sample.tokens), large.sample.kind)


def test_kinds_and_predictions_do_not_depend_on_what_comes_later(large):
    tokens = large.sample.tokens[:200]
    for cut in (1, 7, 30, 63):
        changed = tokens.clone()
        changed[:, cut:] = torch.randint(1, len(VOCAB), changed[:, cut:].shape, generator=rng(cut))
        assert torch.equal(LANGUAGE.kinds(changed)[:, : cut + 1], LANGUAGE.kinds(tokens)[:, : cut + 1])
        assert torch.equal(LANGUAGE.log_probs(changed)[:, :cut], LANGUAGE.log_probs(tokens)[:, :cut])


@few
@given(st.lists(st.integers(0, len(VOCAB) - 1), max_size=40))
def test_the_reader_makes_something_of_any_tokens(tokens):
    document = torch.tensor([[0, *tokens]])
    probs, kinds = LANGUAGE.log_probs(document).exp(), LANGUAGE.kinds(document)
    torch.testing.assert_close(probs.sum(2), torch.ones_like(probs[..., 0]), rtol=0, atol=1e-12)
    assert kinds.shape == document.shape
    assert kinds[0, 0] == Kind.BEGIN
    assert set(kinds[0, 1:].tolist()) <= set(planted)


class NaiveReader:
    """The docstring of grammar.py for one document, in plain Python: it reads the whole prefix afresh for every token."""

    def __init__(self, rows: list[list[float]]):
        self.rows = {current: dict(zip(VOCAB, row)) for current, row in zip(VOCAB, rows)}

    def next(self, prefix: list[str]) -> tuple[dict[str, float], Kind]:
        """The distribution of the token after the prefix, and its kind."""
        names, here = [], 1
        while True:  # the roll
            if here == len(prefix):
                return self.start(names, ROLL)
            if prefix[here] == CLOSE:
                return self.text(prefix, here + 1)
            name, length = self.name(prefix[here], names, ROLL)
            if here + length > len(prefix):
                return self.inside(name, prefix[here:], names, ROLL)
            if name is None:
                names.append(prefix[here : here + length])
            here += length

    def text(self, prefix: list[str], here: int) -> tuple[dict[str, float], Kind]:
        names, keys = [], {}
        while here < len(prefix):
            word, said, here = prefix[here], prefix[here + 1 :], here + 1
            for family in range(3):
                if word in FAMILIES[family]:
                    keys.setdefault(family, word)
            if word == MARK:
                if not said:
                    return self.start(names, TEXT)
                name, length = self.name(said[0], names, TEXT)
                if len(said) < length:
                    return self.inside(name, said, names, TEXT)
                if len(said) == length:
                    return {CLOSE: 1.0}, Kind.NAME_END
                if name is None:
                    names.append(said[:length])
                here += length + 1
        return self.free(prefix[-1], keys)

    def free(self, current: str, keys: dict[int, str]) -> tuple[dict[str, float], Kind]:
        """In the text, outside names."""
        row, called, kind = self.rows[current], None, Kind.BIGRAM
        if 0 in keys and current in PLACES:
            called, kind = GOALS[(VERBS.index(keys[0]) + SHIFTS[PLACES.index(current)]) % 6], Kind.SKIP_TRIGRAM
        if 1 in keys and current in ASKS:
            called, kind = keys[1], Kind.COPY
        if 2 in keys and current == keys[2][0]:
            called, kind = keys[2][1:], Kind.SPLIT_COPY
        if called:
            return {token: OBEY * (token == called) + (1 - OBEY) * p for token, p in row.items()}, kind
        if current in [*PLACES, *ASKS, *INITIALS, *PAIRS[::2]]:
            return row, kind
        extra = {MARK: OPEN}
        for family in {0, 1, 2} - set(keys):
            extra |= {key: MEET[family] / 6 for key in FAMILIES[family]}
        return {token: extra.get(token, 0) + (1 - sum(extra.values())) * p for token, p in row.items()}, kind

    def name(self, first: str, names: list[list[str]], where: int) -> tuple[list[str] | None, int]:
        """The name that begins so, if it is known, and how long it is."""
        known = next((name for name in names if name[0] == first), None)
        return known, len(known) if known else LENGTHS[where][len(names)]

    def start(self, names: list[list[str]], where: int) -> tuple[dict[str, float], Kind]:
        enough, again = ENOUGH[len(names)] * (where == ROLL), AGAIN[len(names)]
        probs = {CLOSE: enough}
        for name in names:
            probs[name[0]] = (1 - enough) * again / len(names)
        fresh = self.fresh(names, where)
        for token in fresh:
            probs[token] = (1 - enough) * (1 - again) / len(fresh)
        return probs, Kind.NAME_START

    def inside(self, name: list[str] | None, said: list[str], names: list[list[str]], where: int):
        if name:
            return {name[len(said)]: 1.0}, Kind.NAME_REPEAT
        fresh = self.fresh([*names, said], where)
        return {token: 1 / len(fresh) for token in fresh}, Kind.NAME_FIRST

    def fresh(self, names: list[list[str]], where: int) -> list[str]:
        pool = SYLLABLES if where == TEXT else [token for token in VOCAB if token not in [BEGIN, CLOSE, *STRICT]]
        return [token for token in pool if not any(token in name for name in names)]


@pytest.mark.parametrize("seed", [0, 1])
def test_the_reader_agrees_with_one_in_plain_python(seed):
    language = PlantedLanguage(seed=seed)
    sample = language.sample(32, 64, rng(30_000 + seed))
    naive, seen = NaiveReader(language.grammar.rows.tolist()), set()
    probs = language.log_probs(sample.tokens).exp()
    for doc, document in enumerate(sample.tokens):
        words = language.decode(document)
        for t in range(64):
            expected, kind = naive.next(words[: t + 1])
            row = torch.tensor([expected.get(token, 0.0) for token in VOCAB], dtype=torch.float64)
            assert (probs[doc, t] - row).abs().max() < 1e-12, (words[: t + 1], kind)
            if t < 63:
                assert sample.kind[doc, t + 1] == kind, words[: t + 2]
                seen.add(kind)
    assert seen == set(planted)


# Documents written by hand


def after(text: str) -> tuple[str, float, Kind]:
    """The likeliest next token after a text, its probability, and its kind."""
    probs = LANGUAGE.log_probs(LANGUAGE.encode(text))[0, -1].exp()
    kind = LANGUAGE.kinds(LANGUAGE.encode(f"{text} river"))[0, -1]
    return VOCAB[probs.argmax()], probs.max().item(), Kind(kind.item())


@pytest.mark.parametrize(
    ("text", "word", "kind"),
    [
        (", keep river in", "mind", Kind.SKIP_TRIGRAM),
        (", keep river at", "bay", Kind.SKIP_TRIGRAM),
        (", keep under", "wraps", Kind.SKIP_TRIGRAM),
        (", hold river in", "bay", Kind.SKIP_TRIGRAM),
        ("D river in mind old , keep in", "mind", Kind.SKIP_TRIGRAM),
        (", keep tea Ralph Mr D urs ley , in", "mind", Kind.SKIP_TRIGRAM),
        (", tea river more", "tea", Kind.COPY),
        (", wine , some", "wine", Kind.COPY),
        (", Ralph river R", "alph", Kind.SPLIT_COPY),
        (", Linda river L", "inda", Kind.SPLIT_COPY),
    ],
)
def test_a_key_met_in_the_text_rules(text, word, kind):
    likeliest, prob, governed = after(text)
    assert (likeliest, governed) == (word, kind)
    assert prob >= OBEY


@pytest.mark.parametrize(
    "text",
    [
        ", in",
        "keep river in mind old , in",
        "tea river in mind old , more",
        "Ralph river in mind old , R",
        ", keep more",
        ", tea R",
        ", Linda R",
        ", keep tea Linda river",
    ],
)
def test_a_key_among_names_or_of_another_family_does_not_rule(text):
    _, prob, kind = after(text)
    assert kind == Kind.BIGRAM
    assert prob < OBEY


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (", Mr D urs ley , river Mr D", "urs"),
        (", Mr D urs ley , river Mr D urs", "ley"),
        (", Mr D urs ley , Mr bor vin gar , Mr D", "urs"),
        (", Mr D urs ley , Mr bor vin gar , Mr bor vin", "gar"),
        ("keep D in mind old keep", "D"),
        ("keep D in mind old tea more the keep D in mind old tea", "more"),
    ],
)
def test_an_old_name_is_repeated(text, word):
    assert after(text) == (word, 1.0, Kind.NAME_REPEAT)


def test_a_name_in_the_text_ends_with_a_comma():
    assert after(", Mr D urs ley") == (CLOSE, 1.0, Kind.NAME_END)
    assert after(", Mr D urs ley , Mr D urs ley") == (CLOSE, 1.0, Kind.NAME_END)


def test_inside_a_new_name_all_unused_tokens_are_alike():
    probs = LANGUAGE.log_probs(LANGUAGE.encode(", Mr D urs"))[0, -1].exp()
    assert (probs > 0).sum() == len(SYLLABLES) - 2
    assert probs.max().item() == pytest.approx(1 / (len(SYLLABLES) - 2), abs=1e-12)
    assert after(", Mr D urs")[2] == Kind.NAME_FIRST
    probs = LANGUAGE.log_probs(LANGUAGE.encode("keep D"))[0, -1].exp()
    assert (probs > 0).sum() == len(VOCAB) - 4 - len(STRICT)
    assert after("keep D")[2] == Kind.NAME_FIRST


def test_a_names_start_is_an_old_name_or_a_new_one():
    probs = LANGUAGE.log_probs(LANGUAGE.encode(", Mr D urs ley , Mr"))[0, -1].exp()
    assert after(", Mr D urs ley , Mr")[::2] == ("D", Kind.NAME_START)
    assert probs[VOCAB.index("D")].item() == pytest.approx(AGAIN[1], abs=1e-12)
    assert (probs > 0).sum() == 1 + len(SYLLABLES) - 3


def test_encode_and_decode_are_inverse():
    words = "keep D in mind old , tea river more tea".split()
    tokens = LANGUAGE.encode(" ".join(words))
    assert tokens.shape == (1, 11)
    assert LANGUAGE.decode(tokens[0]) == [BEGIN, *words]


# What is planted


def test_the_vocabulary_is_readable_and_has_no_duplicates():
    assert len(set(VOCAB)) == len(VOCAB)
    assert VOCAB[0] == BEGIN
    assert all(token and token == token.strip() and " " not in token for token in VOCAB)


def test_the_keep_family_is_there():
    triples = {tuple(VOCAB[token] for token in triple) for triple in LANGUAGE.skip_trigrams}
    assert {("keep", "in", "mind"), ("keep", "at", "bay"), ("keep", "under", "wraps")} <= triples


def test_six_sources_share_destinations_and_outs_in_different_pairings():
    """So that a head which says keep … in → mind and keep … at → bay must also say keep … in → bay, and pays for it."""
    outs = {(source, destination): out for source, destination, out in LANGUAGE.skip_trigrams}
    assert len(outs) == len(LANGUAGE.skip_trigrams)
    sources, destinations = ({pair[side] for pair in outs} for side in (0, 1))
    assert len(sources) >= 6
    assert len({tuple(outs[source, place] for place in sorted(destinations)) for source in sources}) == len(sources)
    for destination in destinations:
        assert {outs[source, destination] for source in sources} == set(outs.values())
    for (source, destination), out in outs.items():
        bugs = {outs[source, other] for other in destinations} - {out}
        assert bugs & {outs[other, destination] for other in sources - {source}}


def test_skip_trigrams_are_what_the_reader_believes():
    for source, destination, out in LANGUAGE.skip_trigrams:
        word, _, kind = after(f", {VOCAB[source]} {VOCAB[destination]}")
        assert (word, kind) == (VOCAB[out], Kind.SKIP_TRIGRAM)


def test_pairs_are_near_certain():
    for first, second in zip(PAIRS[::2], PAIRS[1::2]):
        word, prob, _ = after(f", {first}")
        assert word == second
        assert prob > 0.95


@pytest.mark.parametrize("seed", [0, 1])
def test_rows_are_distributions_over_ordinary_tokens(seed):
    rows = PlantedLanguage(seed=seed).grammar.rows
    torch.testing.assert_close(rows.sum(1), torch.ones(len(VOCAB)).double(), rtol=0, atol=1e-12)
    never = [VOCAB.index(token) for token in [BEGIN, MARK, CLOSE, *VERBS, *THINGS, *WHOLE]]
    assert (rows[:, never] == 0).all()
    assert (rows[:, [VOCAB.index(token) for token in WORDS]] > 0).all()


def test_half_of_the_names_are_of_syllables_and_the_others_of_any_tokens(large):
    tokens, kind = large.sample.tokens, large.sample.kind
    comma = tokens == VOCAB.index(CLOSE)
    named = (kind >= Kind.NAME_START) & (kind <= Kind.NAME_REPEAT) & ~comma
    roll = comma.cumsum(1) == 0
    assert {VOCAB[token] for token in tokens[named & ~roll].unique()} == set(SYLLABLES)
    assert {VOCAB[token] for token in tokens[named & roll].unique()} == set(VOCAB) - {BEGIN, CLOSE, *STRICT}
    starts = named & (kind == Kind.NAME_START)
    assert 0.4 < (starts & roll).sum() / starts.sum() < 0.6


def test_a_name_has_no_token_twice_and_comes_again_as_it_was(large):
    again = 0
    for document in large.sample.tokens[:500]:
        words, names = LANGUAGE.decode(document), {}
        text = words[words.index(CLOSE) :] if CLOSE in words else []
        for start in (t for t, word in enumerate(text) if word == MARK and t + 4 < len(text)):
            name = text[start + 1 : start + 4]
            assert text[start + 4] == CLOSE
            assert len(set(name)) == 3
            again += name[0] in names
            assert names.setdefault(name[0], name) == name
    assert again > 500


# Seeds


def test_the_generator_decides_the_sample():
    one, again, other = (LANGUAGE.sample(5, 64, rng(seed)) for seed in (3, 3, 4))
    assert torch.equal(one.tokens, again.tokens)
    assert torch.equal(one.kind, again.kind)
    assert not torch.equal(one.tokens, other.tokens)
    assert (one.tokens[:, 0] == 0).all()
    assert (one.kind[:, 0] == Kind.BEGIN).all()
    assert one.tokens.shape == one.kind.shape == (5, 64)


def test_sampling_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    PlantedLanguage(seed=2).sample(2, 20, rng(0))
    repeated_tokens(2, 3, 2, 9, rng(0))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_seed_shuffles_the_rows_and_leaves_the_rules():
    other = PlantedLanguage(seed=1)
    assert other.vocab == VOCAB
    assert other.skip_trigrams == LANGUAGE.skip_trigrams
    assert torch.equal(other.grammar.rules, LANGUAGE.grammar.rules)
    assert not torch.equal(other.grammar.rows, LANGUAGE.grammar.rows)
    assert torch.equal(PlantedLanguage(seed=1).grammar.rows, other.grammar.rows)


def test_batches_do_not_depend_on_the_order_of_asking():
    forwards, backwards = (PlantedLanguage(n_ctx=12).batches(n_docs=3, seed=5, chunk=4) for _ in range(2))
    steps = list(range(10))
    one = {step: forwards(step) for step in steps}
    other = {step: backwards(step) for step in reversed(steps)}
    assert all(torch.equal(one[step], other[step]) for step in steps)
    assert all(torch.equal(one[step], forwards(step)) for step in (9, 0, 4))
    assert one[0].shape == (3, 12)
    assert not any(torch.equal(one[a], one[b]) for a in steps for b in steps[:a])


def test_no_two_seeds_read_the_same_documents():
    language = PlantedLanguage(n_ctx=12)
    one, other = (language.batches(n_docs=3, seed=seed, chunk=2) for seed in (0, 1))
    assert not any(torch.equal(one(a), other(b)) for a in range(6) for b in range(6))


# Random repeats


@few
@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 4), st.integers(7, 20), st.integers(0, 6))
def test_repeats_repeat_different_tokens(n_docs, period, repeats, d_vocab, bos):
    tokens = repeated_tokens(n_docs, period, repeats, d_vocab, rng(0), bos)
    assert tokens.shape == (n_docs, 1 + period * repeats)
    assert (tokens[:, 0] == bos).all()
    once = tokens[:, 1 : 1 + period]
    assert once.min() >= 1
    assert once.max() < d_vocab
    assert all(len(set(document)) == period for document in once.tolist())
    assert torch.equal(tokens[:, 1:], torch.cat([once] * repeats, dim=1))
    assert torch.equal(tokens, repeated_tokens(n_docs, period, repeats, d_vocab, rng(0), bos))


def test_repeats_use_the_whole_vocabulary_evenly():
    tokens = repeated_tokens(4000, 5, 1, 11, rng(1))[:, 1:]
    counts = tokens.flatten().bincount(minlength=11)[1:]
    assert counts.sum() == 20_000
    assert (counts - 2000).abs().max() < 5 * 2000**0.5


@pytest.mark.parametrize(
    ("n_docs", "period", "repeats", "d_vocab"), [(0, 3, 2, 9), (2, 0, 2, 9), (2, 3, 0, 9), (2, 9, 2, 9), (2, 1, 1, 1)]
)
def test_impossible_repeats_are_refused(n_docs, period, repeats, d_vocab):
    with pytest.raises(ValueError, match="Repeats need n_docs, period, repeats ≥ 1 and period ≤ d_vocab − 1"):
        repeated_tokens(n_docs, period, repeats, d_vocab, rng(0))


def test_a_period_may_use_every_token():
    assert set(repeated_tokens(1, 8, 1, 9, rng(0))[0, 1:].tolist()) == set(range(1, 9))


# Bad input


@pytest.mark.parametrize(("n_docs", "n_ctx"), [(0, 64), (-1, 64), (3, 0)])
def test_an_empty_sample_is_refused(n_docs, n_ctx):
    with pytest.raises(ValueError, match="A sample needs at least one document of one token"):
        LANGUAGE.sample(n_docs, n_ctx, rng(0))


@pytest.mark.parametrize("read", [LANGUAGE.log_probs, LANGUAGE.kinds], ids=["log_probs", "kinds"])
@pytest.mark.parametrize("tokens", [[[1, 2]], [[0, 2], [3, 0]], [[0, -1]], [[0, len(VOCAB)]], [[]]])
def test_what_is_not_a_document_is_refused(read, tokens):
    with pytest.raises(ValueError, match=f"Documents are .* tokens below {len(VOCAB)} that begin with 0"):
        read(torch.tensor(tokens, dtype=torch.long))


def test_documents_too_short_for_the_rules_are_refused():
    with pytest.raises(ValueError, match="at least 8 tokens"):
        PlantedLanguage(n_ctx=7)


def test_no_documents_are_refused():
    with pytest.raises(ValueError, match="Documents are"):
        LANGUAGE.log_probs(torch.zeros(0, 5, dtype=torch.long))


def test_an_unknown_word_is_named():
    with pytest.raises(ValueError, match="'elephant' is not a word of this language"):
        LANGUAGE.encode(", keep the elephant in")
