"""How long pictures take to draw: until the HTML that goes to the page is there."""

from collections.abc import Iterator

import torch

from bench.rows import Row, budget, seconds
from tests.gallery import PICTURES, as_html
from utils import views
from utils.model import AttentionOnly, AttentionOnlyConfig
from utils.paths import expand_logits


def pictures(rounds: int = 3) -> Iterator[Row]:
    """The slowest of the gallery at its usual size, and the path explorer at 64 tokens × 81 paths."""
    times = {name: drawing(draw) for name, draw in PICTURES.items()}
    slowest = max(times, key=times.get)
    yield budget(f"drawing the slowest picture of {len(times)} ({slowest}), s", [times[slowest]], 1)
    yield budget("drawing the path explorer, 64 tokens × 81 paths, s", [seconds(explorer) for _ in range(rounds)], 3)


def drawing(draw) -> float:
    """Seconds, when what it is drawn from has been computed once and, where that is long, kept."""
    draw()
    return seconds(lambda: as_html(draw()))


def explorer() -> str:
    model = AttentionOnly(AttentionOnlyConfig(2, 8, 128, 16, 1024, 64))
    tokens = torch.randint(1024, (1, 64), generator=torch.Generator().manual_seed(0))
    words = [f"token {token}" for token in tokens[0].tolist()]
    return as_html(views.path_explorer(words, words, title="Paths", **expand_logits(model, tokens).picture(tokens)))
