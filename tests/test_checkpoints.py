"""Checkpoints: nothing is lost, nothing half written is believed, nothing is executed.

By kinds of fault: warm-up or data restarted on resume, dropout that goes another way, a
tie lost on the road, a file cut off, the state of another model or optimiser, and a
refusal that has changed half of what it was given.
"""

import copy
import json
import math
import os
import pickle
import struct
from pathlib import Path

import pytest
import torch
from helpers import assert_same, seeded, small_config, small_model, tokens
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import aiayn.training
from aiayn import (
    GroupedQueryAttention,
    NoamSchedule,
    Transformer,
    average_checkpoints,
    load_checkpoint,
    save_checkpoint,
    train,
)
from aiayn.training import (
    FORMAT,
    TokenBatches,
    pack,
    read_checkpoint,
    unpack,
    write_whole,
)


def pairs(count: int = 40, *, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Sources of 1 to 7 tokens and EOS; targets are the same after BOS."""
    generator = seeded(seed)
    found = []
    for _ in range(count):
        length = int(torch.randint(1, 8, (), generator=generator))
        row = torch.randint(3, 11, (length,), generator=generator).tolist()
        found.append(([*row, 2], [1, *row, 2]))
    return found


class Run:
    """A model with everything that a checkpoint keeps, its dropout on."""

    def __init__(self, *, seed=0, kind=torch.optim.Adam, warmup=4, **changes):
        settings = {"dropout": 0.3, **changes}
        self.model = small_model(seed=seed, **settings)
        self.optimizer = kind(self.model.parameters(), lr=0.01)
        self.schedule = NoamSchedule(self.optimizer, 16, warmup)
        self.batches = TokenBatches(pairs(), 24, generator=seeded(seed + 9), pool=10)

    @property
    def parts(self) -> dict:
        return {
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "batches": self.batches,
        }

    def train(self, updates: int, *, start: int = 0, **settings) -> list[float]:
        last = start + updates
        return train(
            self.model, self.batches, optimizer=self.optimizer, schedule=self.schedule,
            start=start, after_step=lambda step, loss: step == last, **settings,
        )  # fmt: skip

    def state(self) -> list:
        """Everything that a call could have changed, tensors as lists."""
        things = (self.model, self.optimizer, self.schedule, self.batches)
        generator = torch.get_rng_state().tolist()
        return [*(plain(thing.state_dict()) for thing in things), generator]


def plain(value):
    """Tensors as lists, so that == compares."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def saved(run: Run, path: Path, **settings) -> Path:
    save_checkpoint(path, run.model, **run.parts, **settings)
    return path


# --- going on -------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, seed, accumulate):
    """Bit for bit, with dropout on, stopped in the middle of a round of the data."""
    torch.manual_seed(seed)
    whole, first = Run(seed=seed), Run(seed=seed)
    expected = whole.train(9, accumulate=accumulate)
    torch.manual_seed(seed)
    losses = first.train(4, accumulate=accumulate)
    path = saved(first, tmp_path / "run.safetensors", step=4)
    first.train(2, accumulate=accumulate)  # what a kill takes away
    second = Run(seed=seed + 50)  # other weights, other data position
    torch.manual_seed(99)
    checkpoint = load_checkpoint(path, second.model, **second.parts)
    assert checkpoint.step == 4
    losses += second.train(5, start=checkpoint.step, accumulate=accumulate)
    assert losses == expected
    for (name, ours), theirs in zip(
        second.model.named_parameters(), whole.model.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs), name
    assert len(set(expected)) == 9


def test_every_step_of_the_number_and_the_rate_goes_on(tmp_path):
    run = Run()
    run.train(3)
    saved(run, tmp_path / "c", step=3)
    other = Run(seed=5)
    load_checkpoint(tmp_path / "c", other.model, **other.parts)
    seen = []
    after = lambda step, loss: seen.append(step) or step == 6
    train(other.model, other.batches, optimizer=other.optimizer,
          schedule=other.schedule, after_step=after, start=3)  # fmt: skip
    assert seen == [4, 5, 6]
    assert other.schedule.last_epoch == 6
    assert other.optimizer.param_groups[0]["lr"] == aiayn.noam_rate(7, 16, 4)
    assert other.optimizer.state_dict()["state"][0]["step"] == 6


def test_generators_only_go_on_where_asked(tmp_path):
    """Weights that are loaded to be used change no random number of the caller's."""
    run = Run()
    path = saved(run, tmp_path / "c")
    state = torch.get_rng_state()
    torch.rand(3)
    moved = torch.get_rng_state()
    load_checkpoint(path, run.model)
    load_checkpoint(path)
    load_checkpoint(path, run.model, **run.parts, restore_rng=False)
    assert torch.equal(torch.get_rng_state(), moved)
    load_checkpoint(path, run.model, restore_rng=True)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    load_checkpoint(path, run.model, **run.parts)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad]
)
def test_every_optimiser_comes_back_as_it_was(tmp_path, kind):
    run = Run(kind=kind)
    run.train(3)
    other = Run(seed=1, kind=kind)
    load_checkpoint(saved(run, tmp_path / "c"), other.model, **other.parts)
    assert other.state() == run.state()
    ours, theirs = other.optimizer.state_dict(), run.optimizer.state_dict()
    for key, value in theirs["param_groups"][0].items():
        assert type(ours["param_groups"][0][key]) is type(value), key
    torch.manual_seed(3)
    losses = other.train(2)
    torch.manual_seed(3)
    assert losses == run.train(2)


# --- what is in the file --------------------------------------------------------------


def test_the_file_is_plain_tensors_and_json(tmp_path):
    """Any reader of safetensors reads it; step, configuration and extra are JSON."""
    run = Run()
    run.train(1)
    deep = {"none": None, "t": (1, 2)}
    extra = {"losses": [1.5, 0.1 + 0.2], "who": "wé", "deep": deep}
    path = saved(run, tmp_path / "c", step=1, extra=extra)
    raw = load_file(path)
    assert torch.equal(
        raw["model.source_embedding.weight"], run.model.source_embedding.weight
    )
    assert "optimizer.state.state.0.exp_avg" in raw
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    content = json.loads(header["__metadata__"][FORMAT])
    assert content["config"]["d_model"] == 16
    assert content["step"] == 1
    file = load_checkpoint(path)
    assert file.extra == extra
    assert file.config == run.model.config
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_matrix_is_in_the_file_once(tmp_path, tied):
    model = small_model(tie_embeddings=tied)
    save_checkpoint(tmp_path / "c", model)
    names = [n for n in load_file(tmp_path / "c") if n.endswith("embedding.weight")]
    assert len(names) == (1 if tied else 2)
    stored = load_file(tmp_path / "c")
    numbers = sum(stored[n].numel() for n in stored if n.startswith("model."))
    assert numbers == sum(p.numel() for p in model.parameters())
    built = load_checkpoint(tmp_path / "c").model
    same = built.source_embedding.weight is built.target_embedding.weight
    assert same == tied
    assert len(list(built.parameters())) == len(list(model.parameters()))
    assert plain(built.state_dict()) == plain(model.state_dict())


CONFIGS = [
    {},
    {"norm_first": True, "positions": "learned"},
    {"tie_embeddings": False, "bias": False, "positions": "none"},
    {"n_kv_heads": 2},
    {"d_k": 3, "d_v": 5, "embedding_std": 0.3, "pad_id": 4, "dropout": 0.5},
]


@pytest.mark.parametrize("changes", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_without_a_model_the_stored_one_is_built(tmp_path, changes, dtype):
    attention = GroupedQueryAttention if "n_kv_heads" in changes else None
    model = small_model(attention=attention, dtype=dtype, **changes)
    save_checkpoint(tmp_path / "c", model)
    state = torch.get_rng_state()
    found = load_checkpoint(tmp_path / "c")
    assert torch.equal(torch.get_rng_state(), state)
    assert found.config == model.config
    assert found.model.config == model.config
    assert not found.model.training
    source, target = tokens(2, 5), tokens(2, 4, seed=1)
    with torch.no_grad():
        assert torch.equal(found.model(source, target), model(source, target))
    assert all(p.requires_grad for p in found.model.parameters())


def test_compiled_and_wrapped_models_save_plain_names(tmp_path):
    """nanoGPT and others strip _orig_mod. by hand; DDP's prefix is module."""
    model = small_model()
    compiled = torch.compile(copy.deepcopy(model))
    partly = copy.deepcopy(model)
    partly.encoder_layers[0] = torch.compile(partly.encoder_layers[0])
    wrapped = nn.Sequential()
    wrapped.add_module("module", copy.deepcopy(model))
    for number, other in enumerate((compiled, partly, wrapped)):
        path = tmp_path / str(number)
        optimizer = torch.optim.Adam(other.parameters())
        save_checkpoint(path, other, optimizer=optimizer, config=model.config)
        names = {f"model.{name}" for name, _ in model.named_parameters()}
        assert set(load_file(path)) >= names
        fresh = small_model(seed=3)
        load_checkpoint(path, fresh, optimizer=torch.optim.Adam(fresh.parameters()))
        assert plain(fresh.state_dict()) == plain(model.state_dict())
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        load_checkpoint(path, other, optimizer=optimizer)
        assert plain(list(other.parameters())) == plain(list(model.parameters()))


def test_a_state_dict_can_be_saved(tmp_path):
    """What average_checkpoints gives, or a sharded model gathers."""
    model = small_model()
    save_checkpoint(tmp_path / "c", model.state_dict(), config=model.config)
    built = load_checkpoint(tmp_path / "c").model
    assert built.source_embedding.weight is built.target_embedding.weight
    assert plain(built.state_dict()) == plain(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters())
    save_checkpoint(tmp_path / "d", model.state_dict(), optimizer=optimizer)
    load_checkpoint(tmp_path / "d", model, optimizer=optimizer)


def test_views_and_transposes_are_saved_as_they_are(tmp_path):
    module = nn.Module()
    whole = torch.arange(12.0).reshape(3, 4)
    module.register_buffer("rows", whole[1:])
    module.register_buffer("turned", whole.T)
    module.register_buffer("whole", whole)
    module.register_buffer("empty", torch.zeros(0, 3))
    module.register_buffer("also_empty", torch.zeros(0, 3))
    module.register_buffer("flags", torch.tensor([True, False]))
    save_checkpoint(tmp_path / "c", module)
    assert read_checkpoint(tmp_path / "c").tied == {}
    state = read_checkpoint(tmp_path / "c").state_dict()
    assert plain(state) == plain(module.state_dict())


def test_what_is_packed_comes_back():
    value = {
        "list": [1, 2.5, None, True, "x"],
        "t": (1, (2, torch.arange(3))),
        "numbers": {0: {"exp_avg": torch.ones(2)}, 1: {}},
        "a.b": torch.zeros(1),
        "a": {"b": torch.ones(1, dtype=torch.uint8)},
        "__tensor__": "not one",
        "deep": {"__items__": 3, "x": math.pi},
        "inf": math.inf,
    }  # fmt: skip
    held: dict[str, torch.Tensor] = {}
    text = json.dumps(pack(value, "", held))
    assert len(held) == 4
    back = unpack(json.loads(text), held)
    assert plain(back) == plain(value)
    assert isinstance(back["t"], tuple)
    assert isinstance(back["t"][1], tuple)
    assert list(back["numbers"]) == [0, 1]


@pytest.mark.parametrize("thing", [object(), {1, 2}, print, b"x", 1j, torch.float32])
def test_what_is_no_data_is_refused_before_the_file_is_touched(tmp_path, thing):
    run = Run()
    path = saved(run, tmp_path / "c", step=7)
    before = path.read_bytes()
    with pytest.raises(TypeError, match=r"extra\.deep\.1 must be numbers"):
        saved(run, path, extra={"deep": [0, thing]})
    with pytest.raises(TypeError, match=r"extra\.x must be"):
        saved(run, path, extra={"x": {0.5: 1}})
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


# --- damaged files --------------------------------------------------------------------


def refused(path, run, match, error=ValueError, **settings):
    """Loading raises, and nothing that was passed has changed."""
    before = run.state()
    with pytest.raises(error, match=match):
        load_checkpoint(path, run.model, **run.parts, **settings)
    assert run.state() == before


def test_a_file_cut_off_anywhere_is_refused(tmp_path):
    run = Run()
    run.train(2)
    whole = saved(run, tmp_path / "whole").read_bytes()
    other = Run(seed=1)
    cut = tmp_path / "cut"
    for length in [*range(0, 40, 7), *range(40, len(whole), 5003), len(whole) - 1]:
        cut.write_bytes(whole[:length])
        refused(cut, other, "cut is no complete safetensors file")
    cut.write_bytes(whole + b"x")
    refused(cut, other, "no complete")
    cut.write_bytes(whole)
    load_checkpoint(cut, other.model, **other.parts)
    assert other.state() == run.state()


def test_other_files_are_refused_and_never_executed(tmp_path):
    """A pickle runs what it likes; here it is bytes of a wrong kind."""
    run = Run()

    class Trap:
        def __reduce__(self):
            return (Path(tmp_path / "sprung").touch, ())

    (tmp_path / "pickle").write_bytes(pickle.dumps(Trap()))
    torch.save({"model": run.model.state_dict()}, tmp_path / "torch")
    (tmp_path / "text").write_text("no tensors here, only words")
    for name in ("pickle", "torch", "text"):
        refused(tmp_path / name, run, f"{name} is no complete safetensors file")
    save_file({"x": torch.zeros(2)}, tmp_path / "plain")
    refused(tmp_path / "plain", run, "plain is no checkpoint")
    save_file({"x": torch.zeros(2)}, tmp_path / "other", {FORMAT: "print('x')"})
    refused(tmp_path / "other", run, "other is a damaged checkpoint")
    save_file({"x": torch.zeros(2)}, tmp_path / "new", {FORMAT: '{"version": 2}'})
    refused(tmp_path / "new", run, "version 2, expected 1")
    refused(tmp_path / "nowhere", run, "nowhere", FileNotFoundError)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "lost", ["model.source_embedding.weight", "optimizer.state.state.0.exp_avg"]
)
def test_a_file_that_lacks_a_tensor_is_refused(tmp_path, lost):
    run = Run()
    run.train(1)
    path = saved(run, tmp_path / "c")
    text = header_of(path)["__metadata__"]
    raw = load_file(path)
    del raw[lost]
    save_file(raw, path, text)
    refused(path, Run(seed=1), "damaged checkpoint")


def header_of(path) -> dict:
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(size))


@pytest.mark.parametrize("moment", ["write", "sync", "replace"])
def test_an_error_while_saving_leaves_the_old_file(tmp_path, monkeypatch, moment):
    run = Run()
    path = saved(run, tmp_path / "c", step=3)
    before = path.read_bytes()

    def fails(*_, **__):
        if moment == "write":
            (tmp_path / "c.partial").write_bytes(before[:100])
        raise OSError("no space left on device")

    place = {"write": (aiayn.training, "save_file"), "sync": (os, "fsync"),
             "replace": (os, "replace")}[moment]  # fmt: skip
    with monkeypatch.context() as broken:
        broken.setattr(*place, fails)
        with pytest.raises(OSError, match="no space left"):
            saved(run, path, step=4)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    assert load_checkpoint(path).step == 3


def test_the_name_changes_hands_only_when_all_is_on_the_disk(tmp_path, monkeypatch):
    """Written elsewhere, synced, renamed; the old one can be read until then."""
    path = tmp_path / "c"
    save_checkpoint(path, small_model(), step=1)
    events = []

    def note(name, function):
        def noted(*args):
            events.append((name, load_checkpoint(path).step))
            return function(*args)

        monkeypatch.setattr(os, name, noted)

    note("fsync", os.fsync)
    note("replace", os.replace)
    save_checkpoint(path, small_model(), step=2)
    assert events[:2] == [("fsync", 1), ("replace", 1)]
    assert load_checkpoint(path).step == 2


def test_what_a_kill_left_behind_is_written_over(tmp_path):
    path = tmp_path / "c"
    (tmp_path / "c.partial").write_bytes(b"x" * 10**6)
    save_checkpoint(path, small_model(), step=2)
    assert load_checkpoint(path).step == 2
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_others_may_read_it_as_any_new_file(tmp_path):
    """safetensors writes files that only their owner can read."""
    (tmp_path / "plain").write_text("x")
    (tmp_path / "c.partial").touch(mode=0o600)
    save_checkpoint(tmp_path / "c", small_model())
    assert (tmp_path / "c").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_write_whole_writes_beside_its_target(tmp_path):
    seen = []
    write_whole(tmp_path / "a.txt", lambda p: (seen.append(p), p.write_text("x")))
    assert seen[0].parent == tmp_path
    assert (tmp_path / "a.txt").read_text() == "x"


# --- another model --------------------------------------------------------------------


def test_weights_that_are_not_finite_are_refused(tmp_path):
    run = Run()
    path = saved(run, tmp_path / "c")
    before = path.read_bytes()
    with torch.no_grad():
        run.model.source_embedding.weight[4, 2] = math.nan
    with pytest.raises(
        ValueError, match=r"source_embedding.weight holds .* not finite"
    ):
        saved(run, path)
    assert path.read_bytes() == before
    saved(run, path, check_finite=False)
    refused(path, Run(seed=1), r"c: source_embedding\.weight holds .* not finite")
    broken = load_checkpoint(path, check_finite=False).model
    assert broken.source_embedding.weight[4, 2].isnan()


DIFFERENT = [
    ({"d_model": 32}, "d_model=16.*d_model=32"),
    ({"n_layers": 1}, "n_layers=2.*n_layers=1"),
    ({"n_heads": 2}, "n_heads=4.*n_heads=2"),  # the same shapes
    ({"norm_first": True}, "norm_first=False.*norm_first=True"),
    ({"tie_embeddings": False}, "tie_embeddings=True.*tie_embeddings=False"),
    ({"pad_id": 3}, "pad_id=0.*pad_id=3"),  # the same shapes
    ({"dropout": 0.1}, "dropout=0.3.*dropout=0.1"),  # another run
]


@pytest.mark.parametrize(("changes", "match"), DIFFERENT)
def test_another_configuration_is_refused(tmp_path, changes, match):
    run = Run()
    path = saved(run, tmp_path / "c")
    refused(path, Run(seed=1, **changes), match)


def test_weights_alone_may_go_into_a_model_of_another_dropout(tmp_path):
    """And of another max_len: espnet#1060."""
    model = small_model()
    save_checkpoint(tmp_path / "c", model)
    other = small_model(seed=1, dropout=0.0, max_len=64)
    load_checkpoint(tmp_path / "c", other)
    assert plain(other.state_dict()) == plain(model.state_dict())
    with pytest.raises(ValueError, match="n_heads=4.*n_heads=2"):
        load_checkpoint(tmp_path / "c", small_model(n_heads=2))


@pytest.mark.parametrize("tied", [True, False])
def test_tied_against_untied_without_a_configuration(tmp_path, tied):
    """Two names for one matrix cannot become two matrices, nor the reverse."""

    def pair(tied):
        module = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
        if tied:
            module["b"].weight = module["a"].weight
        return module

    save_checkpoint(tmp_path / "c", pair(tied))
    model = pair(not tied)
    before = plain(model.state_dict())
    with pytest.raises(ValueError, match="tied"):
        load_checkpoint(tmp_path / "c", model)
    assert plain(model.state_dict()) == before
    load_checkpoint(tmp_path / "c", pair(tied))


def test_other_names_and_shapes_are_named(tmp_path):
    save_checkpoint(tmp_path / "c", nn.ModuleDict({"a": nn.Linear(2, 2)}))
    for module, match in (
        (nn.ModuleDict({"b": nn.Linear(2, 2)}), r"c lacks b\.bias, b\.weight"),
        (nn.ModuleDict({"a": nn.Linear(2, 2, bias=False)}), "the model's a.bias"),
        (nn.ModuleDict({"a": nn.Linear(3, 2)}), r"a\.weight.*\(2, 2\).*\(2, 3\)"),
    ):
        before = plain(module.state_dict())
        with pytest.raises(ValueError, match=match):
            load_checkpoint(tmp_path / "c", module)
        assert plain(module.state_dict()) == before


def test_another_optimiser_schedule_or_grouping_is_refused(tmp_path):
    path = saved(Run(), tmp_path / "c")
    refused(path, Run(kind=torch.optim.SGD), "optimizer is of Adam, the one given SGD")
    refused(path, Run(warmup=8), "warmup=4, not warmup=8")
    other = Run()
    other.schedule = torch.optim.lr_scheduler.ConstantLR(other.optimizer)
    refused(path, other, "schedule is of NoamSchedule, the one given ConstantLR")
    parameters = list(other.model.parameters())
    for groups in (
        [{"params": parameters[:5]}, {"params": parameters[5:]}],
        parameters[::-1],
        parameters[:-1],
    ):
        other = Run()
        other.optimizer = torch.optim.Adam(groups)
        with pytest.raises(ValueError, match="updates other parameters, or in another"):
            load_checkpoint(path, other.model, optimizer=other.optimizer)


def test_what_was_not_saved_is_named(tmp_path):
    run = Run()
    save_checkpoint(tmp_path / "c", run.model)
    for name, thing in run.parts.items():
        with pytest.raises(ValueError, match=f"was saved without {name}="):
            load_checkpoint(tmp_path / "c", run.model, **{name: thing})
    save_checkpoint(tmp_path / "d", run.model.state_dict())
    with pytest.raises(ValueError, match="saved without config="):
        load_checkpoint(tmp_path / "d")
    with pytest.raises(TypeError, match="optimizer needs the model"):
        load_checkpoint(tmp_path / "c", optimizer=run.optimizer)


def test_a_part_that_refuses_leaves_the_others_as_they_were(tmp_path):
    run = Run()
    run.train(3)
    path = saved(run, tmp_path / "c", step=3)
    other = Run(seed=1)
    other.batches = TokenBatches(pairs(), 30, generator=seeded(1), pool=10)
    refused(path, other, "max_tokens=24, not max_tokens=30")

    class Stubborn(TokenBatches):
        def load_state_dict(self, state_dict):
            super().load_state_dict(state_dict)
            if state_dict["done"] == run.batches.done:
                raise RuntimeError("not now")

    other.batches = Stubborn(pairs(), 24, generator=seeded(1), pool=10)
    next(iter(other.batches))
    refused(path, other, "not now", RuntimeError)


def test_a_model_without_numbers_is_refused(tmp_path):
    save_checkpoint(tmp_path / "c", small_model())
    with torch.device("meta"):
        empty = Transformer(small_config())
    with pytest.raises(ValueError, match="has no numbers"):
        save_checkpoint(tmp_path / "c", empty)
    with pytest.raises(ValueError, match="has no numbers"):
        load_checkpoint(tmp_path / "c", empty)


# --- the mean -------------------------------------------------------------------------


@pytest.mark.equation("eq-checkpoint-average")
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_of_checkpoints_by_hand(tmp_path, tied, dtype):
    models = [small_model(seed=s, tie_embeddings=tied, dtype=dtype) for s in range(3)]
    paths = [tmp_path / str(i) for i in range(3)]
    for path, model in zip(paths, models, strict=True):
        save_checkpoint(path, model)
    mean = average_checkpoints(paths)
    fresh = small_model(seed=9, tie_embeddings=tied, dtype=dtype)
    fresh.load_state_dict(mean)
    assert set(mean) == set(fresh.state_dict())
    for (name, weight), *others in zip(
        fresh.named_parameters(), *(m.parameters() for m in models), strict=True
    ):
        by_hand = sum(w.detach().double() for w in others) / 3
        assert weight.dtype == dtype, name
        assert torch.equal(weight, by_hand.to(dtype)), name
    assert mean["source_embedding.weight"].data_ptr() == mean[
        "target_embedding.weight"
    ].data_ptr() or not tied  # fmt: skip


def test_the_mean_of_one_is_itself_and_order_does_not_matter(tmp_path):
    for i in range(3):
        save_checkpoint(tmp_path / str(i), small_model(seed=i, dtype=torch.float32))
    paths = [tmp_path / str(i) for i in range(3)]
    assert plain(average_checkpoints(paths[:1])) == plain(
        small_model(seed=0, dtype=torch.float32).state_dict()
    )
    forth, back = average_checkpoints(paths), average_checkpoints(paths[::-1])
    for name, weight in forth.items():
        assert_same(weight, back[name], 1e-7)


def test_half_precision_is_summed_in_double(tmp_path):
    """A running sum in bfloat16 would lose all small changes."""
    for i, value in enumerate((256.0, 1.0, 1.0, 1.0)):
        module = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
        nn.init.constant_(module.weight, value)
        save_checkpoint(tmp_path / str(i), module)
    (mean,) = average_checkpoints([tmp_path / str(i) for i in range(4)]).values()
    assert mean.dtype == torch.bfloat16
    assert mean.item() == torch.tensor(259 / 4).to(torch.bfloat16).item()


def test_checkpoints_of_two_models_have_no_mean(tmp_path):
    save_checkpoint(tmp_path / "a", small_model())
    for changes, match in (
        ({"n_heads": 2}, "n_heads=4.*n_heads=2"),
        ({"d_ff": 32}, "d_ff=24.*d_ff=32"),
        ({"tie_embeddings": False}, "tie_embeddings"),
        ({"dtype": torch.float32}, "a and .*b are not of one model"),
    ):
        save_checkpoint(tmp_path / "b", small_model(**changes))
        with pytest.raises(ValueError, match=match):
            average_checkpoints([tmp_path / "a", tmp_path / "b"])
    model = small_model()
    nn.init.constant_(model.source_embedding.weight, math.inf)
    save_checkpoint(tmp_path / "b", model, check_finite=False)
    with pytest.raises(ValueError, match=r"b: source_embedding\.weight holds"):
        average_checkpoints([tmp_path / "a", tmp_path / "b"])
    for wrong, error in (([], ValueError), (str(tmp_path / "a"), TypeError)):
        with pytest.raises(error, match="paths"):
            average_checkpoints(wrong)


def test_wrapped_in_ddp_in_one_process(tmp_path):
    """Saved from inside a real wrapper, and loaded into one."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = small_model(dropout=0.0)
        wrapped = DistributedDataParallel(model)
        optimizer = torch.optim.Adam(wrapped.parameters())
        save_checkpoint(tmp_path / "c", wrapped, optimizer=optimizer)
        found = load_checkpoint(tmp_path / "c")
        assert found.config == model.config
        assert plain(found.model.state_dict()) == plain(model.state_dict())
        other = DistributedDataParallel(small_model(seed=1, dropout=0.0))
        load_checkpoint(
            tmp_path / "c", other, optimizer=torch.optim.Adam(other.parameters())
        )
        assert plain(other.module.state_dict()) == plain(model.state_dict())
    finally:
        torch.distributed.destroy_process_group()
