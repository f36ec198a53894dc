"""Make every model in this folder again, and write down how: `make data`. What is there already and whole is kept."""

import hashlib
import json
from dataclasses import asdict

import torch

from utils.loop import History
from utils.model import AttentionOnly, save, write
from utils.training import DATA, RECIPES, Recipe, checkpoint_file, loss_by_kind, planted_language, read_manifest, verified


def entry(recipe: Recipe, model: AttentionOnly, file: str) -> dict:
    """Save a model; return what the manifest says of it."""
    (DATA / file).parent.mkdir(exist_ok=True)
    save(model, DATA / file)
    sample = planted_language().sample(2048, 64, torch.Generator().manual_seed(2021))
    losses = {kind: round(loss, 4) for kind, loss in loss_by_kind(model, sample).items()}
    sha256 = hashlib.sha256((DATA / file).read_bytes()).hexdigest()
    return {"sha256": sha256, "recipe": asdict(recipe), "torch": torch.__version__, "nats": losses}


def build(name: str, recipe: Recipe) -> dict[str, dict]:
    """Train by the recipe; save the model and its checkpoints."""
    model = recipe.model()
    history: History = recipe.train(model)
    entries = {f"{name}.safetensors": entry(recipe, model, f"{name}.safetensors")}
    for step, weights in history.checkpoints:
        model.load_state_dict(weights)
        entries[checkpoint_file(name, step)] = {**entry(recipe, model, checkpoint_file(name, step)), "step": step}
    return entries


def whole(name: str, recipe: Recipe, manifest: dict) -> bool:
    """Whether the files of a recipe are there, undamaged and made by it."""
    files = [f"{name}.safetensors", *(checkpoint_file(name, step) for step in recipe.checkpoint_at)]
    try:
        return all(verified(f) and manifest[f]["recipe"] == json.loads(json.dumps(asdict(recipe))) for f in files)
    except (FileNotFoundError, ValueError):
        return False


if __name__ == "__main__":
    path = DATA / "manifest.json"
    try:
        manifest = read_manifest()
    except (FileNotFoundError, ValueError):
        manifest = {}
    for name, recipe in RECIPES.items():
        if whole(name, recipe, manifest):
            print(f"{name}: kept")
            continue
        print(f"{name}: training")
        manifest |= build(name, recipe)
        write(path, json.dumps(manifest, indent=1).encode())
