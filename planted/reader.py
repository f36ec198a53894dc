"""An ideal reader of the planted language: it knows the rules, and remembers all that it has read."""

from enum import IntEnum

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from planted.grammar import AGAIN, ENOUGH, LENGTHS, Grammar


class Kind(IntEnum):
    """Which rule governs a token: a function of the text before it, known before the token is drawn."""

    BEGIN = 0  # ¶
    BIGRAM = 1  # the current token decides, as far as anything does
    SKIP_TRIGRAM = 2  # keep … in → mind
    COPY = 3  # tea … more → tea
    SPLIT_COPY = 4  # Ralph … R → alph
    NAME_START = 5  # a name's first token: an old name, or a new one
    NAME_FIRST = 6  # inside a new name: nobody can know
    NAME_REPEAT = 7  # inside an old name: only its earlier mention tells
    NAME_END = 8  # the comma after a name in the text


class Reader:
    """What is known after the tokens so far, for many documents side by side."""

    def __init__(self, grammar: Grammar, n_docs: int):
        self.grammar, self.lengths = grammar, torch.tensor(LENGTHS)
        self.current = torch.zeros(n_docs, dtype=torch.long)
        self.keys = torch.zeros(3, n_docs, dtype=torch.long)  # the key met of each family, 0 if none
        self.roll = torch.ones(n_docs, dtype=torch.long)  # 1 in the roll, 0 in the text
        self.place = torch.ones(n_docs, dtype=torch.long)  # which token of a name comes next, from 1; 0 outside names
        self.slot = torch.zeros(n_docs, dtype=torch.long)  # which name that is: the first, second or third
        self.known = torch.zeros(n_docs, 2, dtype=torch.long)  # how many names there were in the text, in the roll
        self.names = torch.zeros(n_docs, 2, 3, 5, dtype=torch.long)  # their tokens

    def expect(self) -> tuple[Float[Tensor, "doc token"], Int[Tensor, " doc"]]:
        """The next token's distribution, and its kind."""
        probs, family = self.grammar.text(self.current, self.keys)
        kind = torch.where(family < 0, Kind.BIGRAM, Kind.SKIP_TRIGRAM + family)
        inside = self.place.nonzero().squeeze(1)
        probs[inside], kind[inside] = self.expect_in_name(inside)
        return probs, kind

    def expect_in_name(self, doc: Int[Tensor, " doc"]) -> tuple[Tensor, Tensor]:
        roll, place, slot = self.roll[doc], self.place[doc], self.slot[doc]
        names, known, length = self.names[doc, roll], self.known[doc, roll], self.lengths[roll, slot]
        start, end, old = place == 1, place > length, slot < known
        fresh = self.grammar.pools[roll].scatter(1, names.flatten(1), False).double()
        fresh /= fresh.sum(1, keepdim=True)

        told = torch.where(end, self.grammar.close, names[torch.arange(len(doc)), slot, (place - 1).clamp(max=4)])
        probs = torch.where((old | end)[:, None], F.one_hot(told, fresh.shape[1]), fresh)
        probs[start] = self.expect_start(fresh[start], names[start, :, 0], known[start], roll[start])
        kind = torch.where(old, Kind.NAME_REPEAT, Kind.NAME_FIRST)
        return probs, torch.where(start, Kind.NAME_START, torch.where(end, Kind.NAME_END, kind))

    def expect_start(self, fresh: Tensor, firsts: Tensor, known: Tensor, roll: Tensor) -> Tensor:
        """A name's first token: the roll's end, an old name's first token (all alike), or a fresh one."""
        enough = fresh.new_tensor(ENOUGH)[known] * roll
        again = fresh.new_tensor(AGAIN)[known]
        share = torch.where(torch.arange(3) < known[:, None], (again / known.clamp(min=1))[:, None], 0.0)
        probs = (fresh * (1 - again)[:, None]).scatter_add(1, firsts, share) * (1 - enough)[:, None]
        probs[:, self.grammar.close] += enough
        return probs

    def read(self, token: Int[Tensor, " doc"]) -> None:
        """Take in one token of every document."""
        outside = self.place == 0
        self.keys = torch.where((self.keys == 0) & outside, self.grammar.key[:, token], self.keys)
        self.recognise(token)
        length = self.lengths[self.roll, self.slot]
        leaves = (self.roll == 1) & (self.place == 1) & (token == self.grammar.close)
        writes = ~outside & (self.place <= length) & ~leaves
        self.note(token, writes.nonzero().squeeze(1))

        opens = (outside & (token == self.grammar.mark)) | (writes & (self.roll == 1) & (self.place == length))
        self.place = torch.where(opens, 1, torch.where(writes, self.place + 1, 0))
        self.roll = torch.where(leaves, 0, self.roll)
        self.current = token

    def recognise(self, token: Tensor) -> None:
        """At a name's first token: which of the known names is it? If none, the next free slot."""
        doc = (self.place == 1).nonzero().squeeze(1)
        same = self.names[doc, self.roll[doc], :, 0] == token[doc, None]
        fresh = self.known[doc, self.roll[doc]].clamp(max=2)
        self.slot[doc] = torch.where(same.any(1), same.long().argmax(1), fresh)

    def note(self, token: Tensor, doc: Tensor) -> None:
        """Write the token into its name; a name that is complete is known."""
        roll, slot, place = self.roll[doc], self.slot[doc], self.place[doc]
        self.names[doc, roll, slot, place - 1] = token[doc]
        whole = place == self.lengths[roll, slot]
        self.known[doc, roll] = torch.where(whole, torch.maximum(self.known[doc, roll], slot + 1), self.known[doc, roll])
