"""What all pictures share: colours, letters, words for those who cannot see them, and errors that say what cannot be drawn."""

import html
from collections.abc import Iterable, Sized

import plotly.graph_objects as go
import plotly.io as pio
from torch import Tensor

# Okabe and Ito's colours, told apart by colour-blind readers too
PALETTE = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000"]
POSITIVE, NEGATIVE = "#2166AC", "#B2182B"  # the ends of DIVERGING, here for HTML
DIVERGING = "RdBu"
SIZES = {"notebook": 13, "presentation": 20}  # of the letters, in pixels


def look(name: str = "notebook") -> None:
    """How pictures look from here on: "notebook", or "presentation" with letters for a projector."""
    if name not in SIZES:
        raise ValueError(f"There is no look {name!r}; there are {', '.join(SIZES)}.")
    font = {"family": "sans-serif", "size": SIZES[name]}
    pio.templates["course"] = go.layout.Template(layout={"font": font, "title_font_size": round(1.25 * SIZES[name])})
    pio.templates.default = "plotly_white+course"


look()


def letters() -> int:
    """The size of letters now, in pixels."""
    return pio.templates["course"].layout.font.size


def style(figure: go.Figure, title: str, x: str, y: str, alt: str, height: int = 420) -> go.Figure:
    """Title, named axes, and words for a screen reader."""
    figure.update_layout(
        title={"text": title, "x": 0, "xanchor": "left", "xref": "paper", "y": 1, "yanchor": "top", "pad": {"t": 12}},
        height=height,
        margin={"l": 70, "r": 30, "t": 90, "b": 60},
        legend={"orientation": "h", "y": 1.01, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        meta={"alt": f"{title}. {alt}"},
    )
    return figure.update_xaxes(title_text=x).update_yaxes(title_text=y)


def dash(size: int) -> dict:
    """A black line across, to mark a value on a bar."""
    return {"symbol": "line-ew", "size": size, "line": {"width": 3, "color": "black"}}


def note(figure: go.Figure, text: str) -> go.Figure:
    """A line above the plot, under the title: what was left out, or how to read it."""
    place = {"x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "yshift": 26}
    return figure.add_annotation(text=text, showarrow=False, font={"color": "grey", "size": letters() - 1}, **place)


def slider(figure: go.Figure, prefix: str, active: int = 0) -> go.Figure:
    """A slider over the figure's frames, by their names."""
    options = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    steps = [{"label": frame.name, "method": "animate", "args": [[frame.name], options]} for frame in figure.frames]
    control = {"steps": steps, "active": active, "currentvalue": {"prefix": prefix + " "}, "pad": {"t": 100}, "len": 0.95}
    return figure.update_layout(sliders=[control], height=figure.layout.height + 130, margin_b=190)


def drawable(values: Tensor, *labels: Sized, what: str = "values") -> Tensor:
    """Values that can be drawn beside these labels, on the CPU."""
    values = values.detach().cpu()
    if values.numel() == 0:
        raise ValueError(f"There is nothing to draw: {what} are empty, of shape {list(values.shape)}.")
    if labels and values.shape != tuple(map(len, labels)):
        raise ValueError(f"{' × '.join(str(len(x)) for x in labels)} labels do not fit {what} of shape {list(values.shape)}.")
    bad = (~values.isfinite()).sum().item()
    if bad:
        raise ValueError(f"{bad} of {values.numel()} {what} are NaN or infinite: mask them or leave them out.")
    return values


def visible(token: str) -> str:
    """A token in which nothing hides: ⏎ for a new line, ⇥ for a tab, ␣ for a space at an end, ⟨200B⟩ for what has no width."""
    shown = {"\n": "⏎", "\t": "⇥", " ": " "}
    body = "".join(shown.get(c, c if c.isprintable() else f"⟨{ord(c):04X}⟩") for c in token)
    inner = body.strip(" ")
    start = len(body) - len(body.lstrip(" "))
    return "␣" * start + inner + "␣" * (len(body) - start - len(inner)) or "∅"


def escaped(labels: Iterable[str]) -> list[str]:
    """Labels as they shall be shown: plotly and HTML would take <b> for an instruction."""
    return [html.escape(visible(label), quote=False) for label in labels]
