"""Figures: tensors and labels in, `go.Figure` out. Every title states the finding."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots
from torch import Tensor

# Okabe and Ito's colours, told apart by colour-blind readers too
PALETTE = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000"]
DIVERGING = "RdBu_r"


def style(figure: go.Figure, title: str, x: str, y: str, height: int = 420) -> go.Figure:
    """One look for all figures: title, named axes, a quiet background."""
    figure.update_layout(
        title={"text": title, "font": {"size": 16}, "x": 0, "xanchor": "left", "xref": "paper"},
        font={"family": "sans-serif", "size": 13},
        template="plotly_white",
        height=height,
        margin={"l": 70, "r": 30, "t": 60, "b": 60},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 1, "xanchor": "right"},
    )
    return figure.update_xaxes(title_text=x).update_yaxes(title_text=y)


def ladder(losses: Mapping[str, Mapping[str, float]], floors: Mapping[str, float], title: str) -> go.Figure:
    """The loss ladder: for each kind of token one bar a model, and a line where the exact floor is."""
    kinds = list(floors)
    figure = go.Figure()
    for colour, (model, nats) in zip(PALETTE, losses.items()):
        bar = {"x": kinds, "y": [nats[kind] for kind in kinds], "name": model, "marker_color": colour}
        figure.add_bar(**bar, hovertemplate="%{x}, " + model + ": %{y:.3f} nats<extra></extra>")
    floor = {"symbol": "line-ew", "size": 60, "line": {"width": 3, "color": "black"}}
    hover = "%{x}: no model can do better than %{y:.3f} nats<extra></extra>"
    figure.add_scatter(x=kinds, y=list(floors.values()), mode="markers", marker=floor, name="floor", hovertemplate=hover)
    style(figure.update_layout(barmode="group"), title, "kind of token", "loss (nats)")
    return figure.update_yaxes(rangemode="tozero")


def curves(lines: Mapping[str, tuple[Sequence[float | int], Sequence[float]]], title: str, x: str, y: str) -> go.Figure:
    """Lines over a common axis: {name: (xs, ys)}."""
    figure = go.Figure()
    for colour, (name, (xs, ys)) in zip(PALETTE * 4, lines.items()):
        figure.add_scatter(x=list(xs), y=list(ys), name=name, mode="lines+markers", line_color=colour, marker_size=5)
    return style(figure, title, x, y)


def heatmap(values: Tensor, x: Sequence[str], y: Sequence[str], title: str, x_title: str, y_title: str) -> go.Figure:
    """A matrix with a row for each label in y; colours diverge from 0, and 0 is white. Labels may repeat."""
    if values.shape != (len(y), len(x)):
        raise ValueError(f"{len(y)} labels in y and {len(x)} in x do not fit values of shape {list(values.shape)}.")
    limit = values.abs().max().item() or 1.0
    hover = [[f"{y_title} {row}, {x_title} {column}" for column in x] for row in y]
    cells = {"z": values.tolist(), "zmin": -limit, "zmax": limit, "colorscale": DIVERGING, "hovertext": hover}
    figure = go.Figure(go.Heatmap(**cells, hovertemplate="%{hovertext}: %{z:.3f}<extra></extra>"))
    style(figure, title, x_title, y_title, height=160 + 22 * len(y))
    figure.update_xaxes(tickvals=list(range(len(x))), ticktext=list(x), tickangle=-60)
    return figure.update_yaxes(tickvals=list(range(len(y))), ticktext=list(y), autorange="reversed")


def against(
    panels: Mapping[str, tuple[Tensor, Tensor]], labels: Sequence[str], sizes: Tensor, title: str, x: str, y: str
) -> go.Figure:
    """Scatters side by side, {panel: (x, y)}, each with the line y = x; a point's area is its weight in `sizes`."""
    figure = make_subplots(cols=len(panels), subplot_titles=list(panels), shared_yaxes=True, horizontal_spacing=0.03)
    values = torch.cat([torch.cat(pair) for pair in panels.values()])
    ends = [values.min().item(), values.max().item()]
    area = (sizes / sizes.max()).sqrt() * 22 + 2
    for column, (colour, (name, (xs, ys))) in enumerate(zip(PALETTE, panels.items()), start=1):
        diagonal = {"x": ends, "y": ends, "mode": "lines", "line": {"color": "grey", "dash": "dot"}, "hoverinfo": "skip"}
        figure.add_scatter(**diagonal, col=column, row=1)
        marker = {"size": area.tolist(), "color": colour, "opacity": 0.5, "line": {"width": 0}}
        points = {"x": xs.tolist(), "y": ys.tolist(), "text": list(labels), "name": name, "mode": "markers"}
        hover = "%{text}: %{x:.2f}, %{y:.2f}<extra></extra>"
        figure.add_scatter(**points, marker=marker, hovertemplate=hover, col=column, row=1)
    style(figure, title, x, y, height=440).update_layout(showlegend=False, margin_t=90)
    return figure.update_yaxes(title_text=None, selector=lambda axis: axis.anchor != "x")
