"""`python -m bench`: two tables, also in build/bench.json. `python -m bench algebra`: without training, two minutes.
`python -m bench seeds`: ten seeds of both two-layer recipes, half an hour.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

import torch

from bench import algebra, pictures, rows
from utils.corpus import Kind, repeated_tokens
from utils.model import AttentionOnly
from utils.training import RECIPES, loss_by_kind, planted_language

BUILD = Path("build")
LIMITS = {"planted-2l": 0.5, "planted-2l-live": 1.0}  # nats above the floor
PERIOD = 20
LOAD = os.getloadavg()[0]  # of the last minute, before anything here ran


ALGEBRA = algebra.composition, algebra.expansions, algebra.copying
ALL = (
    rows.imports,
    rows.sampling,
    *ALGEBRA,
    pictures.pictures,
    rows.speeds,
    rows.recipes,
    rows.learning,
)  # the quick ones first


def measure(measures: Iterable[Callable[[], Iterator[rows.Row]]]) -> list[rows.Row]:
    """Their rows, with a word on stderr as each is done."""
    found = []
    for measure in measures:
        for row in measure():
            print(f"{row.what}: {number(row.ours)}", file=sys.stderr)
            found.append(row)
    return found


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


def cells(row: rows.Row) -> list[str]:
    """What the table says of a row."""
    beyond = "> " if row.bound else ""
    other, ratio = beyond + number(row.other), beyond + number(row.ratio)
    mark = {True: " ✓", False: " ✗", None: ""}[row.met]
    return [row.what, number(row.ours), other, ratio, row.target + mark, str(row.median_of)]


def table(lines: list[list[str]]) -> str:
    """Columns as wide as they need to be, the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines)


def write(name: str, content: dict) -> None:
    BUILD.mkdir(exist_ok=True)
    about = {name: version(name) for name in ("torch", "transformer_lens")}
    about |= {"threads": torch.get_num_threads(), "waiting": os.environ.get("OMP_WAIT_POLICY"), "load_before": LOAD}
    (BUILD / name).write_text(json.dumps({**about, **content}, indent=1, ensure_ascii=False) + "\n")


def bench(measures: Iterable[Callable[[], Iterator[rows.Row]]], file: str) -> None:
    if LOAD > 0.5:
        print(f"The machine is busy (load {LOAD:.1f}): the times below are not what it can do.", file=sys.stderr)
    found, growth = measure(measures), algebra.growth()
    write(file, {"rows": [asdict(row) for row in found], "growth": growth})
    print(table([["what", "ours", "other", "ratio", "target", "median of"], *map(cells, found)]), table(growth), sep="\n\n")


def third_copy(model: AttentionOnly) -> float:
    """Nats: the loss on the third copy of 20 random tokens."""
    tokens = repeated_tokens(512, PERIOD, 3, model.cfg.d_vocab, torch.Generator().manual_seed(2021))
    with torch.no_grad():
        return model.loss(tokens, per_token=True)[:, 2 * PERIOD :].mean().item()


def grown(name: str, seed: int) -> dict[str, float]:
    """Train a recipe from another seed; what it makes of names and of random repeats."""
    recipe = replace(RECIPES[name], seed=seed, checkpoint_at=())
    model = recipe.model()
    recipe.train(model, progress=False)
    language = planted_language()
    sample = language.sample(2048, language.n_ctx, torch.Generator().manual_seed(2021))
    names = loss_by_kind(model, sample)["NAME_REPEAT"] - language.floor(Kind.NAME_REPEAT)
    return {"seed": seed, "names": names, "third_copy": third_copy(model)}


def all_seeds(name: str, n: int) -> Iterator[dict[str, float]]:
    for seed in range(n):
        result = grown(name, seed)
        print(f"{name} seed {seed}: names {result['names']:.3f}, third copy {result['third_copy']:.3f}", file=sys.stderr)
        yield result


def spread(values: list[float], limit: float) -> dict[str, float]:
    """How many are within the limit, and how far they lie apart."""
    within = sum(value <= limit for value in values)
    return {"within": within, "of": len(values), "min": min(values), "median": median(values), "max": max(values)}


def seeds(n: int = 10) -> None:
    found = {}
    for name, limit in LIMITS.items():
        each = list(all_seeds(name, n))
        summary = {what: spread([result[what] for result in each], limit) for what in ("names", "third_copy")}
        found[name] = {"limit": limit, "seeds": each, **summary}
        write("seeds.json", found)
    print(table(list(seed_lines(found))))


def seed_lines(found: dict) -> Iterator[list[str]]:
    yield ["recipe: nats of", "seeds", "min", "median", "max"]
    for name, results in found.items():
        for what in ("names", "third_copy"):
            spread = results[what]
            within = f"{spread['within']} of {spread['of']} ≤ {results['limit']:g}"
            yield [f"{name}: {what}", within, *(number(spread[key]) for key in ("min", "median", "max"))]


if __name__ == "__main__":
    commands = {"seeds": seeds, "algebra": partial(bench, ALGEBRA, "algebra.json"), "all": partial(bench, ALL, "bench.json")}
    commands[sys.argv[1] if sys.argv[1:] else "all"]()
