"""Figures and views: the right data, centred colours, labels, escaped tokens, and errors that say what is wrong."""

import json
import re

import pytest
import torch

from utils import plots, views


def test_the_ladder_has_a_bar_for_each_model_and_kind_and_the_floors():
    losses = {"none": {"A": 2.0, "B": 3.0}, "one": {"A": 1.0, "B": 2.5}}
    figure = plots.ladder(losses, {"A": 0.5, "B": 0.25}, "B falls").to_dict()
    assert [trace["name"] for trace in figure["data"]] == ["none", "one", "floor"]
    assert list(figure["data"][1]["y"]) == [1.0, 2.5]
    assert list(figure["data"][2]["y"]) == [0.5, 0.25]
    assert figure["layout"]["title"]["text"] == "B falls"
    assert figure["layout"]["yaxis"]["title"]["text"] == "loss (nats)"


def test_a_heatmap_is_centred_on_zero_and_labelled():
    values = torch.tensor([[1.0, -4.0, 0.0], [2.0, 3.0, 0.5]])
    figure = plots.heatmap(values, ["x", "y", "x"], ["a", "b"], "title", "next", "current").to_dict()
    [cells] = figure["data"]
    assert (cells["zmin"], cells["zmax"]) == (-4.0, 4.0)
    assert list(figure["layout"]["xaxis"]["ticktext"]) == ["x", "y", "x"]
    assert figure["layout"]["yaxis"]["autorange"] == "reversed"
    assert cells["hovertext"][1][2] == "current b, next x"


def test_a_heatmap_of_zeros_can_be_drawn():
    figure = plots.heatmap(torch.zeros(1, 1), ["x"], ["y"], "nothing", "next", "current")
    assert figure.data[0].zmax == 1.0


def test_a_heatmap_says_when_labels_do_not_fit():
    with pytest.raises(ValueError, match="2 labels in y and 3 in x do not fit"):
        plots.heatmap(torch.zeros(3, 2), list("abc"), list("ab"), "title", "next", "current")


def test_curves_and_scatters_hold_their_points():
    line = plots.curves({"loss": ([0, 1], [3.0, 2.0])}, "falls", "step", "nats").to_dict()
    assert list(line["data"][0]["y"]) == [3.0, 2.0]
    x, y = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.5])
    scatter = plots.against({"left": (x, y), "right": (y, x)}, ["p", "q"], torch.tensor([1.0, 4.0]), "t", "x", "y").to_dict()
    assert list(scatter["data"][3]["x"]) == y.tolist()
    assert list(scatter["data"][0]["x"]) == [-2.5, -1.0]  # the diagonal spans all points
    assert scatter["data"][1]["marker"]["size"][1] > scatter["data"][1]["marker"]["size"][0]


def props(view) -> dict:
    return json.loads(re.search(r"AttentionHeads, (.+?)\); else", view.data)[1].replace("<\\/", "</"))


def test_the_attention_view_carries_pattern_tokens_and_heads():
    pattern = torch.tensor([[[1.0, 0.0], [0.25, 0.75]]])
    drawn = props(views.attention(pattern, ["a", "b"], ["0.1"]))
    assert drawn["attention"] == pattern.tolist()
    assert drawn["tokens"] == ["a", "b"]
    assert drawn["attentionHeadNames"] == ["0.1"]


def test_the_attention_view_says_when_labels_do_not_fit():
    with pytest.raises(ValueError, match="2 heads and 3 tokens do not fit"):
        views.attention(torch.zeros(1, 3, 3), list("abc"), ["0.0", "0.1"])


@pytest.mark.parametrize("token", ["</script>", "<b>", '"', "'", "\\", "\n", "é 🙂 שלום"])
def test_a_hostile_token_breaks_no_view(token):
    drawn = views.attention(torch.ones(1, 1, 1), [token], ["0.0"])
    assert drawn.data.count("</script>") == 1
    assert props(drawn)["tokens"] == [token]
    text = views.text([token], ["KIND"], {"KIND": "why"}).data
    assert "<b>" not in text
    assert "<script" not in text


def test_a_text_colours_the_groups_that_are_explained_and_no_others():
    text = views.text(["a", "b"], ["KNOWN", "PLAIN"], {"KNOWN": "because"}).data
    assert text.count(plots.PALETTE[0] + "44") == 2  # the token and the legend
    assert 'title="PLAIN" style=" padding' in text


def test_the_bundle_is_on_the_page_once_and_in_every_frame_in_colab(monkeypatch):
    assert "window.CircuitsVis" in views.bundle()
    assert len(views.attention(torch.ones(1, 1, 1), ["a"], ["0.0"]).data) < 1_000
    monkeypatch.setitem(views.sys.modules, "google.colab", object())
    assert len(views.attention(torch.ones(1, 1, 1), ["a"], ["0.0"]).data) > 1_000_000
