"""Figures that are explored: who composes with whom, what a score is made of, and a model as it learns."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from plotly.subplots import make_subplots
from torch import Tensor

from utils.style import DIVERGING, PALETTE, dash, drawable, escaped, note, slider, style, visible

Edges = Float[Tensor, "first second"]


def composition(
    kinds: Mapping[str, tuple[Edges, Edges, Edges]], first: Sequence[str], second: Sequence[str], title: str
) -> go.Figure:
    """Heads of two layers and, {kind: (score, baseline's mean, its sd)}, an edge where a score stands over its baseline.

    An edge is as wide as the score is standard deviations over the mean; at 2 or fewer there is none. Hover on its middle.
    """
    figure = make_subplots(cols=len(kinds), subplot_titles=[f"{kind}-composition" for kind in kinds], horizontal_spacing=0.02)
    first, second = escaped(first), escaped(second)
    found = {kind: [drawable(part, first, second, what=f"{kind} scores") for part in triple] for kind, triple in kinds.items()}
    zs = {kind: (score - mean) / sd.clamp_min(1e-12) for kind, (score, mean, sd) in found.items()}
    widest = max(10.0, *(z.max().item() for z in zs.values()))
    strongest = []
    for column, (kind, triple) in enumerate(found.items(), start=1):
        (score, mean, sd), z = triple, zs[kind]
        for i, j in (z > 2).nonzero().tolist():
            edge = {
                "x": [i - (len(first) - 1) / 2, j - (len(second) - 1) / 2],
                "y": [0, 1],
                "mode": "lines",
                "hoverinfo": "skip",
            }
            line = {"width": 10 * z[i, j].item() / widest, "color": PALETTE[(column - 1) % len(PALETTE)]}
            figure.add_scatter(**edge, line=line, opacity=0.6, col=column, row=1)
            figure.add_scatter(**middle(edge["x"], first[i], second[j], score[i, j], mean[i, j], sd[i, j]), col=column, row=1)
            strongest.append((z[i, j].item(), f"{kind}: {first[i]} to {second[j]}, z {z[i, j]:.1f}"))
        for height, heads in enumerate((first, second)):
            xs = [k - (len(heads) - 1) / 2 for k in range(len(heads))]
            nodes = {"x": xs, "y": [height] * len(heads), "text": heads, "mode": "markers+text", "hoverinfo": "skip"}
            figure.add_scatter(**nodes, marker={"size": 34, "color": "#EEEEEE", "line": {"width": 1}}, col=column, row=1)
    said = "; ".join(text for _, text in sorted(strongest, reverse=True)[:6]) or "none"
    style(
        figure, title, "", "", f"Diagram of composition, edges over 2 standard deviations, widest first: {said}.", height=360
    )
    note(figure, "width: standard deviations over the baseline").update_layout(showlegend=False, margin_b=10)
    return figure.update_xaxes(visible=False).update_yaxes(visible=False, range=[-0.25, 1.25])


def middle(ends: list[float], first: str, second: str, score: Tensor, mean: Tensor, sd: Tensor) -> dict:
    """The point of an edge that tells what it stands for."""
    said = f"{first} → {second}: {score:.3f}, baseline {mean:.3f} ± {sd:.3f}, z = {(score - mean) / sd.clamp_min(1e-12):.1f}"
    marker = {"size": 12, "opacity": 0.01}
    return {"x": [sum(ends) / 2], "y": [0.5], "mode": "markers", "marker": marker, "hovertemplate": said + "<extra></extra>"}


def scores(parts: Mapping[str, Float[Tensor, "dest src"]], tokens: Sequence[str], title: str, dest: int = -1) -> go.Figure:
    """One destination's score on every source, split into parts, {part: scores}; a slider goes over the destinations."""
    parts = {name: drawable(part, tokens, tokens, what=f"{name} scores") for name, part in parts.items()}
    labels = [f"{token} ({place})" for place, token in enumerate(escaped(tokens))]
    frames = [go.Frame(data=score_bars(parts, labels, place), name=label) for place, label in enumerate(labels)]
    chosen = range(len(tokens))[dest]
    figure = go.Figure(score_bars(parts, labels, chosen), frames=frames)
    total = sum(part[chosen] for part in parts.values())[: chosen + 1]
    dest, src = (f"{visible(tokens[place])} ({place})" for place in (chosen, total.argmax().item()))
    said = f"At {dest} the largest score is {total.max():.2f}, on {src}."
    style(figure.update_layout(barmode="relative"), title, "source token", "score", f"Bars. {said}")
    limits = [sum(part.clamp(**bound) for part in parts.values()).tril() for bound in ({"max": 0}, {"min": 0})]
    figure.update_yaxes(range=[1.05 * limits[0].min().item(), 1.05 * limits[1].max().item()])
    return slider(figure.update_xaxes(tickangle=-60), "destination:", chosen)


def score_bars(parts: Mapping[str, Tensor], labels: list[str], dest: int) -> list[go.Bar | go.Scatter]:
    """Bars of the parts on the sources up to a destination, and a mark for their sum."""
    seen = [part[dest, : dest + 1] for part in parts.values()]
    bars = [
        go.Bar(x=labels, y=part.tolist() + [None] * (len(labels) - dest - 1), name=name, marker_color=colour)
        for colour, name, part in zip(cycle(PALETTE), parts, seen)
    ]
    total = {"x": labels, "y": sum(seen).tolist(), "mode": "markers", "name": "sum"}
    return [*bars, go.Scatter(**total, marker=dash(14))]


def scrubber(
    steps: Sequence[int],
    losses: Mapping[str, Sequence[float]],
    floors: Mapping[str, float],
    scores: Float[Tensor, "step head"],
    heads: Sequence[str],
    patterns: Float[Tensor, "step dest src"],
    tokens: Sequence[str],
    title: str,
    pattern_title: str,
) -> go.Figure:
    """A model as it learns: loss by kind, scores of heads, and one attention pattern, with a slider over training steps."""
    scores, patterns = drawable(scores, steps, heads), drawable(patterns, steps, tokens, tokens, what="patterns")
    drawable(torch.tensor(list(losses.values())), losses, steps, what="losses")
    figure = make_subplots(
        cols=3,
        subplot_titles=["loss (nats)", "induction score", pattern_title],
        column_widths=[0.22, 0.25, 0.53],
        horizontal_spacing=0.09,
    )
    panels = [panel(step, losses, scores, heads, patterns) for step in range(len(steps))]
    for column, trace in enumerate(panels[0], start=1):
        figure.add_trace(trace, col=column, row=1)
    figure.add_scatter(x=list(floors), y=list(floors.values()), mode="markers", marker=dash(14), name="floor", col=1, row=1)
    figure.frames = [go.Frame(data=traces, traces=[0, 1, 2], name=str(step)) for step, traces in zip(steps, panels)]
    said = "; ".join(f"{kind} from {nats[0]:.2f} to {nats[-1]:.2f}" for kind, nats in losses.items())
    style(figure, title, "", "", f"Slider over {len(steps)} steps of training. Loss in nats: {said}.", height=560)
    figure.update_layout(showlegend=False).update_yaxes(range=[0, 1], col=2)
    figure.update_yaxes(range=[0, 1.05 * max(max(nats) for nats in losses.values())], col=1)
    ticks = {"tickvals": list(range(len(tokens))), "ticktext": escaped(tokens), "tickfont_size": 9}
    figure.update_xaxes(title_text="source", **ticks, tickangle=-60, col=3)
    figure.update_yaxes(title_text="destination", **ticks, autorange="reversed", col=3)
    return slider(figure, "step")


def panel(step: int, losses: Mapping, scores: Tensor, heads: Sequence[str], patterns: Tensor) -> list:
    """The three pictures of one step."""
    nats = {kind: values[step] for kind, values in losses.items()}
    return [
        go.Bar(
            x=list(nats), y=list(nats.values()), marker_color=PALETTE[0], hovertemplate="%{x}: %{y:.2f} nats<extra></extra>"
        ),
        go.Bar(x=list(heads), y=scores[step].tolist(), marker_color=PALETTE[2], hovertemplate="%{x}: %{y:.2f}<extra></extra>"),
        go.Heatmap(z=patterns[step].tolist(), zmin=-1, zmax=1, colorscale=DIVERGING, showscale=False),
    ]
