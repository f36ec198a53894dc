"""What the planted rules imply on average, summed over every document that there could be: nothing here is estimated.

Outside names the text is a Markov chain over (keys met, token); inside names all tokens of a pool are alike. So the expected
number of times that anything happens in a document is a sum over few states, position by position.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from planted.grammar import AGAIN, ENOUGH, FAMILIES, LENGTHS, Grammar
from planted.reader import Kind

TEXT, ROLL = 0, 1


class Tally:
    """Per document of n_ctx tokens: how many tokens of each kind, their entropy in all, and how many of each pair."""

    count: Float[Tensor, " kind"]
    entropy: Float[Tensor, " kind"]
    pairs: Float[Tensor, "current next"]

    def __init__(self, grammar: Grammar, n_ctx: int):
        size = len(grammar.vocab)
        self.grammar, self.n_ctx = grammar, n_ctx
        self.count, self.entropy = torch.zeros(len(Kind)).double(), torch.zeros(len(Kind)).double()
        self.pairs = torch.zeros(size, size).double()
        self.opened = 0.0  # names that start after Mr
        self.within, self.closed = [0.0, 0.0], [0.0, 0.0]  # in text and roll: pairs of name tokens, commas after names
        self.add(Kind.BEGIN, 1.0, 0.0)
        self.walk_text(self.walk_roll())
        self.pair_names()

    def add(self, kind: Kind, times: float, entropy: float) -> None:
        self.count[kind] += times
        self.entropy[kind] += times * entropy

    def walk_roll(self) -> Float[Tensor, " position"]:
        """Count the roll; return the chance that its comma stands at each position."""
        starts = torch.zeros(self.n_ctx + 5, 4).double()  # [position, known]: this token is read, a name starts next
        starts[0, 0], comma = 1, torch.zeros(self.n_ctx).double()
        for t in range(self.n_ctx - 1):
            for known, chance in enumerate(starts[t].tolist()):
                comma[t + 1] += chance * ENOUGH[known]
                for slot, share in self.name(ROLL, t + 1, known, chance):
                    starts[t + LENGTHS[ROLL][slot], max(known, slot + 1)] += share * chance
        self.closed[ROLL] = comma[2:].sum().item()
        self.within[ROLL] += starts[1 : self.n_ctx - 1].sum().item() - self.closed[ROLL]  # from one name to the next
        return comma

    def walk_text(self, comma: Float[Tensor, " position"]) -> None:
        """Count the text: `mass` [known, key, key, key, token] is the chance that it stands there, outside names."""
        chances, entropy, kind = self.states()
        mass, visits = torch.zeros(4, *entropy.shape).double(), torch.zeros_like(entropy)
        arrivals = torch.zeros(self.n_ctx + 5, 4, 7, 7, 7).double()  # at the comma that ends a roll or a name
        arrivals[: self.n_ctx, 0, 0, 0, 0] = comma
        for t in range(self.n_ctx - 1):
            mass[..., self.grammar.close] += arrivals[t]
            visits += mass.sum(0)
            mass = torch.einsum("nabcu,abcuv->nabcv", mass, chances)
            for known, opened in enumerate(mass[..., self.grammar.mark].clone()):
                for slot, share in self.name(TEXT, t + 2, known, opened.sum().item()):
                    arrivals[t + 5, max(known, slot + 1)] += share * opened
            mass[..., self.grammar.mark] = 0  # those go on at the name's comma
            self.meet(mass)
        self.pairs += torch.einsum("abcu,abcuv->uv", visits, chances)
        self.count.index_add_(0, kind.flatten(), visits.flatten())
        self.entropy.index_add_(0, kind.flatten(), (visits * entropy).flatten())

    def name(self, where: int, position: int, known: int, chance: float) -> list[tuple[int, float]]:
        """Count a name that starts at `position` with this chance; return which names it may be, and how often."""
        if position >= self.n_ctx:
            return []
        used, pool = sum(LENGTHS[where][:known]), self.grammar.pools[where].sum().item()
        enough = ENOUGH[known] * where
        share = [(1 - enough) * AGAIN[known] / max(known, 1)] * known + [(1 - enough) * (1 - AGAIN[known])] * (known < 3)
        ways = [enough, *share[:known]] + [p / (pool - used) for p in share[known:]] * (pool - used)
        self.opened += chance * (where == TEXT)
        self.add(Kind.NAME_START, chance, -sum(p * math.log(p) for p in ways if p > 0))
        for slot, p in enumerate(share):
            length = LENGTHS[where][slot]
            for place in range(1, min(length, self.n_ctx - position)):
                kind, entropy = (Kind.NAME_REPEAT, 0.0) if slot < known else (Kind.NAME_FIRST, math.log(pool - used - place))
                self.add(kind, chance * p, entropy)
                self.within[where] += chance * p
            if where == TEXT and position + length < self.n_ctx:
                self.add(Kind.NAME_END, chance * p, 0.0)
                self.closed[TEXT] += chance * p
        return list(enumerate(share))

    def states(self) -> tuple[Tensor, Tensor, Tensor]:
        """For each (key, key, key, token) outside names: the next token's chances, their entropy, its kind."""
        shape = 7, 7, 7, len(self.grammar.vocab)
        *keys, current = torch.cartesian_prod(*map(torch.arange, shape)).unbind(1)
        chances, family = self.grammar.text(current, torch.stack(keys))
        entropy = -torch.special.xlogy(chances, chances).sum(1)
        kind = torch.where(family < 0, Kind.BIGRAM, Kind.SKIP_TRIGRAM + family)
        return chances.view(*shape, -1), entropy.view(shape), kind.view(shape)

    def meet(self, mass: Tensor) -> None:
        """A text that has just read its first key of a family has met it from now on."""
        for family, members in enumerate(FAMILIES):
            for key, token in enumerate(self.grammar.ids(members).tolist()):
                here = mass[..., token]
                here.select(family + 1, key + 1).add_(here.select(family + 1, 0))
                here.select(family + 1, 0).zero_()

    def pair_names(self) -> None:
        """Add the pairs in which a token of a name takes part: all tokens of a pool are alike."""
        close, text, roll = self.grammar.close, *self.grammar.pools.double()
        for where, pool in enumerate((text, roll)):
            different = torch.outer(pool, pool).fill_diagonal_(0)
            self.pairs += self.within[where] * different / different.sum()
            self.pairs[:, close] += self.closed[where] * pool / pool.sum()
        self.pairs[0] += (1 - ENOUGH[0]) * roll / roll.sum()
        self.pairs[0, close] += ENOUGH[0]
        self.pairs[self.grammar.mark] += text / text.sum() * self.opened
