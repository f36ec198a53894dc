"""Each check accepts a right answer, written another way than the solution, and says what is wrong with wrong ones."""

import math

import pytest
import torch

from utils.checks import lesson_00, lesson_02

RIGHT = {
    lesson_00.check_loss_of_ignorance: lambda n: (
        torch.zeros(n).log_softmax(-1)[0].neg().double().item() if n < 3 else math.log(n)
    ),
    lesson_02.check_zero_layer_logits: lambda tokens, W_E, W_U: (W_E @ W_U)[tokens],
    lesson_02.check_best_table: lambda pairs: pairs.log() - pairs.sum(1, keepdim=True).log(),
    lesson_02.check_expected_loss: lambda log_probs, pairs: (
        -torch.where(pairs > 0, pairs * log_probs, 0.0).sum() / pairs.sum()
    ),
}
WRONG = [
    (lesson_00.check_loss_of_ignorance, lambda n: math.log2(n), "bits"),
    (lesson_00.check_loss_of_ignorance, lambda n: -math.log(n), "sign"),
    (lesson_00.check_loss_of_ignorance, lambda n: 1 / n, "probability"),
    (lesson_00.check_loss_of_ignorance, lambda n: n, "perplexity"),
    (lesson_00.check_loss_of_ignorance, lambda n: 4.74, "expected 0.6931, got 4.7400"),
    (lesson_00.check_loss_of_ignorance, lambda n: "ln n", "you returned str"),
    (lesson_02.check_zero_layer_logits, lambda t, E, U: (E @ U).T[t], "transposed"),
    (lesson_02.check_zero_layer_logits, lambda t, E, U: (E[t] @ U).softmax(-1), "probabilities"),
    (lesson_02.check_zero_layer_logits, lambda t, E, U: (E[t] @ U).log_softmax(-1), "log-probabilities"),
    (lesson_02.check_zero_layer_logits, lambda t, E, U: E[t], "unembedding is missing"),
    (lesson_02.check_zero_layer_logits, lambda t, E, U: E @ U, "whole table"),
    (lesson_02.check_zero_layer_logits, lambda t, E, U: E[t[0]] @ U, "shape should be"),
    (lesson_02.check_zero_layer_logits, lambda t, E, U: E[t] @ U + 1, "expected"),
    (lesson_02.check_zero_layer_logits, lambda t, E, U: U[t], "raised IndexError"),
    (lesson_02.check_zero_layer_logits, lambda t, E, U: None, "you returned NoneType"),
    (lesson_02.check_zero_layer_logits, lambda t, E, U: t.softmax(-1), "raised NotImplementedError: "),  # by torch itself
    (lesson_02.check_best_table, lambda pairs: pairs / pairs.sum(1, keepdim=True), "take the logarithm"),
    (lesson_02.check_best_table, lambda pairs: (pairs / pairs.sum(0)).log(), "columns' sums"),
    (lesson_02.check_best_table, lambda pairs: (pairs / pairs.sum(1)).log(), "keepdim"),
    (lesson_02.check_best_table, lambda pairs: (pairs / pairs.sum()).log(), "sum of all"),
    (lesson_02.check_best_table, lambda pairs: pairs.log_softmax(-1), "softmax of counts"),
    (lesson_02.check_best_table, lambda pairs: pairs.log(), "divides by nothing"),
    (lesson_02.check_expected_loss, lambda log_probs, pairs: -(pairs * log_probs).sum() / pairs.sum(), "0 × −inf"),
    (lesson_02.check_expected_loss, lambda log_probs, pairs: -log_probs[pairs > 0].mean(), "plain mean"),
    (lesson_02.check_expected_loss, lambda log_probs, pairs: -(pairs * log_probs)[pairs > 0].sum(), "that is the sum"),
    (lesson_02.check_expected_loss, lambda log_probs, pairs: (pairs * log_probs)[pairs > 0].sum() / pairs.sum(), "sign"),
    (lesson_02.check_expected_loss, lambda log_probs, pairs: -log_probs.sum(), "expected"),
    (
        lesson_02.check_expected_loss,
        lambda log_probs, pairs: -(pairs * log_probs.clamp(min=-9)).sum() / pairs.sum(),
        "infinity",
    ),
    (
        lesson_02.check_expected_loss,
        lambda log_probs, pairs: -torch.where(pairs > 0, pairs * log_probs, 0.0).mean(),
        "entries",
    ),
    (lesson_02.check_best_table, lambda pairs: (pairs / pairs.sum(1, keepdim=True)).log2(), "bits"),
    (lesson_02.check_best_table, lambda pairs: -(pairs / pairs.sum(1, keepdim=True)).log(), "never positive"),
    (lesson_02.check_best_table, lambda pairs: (pairs / pairs.sum(1, keepdim=True)).log().T, "transposed"),
]


@pytest.mark.parametrize("check", RIGHT, ids=lambda check: check.__name__)
def test_a_right_answer_is_accepted_with_its_closeness(check, capsys):
    assert check(RIGHT[check]) is True
    assert "largest difference" in capsys.readouterr().out


@pytest.mark.parametrize(("check", "answer", "diagnosis"), WRONG)
def test_a_wrong_answer_is_rejected_with_a_diagnosis(check, answer, diagnosis, capsys):
    assert check(answer) is False
    said = capsys.readouterr().out
    assert said.startswith("✗")
    assert diagnosis in said
