"""Attention, texts, tables and the path explorer as HTML that shows without any network."""

import html
import json
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from uuid import uuid4

import circuitsvis
import plotly.io as pio
import torch
from IPython.display import HTML
from jaxtyping import Float
from plotly.io.base_renderers import MimetypeRenderer
from plotly.offline import get_plotlyjs
from torch import Tensor

from utils.style import NEGATIVE, PALETTE, POSITIVE, drawable, escaped, letters, visible

MISSING = "This picture needs circuitsvis' script: run the first cell of the notebook again."
MOST = 200  # tokens that can be drawn against one another


@cache
def bundle() -> str:
    """circuitsvis' script, which `notebook.setup` puts on the page once for all pictures."""
    source = (Path(circuitsvis.__file__).parent / "dist/cdn/iife.js").read_text(encoding="utf-8")
    return f"<script>{source.replace('</script>', '')}\nwindow.CircuitsVis = CircuitsVis;</script>"


class Page(MimetypeRenderer):
    """Plotly figures as HTML for a page that has plotly's script once (`plotly_script`), with words for a screen reader."""

    def to_mimebundle(self, fig_dict: dict) -> dict[str, str]:
        parts = {
            "include_plotlyjs": False,
            "include_mathjax": False,
            "full_html": False,
            "auto_play": False,
            "validate": False,
        }
        body = pio.to_html(
            fig_dict, **parts, default_width="100%", config={"displaylogo": False, "responsive": True, "typesetMath": False}
        )
        alt = fig_dict["layout"].get("meta", {}).get("alt", "A figure.")
        return {"text/html": f'<div role="figure" aria-label="{html.escape(alt)}">{body}</div>', "text/plain": alt}


def plotly_script() -> str:
    """plotly's own script, for pages without network."""
    return f"<script>window.PlotlyConfig = {{MathJaxConfig: 'local'}};\n{get_plotlyjs()}</script>"


def framed(alt: str, script: str, before: str = "") -> HTML:
    """A place on the page with words for a screen reader, and a script that draws there: a function of the place's id."""
    frame = f"view-{uuid4().hex[:12]}"
    place = f'<div id="{frame}" role="figure" aria-label="{html.escape(alt)}" style="padding-left: 24px"></div>'
    return HTML(f"{before}{place}<script>({script})({json.dumps(frame)});</script>")


def as_json(content: object) -> str:
    """JSON that no token can break out of."""
    return json.dumps(content).replace("</", "<\\/").replace("<!--", "<\\u0021--")


def component(name: str, alt: str, **props) -> HTML:
    """One of circuitsvis' components. In Colab every output is a frame of its own, so there it brings its own script."""
    draw = f"CircuitsVis.render(frame, CircuitsVis.{name}, {as_json(props)})"
    otherwise = f"document.getElementById(frame).textContent = {json.dumps(MISSING)}"
    before = bundle() if "google.colab" in sys.modules else ""
    return framed(alt, f"frame => {{ if (window.CircuitsVis) {draw}; else {otherwise}; }}", before)


def attention(
    pattern: Float[Tensor, "head dest src"], tokens: Sequence[str], heads: Sequence[str], weighted: bool = False
) -> HTML:
    """Attention of one head or several: a row for each destination, a column for each source. Hover to read, click to enlarge.

    A row of a pattern sums to 1; patterns multiplied by something, such as the size of what is moved, are `weighted`.
    """
    pattern = drawable(pattern, heads, few(tokens), tokens, what="patterns").double()
    off = (pattern.sum(-1) - 1).abs().max().item()
    if off > 1e-3 and not weighted:
        raise ValueError(f"Rows of a pattern sum to 1; these are off by {off:.2g}. If that is meant, say weighted=True.")
    words, values, limit = (
        list(map(visible, tokens)),
        pattern.round(decimals=4).tolist(),
        pattern.max().item() if weighted else 1.0,
    )
    alt = f"Attention of {', '.join(heads)} over {len(tokens)} tokens; strongest: " + "; ".join(
        map(strongest(words), heads, pattern)
    )
    if len(heads) == 1:
        return component("AttentionPattern", alt, attention=values[0], tokens=words, maxValue=limit, showAxisLabels=True)
    return component("AttentionHeads", alt, attention=values, tokens=words, attentionHeadNames=list(heads), maxValue=limit)


def few(tokens: Sequence[str]) -> Sequence[str]:
    """The tokens themselves, if they can be drawn against one another."""
    if len(tokens) > MOST:
        raise ValueError(f"{len(tokens)} tokens are more than can be drawn: cut them to {MOST}.")
    return tokens


def strongest(words: list[str]):
    """Says of a head where it looks hardest, itself apart."""

    def say(head: str, pattern: Tensor) -> str:
        dest, src = divmod(pattern.tril(-1).argmax().item(), len(words))
        return f"{head} from {words[dest]} to {words[src]} {pattern[dest, src]:.2f}"

    return say


def text(tokens: Sequence[str], groups: Sequence[str], explain: Mapping[str, str]) -> HTML:
    """A text in which every token wears the colour of its group; `explain` names the groups to be coloured."""
    colours = dict(zip(explain, cycle(PALETTE)))

    def mark(label: str, group: str, hint: str) -> str:
        tint = f"background: {colours[group]}44; border-bottom: 2px solid {colours[group]};" if group in colours else ""
        return word(label, hint, tint)

    if len(tokens) != len(groups):
        raise ValueError(f"{len(groups)} groups do not fit {len(tokens)} tokens.")
    legend = " &nbsp; ".join(mark(group, group, meaning) + " " + html.escape(meaning) for group, meaning in explain.items())
    return paragraph([mark(token, group, group) for token, group in zip(tokens, groups)], legend)


def shaded(tokens: Sequence[str], values: Float[Tensor, " token"], caption: str) -> HTML:
    """A text coloured by a number for each token: blue above 0, red below, white at 0. Hover to read."""
    values = drawable(values, tokens).double()
    limit = values.abs().max().item() or 1.0

    def tint(value: float) -> str:
        return f"background: {POSITIVE if value > 0 else NEGATIVE}{round(190 * abs(value) / limit):02x};"

    words = [word(token, f"{value:+.3f}", tint(value)) for token, value in zip(tokens, values.tolist())]
    ends = [-limit, limit] if values.min() < 0 else [0.0, limit]
    scale = " ".join(word(f"{value:+.2f}", "", tint(value)) for value in ends)
    return paragraph(words, f"{html.escape(caption)}: {scale}")


def word(label: str, hint: str, tint: str) -> str:
    shown = f'title="{html.escape(hint)}" style="{tint} padding: 1px 3px; margin: 1px;"'
    return f"<span {shown}><bdi>{escaped([label])[0]}</bdi></span>"


def paragraph(words: list[str], legend: str) -> HTML:
    style = f"font-family: monospace; font-size: {letters()}px; line-height: 2;"
    return HTML(f'<div style="{style}">{" ".join(words)}</div><div style="{style} opacity: 0.85;">{legend}</div>')


def skip_trigrams(rows: Sequence[tuple[str, Mapping[str, float], Mapping[str, float]]], caption: str) -> HTML:
    """The paper's table: source, the destinations that look at it, and what it says there, coloured by value."""
    sides = [[list(side.values()) for side in pair] for pair in zip(*((to, out) for _, to, out in rows))]
    limits = [max((abs(value) for values in side for value in values), default=1.0) or 1.0 for side in sides]

    def cell(side: Mapping[str, float], limit: float) -> str:
        tints = {token: f"background: {PALETTE[0]}{round(150 * max(0, value) / limit):02x};" for token, value in side.items()}
        return "<td>" + " ".join(word(token, f"{side[token]:+.2f}", tint) for token, tint in tints.items()) + "</td>"

    body = "".join(
        f"<tr><th>{word(source, '', '')}</th>{cell(to, limits[0])}{cell(out, limits[1])}</tr>" for source, to, out in rows
    )
    head = "<tr><th>source</th><th>… destination</th><th>→ out</th></tr>"
    style = f"font-size: {letters()}px; text-align: left;"
    return HTML(f'<table style="{style}"><caption>{html.escape(caption)}</caption>{head}{body}</table>')


def path_explorer(
    tokens: Sequence[str],
    targets: Sequence[str],
    paths: Sequence[str],
    attribution: Float[Tensor, "path seq"],
    patterns: Float[Tensor, "path dest src"],
    sources: Float[Tensor, "path dest src"],
    title: str,
    dest: int = -1,
) -> HTML:
    """Choose a token: each path's signed share of the logit of what comes next, where it looked, what it took from there."""
    shares = drawable(attribution, paths, few(tokens), what="attributions").double()
    if len(targets) != len(tokens):
        raise ValueError(f"{len(targets)} targets do not fit {len(tokens)} tokens.")
    moved, looked = (pack(drawable(part, paths, tokens, tokens, what="sources")) for part in (sources, patterns))
    words = {
        "title": title,
        "tokens": list(map(visible, tokens)),
        "targets": list(map(visible, targets)),
        "paths": list(paths),
    }
    numbers = {"attribution": shares.tolist(), "logits": shares.sum(0).tolist(), "dest": range(len(tokens))[dest]}
    shown = {"contribution": moved, "attention": looked, "positive": POSITIVE, "negative": NEGATIVE, "letters": letters()}
    script = (Path(__file__).parent / "assets/explorer.js").read_text(encoding="utf-8")
    best = paths[shares.abs().sum(1).argmax().item()]
    alt = f"{title}. Bars of {len(paths)} paths for each of {len(tokens)} tokens; the path that matters most is {best}."
    return framed(alt, f"frame => {{ {script}\nexplore(frame, {as_json(words | numbers | shown)}); }}")


def pack(values: Float[Tensor, "path dest src"]) -> dict[str, str | list[float]]:
    """Numbers in 16 bits each, and the largest of each path."""
    scale = values.abs().amax((1, 2)).double().clamp_min(1e-30)
    small = (values.double() / scale[:, None, None] * 32767).round().to(torch.int16)
    return {"packed": b64encode(small.numpy().tobytes()).decode(), "scale": scale.tolist()}
