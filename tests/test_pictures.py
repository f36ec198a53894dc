"""Figures and views as data: numbers, labels, centred colours, words, hostile tokens, and sentences for what cannot be drawn.

What a browser makes of them is in test_browser.py.
"""

import json
import math
import re
from base64 import b64decode
from functools import reduce
from html.parser import HTMLParser

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
from torch.testing import assert_close

from tests.helpers import rng
from tests.test_surgery import refused
from utils import plots, scenes, style, views
from utils.style import NEGATIVE, PALETTE, POSITIVE

HOSTILE = {token: token for token in ["</script>", "<b>", "<!--", "'", "\\", "🙂", "שלום", "FRAME", "$x$", "&lt;", "{}", '"']}
HOSTILE |= {"\n": "⏎", "\t": "⇥", " a ": "␣a␣", "a\u200bb": "a⟨200B⟩b", "\u202e": "⟨202E⟩", "": "∅"}
SQUARE, GOOD, ONE = torch.tensor([[1.0, 0.0], [0.25, 0.75]]), torch.eye(2), torch.ones(1, 1)


def get(traces, key: str) -> list:
    """This of every trace: get(figure, "marker.color")."""
    traces = [trace.to_plotly_json() for trace in (traces.data if isinstance(traces, go.Figure) else traces)]
    found = [reduce(lambda part, name: part.get(name, {}), key.split("."), trace) for trace in traces]
    return [np.asarray(value).tolist() if isinstance(value, tuple | list | np.ndarray) else value for value in found]


def alt(figure: go.Figure) -> str:
    return figure.layout.meta["alt"]


def titles(figure: go.Figure) -> tuple[str, ...]:
    """Of the figure and its axes."""
    return tuple(part.title.text for part in (figure.layout, figure.layout.xaxis, figure.layout.yaxis))


def centred(traces, limit: float) -> bool:
    """White at 0, red below, blue above."""
    [scale], reverse = get(traces, "colorscale"), get(traces, "reversescale")
    ends = scale[0][1], scale[-1][1], get(traces, "zmin"), get(traces, "zmax"), reverse
    return ends == ("rgb(103,0,31)", "rgb(5,48,97)", [-limit], [limit], [{}])


def test_a_ladder_has_a_bar_for_each_model_and_kind_and_the_floors():
    losses = {"none": {"A": 2.0, "B": 3.0}, "one": {"B": 2.5, "A": 1.0}}
    figure = plots.ladder(losses, {"A": 0.5, "B": 0.25}, "B falls")
    assert get(figure, "x") == [["A", "B"]] * 3
    assert get(figure, "y") == [[2, 3], [1, 2.5], [0.5, 0.25]]
    assert get(figure, "name") == ["none", "one", "floor"]
    assert get(figure, "marker.color") == [*PALETTE[:2], {}]
    assert get(figure, "marker.line.color")[2] == "black"
    assert titles(figure) == ("B falls", "kind of token", "loss (nats)")
    assert figure.layout.barmode == "group"
    assert alt(figure) == "B falls. Bars of nats. A: none 2.00, one 1.00; B: none 3.00, one 2.50."


def test_curves_hold_their_points_and_tell_where_they_begin_and_end():
    figure = plots.curves({"a": ([0, 5, 9], [3.0, 4.0, 2.0]), "b": ([0, 9], [1.0, 0.5])}, "falls", "step", "nats")
    assert get(figure, "x") == [[0, 5, 9], [0, 9]]
    assert get(figure, "y") == [[3, 4, 2], [1, 0.5]]
    assert get(figure, "line.color") == PALETTE[:2]
    assert titles(figure) == ("falls", "step", "nats")
    assert "a from 3 to 2; b from 1 to 0.5" in alt(figure)


def test_a_small_heatmap_is_shown_as_it_is_centred_on_zero():
    values = torch.tensor([[1.0, -4.0, 0.0], [2.0, 3.0, 0.5]])
    figure = plots.heatmap(values, ["x", "y", "x"], ["a", "b"], "title", "next", "current")
    assert_close(torch.tensor(get(figure, "z")[0]), values)
    assert centred(figure, 4.0)
    assert (figure.layout.xaxis.ticktext, figure.layout.yaxis.ticktext) == (("x", "y", "x"), ("a", "b"))
    assert figure.layout.yaxis.autorange == "reversed"
    hover = str(get(figure, "hovertext")) + get(figure, "hovertemplate")[0]
    assert all(word in hover for word in ("current", "next", "%{z"))
    assert titles(figure) == ("title", "next", "current")
    assert "2 rows (current) by 3 columns (next), the largest -4 at a, y." in alt(figure)
    assert centred(plots.heatmap(torch.zeros(1, 1), ["x"], ["y"], "t", "x", "y"), 1.0)


@pytest.mark.parametrize(("rows", "columns", "pages"), [(60, 60, 0), (61, 3, 2), (30, 100, 0), (180, 1, 3)])
def test_a_heatmap_is_cut_only_when_it_is_large(rows, columns, pages):
    x, y = ([str(i) for i in range(n)] for n in (columns, rows))
    figure = plots.heatmap(torch.randn(rows, columns, generator=rng(0)), x, y, "t", "x", "y")
    assert (len(figure.frames), len(figure.layout.sliders)) == (pages, pages > 0)
    assert len(figure.layout.annotations) == (rows > 60 or columns > 60)
    shown = [list(axis.ticktext) for axis in (figure.layout.xaxis, figure.layout.yaxis)]
    assert list(map(len, shown)) == [min(60, columns), min(60, rows)]
    assert [one == other for one, other in zip(shown, (x, y))] == [columns <= 60, rows <= 60]  # else the largest first


@pytest.fixture(scope="module")
def large():
    """A heatmap of 2,000 rows and columns, its values, and for each page its rows, columns (by their labels) and values."""
    values = torch.randn(2000, 2000, generator=rng(0)) ** 3
    figure = plots.heatmap(values, *([f"{letter}{i}" for i in range(2000)] for letter in "cr"), "Large", "next", "current")
    pages = []
    for frame in figure.frames:
        axes = frame.layout.yaxis, frame.layout.xaxis
        assert [list(axis.tickvals) for axis in axes] == [list(range(len(axis.ticktext))) for axis in axes]
        pages.append([torch.tensor([int(label[1:]) for label in axis.ticktext]) for axis in axes])
        pages[-1].append(torch.tensor(frame.data[0].z))
    return figure, values, pages


def test_every_row_of_a_large_heatmap_is_on_one_page_and_the_largest_are_first(large):
    figure, values, pages = large
    rows = torch.cat([rows for rows, _, _ in pages])
    assert rows.sort().values.tolist() == list(range(2000))
    assert (values.abs().amax(1)[rows].diff() <= 0).all()
    assert np.array_equal(figure.data[0].z, figure.frames[0].data[0].z)
    assert figure.layout.yaxis.ticktext == figure.frames[0].layout.yaxis.ticktext
    assert centred(figure, values.abs().max().item())
    assert {frame.data[0].zmax for frame in figure.frames} <= {None, figure.data[0].zmax}  # a colour means the same on all


def test_every_page_has_the_columns_that_matter_to_it_and_labels_that_fit(large):
    _, values, pages = large
    for rows, columns, z in pages:
        assert_close(z, values[rows][:, columns], atol=1e-3, rtol=1e-3)
        assert set(columns.tolist()) == set(values[rows].abs().amax(0).topk(60).indices.tolist())


def test_a_large_heatmap_says_what_it_shows_and_its_slider_names_the_pages(large):
    figure, values, _ = large
    [note], [slider] = figure.layout.annotations, figure.layout.sliders
    assert "of 2000 × 2000, 60 × 60 at a time" in note.text
    names = [frame.name for frame in figure.frames]
    assert [step.label for step in slider.steps] == [step.args[0][0] for step in slider.steps] == names
    assert (len(set(names)), slider.active) == (34, 0)
    row, column = divmod(values.abs().argmax().item(), 2000)
    assert f"2000 rows (current) by 2000 columns (next), the largest {values[row, column]:.3g} at r{row}, c{column}." in alt(
        figure
    )


def test_a_large_heatmap_is_under_four_megabytes(large):
    assert len(large[0].to_json()) < 4_000_000


def test_pages_can_be_told_apart_when_labels_repeat():
    figure = plots.heatmap(torch.randn(200, 2), list("ab"), ["same"] * 200, "t", "x", "y")
    assert len({frame.name for frame in figure.frames}) == 4


def test_axis_titles_of_a_heatmap_may_have_braces():
    assert titles(plots.heatmap(SQUARE, "ab", "ab", "t", "W_{E}", "{}")) == ("t", "W_{E}", "{}")


def test_against_has_points_a_diagonal_and_areas():
    x, y = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.75])
    figure = plots.against({"left": (x, y), "right": (y, x)}, ["p", "q"], torch.tensor([1.0, 4.0]), "t", "true", "learnt")
    ends = [-2.75, -1.0]
    assert get(figure, "x") == [ends, x.tolist(), ends, y.tolist()]
    assert get(figure, "y") == [ends, y.tolist(), ends, x.tolist()]
    assert get(figure, "marker.color")[1::2] == PALETTE[:2]
    small, big = (size - 2 for size in get(figure, "marker.size")[1])
    assert (big / small) ** 2 == pytest.approx(4)
    assert titles(figure) == ("t", "true", "learnt")
    assert (figure.layout.xaxis2.title.text, figure.layout.yaxis2.title.text) == ("true", None)
    assert [note.text for note in figure.layout.annotations] == ["left", "right"]
    assert "left: 0.62; right: 0.62" in alt(figure)


def test_eigenvalues_are_points_with_their_share():
    values = torch.tensor([3 + 4j, 3 - 4j, -2 + 0j, 0j])
    figure = plots.eigenvalues({"one": values, "other": -values}, "t")
    assert (get(figure, "x")[0], get(figure, "y")[0]) == ([3, 3, -2, 0], [4, -4, 0, 0])
    assert [note.text for note in figure.layout.annotations] == ["one: +0.33", "other: -0.33"]  # 4 / 12
    assert "one +0.33, other -0.33" in alt(figure)
    assert get(figure, "marker.color")[0][:3] == [PALETTE[0], PALETTE[0], PALETTE[5]]
    axes = figure.layout.xaxis, figure.layout.yaxis, figure.layout.xaxis2
    assert all(-axis.range[0] == axis.range[1] > 4 for axis in axes)
    assert titles(figure) == ("t", "real part", "imaginary part")


def test_a_histogram_has_the_values_of_every_group():
    figure = plots.histogram({"a": torch.tensor([[-1.0, 0.5], [0.5, 1.0]]), "b": torch.zeros(3)}, "t", "score")
    assert get(figure, "x") == [[-1, 0.5, 0.5, 1], [0, 0, 0]]
    assert get(figure, "marker.color") == PALETTE[:2]
    assert titles(figure) == ("t", "score", "number of heads")
    assert figure.layout.barmode == "overlay"
    assert "a: 4 values, median 0.50; b: 3 values, median 0.00" in alt(figure)


def test_scores_of_exactly_one_fall_in_bins_that_are_seen():
    figure = plots.histogram({"a": torch.tensor([-1.0, 1.0])}, "t", "score")
    bins, (left, right) = figure.data[0].xbins, figure.layout.xaxis.range
    number = math.ceil((bins.end - bins.size * 1e-6 - bins.start) / bins.size - 1e-9)  # as plotly.js counts
    places = [math.floor((value - bins.start) / bins.size + 1e-9) for value in (-1, 1)]
    assert (places, number) == ([0, 19], 20)
    assert left <= bins.start < bins.start + 20 * bins.size <= right


def test_a_scatter_names_its_points():
    figure = plots.scatter({"in": {"1.0": (0.9, 0.8)}, "out": {"1.1": (-0.5, 0.1), "1.2": (0.0, 0.0)}}, "t", "OV", "QK")
    assert (get(figure, "x"), get(figure, "y")) == ([[0.9], [-0.5, 0]], [[0.8], [0.1, 0]])
    assert (get(figure, "text"), get(figure, "name")) == ([["1.0"], ["1.1", "1.2"]], ["in", "out"])
    assert get(figure, "marker.color") == PALETTE[:2]
    assert titles(figure) == ("t", "OV", "QK")
    assert "1.0 0.90, 0.80; 1.1 -0.50, 0.10" in alt(figure)


def test_importance_has_a_bar_for_each_term():
    figure = plots.importance({"order": {"direct": 2.0, "heads": -0.5}, "cut": {"K": 0.25}}, "t")
    assert (get(figure, "x"), get(figure, "y")) == ([["direct", "heads"], ["K"]], [[2, -0.5], [0.25]])
    assert get(figure, "marker.color") == PALETTE[:2]
    assert titles(figure) == ("t", "term", "worth (nats)")
    assert "order: direct 2, heads -0.5; cut: K 0.25" in alt(figure)


Z = {"Q": [[2.0, 2.5, 0.0], [9.0, -5.0, 1.0]], "K": [[30.0, 12.0, 2.25], [1.5, 0.0, 4.0]], "V": [[-3.0] * 3] * 2}


def composed() -> tuple[go.Figure, dict]:
    """Scores that stand Z over their baseline, and the edges: {(kind, first, second): (width, colour, what hovering says)}."""
    kinds = {kind: (torch.tensor(z) / 4 + 0.5, torch.full((2, 3), 0.5), torch.full((2, 3), 0.25)) for kind, z in Z.items()}
    figure = scenes.composition(kinds, ["0.0", "0.1"], ["1.0", "1.1", "1.2"], "t")
    lines, edges = [trace for trace in figure.data if trace.mode == "lines"], {}
    for line in lines:
        i, j = int(line.x[0] + 0.5), int(line.x[1] + 1)
        points = [t for t in figure.data if t.mode == "markers" and t.xaxis == line.xaxis and t.x[0] == sum(line.x) / 2]
        [said] = [point.hovertemplate for point in points if point.hovertemplate.startswith(f"0.{i} → 1.{j}: ")]
        edges["QKV"[int(line.xaxis[1:] or 1) - 1], i, j] = line.line.width, line.line.color, said
    assert len(edges) == len(lines)
    return figure, edges


def test_composition_has_edges_only_over_two_standard_deviations():
    figure, edges = composed()
    assert set(edges) == {(kind, i, j) for kind, z in Z.items() for i in range(2) for j in range(3) if z[i][j] > 2}
    assert "0.0 → 1.2: 1.062, baseline 0.500 ± 0.250, z = 2.2" in edges["K", 0, 2][2]
    assert {(kind, colour) for (kind, _, _), (_, colour, _) in edges.items()} == {("Q", PALETTE[0]), ("K", PALETTE[1])}
    assert {f"{kind}-composition" for kind in "QKV"} < {note.text for note in figure.layout.annotations}
    heads = [list(trace.text) for trace in figure.data if trace.mode == "markers+text"]
    assert heads == [["0.0", "0.1"], ["1.0", "1.1", "1.2"]] * 3
    assert "widest first: K: 0.0 to 1.0, z 30.0; K: 0.0 to 1.1, z 12.0; Q: 0.1 to 1.0, z 9.0" in alt(figure)
    assert figure.layout.title.text == "t"
    assert "none" in alt(scenes.composition({"Q": (SQUARE, SQUARE, torch.ones(2, 2))}, "ab", "cd", "t"))


@pytest.mark.parametrize("kinds", ["Q", "K", "QK"])
def test_edges_are_as_wide_as_their_scores_stand_over_the_baseline(kinds):
    ratios = [width / Z[kind][i][j] for (kind, i, j), (width, _, _) in composed()[1].items() if kind in kinds]
    assert ratios == pytest.approx([ratios[0]] * len(ratios))
    assert ratios[0] > 0


def test_scores_have_bars_up_to_the_destination_that_sum_to_the_marks():
    parts = {name: torch.randn(5, 5, generator=rng(seed)) for seed, name in enumerate(["none", "Q", "K"])}
    parts["K"][2, 4] = 50  # comes later: no one sees it
    figure, labels = scenes.scores(parts, list("abacd"), "t", dest=2), ["a (0)", "b (1)", "a (2)", "c (3)", "d (4)"]
    low, high = figure.layout.yaxis.range
    for dest, frame in enumerate(figure.frames):
        assert get(frame.data, "x") == [labels] * 4
        assert get(frame.data, "name") == [*parts, "sum"]
        assert get(frame.data, "marker.color")[:3] == PALETTE[:3]
        *bars, mark = get(frame.data, "y")
        assert bars == [part[dest, : dest + 1].tolist() + [None] * (4 - dest) for part in parts.values()]
        seen = torch.tensor([bar[: dest + 1] for bar in bars])
        assert_close(torch.tensor(mark), seen.sum(0))
        assert low < seen.clamp(max=0).sum(0).min()
        assert 50 > high > seen.clamp(min=0).sum(0).max()
    assert get(frame.data, "marker.line.color")[3] == "black"
    assert get(figure, "y") == get(figure.frames[2].data, "y")
    [slider] = figure.layout.sliders
    assert [step.args[0][0] for step in slider.steps] == [frame.name for frame in figure.frames] == labels
    assert (slider.active, scenes.scores(parts, list("abcde"), "t").layout.sliders[0].active) == (2, 4)
    assert figure.layout.barmode == "relative"
    total = sum(parts.values())[2, :3]
    assert f"At a (2) the largest score is {total.max():.2f}, on {labels[total.argmax()]}." in alt(figure)
    assert titles(figure) == ("t", "source token", "score")


def test_many_parts_of_a_score_are_all_shown():
    *bars, mark = get(scenes.scores({f"part {i}": torch.ones(2, 2) for i in range(9)}, "ab", "t"), "y")
    assert sum(bar[0] for bar in bars) == mark[0]


def test_the_scrubber_has_losses_scores_and_the_pattern_of_every_step():
    scores, looks = torch.rand(3, 2, generator=rng(0)), torch.rand(3, 2, 2, generator=rng(1))
    losses = {"A": [3.0, 2.0, 1.0], "B": [4.0, 4.0, 0.5]}
    figure = scenes.scrubber([0, 10, 99], losses, {"A": 0.5, "B": 0.1}, scores, ["0.0", "0.1"], looks, "xy", "t", "1.0")
    for step, frame in enumerate(figure.frames):
        assert get(frame.data, "x")[:2] == [["A", "B"], ["0.0", "0.1"]]
        assert get(frame.data, "y")[:2] == [[nats[step] for nats in losses.values()], scores[step].tolist()]
        assert_close(torch.tensor(frame.data[2].z), looks[step])
        assert centred(frame.data[2:], 1)
        assert frame.traces == (0, 1, 2)
    assert get(figure, "y") == [[3, 4], scores[0].tolist(), {}, [0.5, 0.1]]
    assert figure.data[2].z == figure.frames[0].data[2].z
    [slider] = figure.layout.sliders
    assert [step.args[0][0] for step in slider.steps] == ["0", "10", "99"] == [frame.name for frame in figure.frames]
    assert figure.layout.xaxis3.ticktext == figure.layout.yaxis3.ticktext == ("x", "y")
    assert (figure.layout.yaxis3.autorange, figure.layout.yaxis.range[1] > 4) == ("reversed", True)
    assert [figure.layout[name].title.text for name in ("xaxis3", "yaxis3")] == ["source", "destination"]
    assert [note.text for note in figure.layout.annotations] == ["loss (nats)", "induction score", "1.0"]
    assert "3 steps of training. Loss in nats: A from 3.00 to 1.00; B from 4.00 to 0.50." in alt(figure)


class Read(HTMLParser):
    """As a browser reads a page: its tags, the words in <bdi>, hints and styles of <span>, labels for a screen reader."""

    def __init__(self, page: str):
        super().__init__()
        self.tags, self.words, self.spans, self.labels = [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.labels += [value for name, value in attrs if name == "aria-label"]
        self.spans += [(dict(attrs)["title"], dict(attrs)["style"])] if tag == "span" else []

    def handle_data(self, data):
        self.words += [data] if self.tags[-1:] == ["bdi"] else []

    def handle_endtag(self, tag):
        self.tags.append("/" + tag)


def props(view) -> tuple[str, dict]:
    """The component of circuitsvis that is called, and with what."""
    name, content = re.search(r"CircuitsVis\.render\(frame, CircuitsVis\.(\w+), (\{.*\})\); else", view.data, re.S).groups()
    return name, json.loads(content)


def explored(view) -> dict:
    """What the path explorer gets, its numbers unpacked."""
    data = json.loads(re.search(r'\nexplore\(frame, (\{.*\})\); \}\)\("view-', view.data, re.S)[1])
    for what in ("attention", "contribution"):
        numbers = np.frombuffer(b64decode(data[what]["packed"]), "<i2").reshape(-1, *[len(data["tokens"])] * 2) / 32767
        data[what] = torch.tensor(numbers) * torch.tensor(data[what]["scale"])[:, None, None]
    return data


def test_attention_carries_patterns_tokens_and_heads():
    pattern = torch.stack([SQUARE, torch.tensor([[1.0, 0], [0.5, 0.5]])])
    view = views.attention(pattern, ["a", "b"], ["0.1", "0.2"])
    drawn = {"attention": pattern.tolist(), "tokens": ["a", "b"], "attentionHeadNames": ["0.1", "0.2"], "maxValue": 1}
    assert props(view) == ("AttentionHeads", drawn)
    said = "Attention of 0.1, 0.2 over 2 tokens; strongest: 0.1 from b to a 0.25; 0.2 from b to a 0.50"
    assert Read(view.data).labels == [said]
    drawn = {"attention": SQUARE.tolist(), "tokens": ["a", "b"], "maxValue": 1, "showAxisLabels": True}
    assert props(views.attention(SQUARE[None], ["a", "b"], ["0.1"])) == ("AttentionPattern", drawn)


@pytest.mark.parametrize("heads", ["h", "hi"])
def test_weighted_attention_may_have_any_rows(heads):
    drawn = props(views.attention(5 * SQUARE.expand(len(heads), 2, 2), "ab", heads, weighted=True))[1]
    assert drawn["maxValue"] == np.max(drawn["attention"]) == 5


def test_a_text_colours_the_groups_that_are_explained_and_no_others():
    read = Read(views.text(["a", "b", "c"], ["KNOWN", "PLAIN", "OTHER"], {"KNOWN": "because", "OTHER": "<why>"}).data)
    assert read.words == ["a", "b", "c", "KNOWN", "OTHER"]
    assert [hint for hint, _ in read.spans] == ["KNOWN", "PLAIN", "OTHER", "because", "<why>"]
    tints = [[colour for colour in PALETTE if colour in tint] for _, tint in read.spans]
    assert tints == [[PALETTE[0]], [], [PALETTE[1]], [PALETTE[0]], [PALETTE[1]]]


def test_a_shaded_text_is_blue_above_zero_red_below_and_white_at_zero():
    read = Read(views.shaded(list("abcd"), torch.tensor([2.0, -4.0, 0.0, 1.0]), "loss").data)
    tints = [re.match(r"background: (#\w{6})(\w\w);", tint).groups() for _, tint in read.spans]
    assert [int(alpha, 16) for _, alpha in tints] == [95, 190, 0, 48, 190, 190]
    blue, red = "#2166AC", "#B2182B"
    assert [colour for colour, alpha in tints if alpha != "00"] == [blue, red, blue, red, blue]
    assert [hint for hint, _ in read.spans][:4] == ["+2.000", "-4.000", "+0.000", "+1.000"]
    assert read.words == ["a", "b", "c", "d", "-4.00", "+4.00"]
    assert Read(views.shaded(["a"], torch.tensor([3.0]), "loss").data).words == ["a", "+0.00", "+3.00"]


def test_skip_trigrams_are_a_table_coloured_by_value():
    rows = [("keep", {"in": 2.0, "at": 1.0}, {"mind": 8.0}), ("bring", {"to": -4.0}, {"light": 2.0})]
    read = Read(views.skip_trigrams(rows, "Head 0.0").data)
    assert read.words == ["keep", "in", "at", "mind", "bring", "to", "light"]
    assert [hint for hint, _ in read.spans] == ["", "+2.00", "+1.00", "+8.00", "", "-4.00", "+2.00"]
    assert [int(tint.split(PALETTE[0])[1][:2], 16) for _, tint in read.spans if PALETTE[0] in tint] == [75, 38, 150, 0, 38]


def test_the_path_explorer_carries_every_number():
    shares, patterns, sources = (torch.randn(3, *shape, generator=rng(0)) for shape in ([4], [4, 4], [4, 4]))
    shares[1] += 10
    sources *= torch.tensor([1e-6, 1, 1e4])[:, None, None]
    paths = ["direct", "0.0", "1.0"]
    view = views.path_explorer(list("abcd"), list("bcde"), paths, shares, patterns, sources, "Paths", dest=-2)
    data = explored(view)
    assert data["attribution"] == shares.tolist()
    assert data["logits"] == pytest.approx(shares.sum(0).tolist())
    for what, values in (("attention", patterns), ("contribution", sources)):
        assert ((data[what] - values).abs().amax((1, 2)) < 1e-3 * values.abs().amax((1, 2))).all(), what
    assert [data[key] for key in ("tokens", "targets", "paths")] == [list("abcd"), list("bcde"), paths]
    assert [data[key] for key in ("dest", "title", "positive", "negative")] == [2, "Paths", POSITIVE, NEGATIVE]
    assert Read(view.data).labels == ["Paths. Bars of 3 paths for each of 4 tokens; the path that matters most is 0.0."]


def shown_by_plotly(label: str) -> str:
    """It takes <b> for an instruction, and shows entities it does not know letter by letter."""
    known = {"amp": "&", "lt": "<", "gt": ">", "#x27": "'"}
    return re.sub(r"&([#\w]+);", lambda found: known.get(found[1], found[0]), re.sub(r"<[^>]*>", "", label))


def breaks_out(page: str) -> bool:
    found, tags = re.findall(r"<script|</script>|<!--", page), {tag.strip("/") for tag in Read(page).tags}
    return (found, tags) != (["<script", "</script>"], {"div", "script"})


@pytest.mark.parametrize("token", HOSTILE)
def test_figures_show_a_hostile_token_as_it_is(token):
    two = [token, "a"]
    heat = plots.heatmap(SQUARE, two, two, "t", "x", "y")
    paged = plots.heatmap(torch.ones(61, 1), [token], [token] * 61, "t", "x", "y")
    scored = scenes.scores({"K": SQUARE}, two, "t")
    stepped = scenes.scrubber([0], {"A": [1.0]}, {"A": 0.5}, ONE, ["0.0"], SQUARE[None], two, "t", "1.0")
    edges = scenes.composition({"K": (5 * ONE, ONE, ONE)}, [token], ["h"], "t")
    points = [plots.against({"p": (ONE[0], ONE[0])}, [token], ONE[0], "t", "x", "y").data[1]]
    points += [plots.scatter({"g": {token: (0.0, 0.0)}}, "t", "x", "y").data[0], edges.data[2]]
    axes = [figure.layout[axis] for figure in (heat, paged) for axis in ("xaxis", "yaxis")]
    axes += [stepped.layout.xaxis3, stepped.layout.yaxis3]
    labels = [axis.ticktext[0] for axis in axes] + [trace.text[0] for trace in points]
    labels += [label.removesuffix(" (0)") for label in (scored.data[0].x[0], scored.layout.sliders[0].steps[0].label)]
    assert {shown_by_plotly(label) for label in labels} == {HOSTILE[token]}
    for figure in (heat, paged, scored, stepped, edges):
        page = views.Page().to_mimebundle(figure.to_dict())["text/html"]
        assert not breaks_out(page)
        assert Read(page).labels == [alt(figure)]


def test_words_have_tokens_as_they_are_shown():
    assert "at <b>, <i>." in alt(plots.heatmap(ONE, ["<i>"], ["<b>"], "t", "x", "y"))
    assert "on <b> (0)." in alt(scenes.scores({"K": ONE}, ["<b>"], "t"))


def test_hovering_on_an_edge_shows_names_as_they_are():
    figure = scenes.composition({"K": (5 * ONE, ONE, ONE)}, ["<b>"], ["\n"], "t")
    assert shown_by_plotly(figure.data[1].hovertemplate).startswith("<b> → ⏎: 5.000")


@pytest.mark.parametrize(("token", "shown"), HOSTILE.items())
def test_views_show_a_hostile_token_as_it_is(token, shown):
    heads = [views.attention(ONE.expand(len(names), 1, 1), [token], names) for names in ([token], [token, token])]
    paths = views.path_explorer([token], [token], [token], ONE, ONE[None], ONE[None], token)
    assert [props(view)[1]["tokens"] for view in heads] == [[shown], [shown]]
    assert [explored(paths)[key] for key in ("tokens", "targets", "title", "paths")] == [[shown], [shown], token, [token]]
    assert not any(breaks_out(view.data) for view in (*heads, paths))
    table = views.skip_trigrams([(token, {token: 1.0}, {token: 1.0})], token)
    for view in (views.text([token], [token], {token: token}), views.shaded([token], -ONE[0], token), table):
        assert Read(view.data).words[0] == shown
        tags = {tag.strip("/") for tag in Read(view.data).tags}
        assert tags <= {"div", "span", "bdi", "table", "caption", "tr", "th", "td"}


def test_the_page_asks_for_no_script_and_has_words():
    figure = plots.curves({"a": ([0], [1.0])}, 'A "quoted" <title>', "x", "y")
    bundle = views.Page().to_mimebundle(figure.to_dict())
    assert bundle["text/plain"] == alt(figure) == Read(bundle["text/html"]).labels[0]
    assert not re.search(r"<script[^>]*src|mathjax\b.*\.js|cdn", bundle["text/html"], re.I)
    assert len(bundle["text/html"]) < 20_000
    assert views.Page().to_mimebundle({"data": [], "layout": {}})["text/plain"] == "A figure."


def test_the_bundle_is_on_the_page_once_and_in_every_frame_in_colab(monkeypatch):
    assert views.bundle().count("</script>") == views.bundle().count("window.CircuitsVis = CircuitsVis;") == 1
    assert len(views.attention(SQUARE[None], "ab", ["0.0"]).data) < 1_500
    monkeypatch.setitem(views.sys.modules, "google.colab", object())
    for heads in ("a", "ab"):
        assert views.attention(SQUARE.expand(len(heads), 2, 2), "ab", heads).data.startswith(views.bundle())


def sizes() -> list[int]:
    """Of letters, in a figure and its note, and in views."""
    figure = plots.heatmap(torch.ones(61, 1), ["x"], ["y"] * 61, "t", "x", "y")
    drawn = views.text(["a"], ["b"], {}), views.shaded(["a"], -ONE[0], "c"), views.skip_trigrams([], "c")
    written = [int(re.search(r"font-size: (\d+)px", view.data)[1]) for view in drawn]
    written += [explored(views.path_explorer("a", "a", "a", ONE, ONE[None], ONE[None], "t"))["letters"]]
    layout = figure.layout.template.layout
    return [layout.font.size, layout.title.font.size, figure.layout.annotations[0].font.size, *written]


def test_a_presentation_has_larger_letters():
    before = sizes()
    try:
        plots.look("presentation")
        assert all(large >= 1.4 * small for small, large in zip(before, sizes()))
    finally:
        plots.look("notebook")
    assert sizes() == before
    with refused("There is no look 'cinema'; there are notebook, presentation"):
        style.look("cinema")


DRAW = {  # every place where a tensor goes
    "heatmap": lambda v: plots.heatmap(v(2, 2), "ab", "ab", "t", "x", "y"),
    "points": lambda v: plots.against({"p": (v(2), v(2))}, "ab", torch.ones(2), "t", "x", "y"),
    "sizes": lambda v: plots.against({"p": (GOOD[0], GOOD[0])}, "ab", v(2), "t", "x", "y"),
    "score": lambda v: scenes.composition({"Q": (v(2, 2), GOOD, GOOD)}, "ab", "cd", "t"),
    "mean": lambda v: scenes.composition({"Q": (GOOD, v(2, 2), GOOD)}, "ab", "cd", "t"),
    "sd": lambda v: scenes.composition({"Q": (GOOD, GOOD, v(2, 2))}, "ab", "cd", "t"),
    "parts": lambda v: scenes.scores({"K": GOOD, "V": v(2, 2)}, "ab", "t"),
    "learning": lambda v: scenes.scrubber([1], {"A": [1.0]}, {"A": 0.5}, v(1, 2), "hi", GOOD[None], "ab", "t", "p"),
    "patterns": lambda v: scenes.scrubber([1], {"A": [1.0]}, {"A": 0.5}, GOOD[:1], "hi", v(1, 2, 2), "ab", "t", "p"),
    "attention": lambda v: views.attention(v(1, 2, 2), "ab", "h"),
    "weighted": lambda v: views.attention(v(1, 2, 2), "ab", "h", weighted=True),
    "shaded": lambda v: views.shaded("ab", v(2), "c"),
    "attribution": lambda v: views.path_explorer("ab", "ab", "p", v(1, 2), GOOD[None], GOOD[None], "t"),
    "looked": lambda v: views.path_explorer("ab", "ab", "p", GOOD[:1], v(1, 2, 2), GOOD[None], "t"),
    "moved": lambda v: views.path_explorer("ab", "ab", "p", GOOD[:1], GOOD[None], v(1, 2, 2), "t"),
}
FREE = {"eigenvalues": lambda v: plots.eigenvalues({"p": v(3).to(torch.complex64)}, "t")}
FREE |= {"histogram": lambda v: plots.histogram({"p": v(3)}, "t", "x")}


@pytest.mark.parametrize("what", DRAW | FREE)
def test_what_is_not_a_number_and_what_is_empty_is_refused(what):
    for bad in (math.nan, math.inf, -math.inf):
        with refused(r"\d of \d+ [\w ]+ are NaN or infinite: mask them or leave them out\."):
            (DRAW | FREE)[what](lambda *shape: torch.ones(shape).index_fill(-1, torch.tensor(0), bad))  # noqa: B023
    with refused(r"There is nothing to draw: [\w ]+ are empty, of shape \["):
        (DRAW | FREE)[what](lambda *shape: torch.ones(0, *shape[1:]))


@pytest.mark.parametrize("what", DRAW)
def test_labels_that_do_not_fit_are_refused(what):
    for change in (lambda shape: [shape[0] + 1, *shape[1:]], lambda shape: [*shape[:-1], shape[-1] + 1]):
        with refused(r"\d labels do not fit [\w ]+ of shape \["):
            DRAW[what](lambda *shape: torch.ones(change(shape)))  # noqa: B023


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.against({"p": (GOOD[0], ONE[0])}, "ab", GOOD[0], "t", "x", "y"),
        lambda: views.path_explorer("ab", "a", "p", GOOD[:1], GOOD[None], GOOD[None], "t"),
        lambda: views.text("ab", ["KIND"], {}),
    ],
)
def test_what_does_not_belong_together_is_refused(draw):
    with refused("do not fit"):
        draw()


def test_rows_that_do_not_sum_to_one_and_too_many_tokens_are_refused():
    with refused(r"Rows of a pattern sum to 1; these are off by 0\.5\. .*weighted=True"):
        views.attention(torch.stack([SQUARE, SQUARE * 1.5]), "ab", "hi")
    assert views.attention(torch.eye(200)[None], ["a"] * 200, ["h"])
    for weighted in (True, False):
        with refused("201 tokens are more than can be drawn: cut them to 200"):
            views.attention(torch.eye(201)[None], ["a"] * 201, ["h"], weighted=weighted)
