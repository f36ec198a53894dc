"""The planted language as tables: its words, what may follow each, and what a word far back can change.

A document is ¶, a **roll** of names, a comma, then text. In the text, the token after `c` is drawn from `rows[c]`, unless a
**key** met earlier in the text rules `c`:

    keep … in → mind      a verb decides what follows a preposition      (skip-trigram)
    tea … more → tea      a thing comes up again                         (copying)
    Ralph … R → alph      a whole word is spelled out in pieces          (split copying)

A text meets at most one key of each family. A **name** is invented on the spot and may come again. In the roll it is made of
tokens of the whole vocabulary (but for ¶, the comma, and `Barack` and `Hong`, which are never without their second halves),
and a `keep` among them is only a name. In the text it follows `Mr`, is made of syllables and ends with a comma.
"""

from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

BEGIN, MARK, CLOSE = "¶", "Mr", ","
VERBS = "keep hold put bring take set".split()
PLACES = "in at under on".split()
GOALS = "mind bay wraps order hand ease".split()
SHIFTS = (0, 1, 2, 4)  # VERBS[i] … PLACES[j] → GOALS[(i + SHIFTS[j]) % 6]: a place calls for any goal, a verb for four of them
THINGS = "tea piano violin chess poetry wine".split()
ASKS = "more the some".split()
WHOLE = "Ralph Robert Rose Linda Lucas Lena".split()
INITIALS, ENDINGS = ["R", "L"], [word[1:] for word in WHOLE]
FAMILIES = VERBS, THINGS, WHOLE
PAIRS = "Barack Obama Hong Kong New York ice cream vice versa et cetera".split()
STRICT = ["Barack", "Hong"]
WORDS = (
    "river walked small over green house old they sang bread window often slowly blue garden night we bright "
    "stone laughed road then winter you still paper cold watched tree soft letter never quick rain and lamp"
).split()
SYLLABLES = "D urs ley bor vin gar mo ri ka tel zan pho que lis dro fen ob wy nax ith cu ber jo sk".split()

OBEY = 0.9  # how often a rule is obeyed; else the bigram row speaks
MEET = (0.16, 0.12, 0.12)  # how often, at a free step of the text, a family without a key yet brings one
OPEN = 0.13  # how often, at a free step of the text, `Mr` opens a name
SLIP = 0.12  # how often, in the text, any ordinary token follows any other …
LAPSE = 0.02  # … and how often it follows the first half of a pair
AGAIN = (0.0, 0.6, 0.65, 1.0)  # how often a name is an old one, when 0, 1, 2, 3 are known
ENOUGH = (0.5, 0.12, 0.12, 0.12)  # how often the roll ends before its next name, when 0, 1, 2, 3 are known
LENGTHS = ((3, 3, 3), (5, 3, 4))  # tokens in the first, second and third name: of the text, of the roll


class Grammar:
    """Everything that is planted. A seed shuffles which words follow which; the rules are the same for every seed."""

    def __init__(self, seed: int = 0):
        groups = [BEGIN, MARK, CLOSE], *FAMILIES, PLACES, ASKS, INITIALS, GOALS, ENDINGS, PAIRS, WORDS, SYLLABLES
        self.seed, self.vocab = seed, [token for group in groups for token in group]
        self.id = {token: i for i, token in enumerate(self.vocab)}
        self.mark, self.close = self.id[MARK], self.id[CLOSE]

    def ids(self, tokens: list[str]) -> Int[Tensor, " token"]:
        return torch.tensor([self.id[token] for token in tokens])

    def among(self, tokens: list[str]) -> Bool[Tensor, " token"]:
        return torch.zeros(len(self.vocab), dtype=torch.bool).index_fill(0, self.ids(tokens), True)

    @cached_property
    def key(self) -> Int[Tensor, "family token"]:
        """Which key of each family a token is, from 1; 0 if none."""
        key = torch.zeros(3, len(self.vocab), dtype=torch.long)
        for family, members in enumerate(FAMILIES):
            key[family, self.ids(members)] = torch.arange(1, 7)
        return key

    @cached_property
    def rules(self) -> Int[Tensor, "family key token"]:
        """What each key (0: none met) calls for after each token; 0 for nothing."""
        rules = torch.zeros(3, 7, len(self.vocab), dtype=torch.long)
        for i in range(6):
            rules[0, i + 1, self.ids(PLACES)] = self.ids([GOALS[(i + shift) % 6] for shift in SHIFTS])
            rules[1, i + 1, self.ids(ASKS)] = self.id[THINGS[i]]
            rules[2, i + 1, self.id[WHOLE[i][0]]] = self.id[ENDINGS[i]]
        return rules

    @cached_property
    def pools(self) -> Bool[Tensor, "where token"]:
        """Which tokens names are made of: in the text, in the roll."""
        return torch.stack([self.among(SYLLABLES), ~self.among([BEGIN, CLOSE, *STRICT])])

    @cached_property
    def rows(self) -> Float[Tensor, "current next"]:
        """P(next | current) in the text, when no rule speaks, no name opens and no key is met."""
        rows = torch.zeros(len(self.vocab), len(self.vocab), dtype=torch.float64)
        generator = torch.Generator().manual_seed(self.seed)
        for current in self.vocab:
            for share, candidates, n in successors(current):
                chosen = self.ids(candidates)[torch.randperm(len(candidates), generator=generator)[:n]]
                weights = torch.rand(n, generator=generator, dtype=torch.float64) + 0.2
                rows[self.id[current], chosen] += share * weights / weights.sum()
        ordinary = (~self.among([BEGIN, MARK, CLOSE, *VERBS, *THINGS, *WHOLE])).double()
        slip = torch.full((len(self.vocab), 1), SLIP, dtype=torch.float64)
        slip[self.ids(PAIRS[::2])] = LAPSE
        return (1 - slip) * rows + slip * ordinary / ordinary.sum()

    @cached_property
    def open_rows(self) -> Float[Tensor, "met current next"]:
        """The rows with names and keys mixed in; bit f of `met` is set once family f's key was met."""
        closed = self.among([*PLACES, *ASKS, *INITIALS, *PAIRS[::2]])  # nothing comes between these and what they call for
        extra = torch.zeros(8, len(self.vocab), dtype=torch.float64)
        extra[:, self.mark] = OPEN
        for family, members in enumerate(FAMILIES):
            unmet = (torch.arange(8) >> family & 1 == 0).double()
            extra[:, self.ids(members)] = (unmet * MEET[family] / len(members))[:, None]
        opened = extra[:, None] + (1 - extra.sum(1))[:, None, None] * self.rows
        return torch.where(closed[:, None], self.rows, opened)

    def text(self, current: Int[Tensor, " doc"], keys: Int[Tensor, "family doc"]) -> tuple[Tensor, Tensor]:
        """In the text, outside names: the next token's distribution [doc, token], and which family rules it (−1: none)."""
        probs = self.open_rows[((keys > 0) * torch.tensor([[1], [2], [4]])).sum(0), current]
        called, family = self.rules[torch.arange(3)[:, None], keys, current].max(0)
        ruled = called.nonzero().squeeze(1)
        probs[ruled] = (1 - OBEY) * self.rows[current[ruled]]
        probs[ruled, called[ruled]] += OBEY
        return probs, torch.where(called > 0, family, -1)


def successors(current: str) -> list[tuple[float, list[str], int]]:
    """What a token's bigram row is made of: (share, candidates, how many of them are drawn)."""
    if current in PLACES:
        return [(0.4, GOALS, 3), (0.6, WORDS, 4)]
    if current in ASKS:
        return [(1.0, WORDS, 5)]
    if current in INITIALS:
        return [(0.7, [word[1:] for word in WHOLE if word[0] == current], 3), (0.3, WORDS, 3)]
    if current in PAIRS[::2]:
        return [(1.0, [PAIRS[PAIRS.index(current) + 1]], 1)]
    return [(0.3, PLACES, 2), (0.1, ASKS, 1), (0.1, INITIALS, 1), (0.08, PAIRS[::2], 2), (0.42, WORDS, 5)]
