"""The standard library of the Python that runs, as a corpus: real text that is on every machine which can run the course."""

import hashlib
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path

import torch
from jaxtyping import Int
from tokenizers import Tokenizer
from torch import Generator, Tensor

from utils.shipped import verified

LEFT_OUT = {"encodings", "pydoc_data", "site-packages", "dist-packages"}  # generated tables, and other people's code


class PythonLibrary:
    """Source files in the order of their names, each after a token 0 that begins it; one in sixteen is held out.

    The text is that of the Python that runs, so numbers measured on it differ a little from one version to the next.
    """

    def __init__(self, tokenizer: Path | str, n_ctx: int = 256):
        self.tokenizer, self.n_ctx = Tokenizer.from_file(str(tokenizer)), n_ctx

    @cached_property
    def vocab(self) -> list[str]:
        """Tokens as text; one that is only a part of a character, as its bytes."""
        return [self.tokenizer.decode([token], skip_special_tokens=False) for token in range(self.tokenizer.get_vocab_size())]

    @cached_property
    def train(self) -> Int[Tensor, " token"]:
        return self.tokens(held_out=False)

    @cached_property
    def held_out(self) -> Int[Tensor, " token"]:
        return self.tokens(held_out=True)

    def tokens(self, held_out: bool) -> Int[Tensor, " token"]:
        encoded = self.tokenizer.encode_batch([text for name, text in sources() if is_held_out(name) == held_out])
        return torch.cat([torch.tensor([0, *file.ids], dtype=torch.int16) for file in encoded])

    def encode(self, text: str) -> Int[Tensor, "1 seq"]:
        """Tokens of a text, with 0 before it."""
        return torch.tensor([[0, *self.tokenizer.encode(text).ids]])

    def decode(self, tokens: Int[Tensor, " seq"]) -> list[str]:
        return [self.vocab[token] for token in tokens.tolist()]

    def batches(self, n_docs: int = 16, seed: int = 0) -> Callable[[int], Int[Tensor, "doc seq"]]:
        """Windows of the training files for every step: batches(step) is the same whenever it is asked for."""
        return lambda step: self.windows(self.train, n_docs, torch.Generator().manual_seed(seed * 1_000_003 + step))

    def sample(self, n_docs: int, generator: Generator) -> Int[Tensor, "doc seq"]:
        """Windows of the files that no model was trained on."""
        return self.windows(self.held_out, n_docs, generator)

    def windows(self, tokens: Int[Tensor, " token"], n_docs: int, generator: Generator) -> Int[Tensor, "doc seq"]:
        """n_ctx tokens from anywhere, the first of them a 0."""
        starts = torch.randint(len(tokens) - self.n_ctx, (n_docs, 1), generator=generator)
        found = tokens[starts + torch.arange(self.n_ctx)].long()
        found[:, 0] = 0
        return found


@cache
def python_library() -> PythonLibrary:
    """The library with the shipped tokenizer. Nothing is read before it is asked for: 9 million tokens take seconds."""
    return PythonLibrary(verified("python-tokenizer.json"))


def sources() -> Iterator[tuple[str, str]]:
    """The library's files, by name: (name, text)."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        if LEFT_OUT.isdisjoint(path.relative_to(root).parts):
            try:
                yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # a few tests of Python's parser are in other encodings, or in none


def is_held_out(name: str) -> bool:
    """By a hash of the name alone, as distributions differ in what they ship."""
    return hashlib.sha256(name.encode()).digest()[0] < 16
