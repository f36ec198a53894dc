"""Checks for 02_zero_layers."""

import math

import torch

from utils.checks.report import Wrong, compare, exercise


def weights(seed: int = 0):
    """Small weights in which rows and columns cannot be mistaken for one another."""
    rng = torch.Generator().manual_seed(seed)
    W_E = torch.randn(5, 3, generator=rng, dtype=torch.float64)
    W_U = torch.randn(3, 5, generator=rng, dtype=torch.float64)
    return W_E, W_U, torch.tensor([[4, 0, 2, 2], [1, 3, 4, 0]])


@exercise
def check_zero_layer_logits(answer) -> str:
    """logits[b, t] = W_E[tokens[b, t]] W_U."""
    W_E, W_U, tokens = weights()
    target = torch.zeros(2, 4, 5, dtype=torch.float64)
    for b in range(2):
        for t in range(4):
            for out in range(5):
                target[b, t, out] = sum(W_E[tokens[b, t], d] * W_U[d, out] for d in range(3))
    table = W_E @ W_U
    mistakes = {
        "transposed: a row of W_E W_U is the token that is there, a column the one that follows.": table.T[tokens],
        "these are probabilities; logits are what goes into the softmax.": target.softmax(-1),
        "these are log-probabilities; logits are what goes into the softmax.": target.log_softmax(-1),
        "that is the residual stream: the unembedding is missing.": W_E[tokens],
        "that is the whole table; pick the row of each token.": table,
    }
    return compare(answer(tokens, W_E, W_U), target, mistakes, "tokens of shape [2, 4] and five words")


@exercise
def check_best_table(answer) -> str:
    """log P(next | current) from counts of pairs; −inf where a pair never comes."""
    pairs = torch.tensor([[0.0, 3.0, 1.0], [2.0, 2.0, 4.0], [5.0, 0.0, 1.0]], dtype=torch.float64)
    target = torch.zeros(3, 3, dtype=torch.float64)
    for current in range(3):
        total = sum(pairs[current].tolist())
        for following in range(3):
            p = pairs[current, following].item() / total
            target[current, following] = math.log(p) if p > 0 else -math.inf
    mistakes = {
        "these are probabilities: take the logarithm.": target.exp(),
        "these are bits: take the natural logarithm.": target / math.log(2),
        "the sign is the wrong way round: a log-probability is never positive.": -target,
        "transposed: row a of `pairs` belongs to the token that is there.": target.T,
        "you divided by the columns' sums, which gives P(current | next): divide by the rows'.": (pairs / pairs.sum(0)).log(),
        "you divided by the sum of all, which gives P(current, next): divide by the rows'.": (pairs / pairs.sum()).log(),
        "`pairs.sum(1)` lines up with the columns: with keepdim=True it lines up with the rows.": (pairs / pairs.sum(1)).log(),
        "softmax of counts is not a frequency: divide by the row's sum, then take the logarithm.": pairs.log_softmax(-1),
        "that divides by nothing: the log of a count is not the log of a probability.": pairs.log(),
    }
    return compare(answer(pairs), target, mistakes, "counts of three words")


@exercise
def check_expected_loss(answer) -> str:
    """The mean of −log_probs[current, next] over pairs, each as often as it comes."""
    rng = torch.Generator().manual_seed(1)
    log_probs = torch.randn(4, 4, generator=rng, dtype=torch.float64).log_softmax(-1)
    pairs = torch.randint(1, 9, (4, 4), generator=rng).double()
    pairs[0, 1] = 0.0
    log_probs[0, 1] = -math.inf  # what never comes costs nothing, even if it is held to be impossible
    seen = [(i, j) for i in range(4) for j in range(4) if pairs[i, j] > 0]
    total = sum(pairs[i, j].item() for i, j in seen)
    target = -sum(pairs[i, j].item() * log_probs[i, j].item() for i, j in seen) / total
    mistakes = {
        "the result is nan. Is it 0 × −inf? A pair that never comes must cost nothing: look only at pairs > 0.": math.nan,
        "the sign is the wrong way round: a loss is minus the log.": -target,
        "that is the sum; divide by how many pairs there are.": target * total,
        "these are bits: the table holds natural logarithms already.": target / math.log(2),
        "that divides by the number of table entries: divide by how many pairs there are, `pairs.sum()`.": target * total / 16,
        "that is the plain mean over table entries: weigh each pair by how often it comes.": -log_probs[pairs > 0].mean(),
    }
    praise = compare(answer(log_probs, pairs), target, mistakes, "a table in which one pair never comes")
    pairs[0, 1] = 1.0
    if float(answer(log_probs, pairs)) != math.inf:
        raise Wrong(
            "a pair that does come and was held impossible costs infinity: leave pairs out by `pairs`, not by `log_probs`."
        )
    return praise
