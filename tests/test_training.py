"""Loss, shift, schedule, batches, gradients, loop."""

import contextlib
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
import torch.nn.functional as F
from helpers import (
    VOCAB,
    assert_same,
    normal,
    plain_logits,
    seeded,
    small_config,
    small_model,
    tokens,
)
from torch import nn

import aiayn
from aiayn import (
    NoamSchedule,
    TokenBatches,
    Transformer,
    beam_search,
    greedy_decode,
    label_smoothed_loss,
    noam_rate,
    train,
)
from aiayn.training import (
    OneProcess,
    add_gradients,
    cut_by_tokens,
    teacher_forcing,
    tokens_that_count,
)

# --- loss -----------------------------------------------------------------------------


def smoothed_by_hand(logits, targets, smoothing: float, pad_id: int = 0) -> float:
    """−Σ q_k log p_k per token in Python's numbers; ε shared by all V classes."""
    total, count = 0.0, 0
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        if target == pad_id:
            continue
        top = max(row)
        log_sum = top + math.log(sum(math.exp(x - top) for x in row))
        for k, x in enumerate(row):
            q = smoothing / len(row) + (1 - smoothing) * (k == target)
            total -= q * (x - log_sum)
        count += 1
    return total / count


@pytest.mark.equation("eq-label-smoothing")
@pytest.mark.parametrize("smoothing", [0, 0.1, 0.4, 1.0])
def test_loss_by_hand_and_by_torch(smoothing):
    logits, targets = normal(6, 5) * 3, torch.tensor([2, 0, 4, 1, 0, 2])
    loss = label_smoothed_loss(logits, targets, smoothing=smoothing)
    assert loss.shape == ()
    assert_same(loss, smoothed_by_hand(logits, targets, smoothing), 1e-12)
    theirs = nn.CrossEntropyLoss(label_smoothing=float(smoothing), ignore_index=0)
    assert_same(loss, theirs(logits, targets), 1e-12)


@pytest.mark.equation("eq-label-smoothing")
def test_loss_of_an_example_with_known_values():
    """annotated-transformer#39, numbers for ε shared by all classes.

    Logits 0 1 2 0 −1 have −log p = 2.523744 1.523744 0.523744 2.523744 3.523744; with
    ε = 0.4 that gives 1.163744 for target 2 and 1.763744 for target 1; ε = 0: 0.523744.
    """
    logits = torch.tensor([[0.0, 1.0, 2.0, 0.0, -1.0]], dtype=torch.float64)
    for target, expected in ((2, 1.163744), (1, 1.763744)):
        loss = label_smoothed_loss(logits, torch.tensor([target]), smoothing=0.4)
        assert_same(loss, expected, 1e-6)
    plain = label_smoothed_loss(logits, torch.tensor([2]), smoothing=0.0)
    assert_same(plain, 0.523744, 1e-6)
    both = label_smoothed_loss(
        logits.expand(3, 5), torch.tensor([2, 1, 0]), smoothing=0.4
    )
    assert_same(both, (1.163744 + 1.763744) / 2, 1e-6)


def test_gradient_is_the_softmax_minus_the_soft_target():
    logits = normal(4, 5).requires_grad_()
    targets = torch.tensor([2, 0, 4, 1])
    (gradient,) = torch.autograd.grad(
        label_smoothed_loss(logits, targets, smoothing=0.1), logits
    )
    soft = 0.9 * F.one_hot(targets, 5).double() + 0.1 / 5
    expected = (logits.detach().softmax(-1) - soft) / 3
    expected[1] = 0.0
    assert_same(gradient, expected, 1e-12)


@pytest.mark.parametrize("padding", [0, 1, 7])
def test_padding_counts_in_neither_sum_nor_mean(padding):
    """pytorch#73205, transformers#5919: the mean over places, padding included."""
    logits, targets = normal(3, 5), torch.tensor([2, 4, 1])
    expected = label_smoothed_loss(logits, targets)
    for fill in (0.0, 1e4, math.inf, math.nan):
        longer = torch.cat([logits, torch.full((padding, 5), fill).double()])
        longer.requires_grad_()
        more = torch.cat([targets, torch.zeros(padding, dtype=torch.long)])
        loss = label_smoothed_loss(longer, more)
        assert_same(loss.detach(), expected, 1e-12)
        loss.backward()
        assert torch.equal(longer.grad[3:], torch.zeros(padding, 5).double())


def test_padding_alone_costs_nothing():
    """annotated-transformer#18, #38: an empty selection; exactly 0, not 0/0."""
    logits = normal(2, 3, 5).requires_grad_()
    loss = label_smoothed_loss(logits, torch.zeros(2, 3, dtype=torch.long))
    assert loss.item() == 0.0
    loss.backward()
    assert torch.equal(logits.grad, torch.zeros(2, 3, 5, dtype=torch.float64))
    nothing = torch.zeros(0, dtype=torch.long)
    assert label_smoothed_loss(normal(0, 5), nothing).item() == 0.0


def test_no_padding_and_one_padded_place():
    """annotated-transformer#18: no PAD at all, and exactly one."""
    logits = normal(2, 5)
    for targets in ([2, 1], [2, 0]):
        expected = smoothed_by_hand(logits, torch.tensor(targets), 0.4)
        loss = label_smoothed_loss(logits, torch.tensor(targets), smoothing=0.4)
        assert_same(loss, expected, 1e-12)


@pytest.mark.parametrize("pad_id", [0, 3, -100])
def test_any_pad_id(pad_id):
    logits, targets = normal(4, 5), torch.tensor([2, pad_id, 4, 1])
    expected = smoothed_by_hand(logits, targets, 0.1, pad_id)
    assert_same(label_smoothed_loss(logits, targets, pad_id=pad_id), expected, 1e-12)


def test_any_leading_dimensions():
    logits, targets = (
        normal(2, 3, 2, 5),
        torch.randint(5, (2, 3, 2), generator=seeded(1)),
    )
    flat = label_smoothed_loss(logits.reshape(-1, 5), targets.reshape(-1))
    assert_same(label_smoothed_loss(logits, targets), flat, 1e-12)
    strided = logits.transpose(0, 2)
    assert_same(label_smoothed_loss(strided, targets.transpose(0, 2)), flat, 1e-12)
    one = label_smoothed_loss(logits[0, 0, 0], torch.tensor(2))
    assert_same(one, smoothed_by_hand(logits[0, 0, :1], torch.tensor([2]), 0.1), 1e-12)
    alone = label_smoothed_loss(logits[:1, :1, 0], torch.tensor([[2]]))
    assert_same(alone, one, 1e-12)


@pytest.mark.equation("eq-label-smoothing")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_in_single(dtype):
    """transformers#10674: the sum over 50,000 classes overflowed."""
    logits = torch.zeros(2, 50_000, dtype=dtype)
    loss = label_smoothed_loss(logits, torch.tensor([7, 49_999]))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(50_000), abs=1e-4)


def test_uniform_prediction_costs_log_v_whatever_the_smoothing():
    for smoothing in (0.0, 0.1, 1.0):
        loss = label_smoothed_loss(
            torch.zeros(3, 11), torch.tensor([1, 5, 10]), smoothing=smoothing
        )
        assert loss.item() == pytest.approx(math.log(11), abs=1e-6)


def test_a_perfect_prediction_without_smoothing_costs_nothing():
    """SciCo#2: a softmax before the cross-entropy cannot get below 1.5430."""
    targets = torch.tensor([3, 10, 1])
    logits = 1000.0 * F.one_hot(targets, 11)
    assert label_smoothed_loss(logits, targets, smoothing=0.0).item() < 1e-6


def test_a_forbidden_class_is_no_nan_without_smoothing():
    logits = torch.tensor([[0.0, 1.0, -math.inf, 2.0]], dtype=torch.float64)
    loss = label_smoothed_loss(logits, torch.tensor([3]), smoothing=0.0)
    assert_same(loss, math.log(1 + math.exp(-1) + math.exp(-2)), 1e-12)


def test_two_classes():
    """annotated-transformer#39: the V − 2 formula divides by zero."""
    logits, targets = normal(3, 2), torch.tensor([1, 0, 1])
    expected = smoothed_by_hand(logits, targets, 0.1)
    assert_same(label_smoothed_loss(logits, targets), expected, 1e-12)


@pytest.mark.equation("res-smoothing-floor")
def test_no_logits_get_below_the_floor():
    """The least loss is the entropy of the soft target: 1.3769 for V = 37,000.

    Found by gradient descent for a small V, by the entropy of a distribution for the
    paper's.
    """
    for size, smoothing in ((4, 0.1), (7, 0.3)):
        target = torch.tensor([2])
        soft = torch.full((size,), smoothing / size, dtype=torch.float64)
        soft[2] += 1 - smoothing
        floor = torch.distributions.Categorical(probs=soft).entropy()
        logits = normal(1, size).requires_grad_()
        optimizer = torch.optim.LBFGS(
            [logits], max_iter=100, tolerance_change=0, line_search_fn="strong_wolfe"
        )

        def closure():
            optimizer.zero_grad()  # noqa: B023
            loss = label_smoothed_loss(logits, target, smoothing=smoothing)  # noqa: B023
            loss.backward()
            return loss

        optimizer.step(closure)
        assert_same(closure().detach(), floor, 1e-9)
        for seed in range(20):
            other = label_smoothed_loss(
                3 * normal(1, size, seed=seed), target, smoothing=smoothing
            )
            assert other > floor
    soft = torch.full((37_000,), 0.1 / 37_000, dtype=torch.float64)
    soft[5] += 0.9
    floor = torch.distributions.Categorical(probs=soft).entropy()
    assert floor.item() == pytest.approx(1.3769, abs=5e-5)
    loss = label_smoothed_loss(soft.log()[None], torch.tensor([5]))
    assert_same(loss, floor, 1e-9)


# --- the shift by one -----------------------------------------------------------------


@pytest.mark.equation("eq-teacher-forcing")
def test_the_decoder_reads_one_token_behind():
    """GenerativeModels#314, Kyubyong/transformer#8: the target was not shifted."""
    read, say = teacher_forcing(torch.tensor([[1, 5, 6, 2, 0], [1, 7, 2, 0, 0]]))
    assert read.tolist() == [[1, 5, 6, 2], [1, 7, 2, 0]]
    assert say.tolist() == [[5, 6, 2, 0], [7, 2, 0, 0]]
    assert (say != 0).sum(dim=1).tolist() == [3, 2]
    shortest = teacher_forcing(torch.tensor([[1, 2]]))
    assert [x.tolist() for x in shortest] == [[[1]], [[2]]]


class Parrot(nn.Module):
    """Predicts with certainty the very token that it reads."""

    def __init__(self):
        super().__init__()
        self.certainty = nn.Parameter(torch.tensor(20.0))

    def forward(self, source, target):
        return self.certainty * F.one_hot(target, VOCAB)


def test_repeating_what_was_read_is_no_answer():
    """Were the target not shifted, this model would be perfect from the start."""
    batch = (tokens(2, 4), torch.tensor([[1, 5, 6, 7, 2], [1, 8, 3, 4, 2]]))
    parrot = Parrot()
    optimizer = torch.optim.SGD(parrot.parameters(), lr=0.0)
    (loss,) = train(parrot, [batch], optimizer=optimizer, smoothing=0.0)
    assert loss == pytest.approx(20.0, abs=1e-3)


# --- schedule -------------------------------------------------------------------------

RATES = [0.03125, 0.0625, 0.09375, 0.125, 0.111803, 0.102062, 0.094491, 0.088388]


@pytest.mark.equation("eq-noam-rate")
def test_rates_of_a_small_model():
    """bert#1293, verl#3674: a first rate of 0, or 0 to the power of −½."""
    assert noam_rate(0, 16, 4) == 0.0
    for step, expected in enumerate(RATES, start=1):
        assert noam_rate(step, 16, 4) == pytest.approx(expected, abs=1e-6)


@pytest.mark.equation("eq-noam-rate")
def test_rates_of_the_paper():
    """espnet#1519, annotated-transformer#30: factor and lr multiplied or confused."""
    assert noam_rate(1, 512) == pytest.approx(1.746928e-7, rel=1e-6)
    assert noam_rate(4000, 512) == pytest.approx(6.987712e-4, rel=1e-6)
    assert noam_rate(16_000, 512) == pytest.approx(3.493856e-4, rel=1e-6)
    assert noam_rate(4000, 1024) == pytest.approx(4.94106e-4, rel=1e-6)
    assert noam_rate(100, 512, factor=2) == pytest.approx(2 * noam_rate(100, 512))
    for step in (1, 3999, 4000, 4001, 10**6):
        by_hand = 512**-0.5 * min(1 / math.sqrt(step), step / 4000**1.5)
        assert noam_rate(step, 512) == pytest.approx(by_hand, rel=1e-12)
    peak = max(range(1, 9000), key=lambda step: noam_rate(step, 512))
    assert peak == 4000


@pytest.mark.equation("eq-noam-rate")
def test_schedule_gives_each_update_its_rate():
    """The optimiser's own lr is replaced, in every group, from the first update on."""
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [{"params": weights[:1], "lr": 0.5}, {"params": weights[1:], "lr": 7.0}]
    optimizer = torch.optim.SGD(groups)
    schedule = NoamSchedule(optimizer, 16, 4)
    for expected in RATES:
        for group in optimizer.param_groups:
            assert group["lr"] == pytest.approx(expected, abs=1e-6)
        before = [w.detach().clone() for w in weights]
        for weight in weights:
            weight.grad = torch.ones(1)
        optimizer.step()
        for weight, old in zip(weights, before, strict=True):
            assert (old - weight).item() == pytest.approx(expected, rel=1e-4)
        schedule.step()


def test_schedule_doubles_with_its_factor_and_survives_its_state():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = NoamSchedule(optimizer, 16, 4, factor=2.0)
    for _ in range(2):
        optimizer.step()
        schedule.step()
    assert schedule.get_last_lr() == [pytest.approx(2 * RATES[2])]
    other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    resumed = NoamSchedule(other, 16, 4, factor=2.0)
    resumed.load_state_dict(schedule.state_dict())
    other.load_state_dict(optimizer.state_dict())
    for _ in range(3):
        for pair in ((optimizer, schedule), (other, resumed)):
            pair[0].step()
            pair[1].step()
        assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


# --- Adam -----------------------------------------------------------------------------


@pytest.mark.equation("eq-adam")
@pytest.mark.parametrize("betas", [(0.9, 0.98), (0.5, 0.7)])
def test_adam_by_hand_is_torchs(notebook_function, betas):
    update = notebook_function("13_training", "adam_update")
    theirs = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
    optimizer = torch.optim.Adam([theirs], lr=0.03, betas=betas, eps=1e-9)
    ours, m, v = 0.5, 0.0, 0.0
    for step in range(1, 8):
        gradient = math.sin(3 * step) + ours**2
        ours, m, v = update(ours, gradient, m, v, step, 0.03, betas=betas, eps=1e-9)
        theirs.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        assert float(ours) == pytest.approx(theirs.item(), rel=1e-12)


# --- loop -----------------------------------------------------------------------------


def batches(count: int, *, seed: int = 0):
    """Sources, and targets from BOS to EOS, padded."""
    for step in range(count):
        source = tokens(3, 5, seed=seed + step)
        target = F.pad(F.pad(source, (1, 0), value=1), (0, 2), value=0)
        target[:, 6] = 2
        target[0, 4:] = torch.tensor([2, 0, 0, 0])
        yield source, target


def test_each_update_is_one_step_on_the_loss_of_its_batch():
    """Against a loop written out, for five updates; losses in order, weights equal."""
    ours, theirs = small_model(dropout=0.0), small_model(dropout=0.0)
    settings = {"betas": (0.9, 0.98), "eps": 1e-9}
    optimizer = torch.optim.Adam(ours.parameters(), **settings)
    schedule = NoamSchedule(optimizer, 16, 4)
    losses = train(ours, batches(5), optimizer=optimizer, schedule=schedule)
    other = torch.optim.Adam(theirs.parameters(), lr=1.0, **settings)
    expected = []
    for step, (source, target) in enumerate(batches(5), start=1):
        other.param_groups[0]["lr"] = 16**-0.5 * min(step**-0.5, step * 4**-1.5)
        logits = theirs(source, target[:, :-1])
        loss = F.cross_entropy(
            logits.flatten(0, 1),
            target[:, 1:].flatten(),
            ignore_index=0,
            label_smoothing=0.1,
        )
        other.zero_grad()
        loss.backward()
        other.step()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, abs=1e-9)
    for (name, mine), weight in zip(
        ours.named_parameters(), theirs.parameters(), strict=True
    ):
        if not name.endswith("key_projection.bias"):  # its gradient is rounding alone
            assert_same(mine.detach(), weight.detach(), 1e-6)


def test_the_first_update_changes_the_weights():
    """NeMo#10582: the rate of update 1 was 0."""
    model = small_model()
    before = {name: w.clone() for name, w in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    train(
        model,
        batches(1),
        optimizer=optimizer,
        schedule=NoamSchedule(optimizer, 16, 4),
    )
    after = model.state_dict()
    for name, weight in before.items():
        if not name.endswith("key_projection.bias"):
            assert not torch.equal(weight, after[name]), name


def test_an_untrained_model_costs_about_log_v():
    """Far below it, the answer would be in the question."""
    model = small_model(embedding_std=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    (loss,) = train(model, batches(1), optimizer=optimizer, smoothing=0.0)
    assert loss == pytest.approx(math.log(VOCAB), abs=0.2)


def test_settings_reach_the_loss():
    source, target = next(batches(1))
    model = small_model(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with torch.no_grad():
        logits = model(source, target[:, :-1])
    for smoothing, pad_id in ((0.0, 0), (0.3, 0), (0.1, 2)):
        (loss,) = train(
            model, [(source, target)], optimizer=optimizer, smoothing=smoothing,
            pad_id=pad_id,
        )  # fmt: skip
        expected = smoothed_by_hand(
            logits.flatten(0, 1), target[:, 1:].flatten(), smoothing, pad_id
        )
        assert loss == pytest.approx(expected, abs=1e-9)


def test_after_step_sees_every_update_and_ends_the_loop():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []

    def after(step, loss):
        seen.append((step, loss))
        model.eval()  # as a validation would
        return step == 3

    losses = train(model, batches(9), optimizer=optimizer, after_step=after)
    assert seen == list(enumerate(losses, start=1))
    assert len(losses) == 3
    assert train(model, [], optimizer=optimizer) == []


def test_the_model_is_in_training_mode_for_every_update():
    modes = []

    class Watched(Parrot):
        def forward(self, source, target):
            modes.append(self.training)
            return super().forward(source, target)

    model = Watched()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    after = lambda step, loss: model.eval() is None
    train(model.eval(), batches(3), optimizer=optimizer, after_step=after)
    assert modes == [True] * 3


def test_a_loss_that_is_not_finite_reaches_no_weight():
    """The update is named; weights, the optimiser's state and the rate stay."""
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters())
    schedule = NoamSchedule(optimizer, 16, 4)
    train(model, batches(2), optimizer=optimizer, schedule=schedule)
    with torch.no_grad():
        model.target_embedding.weight[7] = math.inf
    before = {name: w.clone() for name, w in model.state_dict().items()}
    moments = [s["exp_avg"].clone() for s in optimizer.state.values()]
    rate = optimizer.param_groups[0]["lr"]
    with pytest.raises(FloatingPointError, match="update 1 is (nan|inf)"):
        train(model, batches(2), optimizer=optimizer, schedule=schedule)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name]), name
    for state, moment in zip(optimizer.state.values(), moments, strict=True):
        assert torch.equal(state["exp_avg"], moment)
        assert state["step"] == 2
    assert optimizer.param_groups[0]["lr"] == rate


def test_a_gradient_that_is_not_finite_reaches_no_weight():
    """The loss is finite, the slope of a square root at 0 is not."""
    model = small_model()
    plain = model.forward
    zero = lambda: model.target_embedding.weight.sum() * 0
    model.forward = lambda source, target: plain(source, target) + zero().sqrt()
    optimizer = torch.optim.Adam(model.parameters())
    before = {name: w.clone() for name, w in model.state_dict().items()}
    with pytest.raises(FloatingPointError, match="gradient norm of update 1 is nan"):
        train(model, batches(2), optimizer=optimizer)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name]), name
    assert not optimizer.state


@pytest.mark.usefixtures("no_shape_checks")  # beartype draws from Python's random
def test_training_is_reproducible_and_touches_no_other_generator():
    """flash-attention#429, pytorch#91979: the same seed, another result."""
    runs = []
    for other_seed in (1, 2):
        torch.manual_seed(5)  # dropout draws from the global generator
        random.seed(other_seed)
        numpy.random.seed(other_seed)  # noqa: NPY002
        states = random.getstate(), numpy.random.get_state()[1].tolist()  # noqa: NPY002
        config = small_config(dropout=0.2)
        model = Transformer(config, generator=seeded(3))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        runs.append(train(model, batches(4), optimizer=optimizer))
        assert random.getstate() == states[0]
        assert numpy.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
    assert runs[0] == runs[1]


def test_one_row_and_one_token():
    """ludwig#1726, tacotron2#303: a bare squeeze and the last small batch."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = (torch.tensor([[5]]), torch.tensor([[1, 2]]))
    (loss,) = train(model, [batch], optimizer=optimizer)
    assert math.isfinite(loss)


# --- conventions, floors, roles -------------------------------------------------------


def test_three_conventions_of_who_shares(notebook_function):
    """annotated-transformer#39: rows and losses of the V − 2 formula, known by hand."""
    soft_target = notebook_function("13_training", "soft_target")
    third = 0.4 / 3
    assert_same(soft_target("V − 2", 2, 5, 0.4), [0, third, 0.6, third, third], 1e-12)
    assert_same(soft_target("V − 2", 1, 5, 0.4), [0, 0.6, third, third, third], 1e-12)
    assert_same(soft_target("V − 1", 1, 5, 0.4), [0.1, 0.6, 0.1, 0.1, 0.1], 1e-12)
    assert_same(soft_target("all V", 1, 5, 0.4), [0.08, 0.68, 0.08, 0.08, 0.08], 1e-12)
    log_p = torch.tensor([0, 1, 2, 0, -1]).double().log_softmax(0)
    floor = 1.112457
    for y, loss, divergence in ((2, 1.323744, 0.211287), (1, 1.790411, 0.677954)):
        q = soft_target("V − 2", y, 5, 0.4)
        assert -(q * log_p).sum().item() == pytest.approx(loss, abs=1e-6)
        assert loss - floor == pytest.approx(divergence, abs=2e-6)
        assert F.kl_div(log_p, q, reduction="sum").item() == pytest.approx(
            divergence, abs=1e-6
        )
        ours = label_smoothed_loss(log_p, torch.tensor(y), smoothing=0.4).item()
        theirs = -(soft_target("all V", y, 5, 0.4) * log_p).sum().item()
        assert ours == pytest.approx(theirs, abs=1e-12)
    uniform = torch.full((11,), -math.log(11)).double()
    q = soft_target("V − 2", 4, 11, 0.1)
    assert F.kl_div(uniform, q, reduction="sum").item() == pytest.approx(1.853090)


@pytest.mark.parametrize(("size", "floor"), [(11, 1.5430), (3, 0.5514)])
def test_two_softmaxes_have_a_floor_and_two_log_softmaxes_have_none(size, floor):
    """SciCo#2, hw2vec#23: probabilities given to a loss that wants logits."""
    targets = torch.tensor([1, 2, 1])
    certain = 1000.0 * F.one_hot(targets, size)
    loss = label_smoothed_loss(certain.softmax(-1), targets, smoothing=0.0)
    assert loss.item() == pytest.approx(floor, abs=5e-5)
    again = label_smoothed_loss(certain.log_softmax(-1), targets, smoothing=0.0)
    assert again.item() == pytest.approx(0.0, abs=1e-6)


def test_every_end_of_sequence_counts():
    """transformers#23175, llm-course#33: were EOS the padding, nobody would stop."""
    target = torch.tensor([[1, 5, 2, 0, 0], [1, 6, 7, 8, 2]])
    assert tokens_that_count([(target, target)]).item() == 2 + 4
    _, labels = teacher_forcing(target)
    logits = torch.zeros(2, 4, VOCAB).double().requires_grad_()
    label_smoothed_loss(logits, labels).backward()
    moved = logits.grad.abs().amax(dim=-1) > 0
    assert moved.tolist() == [[True, True, False, False], [True] * 4]


def test_a_count_of_its_own_divides_the_sum():
    logits, targets = normal(6, 5), torch.tensor([2, 0, 4, 1, 0, 2])
    mean = label_smoothed_loss(logits, targets)
    for count in (8, torch.tensor(8)):
        part = label_smoothed_loss(logits, targets, count=count)
        assert_same(part, mean * 4 / 8, 1e-12)


def test_loss_where_there_are_no_numbers():
    """On meta it says its shape; a value check in it would fail here."""
    logits = torch.zeros(3, 4, 7, device="meta", dtype=torch.bfloat16)
    loss = label_smoothed_loss(logits, torch.zeros(3, 4, dtype=torch.int64).to("meta"))
    assert loss.is_meta
    assert loss.shape == ()
    assert loss.dtype == torch.float32


# --- batches --------------------------------------------------------------------------


def pairs_of(count: int, *, seed: int = 0):
    """Pairs that are all different, of unequal lengths on either side."""
    generator = seeded(seed)
    found = []
    for i in range(count):
        n, m = torch.randint(1, 15, (2,), generator=generator).tolist()
        found.append(([3 + i] * n, [1, *[3 + i] * m, 2]))
    return found


def one_round(stream: TokenBatches):
    """All batches until every pair has come."""
    iterator = iter(stream)
    first = next(iterator)
    return [first, *(next(iterator) for _ in range(len(stream.plan) - 1))]


@pytest.mark.parametrize("pool", [1, 7, 20, 1000])
def test_each_round_holds_each_pair_once_within_the_limit(pool):
    pairs = pairs_of(83)
    stream = TokenBatches(pairs, 60, generator=seeded(1), pool=pool)
    orders, together = [], []
    for _ in range(3):
        rows = []
        together.append(set())
        for source, target in one_round(stream):
            assert len(source) == len(target)
            assert source.numel() <= 60
            assert target.numel() <= 60
            together[-1].add(frozenset(source[:, 0].tolist()))
            for s, t in zip(source.tolist(), target.tolist(), strict=True):
                rows.append(([x for x in s if x], [x for x in t if x]))
                assert s == rows[-1][0] + [0] * (len(s) - len(rows[-1][0]))
        assert sorted(rows) == sorted(pairs)
        orders.append(rows)
    assert orders[0] != orders[1] != orders[2]
    if pool < 83:  # other neighbours each time, and not only another order of batches
        assert together[0] != together[1] != together[2]


def test_batches_are_as_large_as_the_limit_allows():
    """A row more would not have fitted, in the order in which they were cut."""
    pairs = pairs_of(60)
    lengths = [(len(s), len(t)) for s, t in pairs]
    order = list(range(60))
    cut = cut_by_tokens(lengths, order, 50)
    assert [i for batch in cut for i in batch] == order
    for batch, after in zip(cut, cut[1:], strict=False):
        grown = [*batch, after[0]]
        widest = max(max(lengths[i]) for i in grown)
        assert len(grown) * widest > 50
    assert cut_by_tokens([(2, 9), (9, 2)], [0, 1], 17) == [[0], [1]]
    assert cut_by_tokens([(2, 9), (9, 2)], [0, 1], 18) == [[0, 1]]


def test_sorting_saves_padding_and_shuffles_the_batches():
    lengths = torch.randint(1, 30, (400,), generator=seeded(2)).tolist()
    pairs = [([3] * n, [1, *[3] * n, 2]) for n in lengths]

    def padding(pool):
        stream = TokenBatches(pairs, 200, generator=seeded(0), pool=pool)
        sources = [source for source, _ in one_round(stream)]
        share = sum((s == 0).sum().item() for s in sources)
        widths = [source.shape[1] for source in sources]
        return share / sum(s.numel() for s in sources), widths

    (none, _), (some, _), (full, widths) = map(padding, (1, 40, 400))
    assert full < 0.1 < some < 0.3 < none
    falls = sum(a > b for a, b in zip(widths, widths[1:], strict=False))
    assert 0.3 * len(widths) < falls < 0.7 * len(widths)


def test_pools_meet_at_like_lengths():
    """Every other pool falls, so that only one batch of a pool mixes long and short."""
    pairs = [([3] * n, [1, *[3] * n, 2]) for n in [1, 12] * 60]
    mixed = {}
    for pool in (10, 120):
        found = one_round(TokenBatches(pairs, 70, generator=seeded(0), pool=pool))
        mixed[pool] = sum(bool((source == 0).any()) for source, _ in found)
    assert mixed[120] <= 1
    assert mixed[10] <= 12


@pytest.mark.parametrize("stop", [0, 1, 4, 11, 12, 13, 30])
def test_the_stream_goes_on_where_it_stood(stop):
    """In the middle of a round, at its end, in a later round."""
    make = lambda seed: TokenBatches(pairs_of(50), 60, generator=seeded(seed), pool=20)
    whole = iter(make(3))
    stream = make(3)
    iterator = iter(stream)
    for _ in range(stop):
        next(whole)
        next(iterator)
    state = stream.state_dict()
    for _ in range(7):  # what comes after must not change what was saved
        next(iterator)
    other = make(4)
    next(iter(other))
    other.load_state_dict(state)
    for (a, b), (c, d), _ in zip(whole, other, range(40), strict=False):
        assert torch.equal(a, c)
        assert torch.equal(b, d)


def test_only_the_generator_decides():
    """pytorch#91979 and others: data that draw from a generator nobody passed."""
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate()
    one = one_round(TokenBatches(pairs_of(40), 60, generator=seeded(3)))
    assert torch.equal(torch.get_rng_state(), before[0])
    torch.manual_seed(2)
    other = one_round(TokenBatches(pairs_of(40), 60, generator=seeded(3)))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(one, other, strict=True))
    different = one_round(TokenBatches(pairs_of(40), 60, generator=seeded(4)))
    assert [b[0].tolist() for b in one] != [b[0].tolist() for b in different]


def test_any_padding_token_fills_up():
    stream = TokenBatches([([3], [1, 2]), ([3, 4], [1, 2])], 8,
                          generator=seeded(0), pad_id=9)  # fmt: skip
    source, _ = next(iter(stream))
    assert sorted(source.tolist()) == [[3, 4], [3, 9]]


# --- every token weighs the same ------------------------------------------------------


def gradients_of(model, group, **settings):
    model.zero_grad()
    loss = add_gradients(model, group, **settings)
    return loss, [p.grad.clone() for p in model.parameters()]


SPLITS = [[6], [3, 3], [1, 5], [2, 1, 3], [1] * 6]


def uneven() -> tuple:
    """Six rows with 2 to 7 labels that count, and one with none."""
    source = tokens(6, 7)
    target = F.pad(tokens(6, 7, seed=1), (1, 0), value=1)
    for row, length in enumerate((3, 8, 4, 8, 1, 6)):
        target[row, length:] = 0
    return source, target


@pytest.mark.equation("eq-token-mean")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("sizes", SPLITS)
def test_gradients_do_not_depend_on_the_split(sizes, smoothing):
    """transformers#24725, trl#2175: a mean of means weighs short batches more."""
    model = small_model(dropout=0.0)
    source, target = uneven()
    logits = model(source, target[:, :-1])
    labels = target[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0,
                           label_smoothing=smoothing)  # fmt: skip
    model.zero_grad()
    loss.backward()
    expected = [p.grad.clone() for p in model.parameters()]
    group = list(zip(source.split(sizes), target.split(sizes), strict=True))
    total, found = gradients_of(model, group, smoothing=smoothing)
    assert_same(total, loss.detach(), 1e-10)
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs, 1e-10)


class Two(OneProcess):
    """One of two processes: it adds to each sum what the other one gives."""

    num_processes = 2

    def __init__(self, others):
        self.others = list(others)
        self.shares, self.shared = True, []

    def reduce(self, tensor, reduction="sum"):
        assert reduction == "sum"
        return tensor + self.others.pop(0)

    @contextlib.contextmanager
    def no_sync(self, model):
        self.shares = False
        yield
        self.shares = True

    def backward(self, loss):
        self.shared.append(self.shares)
        super().backward(loss)


@pytest.mark.equation("eq-token-mean")
@pytest.mark.parametrize("first", [1, 2, 3, 5])
def test_two_processes_take_the_mean_of_their_gradients(first):
    model = small_model(dropout=0.0)
    source, target = uneven()
    loss, expected = gradients_of(model, [(source, target)])
    sides = (side.split([first, 6 - first]) for side in (source, target))
    shares = [[pair] for pair in zip(*sides, strict=True)]
    counts = [tokens_that_count(share) for share in shares]
    losses, found = [], []
    for mine, other in ((0, 1), (1, 0)):
        machine = Two([counts[other], 0.0])
        part, gradients = gradients_of(model, shares[mine], accelerator=machine)
        assert machine.others == []
        losses.append(part)
        found.append(gradients)
    assert_same(sum(losses), loss, 1e-10)
    for one, other, whole in zip(*found, expected, strict=True):
        assert_same((one + other) / 2, whole, 1e-10)


def test_gradients_are_shared_once_for_each_update():
    model = small_model(dropout=0.0)
    source, target = uneven()
    group = list(zip(source.split(2), target.split(2), strict=True))
    machine = Two([torch.tensor(0), 0.0])
    add_gradients(model, group, accelerator=machine)
    assert machine.shared == [False, False, True]


def test_an_accumulated_update_is_that_of_the_whole_batch():
    """Weights after three updates, each read in four batches or in one."""
    source, target = uneven()
    whole = [(source, target)] * 3
    uneven_split = source.split([1, 2, 1, 2]), target.split([1, 2, 1, 2])
    parts = list(zip(*uneven_split, strict=True)) * 3
    results = []
    for batches, accumulate in ((whole, 1), (parts, 4)):
        model = small_model(dropout=0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = train(model, batches, optimizer=optimizer, accumulate=accumulate)
        assert len(losses) == 3
        results.append((losses, [p.detach().clone() for p in model.parameters()]))
    assert results[0][0] == pytest.approx(results[1][0], abs=1e-10)
    for one, other in zip(results[0][1], results[1][1], strict=True):
        assert_same(one, other, 1e-10)


def test_the_last_update_may_have_fewer_batches_and_none_is_read_early():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    read, seen = [], []

    def stream():
        for i, batch in enumerate(batches(7), start=1):
            read.append(i)
            yield batch

    after = lambda step, loss: seen.append((step, len(read))) and False
    losses = train(model, stream(), optimizer=optimizer, accumulate=3,
                   after_step=after, start=10)  # fmt: skip
    assert len(losses) == 3
    assert seen == [(11, 3), (12, 6), (13, 7)]


def test_errors_name_the_update_also_after_a_resume():
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters())
    with torch.no_grad():
        model.target_embedding.weight[7] = math.nan
    with pytest.raises(FloatingPointError, match="loss of update 41 is nan"):
        train(model, batches(2), optimizer=optimizer, start=40)


def test_a_scaler_may_leave_out_an_update_that_overflowed():
    """With fp16 an infinite gradient is no error: the scaler skips it and goes on."""

    class Scaled(OneProcess):
        scaler = object()

        def clip_grad_norm_(self, parameters, max_norm):
            return torch.tensor(math.inf)

    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    assert len(train(model, batches(2), optimizer=optimizer, accelerator=Scaled())) == 2


@pytest.mark.parametrize("accumulate", [1, 3])
def test_accelerate_in_one_process_changes_nothing(accumulate):
    """Bit for bit, dropout on."""
    accelerate = pytest.importorskip("accelerate")
    runs = []
    for accelerator in (None, accelerate.Accelerator(cpu=True)):
        torch.manual_seed(5)
        model = small_model(dropout=0.3)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        schedule = NoamSchedule(optimizer, 16, 4)
        if accelerator is not None:
            model, optimizer = accelerator.prepare(model, optimizer)
        losses = train(model, batches(7), optimizer=optimizer, schedule=schedule,
                       accumulate=accumulate, accelerator=accelerator)  # fmt: skip
        runs.append((losses, [p.detach().clone() for p in model.parameters()],
                     optimizer.param_groups[0]["lr"]))  # fmt: skip
    assert runs[0][0] == runs[1][0]
    assert runs[0][2] == runs[1][2] == noam_rate(7 // accumulate + 1 + (accumulate > 1),
                                                 16, 4)  # fmt: skip
    for one, other in zip(runs[0][1], runs[1][1], strict=True):
        assert torch.equal(one, other)


# --- groups, processes, sizes of one --------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_an_optimiser_has_each_parameter_once(notebook_function, tied):
    """nanoGPT#21: a tied matrix has several names and is one parameter."""
    groups_of = notebook_function("13_training", "groups_by_module")
    model = small_model(tie_embeddings=tied)
    everything = sorted(id(p) for p in model.parameters())
    for groups in ([{"params": list(model.parameters())}], groups_of(model, 0.1)):
        optimizer = torch.optim.AdamW(groups)
        listed = [p for group in optimizer.param_groups for p in group["params"]]
        assert sorted(map(id, listed)) == everything
    decayed = {id(p) for p in groups_of(model, 0.1)[0]["params"]}
    for name, parameter in model.named_parameters():
        matrix = parameter.dim() == 2 and "embedding" not in name
        assert (id(parameter) in decayed) == matrix, name


FRESH = """
import torch
from helpers import seeded, small_config
from test_training import batches
from aiayn import NoamSchedule, Transformer, train
torch.use_deterministic_algorithms(True)
torch.manual_seed(4)
model = Transformer(small_config(dropout=0.2), generator=seeded(3))
optimizer = torch.optim.Adam(model.parameters())
schedule = NoamSchedule(optimizer, 16, 4)
print(train(model, batches(5), optimizer=optimizer, schedule=schedule, accumulate=2))
"""


def test_two_fresh_processes_have_the_same_losses():
    """flash-attention#429: the same seed, another run."""
    root = Path(__file__).parents[1]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root / 'tests'}",
    }
    command = [sys.executable, "-W", "ignore", "-c", FRESH]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    runs = [process.communicate()[0] for process in processes]
    assert runs[0] == runs[1]
    assert runs[0].count(",") == 2


@pytest.mark.parametrize("size", [VOCAB, 4])
def test_a_batch_of_one_keeps_its_axes(size):
    """ludwig#1726, OpenNMT-py#1094, tacotron2#303: through loss, searches and cache."""
    model = small_model(source_vocab_size=size, target_vocab_size=size)
    source, target = torch.tensor([[3]]), torch.tensor([[1, 2]])
    logits = plain_logits(model, source, target[:, :1])
    assert logits.shape == (1, 1, size)
    assert label_smoothed_loss(logits, target[:, 1:]).shape == ()
    cache = aiayn.DecoderCache(2)
    assert greedy_decode(model, source, max_len=1).shape == (1, 1)
    assert greedy_decode(model, source, max_len=1, cache=cache).shape == (1, 1)
    found = beam_search(model, source, beam_size=2, max_len=1)
    assert len(found) == 1
    assert len(found[0][0].tokens) == 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    assert len(train(model, [(source, target)], optimizer=optimizer)) == 1
    (one, pair) = next(iter(TokenBatches([([3], [1, 2])], 4, generator=seeded(0))))
    assert (one.shape, pair.shape) == ((1, 1), (1, 2))
