"""The Python library as a corpus: read from the running interpreter, cut by the shipped tokenizer."""

import pytest
import torch

from tests.helpers import rng
from utils.corpus import python_library
from utils.library import is_held_out, sources


@pytest.fixture(scope="module")
def library():
    return python_library()


def test_the_papers_words_are_single_tokens(library):
    for word in (" lambda", " except", " range", " self", "self", " def", " return", " for", " in", " open", " None", " with"):
        assert library.decode(library.encode(word)[0, 1:]) == [word]


def test_a_text_comes_back_from_its_tokens(library):
    text = "def f(self):\n    return 'é 🙂' if self else None\n\tx"
    tokens = library.encode(text)
    assert tokens[0, 0] == 0
    assert library.tokenizer.decode(tokens[0, 1:].tolist()) == text


def test_held_out_files_are_few_and_chosen_by_name_alone():
    names = [name for name, _ in sources()]
    assert names == sorted(names)
    assert 0.03 < sum(map(is_held_out, names)) / len(names) < 0.12
    assert not any(name.startswith(("encodings/", "pydoc_data/")) or "site-packages" in name for name in names)


def test_windows_begin_with_the_first_token_and_are_runs_of_the_text(library):
    windows = library.sample(8, rng(0))
    assert windows.shape == (8, 256)
    assert (windows[:, 0] == 0).all()
    assert torch.equal(windows, library.sample(8, rng(0)))
    text = library.held_out.long()
    starts = torch.randint(len(text) - 256, (8, 1), generator=rng(0))
    assert torch.equal(windows[:, 1:], text[starts + torch.arange(1, 256)])


def test_every_token_can_be_shown(library):
    assert len(library.vocab) == 2048
    assert all(isinstance(token, str) and token for token in library.vocab)
