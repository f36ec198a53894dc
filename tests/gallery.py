"""Every kind of picture, drawn from the shipped models. `make gallery`: screenshots into build/gallery, two into pictures.

python -m tests.gallery            all of them
python -m tests.gallery ladder     only some
"""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import plotly.graph_objects as go
import torch
from IPython.display import HTML

from tests.browser import Browser
from utils import plots, scenes, views
from utils.circuits import (
    composition_baseline,
    composition_scores,
    copying_score,
    copying_scores,
    direct_path,
    eigenvalues,
    full_ov,
    k_composed_qk,
    skip_trigrams,
)
from utils.corpus import Kind, repeated_tokens
from utils.heads import induction_score, patterns, value_weighted
from utils.model import AttentionOnly
from utils.paths import expand_logits, expand_scores, term_importance
from utils.training import load_checkpoints, load_model, loss_by_kind, planted_language

BUILD, README = Path("build/gallery"), ("ladder", "stripe")
HEADS = [f"1.{head}" for head in range(4)]
KINDS = "BIGRAM", "SKIP_TRIGRAM", "COPY", "SPLIT_COPY", "NAME_REPEAT"


@cache
def sample(n_docs: int = 256):
    return planted_language().sample(n_docs, 64, torch.Generator().manual_seed(1))


@cache
def model() -> AttentionOnly:
    return load_model("planted-2l")


@cache
def page() -> tuple[torch.Tensor, list[str]]:
    """The first 48 tokens of a document, and as strings."""
    tokens = sample().tokens[:1, :48]
    return tokens, planted_language().decode(tokens[0])


@cache
def losses_of(name: str) -> dict[str, float]:
    return loss_by_kind(load_model(name), sample())


@cache
def phase() -> tuple[list[int], dict[str, list[float]], torch.Tensor, torch.Tensor]:
    """Of every checkpoint: its step, loss by kind, scores of induction, and the pattern of head 1.0."""
    steps, nets = zip(*load_checkpoints("planted-2l"))
    found = [loss_by_kind(net, sample()) for net in nets]
    losses = {kind: [losses[kind] for losses in found] for kind in KINDS}
    scores = torch.stack([induction_score(net).flatten() for net in nets])
    return list(steps), losses, scores, torch.stack([patterns(net, page()[0])[1, 0, 0] for net in nets])


def ladder() -> go.Figure:
    names = {"no layers": "planted-0l", "one layer": "planted-1l", "two layers": "planted-2l"}
    losses = {label: losses_of(name) for label, name in names.items()}
    floors = {kind: planted_language().floor(Kind[kind]) for kind in KINDS}
    return plots.ladder(losses, floors, "Each layer makes a new kind of token predictable")


def curves() -> go.Figure:
    steps, losses, _, _ = phase()
    lines = {kind: (steps, nats) for kind, nats in losses.items()}
    return plots.curves(lines, "Repeated names are learned last, and in a rush", "training step", "loss (nats)")


def bigrams() -> go.Figure:
    truth = planted_language().bigrams.flatten()
    learnt = direct_path(load_model("planted-0l")).AB.log_softmax(-1).flatten().detach().double()
    chosen = truth.topk(300).indices
    labels = [f"{planted_language().vocab[i // 114]} → {planted_language().vocab[i % 114]}" for i in chosen.tolist()]
    panels = {"no layers": (truth[chosen], learnt[chosen])}
    title = "With no layers the weights are the bigram table"
    return plots.against(panels, labels, torch.ones(300), title, "true log P(next | current)", "log-softmax of W_E W_U")


def heatmap() -> go.Figure:
    vocab = planted_language().vocab
    table = full_ov(model(), 1, 0).AB[:30, :30]
    return plots.heatmap(
        table, vocab[:30], vocab[:30], "Head 1.0 copies: its diagonal is bright", "token raised", "source token"
    )


def large_heatmap() -> go.Figure:
    generator = torch.Generator().manual_seed(0)
    labels = [f"token {i}" for i in range(2000)]
    values = torch.randn(2000, 2000, generator=generator) ** 3
    return plots.heatmap(values, labels, labels, "Two thousand tokens, sixty at a time", "source token", "destination token")


def positions() -> go.Figure:
    net, places = model(), [str(place) for place in range(24)]
    W_pos, past = net.W_pos[:24], torch.ones(24, 24).tril()
    table = W_pos @ net.W_Q[0, 3] @ (W_pos @ net.W_K[0, 3]).mT / 4
    table = (table - (table * past).sum(1, keepdim=True) / past.sum(1, keepdim=True)) * past  # over what may be looked at
    return plots.heatmap(table, places, places, "Head 0.3 looks one place back", "source position", "destination position")


def spectrum() -> go.Figure:
    panels = {"1.0 at the start": eigenvalues(AttentionOnly(model().cfg))[1, 0], "1.0 trained": eigenvalues(model())[1, 0]}
    return plots.eigenvalues(panels, "Training turns the eigenvalues of head 1.0 positive")


def histogram() -> go.Figure:
    seeds = [load_model(name) for name in ("planted-1l", *(f"planted-1l-seed{seed}" for seed in range(1, 5)))]
    groups = {"at the start": [AttentionOnly(net.cfg) for net in seeds], "trained": seeds}
    values = {name: torch.cat([copying_scores(net).flatten() for net in nets]) for name, nets in groups.items()}
    return plots.histogram(values, "Most heads of five trained one-layer models copy", "copying score")


def corner() -> go.Figure:
    net = model()
    points = {
        head: (copying_scores(net)[1, h].item(), copying_score(k_composed_qk(net, (0, 3), (1, h))))
        for h, head in enumerate(HEADS)
    }
    induction = {HEADS[h] for h in range(4) if induction_score(net)[1, h] > 0.2}
    groups = {"induction heads": {h: p for h, p in points.items() if h in induction}}
    groups["others"] = {h: p for h, p in points.items() if h not in induction}
    return plots.scatter(groups, "Induction heads sit in the corner", "OV positivity", "positivity of the K-composed QK")


def composition() -> go.Figure:
    net, kinds = model(), {}
    for kind in "QKV":
        mean, sd, _ = composition_baseline(net, kind)
        kinds[kind] = tuple(part[0, :, 1] for part in (composition_scores(net, kind), mean, sd))
    first = [f"0.{head}" for head in range(4)]
    return scenes.composition(kinds, first, HEADS, "Head 0.3 writes what the keys of induction heads read")


def composition_table() -> go.Figure:
    net = model()
    mean, sd, _ = composition_baseline(net, "K")
    z = ((composition_scores(net, "K") - mean) / sd)[0, :, 1]
    title = "K-composition, in standard deviations over random rotations"
    return plots.heatmap(z, HEADS, [f"0.{head}" for head in range(4)], title, "to", "from")


def importance() -> go.Figure:
    found = term_importance(model(), sample(64).tokens)
    nats = {
        "by order": dict(zip(("direct path", "heads", "virtual heads"), found.by_order.tolist())),
        "alone": {f"layer {layer}": value for layer, value in enumerate(found.alone.tolist())},
        "given the other": {f"layer {layer} given the other": value for layer, value in enumerate(found.given.tolist())},
        "cut": {f"{kind}-composition": value for kind, value in found.cut.items()},
    }
    return plots.importance(nats, "Heads of the second layer, fed through their keys, carry the model")


def score_explorer() -> go.Figure:
    tokens, words = page()
    parts = {name: part[0] for name, part in expand_scores(model(), tokens, 1, 0).by_composition().items()}
    return scenes.scores(parts, words, "The score of head 1.0 on each source, by composition")


def scrubber() -> go.Figure:
    steps, losses, scores, looks = phase()
    heads = [f"{layer}.{head}" for layer in range(2) for head in range(4)]
    floors = {kind: planted_language().floor(Kind[kind]) for kind in KINDS}
    return scenes.scrubber(
        steps, losses, floors, scores, heads, looks, page()[1], "The phase change, step by step", "head 1.0"
    )


def every_head(pattern: torch.Tensor, words: list[str], weighted: bool = False) -> HTML:
    """All heads, induction heads first."""
    order = induction_score(model()).flatten().argsort(descending=True).tolist()
    return views.attention(pattern[:, 0].flatten(0, 1)[order], words, [f"{i // 4}.{i % 4}" for i in order], weighted)


def stripe() -> HTML:
    tokens = repeated_tokens(1, 16, 3, len(planted_language().vocab), torch.Generator().manual_seed(1))
    return every_head(patterns(model(), tokens), planted_language().decode(tokens[0]))


def weighted() -> HTML:
    return every_head(value_weighted(model(), page()[0]), page()[1], weighted=True)


def looked_at() -> HTML:
    tokens, words = page()
    return views.shaded(words, patterns(model(), tokens)[1, 0, 0, 45], "where head 1.0 looks from the last “mo”")


def one_head() -> HTML:
    tokens, words = page()
    return views.attention(patterns(model(), tokens)[1, 0, :1], words, ["1.0"])


def text() -> HTML:
    drawn = sample()
    reasons = {"NAME_REPEAT": "a name said before", "SKIP_TRIGRAM": "a skip-trigram", "COPY": "a copied word"}
    return views.text(page()[1], [Kind(kind).name for kind in drawn.kind[0, :48].tolist()], reasons)


def losses() -> HTML:
    tokens, words = page()
    return views.shaded(words[1:], model().loss(tokens, per_token=True)[0], "loss in nats")


def effect() -> HTML:
    tokens, words = page()
    targets = torch.cat([tokens[:, 1:], tokens[:, :1]], dim=1)
    expansion = expand_logits(model(), tokens)
    shares = expansion.attribution(targets)[expansion.paths.index(((1, 0),)), 0]
    return views.shaded(words[:-1], shares[:-1], "what head 1.0 adds to the logit of the token that follows")


def table() -> HTML:
    net, vocab, rows = load_model("planted-1l"), planted_language().vocab, []
    for source in ("keep", "bring", "chess"):
        found = skip_trigrams(net, 0, 0, vocab.index(source), k=6)
        sides = ((found.destinations, found.scores), (found.outs, found.logits))
        rows.append(
            (source, *({vocab[i]: value for i, value in zip(*map(list, map(torch.Tensor.tolist, side)))} for side in sides))
        )
    return views.skip_trigrams(rows, "Head 0.0 of the one-layer model")


def paths() -> HTML:
    tokens, words = page()
    targets = torch.cat([tokens[:, 1:], tokens[:, :1]], dim=1)
    picture = expand_logits(model(), tokens).picture(targets)
    return views.path_explorer(
        words, [*words[1:], "¶"], title="Every path's share of the next token's logit", dest=45, **picture
    )


FIGURES = ladder, curves, bigrams, heatmap, large_heatmap, positions, spectrum, histogram, corner, composition
SCENES = composition_table, importance, score_explorer, scrubber
VIEWS = stripe, weighted, one_head, looked_at, text, losses, effect, table, paths
PICTURES: dict[str, Callable[[], go.Figure | HTML]] = {draw.__name__: draw for draw in (*FIGURES, *SCENES, *VIEWS)}


def as_html(picture: go.Figure | HTML) -> str:
    return picture.data if isinstance(picture, HTML) else views.Page().to_mimebundle(picture.to_dict())["text/html"]


def as_page(pictures: dict[str, go.Figure | HTML]) -> str:
    """All on one page, the scripts once."""
    body = "".join(
        f'<section id="{name}" style="padding: 8px">{as_html(picture)}</section>' for name, picture in pictures.items()
    )
    head = "<!doctype html><meta charset='utf-8'><title>Gallery</title>"
    return f"{head}<body>{views.bundle()}{views.plotly_script()}{body}</body>"


def main(names: list[str]) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    pictures = {name: PICTURES[name]() for name in names or PICTURES}
    (BUILD / "index.html").write_text(as_page(pictures), encoding="utf-8")
    with Browser(width=1000) as browser:
        browser.open((BUILD / "index.html").absolute().as_uri())
        browser.wait("document.querySelectorAll('section').length > 0")
        for name in pictures:
            shot = browser.shot(f"#{name}")
            (BUILD / f"{name}.png").write_bytes(shot)
            if name in README:
                Path("pictures", f"{name}.png").write_bytes(shot)
            print(name, len(shot) // 1024, "KB,", browser.colours(shot), "colours")
        print("errors:", browser.errors, "requests abroad:", browser.abroad)


if __name__ == "__main__":
    main(sys.argv[1:])
