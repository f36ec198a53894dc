"""Make every model in this folder again, and write down how: `make data`. What is there already and whole is kept."""

import hashlib
import json
import platform
from dataclasses import asdict

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from utils.library import is_held_out, sources
from utils.loop import History
from utils.model import AttentionOnly, save, write
from utils.shipped import DATA, read_manifest, verified
from utils.training import RECIPES, Recipe, checkpoint_file, loss_by_kind, planted_language


def entry(recipe: Recipe, model: AttentionOnly, file: str) -> dict:
    """Save a model; return what the manifest says of it."""
    (DATA / file).parent.mkdir(exist_ok=True)
    save(model, DATA / file)
    sample = planted_language().sample(2048, 64, torch.Generator().manual_seed(2021))
    losses = {kind: round(loss, 4) for kind, loss in loss_by_kind(model, sample).items()}
    return {"sha256": sha256(file), "recipe": asdict(recipe), "torch": torch.__version__, "nats": losses}


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
        return all(verified(f) and recorded(manifest[f]["recipe"]) == recipe for f in files)
    except (FileNotFoundError, ValueError):
        return False


def recorded(fields: dict) -> Recipe:
    """The recipe that the manifest remembers; what it does not mention is as it is by default."""
    return Recipe(**{**fields, "checkpoint_at": tuple(fields["checkpoint_at"])})


def tokenizer() -> dict[str, dict]:
    """Byte-level BPE of the Python library's training files: `data/python-tokenizer.json`."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    options = {"special_tokens": ["<begin>"], "initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "show_progress": False}
    bpe.train_from_iterator(
        (text for name, text in sources() if not is_held_out(name)), trainers.BpeTrainer(vocab_size=2048, **options)
    )
    write(DATA / "python-tokenizer.json", bpe.to_str().encode())
    python = f"the library of Python {platform.python_version()}"
    return {"python-tokenizer.json": {"sha256": sha256("python-tokenizer.json"), "trained_on": python}}


def sha256(file: str) -> str:
    return hashlib.sha256((DATA / file).read_bytes()).hexdigest()


if __name__ == "__main__":
    path = DATA / "manifest.json"
    try:
        manifest = read_manifest()
    except (FileNotFoundError, ValueError):
        manifest = {}
    if "python-tokenizer.json" not in manifest or not (DATA / "python-tokenizer.json").exists():
        manifest |= tokenizer()  # never made anew while it is there: models depend on it
        write(path, json.dumps(manifest, indent=1).encode())
    for name, recipe in RECIPES.items():
        if whole(name, recipe, manifest):
            print(f"{name}: kept")
            continue
        print(f"{name}: training")
        manifest |= build(name, recipe)
        write(path, json.dumps(manifest, indent=1).encode())
