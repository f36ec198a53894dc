"""Checks for 00_start_here."""

import math

from utils.checks.report import compare, exercise


@exercise
def check_loss_of_ignorance(answer) -> str:
    """The loss, in nats, of a model that finds all tokens equally likely."""
    for d_vocab in (2, 114, 50_257):
        probability = 1 / d_vocab
        target = -sum(probability * math.log(probability) for _ in range(d_vocab))
        mistakes = {
            "that is bits, not nats: use the natural logarithm.": math.log2(d_vocab),
            "a loss is minus the log of a probability: the sign is the wrong way round.": -target,
            "that is the probability, not the loss: take minus its logarithm.": probability,
            "that is the perplexity: take its logarithm.": float(d_vocab),
        }
        praise = compare(answer(d_vocab), target, mistakes, f"{d_vocab} tokens")
    return praise
