"""The named recipes, and the models that they made: shipped in `data/`, verified when loaded, rebuilt by `make data`."""

from dataclasses import dataclass
from functools import cache

from utils.corpus import PlantedLanguage, PythonLibrary, python_library
from utils.loop import History, loss_by_kind, train
from utils.model import AttentionOnly, AttentionOnlyConfig, load
from utils.shipped import verified

__all__ = ["RECIPES", "History", "Recipe", "load_checkpoints", "load_model", "loss_by_kind", "planted_language", "train"]


@dataclass(frozen=True)
class Recipe:
    """All that it takes to make a model again. The optimiser's settings are the defaults of `train`."""

    n_layers: int
    steps: int
    seed: int = 0
    n_heads: int = 4
    d_model: int = 64
    d_head: int = 16
    n_docs: int = 64  # documents a step
    lr: float = 1e-2
    checkpoint_at: tuple[int, ...] = ()
    corpus: str = "planted"  # or "python"

    def text(self) -> PlantedLanguage | PythonLibrary:
        """What the model reads."""
        return {"planted": planted_language, "python": python_library}[self.corpus]()

    def model(self) -> AttentionOnly:
        """The model before training."""
        shape = self.n_layers, self.n_heads, self.d_model, self.d_head
        return AttentionOnly(AttentionOnlyConfig(*shape, len(self.text().vocab), self.text().n_ctx, self.seed))

    def train(self, model: AttentionOnly, **options) -> History:
        """Train it on documents of its own: no two seeds read the same ones."""
        batches = self.text().batches(self.n_docs, self.seed)
        return train(model, batches, self.steps, self.lr, checkpoint_at=self.checkpoint_at, **options)


@cache
def planted_language() -> PlantedLanguage:
    """The language that all planted models read."""
    return PlantedLanguage(seed=0)


PHASE_CHANGE = (0, 50, 100, 150, *range(200, 401, 20), 425, 450, 500, 600, 700, 800, 1000, 1250, 1500, 2100)
RECIPES = {
    "planted-0l": Recipe(0, 1200),
    "planted-1l": Recipe(1, 1500),
    "planted-2l": Recipe(2, 2100, checkpoint_at=PHASE_CHANGE),
    "planted-2l-live": Recipe(2, 800),
    **{f"planted-1l-seed{seed}": Recipe(1, 1500, seed) for seed in range(1, 5)},
    **{f"planted-2l-seed{seed}": Recipe(2, 2100, seed) for seed in range(1, 5)},
    **{f"planted-1l-{heads}heads": Recipe(1, 1500, n_heads=heads) for heads in (1, 2, 8)},
}


def recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise ValueError(f"There is no recipe {name!r}; there are {', '.join(RECIPES)}.")
    return RECIPES[name]


def load_model(name: str, retrain: bool = False) -> AttentionOnly:
    """A shipped model, on the CPU, in eval mode; with `retrain`, the same recipe trained here and now."""
    if not retrain:
        recipe(name)
        return load(verified(f"{name}.safetensors"))
    model = recipe(name).model()
    recipe(name).train(model)
    return model.eval()


def load_checkpoints(name: str) -> list[tuple[int, AttentionOnly]]:
    """The model at the recipe's checkpoints: [(step, model)]."""
    return [(step, load(verified(checkpoint_file(name, step)))) for step in recipe(name).checkpoint_at]


def checkpoint_file(name: str, step: int) -> str:
    return f"{name}-checkpoints/{step:05d}.safetensors"
