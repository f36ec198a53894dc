"""Figures and views as data: numbers, labels, centred colours, words, hostile tokens, and sentences for what cannot be drawn.

What a browser makes of them is in test_browser.py.
"""

import html
import json
import math
import re
from base64 import b64decode
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.helpers import rng
from tests.test_surgery import refused
from utils import plots, scenes, style, views
from utils.style import NEGATIVE, PALETTE, POSITIVE

HOSTILE = {token: token for token in ["</script>", "<b>", "<!--", "'", "\\", "🙂", "שלום", "FRAME", "$x$", "&lt;", "{}", '"']}
HOSTILE |= {"\n": "⏎", "\t": "⇥", " a ": "␣a␣", "a\u200bb": "a⟨200B⟩b", "\u202e": "⟨202E⟩", "": "∅"}
every_token = pytest.mark.parametrize(("token", "shown"), HOSTILE.items())
SQUARE = torch.tensor([[1.0, 0.0], [0.25, 0.75]])


def alt(figure) -> str:
    return figure.layout.meta["alt"]


def named(figure) -> tuple[str, str, str]:
    """The titles of a figure and of its axes."""
    layout = figure.to_dict()["layout"]
    return tuple(part.get("title", {}).get("text") for part in (layout, layout["xaxis"], layout["yaxis"]))


def centred(cells, limit: float) -> bool:
    return (cells["zmin"], cells["zmax"], cells["colorscale"]) == (-limit, limit, RDBU) and not cells.get("reversescale")


RDBU = plots.go.Heatmap(colorscale="RdBu").to_plotly_json()["colorscale"]  # from red over white to blue


def test_blue_is_positive_and_red_negative():
    red, white, blue = ([int(x) for x in re.findall(r"\d+", RDBU[place][1])] for place in (0, len(RDBU) // 2, -1))
    assert red[0] > red[2] and blue[2] > blue[0] and min(white) > 240  # noqa: PT018
    assert int(POSITIVE[5:], 16) > int(POSITIVE[1:3], 16) and int(NEGATIVE[1:3], 16) > int(NEGATIVE[5:], 16)  # noqa: PT018


def test_a_ladder_has_a_bar_for_each_model_and_kind_and_the_floors():
    losses = {"none": {"A": 2.0, "B": 3.0}, "one": {"B": 2.5, "A": 1.0}}
    figure = plots.ladder(losses, {"A": 0.5, "B": 0.25}, "B falls")
    none, one, floor = figure.to_dict()["data"]
    assert [list(trace["y"]) for trace in (none, one, floor)] == [[2, 3], [1, 2.5], [0.5, 0.25]]
    assert [trace["name"] for trace in (none, one, floor)] == ["none", "one", "floor"]
    assert [bar["marker"]["color"] for bar in (none, one)] == PALETTE[:2]
    assert floor["marker"]["line"]["color"] == "black"
    assert named(figure) == ("B falls", "kind of token", "loss (nats)")
    assert figure.layout.barmode == "group"
    assert alt(figure).startswith("B falls. ")
    assert "A: none 2.00, one 1.00; B: none 3.00, one 2.50." in alt(figure)


def test_curves_hold_their_points_and_tell_where_they_begin_and_end():
    figure = plots.curves({"a": ([0, 5, 9], [3.0, 4.0, 2.0]), "b": ([0, 9], [1.0, 0.5])}, "falls", "step", "nats")
    a, b = figure.to_dict()["data"]
    assert [list(a["x"]), list(a["y"]), list(b["x"]), list(b["y"])] == [[0, 5, 9], [3, 4, 2], [0, 9], [1, 0.5]]
    assert [line["line"]["color"] for line in (a, b)] == PALETTE[:2]
    assert named(figure) == ("falls", "step", "nats")
    assert "a from 3 to 2; b from 1 to 0.5" in alt(figure)


def test_a_small_heatmap_is_shown_as_it_is_centred_on_zero():
    values = torch.tensor([[1.0, -4.0, 0.0], [2.0, 3.0, 0.5]])
    figure = plots.heatmap(values, ["x", "y", "x"], ["a", "b"], "title", "next", "current")
    [cells] = figure.to_dict()["data"]
    assert_close(torch.tensor(cells["z"]), values)
    assert centred(cells, 4.0)
    assert [list(axis.ticktext) for axis in (figure.layout.xaxis, figure.layout.yaxis)] == [["x", "y", "x"], ["a", "b"]]
    assert figure.layout.yaxis.autorange == "reversed"
    assert all(word in str(cells.get("hovertext")) + cells["hovertemplate"] for word in ("current", "next", "%{z"))
    assert named(figure) == ("title", "next", "current")
    assert "2 rows (current) by 3 columns (next), the largest -4 at a, y." in alt(figure)
    assert not figure.frames and not figure.layout.sliders and not figure.layout.annotations  # noqa: PT018


def test_a_heatmap_of_zeros_can_be_drawn():
    assert centred(plots.heatmap(torch.zeros(1, 1), ["x"], ["y"], "t", "x", "y").to_dict()["data"][0], 1.0)


@pytest.mark.parametrize(("rows", "columns", "pages"), [(60, 60, 0), (61, 3, 2), (30, 100, 0), (180, 1, 3)])
def test_a_heatmap_is_cut_only_when_it_is_large(rows, columns, pages):
    values = torch.randn(rows, columns, generator=rng(0))
    figure = plots.heatmap(values, *([str(i) for i in range(n)] for n in (columns, rows)), "t", "x", "y")
    assert len(figure.frames) == pages
    assert bool(figure.layout.sliders) == bool(pages)
    assert len(figure.layout.annotations) == (rows > 60 or columns > 60)
    assert len(figure.layout.xaxis.ticktext) == min(60, columns)
    if columns <= 60:
        assert list(figure.layout.xaxis.ticktext) == [str(i) for i in range(columns)]


@pytest.fixture(scope="module")
def large():
    values = torch.randn(2000, 2000, generator=rng(0)) ** 3
    labels = [[f"{letter}{i}" for i in range(2000)] for letter in "cr"]
    return values, plots.heatmap(values, *labels, "Large", "next", "current")


def pages(figure) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Rows, columns and values of each page, by the labels it shows."""
    shown = []
    for frame in figure.frames:
        rows, columns = (
            torch.tensor([int(label[1:]) for label in axis.ticktext]) for axis in (frame.layout.yaxis, frame.layout.xaxis)
        )
        shown.append((rows, columns, torch.tensor(frame.data[0].z)))
    return shown


def test_every_row_of_a_large_heatmap_is_on_one_page_and_the_largest_are_first(large):
    values, figure = large
    rows = torch.cat([rows for rows, _, _ in pages(figure)])
    assert rows.sort().values.tolist() == list(range(2000))
    sizes = values.abs().amax(1)[rows]
    assert (sizes.diff() <= 0).all()
    assert figure.data[0].z == figure.frames[0].data[0].z
    assert figure.layout.yaxis.ticktext == figure.frames[0].layout.yaxis.ticktext
    assert centred(figure.to_dict()["data"][0], values.abs().max().item())


def test_every_page_has_the_columns_that_matter_to_it_and_labels_that_fit(large):
    values, figure = large
    for rows, columns, z in pages(figure):
        assert_close(z, values[rows][:, columns], atol=1e-3, rtol=1e-3)
        largest = values[rows].abs().amax(0)
        assert set(columns.tolist()) == set(largest.topk(60).indices.tolist())
    for frame in figure.frames:
        for axis, number in ((frame.layout.yaxis, len(frame.data[0].z)), (frame.layout.xaxis, len(frame.data[0].z[0]))):
            assert list(axis.tickvals) == list(range(number)) and len(axis.ticktext) == number  # noqa: PT018


def test_a_large_heatmap_says_what_it_shows_and_its_slider_names_the_pages(large):
    values, figure = large
    [note], [slider] = figure.layout.annotations, figure.layout.sliders
    assert "of 2000 × 2000, 60 × 60 at a time" in note.text
    assert note.visible is not False
    names = [frame.name for frame in figure.frames]
    assert len(set(names)) == 34
    assert [step.label for step in slider.steps] == [step.args[0][0] for step in slider.steps] == names
    assert slider.active == 0
    row, column = divmod(values.abs().argmax().item(), 2000)
    assert f"the largest {values[row, column]:.3g} at r{row}, c{column}." in alt(figure)


def test_a_large_heatmap_is_under_four_megabytes(large):
    assert len(large[1].to_json()) < 4_000_000


def test_pages_can_be_told_apart_when_labels_repeat():
    figure = plots.heatmap(torch.randn(200, 2), list("ab"), ["same"] * 200, "t", "x", "y")
    assert len({frame.name for frame in figure.frames}) == 4


def test_axis_titles_of_a_heatmap_may_have_braces():
    assert named(plots.heatmap(SQUARE, "ab", "ab", "t", "W_{E}", "{}")) == ("t", "W_{E}", "{}")


def test_against_has_points_a_diagonal_and_areas():
    x, y = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.75])
    figure = plots.against({"left": (x, y), "right": (y, x)}, ["p", "<q>"], torch.tensor([1.0, 4.0]), "t", "true", "learnt")
    line, left, _, right = figure.to_dict()["data"]
    assert list(line["x"]) == list(line["y"]) == [-2.75, -1.0]
    assert [list(left["x"]), list(left["y"]), list(right["x"])] == [x.tolist(), y.tolist(), y.tolist()]
    assert list(left["text"]) == ["p", "&lt;q&gt;"]
    assert [part["marker"]["color"] for part in (left, right)] == PALETTE[:2]
    small, big = (size - 2 for size in left["marker"]["size"])
    assert (big / small) ** 2 == pytest.approx(4)
    assert named(figure) == ("t", "true", "learnt")
    assert (figure.layout.xaxis2.title.text, figure.layout.yaxis2.title.text) == ("true", None)
    assert [note.text for note in figure.layout.annotations] == ["left", "right"]
    assert "left: 0.62; right: 0.62" in alt(figure)


def test_eigenvalues_are_points_with_their_share():
    values = torch.tensor([3 + 4j, 3 - 4j, -2 + 0j, 0j])
    figure = plots.eigenvalues({"one": values, "other": -values}, "t")
    one, _ = figure.to_dict()["data"]
    share = (values.sum().real / values.abs().sum()).item()  # 4 / 12
    assert [note.text for note in figure.layout.annotations] == [f"one: {share:+.2f}", f"other: {-share:+.2f}"]
    assert f"one {share:+.2f}, other {-share:+.2f}" in alt(figure)
    assert (list(one["x"]), list(one["y"])) == ([3, 3, -2, 0], [4, -4, 0, 0])
    assert list(one["marker"]["color"])[:3] == [PALETTE[0], PALETTE[0], PALETTE[5]]
    for axis in (figure.layout.xaxis, figure.layout.yaxis, figure.layout.xaxis2):
        assert -axis.range[0] == axis.range[1] > 4
    assert named(figure) == ("t", "real part", "imaginary part")


def test_a_histogram_has_the_values_of_every_group():
    figure = plots.histogram({"a": torch.tensor([[-1.0, 0.5], [0.5, 1.0]]), "b": torch.zeros(3)}, "t", "score")
    a, b = figure.to_dict()["data"]
    assert [list(a["x"]), list(b["x"])] == [[-1, 0.5, 0.5, 1], [0, 0, 0]]
    assert [part["marker"]["color"] for part in (a, b)] == PALETTE[:2]
    assert named(figure) == ("t", "score", "number of heads")
    assert figure.layout.barmode == "overlay"
    assert "a: 4 values, median 0.50; b: 3 values, median 0.00" in alt(figure)


def test_scores_of_exactly_one_fall_in_bins_that_are_seen():
    figure = plots.histogram({"a": torch.tensor([-1.0, 1.0])}, "t", "score")
    bins, (left, right) = figure.data[0].xbins, figure.layout.xaxis.range
    number = math.ceil((bins.end - bins.size * 1e-6 - bins.start) / bins.size - 1e-9)  # as plotly.js counts
    places = [math.floor((value - bins.start) / bins.size + 1e-9) for value in (-1, 1)]
    assert (places, number) == ([0, 19], 20)
    assert left <= bins.start and bins.start + 20 * bins.size <= right  # noqa: PT018


def test_a_scatter_names_its_points():
    figure = plots.scatter({"in": {"1.0": (0.9, 0.8)}, "out": {"<b>": (-0.5, 0.1), "1.2": (0, 0)}}, "t", "OV", "QK")
    inside, outside = figure.to_dict()["data"]
    assert [list(outside["x"]), list(outside["y"]), list(outside["text"])] == [[-0.5, 0], [0.1, 0], ["&lt;b&gt;", "1.2"]]
    assert [part["marker"]["color"] for part in (inside, outside)] == PALETTE[:2]
    assert [part["name"] for part in (inside, outside)] == ["in", "out"]
    assert named(figure) == ("t", "OV", "QK")
    assert "1.0 0.90, 0.80; <b> -0.50, 0.10" in alt(figure)


def test_importance_has_a_bar_for_each_term():
    figure = plots.importance({"order": {"direct": 2.0, "heads": -0.5}, "cut": {"K": 0.25}}, "t")
    order, cut = figure.to_dict()["data"]
    assert (list(order["x"]), list(order["y"]), list(cut["y"])) == (["direct", "heads"], [2, -0.5], [0.25])
    assert [part["marker"]["color"] for part in (order, cut)] == PALETTE[:2]
    assert named(figure) == ("t", "term", "loss reduction (nats)")
    assert "order: direct 2, heads -0.5; cut: K 0.25" in alt(figure)


Z = {"Q": [[2.0, 2.5, 0.0], [9.0, -5.0, 1.0]], "K": [[30.0, 12.0, 2.25], [1.5, 0.0, 4.0]], "V": [[-3.0] * 3] * 2}


def composed():
    """A figure with these scores over the baseline, and its edges, {(kind, first, second): (width, what hovering says)}."""
    kinds = {kind: (torch.tensor(z) / 4 + 0.5, torch.full((2, 3), 0.5), torch.full((2, 3), 0.25)) for kind, z in Z.items()}
    figure = scenes.composition(kinds, ["0.0", "0.1"], ["1.0", "1.1", "1.2"], "t")
    panels = {None: "Q", "x": "Q", "x2": "K", "x3": "V"}
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    middles = {(trace.xaxis, trace.x[0]): trace for trace in figure.data if trace.mode == "markers"}
    edges = {}
    for line in lines:
        first, second = line.x[0] + 0.5, line.x[1] + 1
        said = next(
            t
            for t in figure.data
            if t.mode == "markers" and t.xaxis == line.xaxis and f"0.{first:.0f} → 1.{second:.0f}" in t.hovertemplate
        )
        assert (said.x[0], said.y[0], tuple(line.y)) == (sum(line.x) / 2, 0.5, (0, 1))
        edges[panels[line.xaxis], first, second] = line.line.width, said.hovertemplate, line.line.color
    assert len(edges) == len(lines) >= len(middles) > 0
    return figure, edges


def test_composition_has_edges_only_over_two_standard_deviations():
    figure, edges = composed()
    over = {(kind, i, j) for kind, z in Z.items() for i in range(2) for j in range(3) if z[i][j] > 2}
    assert set(edges) == over
    assert edges["K", 0, 2][1].startswith("0.0 → 1.2: 1.062, baseline 0.500 ± 0.250, z = 2.2")
    assert {edges[key][2] for key in over if key[0] == "Q"} == {PALETTE[0]}
    assert {edges[key][2] for key in over if key[0] == "K"} == {PALETTE[1]}
    assert {f"{kind}-composition" for kind in "QKV"} < {note.text for note in figure.layout.annotations}
    heads = [list(trace.text) for trace in figure.data if trace.mode == "markers+text"]
    assert heads == [["0.0", "0.1"], ["1.0", "1.1", "1.2"]] * 3
    assert "widest first: K: 0.0 to 1.0, z 30.0; K: 0.0 to 1.1, z 12.0; Q: 0.1 to 1.0, z 9.0" in alt(figure)
    assert figure.layout.title.text == "t"


@pytest.mark.parametrize("kinds", ["Q", "K", "QK"])
def test_edges_are_as_wide_as_their_scores_stand_over_the_baseline(kinds):
    per_z = [width / Z[kind][int(i)][int(j)] for (kind, i, j), (width, _, _) in composed()[1].items() if kind in kinds]
    assert per_z == pytest.approx([per_z[0]] * len(per_z))
    assert per_z[0] > 0


def test_composition_without_edges_can_be_drawn():
    assert "none" in alt(scenes.composition({"Q": (SQUARE, SQUARE, torch.ones(2, 2))}, "ab", "cd", "t"))


def test_scores_have_bars_up_to_the_destination_that_sum_to_the_marks():
    parts = {name: torch.randn(5, 5, generator=rng(seed)) for seed, name in enumerate(["none", "Q", "K"])}
    figure = scenes.scores(parts, ["a", "b", "a", "<b>", ""], "t", dest=2)
    labels = ["a (0)", "b (1)", "a (2)", "&lt;b&gt; (3)", "∅ (4)"]
    low, high = figure.layout.yaxis.range
    for dest, frame in enumerate(figure.frames):
        *bars, mark = frame.data
        assert [bar.name for bar in bars] == list(parts)
        assert [bar.marker.color for bar in bars] == PALETTE[:3]
        for bar, part in zip(bars, parts.values()):
            assert list(bar.x) == labels
            assert list(bar.y) == part[dest, : dest + 1].tolist() + [None] * (4 - dest)
        seen = torch.tensor([bar.y[: dest + 1] for bar in bars])
        assert_close(torch.tensor(mark.y), seen.sum(0))
        assert list(mark.x)[: dest + 1] == labels[: dest + 1]
        assert mark.marker.line.color == "black"
        assert low < seen.clamp(max=0).sum(0).min() and seen.clamp(min=0).sum(0).max() < high  # noqa: PT018
    assert [trace.y for trace in figure.data] == [trace.y for trace in figure.frames[2].data]
    [slider] = figure.layout.sliders
    assert [step.args[0][0] for step in slider.steps] == [frame.name for frame in figure.frames] == labels
    assert slider.active == 2
    assert figure.layout.barmode == "relative"
    total = sum(parts.values())[2, :3]
    assert f"At a (2) the largest score is {total.max():.2f}, on {labels[total.argmax()]}." in alt(figure)
    assert named(figure) == ("t", "source token", "score")
    assert scenes.scores(parts, list("abcde"), "t").layout.sliders[0].active == 4


def test_many_parts_of_a_score_are_all_shown():
    figure = scenes.scores({f"part {i}": torch.ones(2, 2) for i in range(9)}, ["a", "b"], "t")
    assert sum(bar.y[0] for bar in figure.data[:-1]) == figure.data[-1].y[0]


def test_the_scrubber_has_losses_scores_and_the_pattern_of_every_step():
    scores, patterns = torch.rand(3, 2, generator=rng(0)), torch.rand(3, 2, 2, generator=rng(1))
    losses = {"A": [3.0, 2.0, 1.0], "B": [4.0, 4.0, 0.5]}
    words = ["x", "<y>"]
    figure = scenes.scrubber([0, 10, 99], losses, {"A": 0.5, "B": 0.1}, scores, ["0.0", "0.1"], patterns, words, "t", "1.0")
    for step, frame in enumerate(figure.frames):
        nats, heads, cells = frame.data
        assert dict(zip(nats.x, nats.y)) == {kind: values[step] for kind, values in losses.items()}
        assert_close(torch.tensor(heads.y), scores[step])
        assert list(heads.x) == ["0.0", "0.1"]
        assert_close(torch.tensor(cells.z), patterns[step])
        assert centred(cells.to_plotly_json(), 1)
        assert list(frame.traces) == [0, 1, 2]
    assert [trace.y for trace in figure.data[:2]] == [trace.y for trace in figure.frames[0].data[:2]]
    assert list(figure.data[3].y) == [0.5, 0.1]
    assert (
        [step.label for step in figure.layout.sliders[0].steps] == ["0", "10", "99"] == [frame.name for frame in figure.frames]
    )
    assert list(figure.layout.xaxis3.ticktext) == list(figure.layout.yaxis3.ticktext) == ["x", "&lt;y&gt;"]
    assert figure.layout.yaxis3.autorange == "reversed"
    assert figure.layout.yaxis.range[1] > 4
    assert (figure.layout.xaxis3.title.text, figure.layout.yaxis3.title.text) == ("source", "destination")
    assert [note.text for note in figure.layout.annotations] == ["loss (nats)", "induction score", "1.0"]
    assert "3 steps of training. Loss in nats: A from 3.00 to 1.00; B from 4.00 to 0.50." in alt(figure)


class Read(HTMLParser):
    """The tags of a page, the words in <bdi>, and the labels for a screen reader, as a browser reads them."""

    def __init__(self, page: str):
        super().__init__()
        self.tags, self.words, self.labels, self.spans = [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.words += [""] if tag == "bdi" else []
        self.labels += [value for name, value in attrs if name == "aria-label"]
        self.spans += [(dict(attrs)["title"], dict(attrs)["style"])] if tag == "span" else []

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "bdi" and not self.words[-1]:
            self.words[-1] = data


def props(view) -> tuple[str, dict]:
    """The component of circuitsvis that is called, and with what."""
    name, content = re.search(r"CircuitsVis\.render\(frame, CircuitsVis\.(\w+), (\{.*\})\); else", view.data, re.S).groups()
    return name, json.loads(content)


def explored(view) -> dict:
    data = json.loads(re.search(r'\nexplore\(frame, (\{.*\})\); \}\)\("view-', view.data, re.S)[1])
    n = len(data["tokens"])
    for what in ("attention", "contribution"):
        numbers = np.frombuffer(b64decode(data[what]["packed"]), "<i2").reshape(-1, n, n) / 32767
        data[what] = torch.tensor(numbers) * torch.tensor(data[what]["scale"]).double()[:, None, None]
    return data


def test_attention_carries_patterns_tokens_and_heads():
    pattern = torch.stack([SQUARE, torch.eye(2)])
    view = views.attention(pattern, ["a", "b"], ["0.1", "0.2"])
    name, drawn = props(view)
    assert name == "AttentionHeads"
    assert drawn == {"attention": pattern.tolist(), "tokens": ["a", "b"], "attentionHeadNames": ["0.1", "0.2"], "maxValue": 1}
    assert "Attention of 0.1, 0.2 over 2 tokens; strongest: 0.1 from b to a 0.25" in Read(view.data).labels[0]


def test_one_head_is_drawn_large():
    name, drawn = props(views.attention(SQUARE[None], ["a", "b"], ["0.1"]))
    assert name == "AttentionPattern"
    assert drawn["attention"] == SQUARE.tolist()
    assert (drawn["tokens"], drawn["maxValue"]) == (["a", "b"], 1)


def test_weighted_attention_may_have_any_rows():
    for heads in (["0.1"], ["0.1", "0.2"]):
        drawn = props(views.attention(5 * SQUARE.expand(len(heads), 2, 2), ["a", "b"], heads, weighted=True))[1]
        assert drawn["maxValue"] == 5
        assert torch.tensor(drawn["attention"]).max() == 5


def test_a_text_colours_the_groups_that_are_explained_and_no_others():
    read = Read(views.text(["a", "b", "c"], ["KNOWN", "PLAIN", "OTHER"], {"KNOWN": "because", "OTHER": "<why>"}).data)
    assert read.words == ["a", "b", "c", "KNOWN", "OTHER"]
    assert [hint for hint, _ in read.spans] == ["KNOWN", "PLAIN", "OTHER", "because", "<why>"]
    assert [[colour in tint for colour in PALETTE[:2]] for _, tint in read.spans] == [[i == 0, i == 2] for i in range(3)] + [
        [True, False],
        [False, True],
    ]


def test_a_shaded_text_is_blue_above_zero_red_below_and_white_at_zero():
    read = Read(views.shaded(list("abcd"), torch.tensor([2.0, -4.0, 0.0, 1.0]), "loss").data)
    tints = [re.match(r"background: (#\w{6})(\w\w);", tint).groups() for _, tint in read.spans]
    assert [round(int(alpha, 16) / 190, 1) for _, alpha in tints] == [0.5, 1.0, 0.0, 0.3, 1.0, 1.0]
    assert [colour for colour, alpha in tints if alpha != "00"] == [POSITIVE, NEGATIVE, POSITIVE, NEGATIVE, POSITIVE]
    assert [hint for hint, _ in read.spans][:4] == ["+2.000", "-4.000", "+0.000", "+1.000"]
    assert read.words == ["a", "b", "c", "d", "-4.00", "+4.00"]
    assert Read(views.shaded(["a"], torch.tensor([3.0]), "loss").data).words == ["a", "+0.00", "+3.00"]


def test_skip_trigrams_are_a_table_coloured_by_value():
    rows = [("keep", {"in": 2.0, "at": 1.0}, {"mind": 8.0}), ("bring", {"to": -4.0}, {"light": 2.0})]
    read = Read(views.skip_trigrams(rows, "Head 0.0 <x>").data)
    assert read.words == ["keep", "in", "at", "mind", "bring", "to", "light"]
    assert [hint for hint, _ in read.spans] == ["", "+2.00", "+1.00", "+8.00", "", "-4.00", "+2.00"]
    alphas = [int(tint.split(PALETTE[0])[1][:2], 16) if PALETTE[0] in tint else None for _, tint in read.spans]
    assert alphas == [None, 75, 38, 150, None, 0, 38]
    assert "Head 0.0 &lt;x&gt;" in views.skip_trigrams(rows, "Head 0.0 <x>").data


def test_the_path_explorer_carries_every_number():
    shares, patterns, sources = (
        torch.randn(3, 4),
        torch.rand(3, 4, 4),
        torch.randn(3, 4, 4) * torch.tensor([1e-6, 1, 1e4])[:, None, None],
    )
    shares[1] += 10
    view = views.path_explorer(
        list("abcd"), list("bcde"), ["direct", "0.0", "1.0"], shares, patterns, sources, "Paths", dest=-2
    )
    data = explored(view)
    assert data["attribution"] == shares.double().tolist()
    assert_close(torch.tensor(data["logits"]).double(), shares.double().sum(0), atol=1e-6, rtol=1e-6)
    for what, values in (("attention", patterns), ("contribution", sources)):
        off = (data[what] - values).abs().amax((1, 2)) / values.abs().amax((1, 2))
        assert (off < 1e-3).all(), what
    assert (data["tokens"], data["targets"], data["paths"]) == (list("abcd"), list("bcde"), ["direct", "0.0", "1.0"])
    assert (data["dest"], data["title"]) == (2, "Paths")
    assert (data["positive"], data["negative"]) == (POSITIVE, NEGATIVE)
    assert "Paths. Bars of 3 paths for each of 4 tokens; the path that matters most is 0.0." in Read(view.data).labels


def shown_by_plotly(label: str) -> str:
    """Plotly knows few entities: others it shows letter by letter; and it takes <b> for an instruction."""
    known = {"amp": "&", "lt": "<", "gt": ">", "#x27": "'"}
    bare = re.sub(r"<[^>]*>", "", label)
    return re.sub(r"&([#\w]+);", lambda found: known.get(found[1], found[0]), bare)


@every_token
def test_figures_show_a_hostile_token_as_it_is(token, shown):
    two, one = [token, "a"], torch.ones(1)
    heat = plots.heatmap(SQUARE, two, two, "t", "x", "y")
    paged = plots.heatmap(torch.ones(61, 1), [token], [token] * 61, "t", "x", "y")
    scored = scenes.scores({"K": SQUARE}, two, "t")
    stepped = scenes.scrubber([0], {"A": [1.0]}, {"A": 0.5}, one[None], ["0.0"], SQUARE[None], two, "t", "1.0")
    edges = scenes.composition({"K": (5 * one[None], one[None], one[None])}, [token], ["h"], "t")
    labels = [axis.ticktext[0] for figure in (heat, paged) for axis in (figure.layout.xaxis, figure.layout.yaxis)]
    labels += [stepped.layout.xaxis3.ticktext[0], stepped.layout.yaxis3.ticktext[0], edges.data[2].text[0]]
    labels += [plots.against({"p": (one, one)}, [token], one, "t", "x", "y").data[1].text[0]]
    labels += [plots.scatter({"g": {token: (0, 0)}}, "t", "x", "y").data[0].text[0]]
    assert {shown_by_plotly(label) for label in labels} == {shown}
    assert shown_by_plotly(scored.data[0].x[0]) == shown_by_plotly(scored.layout.sliders[0].steps[0].label) == f"{shown} (0)"
    assert shown_by_plotly(edges.data[1].hovertemplate).startswith(f"{shown} → h: ")
    assert shown_by_plotly(paged.frames[0].name).startswith(f"{shown} … {shown}")
    assert f"at {shown}, {shown}." in alt(heat)
    assert f"the largest score is 0.75, on a (1)" in alt(scored)
    for figure in (heat, paged, scored, stepped, edges):
        page = views.Page().to_mimebundle(figure.to_dict())["text/html"]
        assert set(Read(page).tags) == {"div", "script"}
        assert (page.count("<script"), page.count("</script>"), page.count("<!--")) == (1, 1, 0)
        assert Read(page).labels == [alt(figure)]


@every_token
def test_views_show_a_hostile_token_as_it_is(token, shown):
    one, cube = torch.ones(1), torch.ones(1, 1, 1)
    single = views.attention(cube, [token], [token])
    several = views.attention(cube.expand(2, 1, 1), [token], [token, token])
    paths = views.path_explorer([token], [token], [token], cube[0], cube, cube, token)
    table = views.skip_trigrams([(token, {token: 1.0}, {token: 1.0})], token)
    written = [views.text([token], [token], {token: token}), views.shaded([token], one, token), table]
    for view in (single, several):
        assert props(view)[1]["tokens"] == [shown]
    assert (explored(paths)["tokens"], explored(paths)["targets"]) == ([shown], [shown])
    assert (explored(paths)["title"], explored(paths)["paths"]) == (token, [token])
    for view in written:
        assert shown == Read(view.data).words[0]
        assert set(Read(view.data).tags) <= {"div", "span", "bdi", "table", "caption", "tr", "th", "td"}
    for view in (single, several, paths):
        assert Read(view.data).tags == ["div", "script"]
        assert (view.data.count("<script"), view.data.count("</script>"), view.data.count("<!--")) == (1, 1, 0)
        assert len(Read(view.data).labels) == 1


def test_the_page_asks_for_no_script_and_has_words():
    figure = plots.curves({"a": ([0], [1.0])}, 'A "quoted" <title>', "x", "y")
    bundle = views.Page().to_mimebundle(figure.to_dict())
    assert bundle["text/plain"] == alt(figure) == Read(bundle["text/html"]).labels[0]
    assert not re.search(r"<script[^>]*src|https?://|mathjax", bundle["text/html"].replace("https://plot.ly", ""), re.I)
    assert len(bundle["text/html"]) < 20_000
    assert views.Page().to_mimebundle({"data": [], "layout": {}})["text/plain"] == "A figure."


def test_the_bundle_is_on_the_page_once_and_in_every_frame_in_colab(monkeypatch):
    assert views.bundle().count("</script>") == views.bundle().count("window.CircuitsVis = CircuitsVis;") == 1
    assert len(views.attention(SQUARE[None], "ab", ["0.0"]).data) < 1_500
    monkeypatch.setitem(views.sys.modules, "google.colab", object())
    for heads in ("a", "ab"):
        view = views.attention(SQUARE.expand(len(heads), 2, 2), "ab", heads).data
        assert view.startswith(views.bundle())
        assert len(view) > 1_000_000


def test_a_presentation_has_larger_letters():
    def sizes() -> list[int]:
        figure = plots.heatmap(torch.ones(61, 1), ["x"], ["y"] * 61, "t", "x", "y")
        drawn = views.text(["a"], ["b"], {}), views.shaded(["a"], torch.ones(1), "c"), views.skip_trigrams([], "c")
        explorer = views.path_explorer("a", "a", "a", torch.ones(1, 1), *[torch.ones(1, 1, 1)] * 2, "t")
        written = [int(re.search(r"font-size: (\d+)px", view.data)[1]) for view in drawn]
        font = figure.layout.template.layout.font.size, figure.layout.template.layout.title.font.size
        return [*font, figure.layout.annotations[0].font.size, *written, explored(explorer)["letters"]]

    before = sizes()
    try:
        plots.look("presentation")
        larger = sizes()
    finally:
        plots.look("notebook")
    assert all(new >= 1.4 * old for old, new in zip(before, larger))
    assert sizes() == before
    with refused("There is no look 'cinema'; there are notebook, presentation"):
        style.look("cinema")


GOOD = torch.eye(2)
DRAW = {  # every place where a tensor goes
    "heatmap": lambda v: plots.heatmap(v(2, 2), "ab", "ab", "t", "x", "y"),
    "points": lambda v: plots.against({"p": (v(2), v(2))}, "ab", torch.ones(2), "t", "x", "y"),
    "only x": lambda v: plots.against({"p": (v(2), GOOD[0])}, "ab", torch.ones(2), "t", "x", "y"),
    "only y": lambda v: plots.against({"p": (GOOD[0], v(2))}, "ab", torch.ones(2), "t", "x", "y"),
    "sizes": lambda v: plots.against({"p": (GOOD[0], GOOD[0])}, "ab", v(2), "t", "x", "y"),
    "score": lambda v: scenes.composition({"Q": (v(2, 2), GOOD, GOOD)}, "ab", "cd", "t"),
    "mean": lambda v: scenes.composition({"Q": (GOOD, v(2, 2), GOOD)}, "ab", "cd", "t"),
    "sd": lambda v: scenes.composition({"Q": (GOOD, GOOD, v(2, 2))}, "ab", "cd", "t"),
    "parts": lambda v: scenes.scores({"K": GOOD, "V": v(2, 2)}, "ab", "t"),
    "scrubbed scores": lambda v: scenes.scrubber([1], {"A": [1.0]}, {"A": 0.5}, v(1, 2), "hi", GOOD[None], "ab", "t", "p"),
    "patterns": lambda v: scenes.scrubber([1], {"A": [1.0]}, {"A": 0.5}, GOOD[:1], "hi", v(1, 2, 2), "ab", "t", "p"),
    "attention": lambda v: views.attention(v(1, 2, 2), "ab", "h"),
    "weighted": lambda v: views.attention(v(1, 2, 2), "ab", "h", weighted=True),
    "shaded": lambda v: views.shaded("ab", v(2), "c"),
    "attribution": lambda v: views.path_explorer("ab", "ab", "p", v(1, 2), GOOD[None], GOOD[None], "t"),
    "looked": lambda v: views.path_explorer("ab", "ab", "p", GOOD[:1], v(1, 2, 2), GOOD[None], "t"),
    "moved": lambda v: views.path_explorer("ab", "ab", "p", GOOD[:1], GOOD[None], v(1, 2, 2), "t"),
}
FREE = {  # no labels
    "eigenvalues": lambda v: plots.eigenvalues({"p": v(3).to(torch.complex64)}, "t"),
    "histogram": lambda v: plots.histogram({"p": v(3)}, "t", "x"),
}


@pytest.mark.parametrize("what", DRAW | FREE)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_refused(what, bad):
    with refused(r"\d of \d+ [\w ]+ are NaN or infinite: mask them or leave them out\."):
        (DRAW | FREE)[what](lambda *shape: torch.ones(shape).index_fill(-1, torch.tensor(0), bad))


@pytest.mark.parametrize("what", DRAW | FREE)
def test_nothing_is_refused(what):
    with refused(r"There is nothing to draw: [\w ]+ are empty, of shape \["):
        (DRAW | FREE)[what](lambda *shape: torch.ones(0, *shape[1:]))


@pytest.mark.parametrize("what", DRAW)
@pytest.mark.parametrize("place", [0, -1])
def test_labels_that_do_not_fit_are_refused(what, place):
    with refused(r"\d labels do not fit [\w ]+ of shape \["):
        DRAW[what](lambda *shape: torch.ones([n + (i == place % len(shape)) for i, n in enumerate(shape)]))


@pytest.mark.parametrize("draw", DRAW | FREE)
def test_what_can_be_drawn_is_drawn(draw):
    assert (DRAW | FREE)[draw](lambda *shape: torch.ones(shape) / shape[-1]) is not None


def test_targets_and_groups_that_do_not_fit_are_refused():
    with refused("do not fit"):
        views.path_explorer("ab", "a", "p", GOOD[:1], GOOD[None], GOOD[None], "t")
    with refused("do not fit"):
        views.text(["a", "b"], ["KIND"], {})


def test_rows_that_do_not_sum_to_one_are_refused():
    with refused(r"Rows of a pattern sum to 1; these are off by 0\.5.*weighted=True"):
        views.attention(torch.stack([SQUARE, SQUARE * 1.5]), "ab", "hi")
    with refused("these are off by 1"):
        views.attention(torch.zeros(1, 2, 2), "ab", "h")


def test_more_tokens_than_can_be_read_are_refused():
    assert views.attention(torch.eye(200)[None], ["a"] * 200, ["h"])
    for weighted in (True, False):
        with refused("201 tokens are more than can be drawn: cut them to 200"):
            views.attention(torch.eye(201)[None], ["a"] * 201, ["h"], weighted=weighted)
