"""Figures: tensors and labels in, `go.Figure` out. Every title states the finding."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import plotly.graph_objects as go
import torch
from jaxtyping import Complex, Float, Int
from plotly.subplots import make_subplots
from torch import Tensor

from utils.style import DIVERGING, PALETTE, dash, drawable, escaped, look, note, slider, style, visible  # noqa: F401, look is for notebooks

MOST = 60  # rows and columns of a heatmap that can be read at a time


def ladder(losses: Mapping[str, Mapping[str, float]], floors: Mapping[str, float], title: str) -> go.Figure:
    """The loss ladder: for each kind of token one bar a model, and a line where the exact floor is."""
    kinds = list(floors)
    figure = go.Figure()
    for colour, (model, nats) in zip(cycle(PALETTE), losses.items()):
        bar = {"x": kinds, "y": [nats[kind] for kind in kinds], "name": model, "marker_color": colour}
        figure.add_bar(**bar, hovertemplate="%{x}, " + model + ": %{y:.3f} nats<extra></extra>")
    hover = "%{x}: no model can do better than %{y:.3f} nats<extra></extra>"
    figure.add_scatter(x=kinds, y=list(floors.values()), mode="markers", marker=dash(60), name="floor", hovertemplate=hover)
    said = "; ".join(f"{kind}: " + ", ".join(f"{m} {nats[kind]:.2f}" for m, nats in losses.items()) for kind in kinds)
    style(figure.update_layout(barmode="group"), title, "kind of token", "loss (nats)", f"Bars of nats. {said}.")
    return figure.update_yaxes(rangemode="tozero")


def curves(lines: Mapping[str, tuple[Sequence[float | int], Sequence[float]]], title: str, x: str, y: str) -> go.Figure:
    """Lines over a common axis: {name: (xs, ys)}."""
    figure = go.Figure()
    for colour, (name, (xs, ys)) in zip(cycle(PALETTE), lines.items()):
        figure.add_scatter(x=list(xs), y=list(ys), name=name, mode="lines+markers", line_color=colour, marker_size=5)
    said = "; ".join(f"{name} from {ys[0]:.3g} to {ys[-1]:.3g}" for name, (_, ys) in lines.items())
    return style(figure, title, x, y, f"Lines of {y} over {x}: {said}.")


def heatmap(values: Tensor, x: Sequence[str], y: Sequence[str], title: str, x_title: str, y_title: str) -> go.Figure:
    """A matrix with a row for each label in y; colours diverge from 0, and 0 is white. Labels may repeat.

    A large one is cut into pages of MOST rows, the largest first, with the columns that matter to them; a slider turns them.
    """
    values = drawable(values, y, x)
    limit = values.abs().max().item() or 1.0
    largest = divmod(values.abs().argmax().item(), len(x))
    largest = f"the largest {values[largest]:.3g} at {visible(y[largest[0]])}, {visible(x[largest[1]])}"
    x, y = escaped(x), escaped(y)
    pages = [(rows, telling(values[rows].mT)[0]) for rows in telling(values)]
    frames = [page(values, rows, columns, x, y) for rows, columns in pages]
    for number, frame in enumerate(frames, start=1):
        frame.name = f"page {number}, {frame.layout.yaxis.ticktext[0]} …"
    colours = {"zmin": -limit, "zmax": limit, "colorscale": DIVERGING}
    hover = f"{y_title}, {x_title}: %{{hovertext}}<br>%{{z:.3f}}<extra></extra>"
    cells = go.Heatmap(frames[0].data[0], **colours, hovertemplate=hover)
    figure = go.Figure(cells, frames=frames if len(frames) > 1 else None)
    said = f"Heatmap, {len(y)} rows ({y_title}) by {len(x)} columns ({x_title}), {largest}."
    style(figure, title, x_title, y_title, said, height=160 + 22 * len(pages[0][0])).update_layout(frames[0].layout)
    figure.update_xaxes(tickangle=-60).update_yaxes(autorange="reversed")
    if len(pages[0][0]) * len(pages[0][1]) < values.numel():
        note(figure, f"of {len(y)} × {len(x)}, {len(pages[0][0])} × {len(pages[0][1])} at a time, the largest first")
    return slider(figure, "rows by size:") if len(frames) > 1 else figure


def telling(values: Float[Tensor, "row column"]) -> list[Int[Tensor, " _"]]:
    """Rows in pages: all of a small matrix as they are, of a large one those with the largest entries first."""
    if len(values) <= MOST:
        return [torch.arange(len(values))]
    return list(values.abs().amax(1).argsort(descending=True, stable=True).split(MOST))


def page(values: Tensor, rows: Tensor, columns: Tensor, x: list[str], y: list[str]) -> go.Frame:
    """Some rows and columns of a heatmap, with their labels."""
    x, y = ([labels[i] for i in chosen.tolist()] for labels, chosen in ((x, columns), (y, rows)))
    cells = go.Heatmap(
        z=values[rows][:, columns].float().numpy(), hovertext=[[f"{row}, {column}" for column in x] for row in y]
    )
    axes = {f"{axis}axis": {"tickvals": list(range(len(labels))), "ticktext": labels} for axis, labels in (("x", x), ("y", y))}
    return go.Frame(data=[cells], layout=axes)


def against(
    panels: Mapping[str, tuple[Tensor, Tensor]], labels: Sequence[str], sizes: Tensor, title: str, x: str, y: str
) -> go.Figure:
    """Scatters side by side, {panel: (x, y)}, each with the line y = x; a point's area is its weight in `sizes`."""
    figure = make_subplots(cols=len(panels), subplot_titles=list(panels), shared_yaxes=True, horizontal_spacing=0.03)
    values = torch.stack([drawable(part, labels, what=name) for name, pair in panels.items() for part in pair])
    values = values.unflatten(0, (len(panels), 2))
    ends = [values.min().item(), values.max().item()]
    area = (drawable(sizes, labels, what="sizes") / sizes.max().clamp_min(1e-30)).sqrt() * 22 + 2
    for column, (colour, name, (xs, ys)) in enumerate(zip(cycle(PALETTE), panels, values.tolist()), start=1):
        diagonal = {"x": ends, "y": ends, "mode": "lines", "line": {"color": "grey", "dash": "dot"}, "hoverinfo": "skip"}
        figure.add_scatter(**diagonal, col=column, row=1)
        marker = {"size": area.tolist(), "color": colour, "opacity": 0.5, "line": {"width": 0}}
        points = {"x": xs, "y": ys, "text": escaped(labels), "name": name, "mode": "markers"}
        figure.add_scatter(
            **points, marker=marker, hovertemplate="%{text}: %{x:.2f}, %{y:.2f}<extra></extra>", col=column, row=1
        )
    off = "; ".join(f"{name}: {(ys - xs).abs().mean():.2f}" for name, (xs, ys) in zip(panels, values))
    style(figure, title, x, y, f"Points of {y} over {x}; mean distance from the diagonal, {off}.", height=440)
    figure.update_layout(showlegend=False)
    return figure.update_yaxes(title_text=None, selector=lambda axis: axis.anchor != "x")


def eigenvalues(panels: Mapping[str, Complex[Tensor, " n"]], title: str) -> go.Figure:
    """Eigenvalues in the complex plane, a panel for each matrix, with Σλ / Σ|λ|; to the right is positive."""
    parts = {name: torch.view_as_real(drawable(values)) for name, values in panels.items()}
    shares = {name: (xy[:, 0].sum() / xy.norm(dim=1).sum().clamp_min(1e-30)).item() for name, xy in parts.items()}
    titles = [f"{name}: {share:+.2f}" for name, share in shares.items()]
    figure = make_subplots(cols=len(panels), subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.03)
    limit = 1.05 * max(xy.abs().max().item() for xy in parts.values()) or 1.0
    for column, (name, xy) in enumerate(parts.items(), start=1):
        colours = [PALETTE[0] if real > 0 else PALETTE[5] for real in xy[:, 0].tolist()]
        points = {"x": xy[:, 0].tolist(), "y": xy[:, 1].tolist(), "mode": "markers", "name": name, "marker_color": colours}
        figure.add_scatter(**points, hovertemplate="%{x:.3g} + %{y:.3g} i<extra></extra>", col=column, row=1)
    said = ", ".join(f"{name} {share:+.2f}" for name, share in shares.items())
    style(figure, title, "real part", "imaginary part", f"Eigenvalues in the complex plane; sum over sum of sizes: {said}.")
    figure.update_layout(showlegend=False).update_xaxes(range=[-limit, limit]).update_yaxes(range=[-limit, limit])
    return figure.update_yaxes(title_text=None, selector=lambda axis: axis.anchor != "x")


def histogram(groups: Mapping[str, Tensor], title: str, x: str, ends: tuple[float, float] = (-1.0, 1.0)) -> go.Figure:
    """How scores spread over heads and seeds, {group: values}, in 20 bins of the same width."""
    figure = go.Figure()
    bins = {"start": ends[0], "end": ends[1], "size": (ends[1] - ends[0]) / 20 * (1 + 1e-6)}  # the last one with its upper end
    for colour, (name, values) in zip(cycle(PALETTE), groups.items()):
        figure.add_histogram(x=drawable(values).flatten().tolist(), name=name, xbins=bins, marker_color=colour, opacity=0.65)
    said = "; ".join(f"{name}: {v.numel()} values, median {v.median():.2f}" for name, v in groups.items())
    style(figure.update_layout(barmode="overlay"), title, x, "number of heads", f"Histogram. {said}.")
    return figure.update_xaxes(range=[ends[0] - 0.02, ends[1] + 0.02])


def scatter(groups: Mapping[str, Mapping[str, tuple[float, float]]], title: str, x: str, y: str) -> go.Figure:
    """Named points by group, {group: {name: (x, y)}}, between −1 and 1: where copying meets matching."""
    figure = go.Figure()
    for colour, (group, points) in zip(cycle(PALETTE), ((group, points) for group, points in groups.items() if points)):
        xs, ys = zip(*points.values())
        sides = (["top center", "middle left", "bottom center", "middle right"] * len(xs))[
            : len(xs)
        ]  # so that names stay apart
        marks = {"x": xs, "y": ys, "text": escaped(points), "name": group, "mode": "markers+text", "textposition": sides}
        hover = "%{text}: %{x:.2f}, %{y:.2f}<extra></extra>"
        figure.add_scatter(**marks, marker={"color": colour, "size": 11}, hovertemplate=hover)
    said = "; ".join(f"{name} {a:.2f}, {b:.2f}" for points in groups.values() for name, (a, b) in points.items())
    style(figure, title, x, y, f"Points: {said}.", height=480)
    return figure.update_xaxes(range=[-1.2, 1.2]).update_yaxes(range=[-1.2, 1.2])


def importance(nats: Mapping[str, Mapping[str, float]], title: str) -> go.Figure:
    """What terms are worth, {group: {term: nats}}, as bars with their values."""
    figure = go.Figure()
    for colour, (group, terms) in zip(cycle(PALETTE), nats.items()):
        bar = {"x": list(terms), "y": list(terms.values()), "name": group, "marker_color": colour}
        figure.add_bar(**bar, texttemplate="%{y:.2f}", hovertemplate="%{x}: %{y:.3f} nats<extra></extra>")
    said = "; ".join(f"{group}: " + ", ".join(f"{t} {v:.3g}" for t, v in terms.items()) for group, terms in nats.items())
    return style(figure, title, "term", "worth (nats)", f"Bars. {said}.")
