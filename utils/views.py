"""Attention patterns and texts as HTML that shows without any network."""

import html
import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from uuid import uuid4

import circuitsvis
from IPython.display import HTML
from jaxtyping import Float
from torch import Tensor

from utils.plots import PALETTE

MISSING = "This picture needs circuitsvis' script: run the first cell of the notebook again."


@cache
def bundle() -> str:
    """circuitsvis' script, which `notebook.setup` puts on the page once for all pictures."""
    source = (Path(circuitsvis.__file__).parent / "dist/cdn/iife.js").read_text(encoding="utf-8")
    return f"<script>{source.replace('</script>', '')}\nwindow.CircuitsVis = CircuitsVis;</script>"


def component(name: str, **props) -> HTML:
    """One of circuitsvis' components. In Colab every output is a frame of its own, so there it brings its own script."""
    frame, content = f"view-{uuid4().hex[:12]}", json.dumps(props).replace("</", "<\\/")
    draw = f"CircuitsVis.render({frame!r}, CircuitsVis.{name}, {content})"
    otherwise = f"document.getElementById({frame!r}).textContent = {MISSING!r}"
    before = bundle() if "google.colab" in sys.modules else ""
    return HTML(f'{before}<div id="{frame}"></div><script>if (window.CircuitsVis) {draw}; else {otherwise};</script>')


def attention(pattern: Float[Tensor, "head dest src"], tokens: Sequence[str], heads: Sequence[str]) -> HTML:
    """Attention patterns, a row for each destination and a column for each source. Hover to read, click to enlarge."""
    if pattern.shape != (len(heads), len(tokens), len(tokens)):
        raise ValueError(f"{len(heads)} heads and {len(tokens)} tokens do not fit a pattern of shape {list(pattern.shape)}.")
    values = pattern.detach().cpu().double().round(decimals=4).tolist()
    return component("AttentionHeads", attention=values, tokens=list(tokens), attentionHeadNames=list(heads), maxValue=1)


def text(tokens: Sequence[str], groups: Sequence[str], explain: Mapping[str, str]) -> HTML:
    """A text in which every token wears the colour of its group; `explain` names the groups to be coloured."""
    colours = dict(zip(explain, PALETTE))

    def mark(label: str, group: str, hint: str) -> str:
        tint = f"background: {colours[group]}44; border-bottom: 2px solid {colours[group]};" if group in colours else ""
        return f'<span title="{html.escape(hint)}" style="{tint} padding: 1px 3px; margin: 1px;">{html.escape(label)}</span>'

    words = " ".join(mark(token, group, group) for token, group in zip(tokens, groups))
    legend = " &nbsp; ".join(mark(group, group, meaning) + " " + html.escape(meaning) for group, meaning in explain.items())
    style = "font-family: monospace; line-height: 2;"
    return HTML(f'<div style="{style}">{words}</div><div style="{style} font-size: 85%;">{legend}</div>')
