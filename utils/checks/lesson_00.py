"""Checks for 00_start_here."""

import math

import torch

from utils.checks.report import compare, exercise


@exercise
def check_loss_of_ignorance(answer) -> str:
    """The loss, in nats, of a model that finds all tokens equally likely."""
    for d_vocab in (2, 114, 50_257):
        probability = 1 / d_vocab
        target = -sum(probability * math.log(probability) for _ in range(d_vocab))
        mistakes = {
            "that is bits, not nats: use the natural logarithm.": torch.tensor(math.log2(d_vocab)).double(),
            "a loss is minus the log of a probability: the sign is the wrong way round.": torch.tensor(-target).double(),
            "that is the probability, not the loss: take minus its logarithm.": torch.tensor(probability).double(),
            "that is the perplexity: take its logarithm.": torch.tensor(float(d_vocab)).double(),
        }
        praise = compare(answer(d_vocab), torch.tensor(target).double(), mistakes, f"{d_vocab} tokens")
    return praise
