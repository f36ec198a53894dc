"""The training loop and its accidents, the shipped files, and what the course claims of the shipped models."""

import hashlib
import json
import math
import os
import shutil
import signal
import threading
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import utils.shipped
from tests.helpers import config, losses, rng, same_weights
from utils.corpus import Kind, Sample, repeated_tokens
from utils.loop import History, snapshot, train
from utils.model import AttentionOnly, AttentionOnlyConfig, load
from utils.shipped import DATA
from utils.training import (
    RECIPES,
    Recipe,
    checkpoint_file,
    load_checkpoints,
    load_model,
    loss_by_kind,
    planted_language,
)

STEPS = 24
SEEDS = ["planted-2l", *(f"planted-2l-seed{seed}" for seed in range(1, 5))]


def counting(step: int) -> Tensor:
    """Documents that count upwards from a random token: easy to learn."""
    return (torch.randint(7, (4, 1), generator=rng(step)) + torch.arange(9)) % 7


def interrupting(at: int) -> Callable[[int], Tensor]:
    """The same documents, with an interrupt while those of step `at` are made."""

    def batches(step: int) -> Tensor:
        if step == at:
            os.kill(os.getpid(), signal.SIGINT)
        return counting(step)

    return batches


def poisoning(model: AttentionOnly, at: int) -> Callable[[int], Tensor]:
    """The same documents, with a weight that is no number any more when those of step `at` are made."""

    def batches(step: int) -> Tensor:
        if step == at:
            with torch.no_grad():
                model.W_E[0, 0] = float("nan")
        return counting(step)

    return batches


def exploding(model: AttentionOnly, at: int) -> Callable[[int], Tensor]:
    """The same documents; the update of step `at`, whose loss is still finite, makes a weight infinite."""

    def batches(step: int) -> Tensor:
        if step == at:
            handle = model.W_E.register_hook(lambda grad: handle.remove() or grad * float("inf"))
        return counting(step)

    return batches


def run(model: AttentionOnly, batches=counting, steps: int = STEPS, **options) -> History:
    return train(model, batches, steps, warmup=5, **{"progress": False, **options})


# Learning


def test_training_lowers_the_loss():
    model = AttentionOnly(config())
    history = run(model, steps=60)
    assert history.loss[0] > 1.5
    assert history.loss[-1] < 0.5 * history.loss[0]
    assert model.loss(counting(999)).item() < 0.5 * history.loss[0]
    assert len(history.loss) == 60
    assert history.tokens == 60 * 4 * 9
    assert history.seconds > 0


def test_the_first_loss_is_that_of_the_untrained_model():
    model = AttentionOnly(config())
    before = model.loss(counting(0)).item()
    assert run(model).loss[0] == before


def test_training_twice_gives_the_same_weights_bit_for_bit():
    one, other = AttentionOnly(config()), AttentionOnly(config())
    assert run(one).loss == run(other).loss
    assert same_weights(one, other)


def test_training_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    run(AttentionOnly(config()))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("n_layers", "smeared_keys"), [(0, False), (1, True)])
def test_every_weight_that_matters_is_trained(n_layers, smeared_keys):
    model = AttentionOnly(config(n_layers=n_layers, smeared_keys=smeared_keys))
    before = snapshot(model)
    run(model)
    moved = {name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])}
    assert moved >= set(before) - {"pos_embed.W_pos"}


def test_the_learning_rate_rises_and_falls_to_nothing():
    """With Adam, a step is as long as the learning rate: the first and the last steps are short."""
    weights = []
    run(
        AttentionOnly(config()),
        evaluate=lambda model: weights.append(model.W_U.detach().clone()) or {},
        every=1,
        weight_decay=0.0,
    )
    lengths = [(after - before).abs().max().item() for before, after in pairwise(weights)]
    assert lengths[0] == pytest.approx(1e-2 / 5, rel=0.01)
    assert lengths[-1] < 1e-2 / 5
    assert max(lengths) > 2 * lengths[0]


def test_a_warmup_of_no_steps_is_allowed():
    assert len(train(AttentionOnly(config()), counting, 3, warmup=0, progress=False).loss) == 3


# Evaluations, checkpoints, progress


def test_evaluations_are_recorded_at_the_right_steps():
    seen = []
    model = AttentionOnly(config())
    history = run(model, evaluate=lambda model: seen.append(1) or {"loss": model.loss(counting(0)).item()}, every=10)
    assert [row["step"] for row in history.evaluations] == [0, 10, 20, STEPS]
    assert len(seen) == 4
    assert history.evaluations[0]["loss"] == history.loss[0]
    assert history.evaluations[-1]["loss"] == model.loss(counting(0)).item()


def test_checkpoints_are_the_weights_at_their_steps():
    model = AttentionOnly(config())
    initial = snapshot(model)
    history = run(model, evaluate=lambda model: {"weights": snapshot(model)}, every=1, checkpoint_at=(0, 3, 20, STEPS))
    assert [step for step, _ in history.checkpoints] == [0, 3, 20, STEPS]
    for step, weights in history.checkpoints:
        assert same_weights(weights, history.evaluations[step]["weights"])
    assert same_weights(history.checkpoints[0][1], initial)
    assert same_weights(history.checkpoints[-1][1], model)
    assert not same_weights(history.checkpoints[1][1], history.checkpoints[2][1])


def test_the_progress_bar_shows_loss_and_speed_on_standard_output(capsys):
    history = run(AttentionOnly(config()), progress=True)
    out, err = capsys.readouterr()
    assert f"loss {history.loss[-1]:.3f}" in out
    assert "tokens/s" in out
    assert f"{STEPS}/{STEPS}" in out
    assert err == ""


def test_without_progress_nothing_is_printed(capfd):
    run(AttentionOnly(config()))
    assert capfd.readouterr() == ("", "")


# Interrupts


@pytest.mark.parametrize("at", [0, 8, 9, 10, STEPS - 1])
def test_an_interrupted_training_goes_on_as_if_nothing_had_happened(at):
    whole, halted = AttentionOnly(config()), AttentionOnly(config())
    history = run(halted, interrupting(at))
    assert len(history.loss) == at + 1
    assert run(halted, history=history) is history
    assert history.loss == run(whole).loss
    assert same_weights(halted, whole)


@pytest.mark.parametrize("at", [0, 8, 9, 10, STEPS - 1])
def test_an_interrupt_leaves_no_evaluation_or_checkpoint_out_or_twice(at):
    model = AttentionOnly(config())
    options = dict(evaluate=lambda _: {}, every=10, checkpoint_at=(0, 10, STEPS))
    history = run(model, interrupting(at), **options)
    run(model, history=history, **options)
    assert [row["step"] for row in history.evaluations] == [0, 10, 20, STEPS]
    assert [step for step, _ in history.checkpoints] == [0, 10, STEPS]


def test_an_interrupt_during_an_evaluation_waits_for_it():
    def evaluate(model: AttentionOnly) -> dict:
        if len(kept) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        kept.append(snapshot(model))
        return {"kept": len(kept)}

    kept, model = [], AttentionOnly(config())
    history = run(model, evaluate=evaluate, every=10)
    assert [row["step"] for row in history.evaluations] == [0, 10]
    assert len(history.loss) == 10
    assert same_weights(model, kept[1])


def test_an_interrupt_says_how_to_go_on(capsys):
    run(AttentionOnly(config()), interrupting(4))
    assert "Stopped after 5 of 24 steps. Call train(…, history=history) to go on." in capsys.readouterr().out


def test_a_new_process_goes_on_from_the_file_that_was_kept(tmp_path):
    """The state of the last hundred steps is there, whatever happened to the process."""
    whole, broken, new = (AttentionOnly(config()) for _ in range(3))
    expected = run(whole, steps=130, checkpoint_at=[50])
    options = {"steps": 130, "keep": tmp_path / "state", "checkpoint_at": [50]}

    def dies(step: int) -> Tensor:
        if step == 117:
            raise RuntimeError("the power is cut")
        return counting(step)

    with pytest.raises(RuntimeError, match="the power is cut"):
        run(broken, dies, **options)
    history = run(new, **options)
    assert history.loss == expected.loss
    assert [step for step, _ in history.checkpoints] == [50]
    assert same_weights(new, whole)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_several_interrupts_do_no_harm():
    whole, halted = AttentionOnly(config()), AttentionOnly(config())
    history = None
    for at in (2, 3, 15):
        history = run(halted, interrupting(at), history=history)
    assert run(halted, history=history).loss == run(whole).loss
    assert same_weights(halted, whole)


def test_a_training_that_is_done_has_nothing_to_go_on_with():
    model = AttentionOnly(config())
    history = run(model, evaluate=lambda _: {}, checkpoint_at=(STEPS,))
    before = snapshot(model)
    again = run(model, history=history, evaluate=lambda _: {}, checkpoint_at=(STEPS,))
    assert len(again.loss) == STEPS
    assert same_weights(model, before)
    assert [row["step"] for row in again.evaluations] == [0, STEPS]
    assert len(again.checkpoints) == 1


@pytest.mark.parametrize("batches", [interrupting(3), interrupting(99), lambda step: 1 / 0])
def test_the_interrupt_handler_is_put_back(batches):
    usual = signal.getsignal(signal.SIGINT)
    try:
        run(AttentionOnly(config()), batches)
    except ZeroDivisionError:
        pass
    assert signal.getsignal(signal.SIGINT) is usual


def test_training_works_in_a_thread():
    one, other, found = AttentionOnly(config()), AttentionOnly(config()), []
    thread = threading.Thread(target=lambda: found.append(run(one)))
    thread.start()
    thread.join()
    assert found[0].loss == run(other).loss
    assert same_weights(one, other)


# Losses that are no numbers


def finite(model: AttentionOnly) -> bool:
    return all(weight.isfinite().all() for weight in model.state_dict().values())


def test_a_loss_that_is_no_number_stops_training_and_puts_the_model_back():
    model, history = AttentionOnly(config()), History()
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"The loss at step 7 is not finite: lower lr.* back at step 0\."):
        run(model, poisoning(model, 7), history=history)
    assert same_weights(model, before)
    assert history.loss == []


def test_far_too_large_a_learning_rate_is_reported():
    model = AttentionOnly(config())
    with pytest.raises(ValueError, match=r"is not finite: lower lr.*1e\+30"):
        run(model, lr=1e30)
    assert finite(model)


def test_the_history_goes_back_with_the_model():
    """After 150 steps of which 100 are kept, every record is as it was after 100."""
    options = dict(steps=200, evaluate=lambda _: {}, every=30, checkpoint_at=(0, 90, 110))
    model, history = AttentionOnly(config()), History()
    with pytest.raises(ValueError, match=r"The loss at step 150 is not finite.* back at step 100"):
        run(model, poisoning(model, 150), history=history, **options)
    assert finite(model)
    assert len(history.loss) == 100
    assert history.tokens == 100 * 4 * 9
    assert [row["step"] for row in history.evaluations] == [0, 30, 60, 90]
    assert [step for step, _ in history.checkpoints] == [0, 90]


def test_after_a_loss_that_is_no_number_training_can_go_on_from_where_the_model_is():
    whole, model, history = AttentionOnly(config()), AttentionOnly(config()), History()
    with pytest.raises(ValueError, match="back at step 100"):
        run(model, poisoning(model, 150), steps=200, history=history)
    run(model, steps=200, history=history)
    assert history.loss == run(whole, steps=200).loss
    assert same_weights(model, whole)


def test_a_failed_resumption_can_be_tried_again():
    whole, model = AttentionOnly(config()), AttentionOnly(config())
    history = run(model, interrupting(9))
    with pytest.raises(ValueError, match="back at step 10"):
        run(model, poisoning(model, 15), history=history)
    run(model, history=history)
    assert history.loss == run(whole).loss
    assert same_weights(model, whole)


@pytest.mark.parametrize("at", [50, 99, 119], ids=["between", "as the model is remembered", "in the last step"])
def test_an_update_that_makes_weights_infinite_is_not_kept(at):
    model, history = AttentionOnly(config()), History()
    with pytest.raises(ValueError, match="not finite"):
        run(model, exploding(model, at), steps=120, history=history)
    assert finite(model)
    assert len(history.loss) <= at


@pytest.mark.parametrize(("steps", "every"), [(0, 10), (5, 0)])
def test_no_steps_or_no_distance_between_evaluations_are_refused(steps, every):
    with pytest.raises(ValueError, match="Training needs at least one step"):
        run(AttentionOnly(config()), steps=steps, every=every)


def test_a_model_that_is_broken_already_is_refused():
    model = AttentionOnly(config())
    with torch.no_grad():
        model.W_U[0, 0] = float("nan")
    with pytest.raises(ValueError, match="weights that are not finite"):
        run(model)


# Losses by kind


def test_loss_by_kind_is_a_mean_over_tokens():
    language = planted_language()
    sample = language.sample(3, 40, rng(1))
    model = AttentionOnly(AttentionOnlyConfig(1, 2, 8, 4, len(language.vocab), 64)).double()
    logits, found = model(sample.tokens).tolist(), {}
    for doc, tokens in enumerate(sample.tokens.tolist()):
        for t in range(1, 40):
            row = logits[doc][t - 1]
            loss = math.log(sum(math.exp(logit) for logit in row)) - row[tokens[t]]
            found.setdefault(Kind(sample.kind[doc, t].item()).name, []).append(loss)
    by_kind = loss_by_kind(model, sample)
    assert by_kind.keys() == found.keys()
    assert "BEGIN" not in by_kind
    for kind, all_of_them in found.items():
        assert by_kind[kind] == pytest.approx(sum(all_of_them) / len(all_of_them), abs=1e-10)


# Recipes and files


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of data/ with one model in it, that a test may damage."""
    for name in ("manifest.json", "planted-0l.safetensors"):
        shutil.copy(DATA / name, tmp_path / name)
    monkeypatch.setattr(utils.shipped, "DATA", tmp_path)
    return tmp_path


def test_the_copy_that_the_next_tests_damage_is_whole(copied):
    assert same_weights(load_model("planted-0l"), load(DATA / "planted-0l.safetensors"))


@pytest.mark.parametrize("ask", [load_model, load_checkpoints, lambda name: load_model(name, retrain=True)])
def test_an_unknown_recipe_is_answered_with_the_known_ones(ask):
    with pytest.raises(ValueError, match=r"no recipe 'planted-9l'.*planted-0l.*planted-2l-seed4"):
        ask("planted-9l")


def test_a_missing_model_is_reported(copied):
    (copied / "planted-0l.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"planted-0l\.safetensors is missing: .git checkout data"):
        load_model("planted-0l")


def test_missing_checkpoints_are_reported(copied):
    with pytest.raises(FileNotFoundError, match=r"planted-2l-checkpoints/00000\.safetensors is missing"):
        load_checkpoints("planted-2l")


def test_a_single_flipped_bit_is_reported(copied):
    content = bytearray((copied / "planted-0l.safetensors").read_bytes())
    content[-1] ^= 1
    (copied / "planted-0l.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"planted-0l\.safetensors is damaged: .git checkout data"):
        load_model("planted-0l")


@pytest.mark.parametrize("keep", [0, 1000, -1])
def test_a_truncated_model_is_reported(copied, keep):
    path = copied / "planted-0l.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"planted-0l\.safetensors is damaged: .git checkout data"):
        load_model("planted-0l")


def test_a_model_that_the_manifest_does_not_know_is_reported(copied):
    (copied / "manifest.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"planted-0l.*git checkout data"):
        load_model("planted-0l")


def test_a_missing_manifest_is_reported(copied):
    (copied / "manifest.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"manifest\.json.*git checkout data"):
        load_model("planted-0l")


@pytest.mark.parametrize("content", ["", "[", '{"planted-0l.safetensors": {}}', "[]"])
def test_a_damaged_manifest_is_reported(copied, content):
    (copied / "manifest.json").write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=r"data/.*git checkout data"):
        load_model("planted-0l")


def test_retraining_follows_the_recipe(monkeypatch):
    recipe = Recipe(1, 4, seed=3, n_heads=2, d_model=8, d_head=4, n_docs=2, checkpoint_at=(0, 4))
    monkeypatch.setitem(RECIPES, "tiny", recipe)
    expected = recipe.model()
    history = recipe.train(expected, progress=False)
    model = load_model("tiny", retrain=True)
    assert same_weights(model, expected)
    assert not model.training
    assert [step for step, _ in history.checkpoints] == [0, 4]
    assert not same_weights(model, recipe.model())
    assert model.cfg == AttentionOnlyConfig(1, 2, 8, 4, len(planted_language().vocab), 64, seed=3)


def test_a_recipe_reads_documents_of_its_own_seed():
    for seed in (0, 1):
        recipe = Recipe(1, 1, seed, n_heads=2, d_model=8, d_head=4, n_docs=2)
        expected = recipe.model().loss(planted_language().batches(2, seed)(0)).item()
        assert recipe.train(recipe.model(), progress=False).loss == [expected]


@pytest.mark.parametrize("name", RECIPES)
def test_a_shipped_model_is_whole_and_ready(name):
    model, recipe = load_model(name), RECIPES[name]
    assert not model.training
    assert all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in model.state_dict().values())
    assert finite(model)
    assert model.cfg == recipe.model().cfg


def test_checkpoints_come_in_order_and_end_with_the_model():
    checkpoints, recipe = load_checkpoints("planted-2l"), RECIPES["planted-2l"]
    steps = [step for step, _ in checkpoints]
    assert steps == sorted(recipe.checkpoint_at)
    assert (steps[0], steps[-1]) == (0, recipe.steps)
    assert same_weights(checkpoints[0][1], recipe.model())
    assert same_weights(checkpoints[-1][1], load_model("planted-2l"))
    assert all(not model.training for _, model in checkpoints)
    assert load_checkpoints("planted-0l") == []


def files() -> dict[str, Recipe]:
    """What the recipes make."""
    made = {f"{name}.safetensors": recipe for name, recipe in RECIPES.items()}
    return made | {checkpoint_file(name, step): recipe for name, recipe in RECIPES.items() for step in recipe.checkpoint_at}


def test_the_manifest_the_recipes_and_the_files_agree():
    manifest = json.loads((DATA / "manifest.json").read_text())
    models = {path.relative_to(DATA).as_posix(): path for path in DATA.rglob("*.safetensors")}
    assert set(models) == set(files()) == set(manifest) - {"python-tokenizer.json"}
    for file, recipe in files().items():
        recorded = {**manifest[file]["recipe"], "checkpoint_at": tuple(manifest[file]["recipe"]["checkpoint_at"])}
        assert Recipe(**recorded) == recipe, file
        assert manifest[file]["sha256"] == hashlib.sha256(models[file].read_bytes()).hexdigest(), file


def test_the_shipped_tokenizer_is_the_one_in_the_manifest():
    told = json.loads((DATA / "manifest.json").read_text())["python-tokenizer.json"]["sha256"]
    assert told == hashlib.sha256((DATA / "python-tokenizer.json").read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["planted-0l", "planted-2l"])
def test_the_manifest_tells_the_losses_of_a_model(name):
    sample = planted_language().sample(2048, 64, rng(2021))
    told = json.loads((DATA / "manifest.json").read_text())[f"{name}.safetensors"]["nats"]
    found, kinds = losses(load_model(name), sample), sample.kind[:, 1:]
    assert told == pytest.approx({kind: found[kinds == Kind[kind]].mean().item() for kind in told}, abs=1e-3)


def test_the_data_are_small():
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) < 15e6


# What the course claims of the shipped models


@pytest.fixture(scope="module")
def fresh() -> Sample:
    """Documents that no model was trained on."""
    return planted_language().sample(2000, 64, rng(50_000))


def above_floor(name: str, sample: Sample) -> dict[str, float]:
    """Nats over the floor, kind by kind."""
    found, kinds = losses(load_model(name), sample), sample.kind[:, 1:]
    return {kind.name: found[kinds == kind].mean().item() - planted_language().floor(kind) for kind in list(Kind)[1:]}


def test_zero_layers_come_within_two_hundredths_of_the_best_bigram_table(fresh):
    table = -planted_language().bigrams[fresh.tokens[:, :-1], fresh.tokens[:, 1:]]
    worse = (losses(load_model("planted-0l"), fresh) - table).mean().item()
    assert 0 < worse < 0.02


def test_one_layer_learns_skip_trigrams_but_not_names(fresh):
    above = above_floor("planted-1l", fresh)
    assert above["SKIP_TRIGRAM"] < 0.3
    assert above["NAME_REPEAT"] > 1


@pytest.mark.parametrize("name", SEEDS)
def test_two_layers_learn_names_whatever_the_seed(name, fresh):
    above = above_floor(name, fresh)
    assert above["NAME_REPEAT"] < (0.3 if name == "planted-2l" else 0.5)
    assert above["SKIP_TRIGRAM"] < 0.3


@pytest.mark.parametrize("name", ["planted-0l", "planted-1l", "planted-2l"])
def test_no_model_beats_the_ideal_reader(name, fresh):
    """On the same documents the difference to the ideal reader is a mean of log-ratios: it cannot be negative for long."""
    ideal = planted_language().log_probs(fresh.tokens)[:, :-1].gather(2, fresh.tokens[:, 1:, None]).squeeze(2)
    worse, kinds = losses(load_model(name), fresh) + ideal, fresh.kind[:, 1:]
    for kind in list(Kind)[1:]:
        excess = worse[kinds == kind]
        assert excess.mean() > -4 * excess.std() / len(excess) ** 0.5, kind.name


@pytest.mark.parametrize("name", SEEDS)
def test_the_third_copy_of_random_tokens_costs_half_of_chance_at_most(name):
    language, period = planted_language(), 20
    tokens = repeated_tokens(64, period, 3, len(language.vocab), rng(0))
    with torch.no_grad():
        first, _, third = load_model(name).loss(tokens, per_token=True).mean(0).split(period)
    chance = math.log(len(language.vocab) - 1)
    assert third.mean() < 0.5 * chance
    assert first.mean() > 0.9 * chance
