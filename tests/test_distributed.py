"""Two real processes against one: gloo on the CPU, the same global batches.

Each process reads the rows ``rank::2`` of every batch. The loss of an update, and with
it every weight, has to be what one process makes of the whole batch, however the tokens
are spread over the rows.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import padded, seeded, small_model

import aiayn
from aiayn.__main__ import main, make_accelerator
from aiayn.run_folder import Refused
from aiayn.training import read_checkpoint, train

LENGTHS = {  # of the sequences of a batch, row by row
    "even": (5, 5, 5, 5, 5, 5),
    "uneven rows": (3, 9, 1, 4, 7, 2, 6),
    "one process has nearly all tokens": (1, 12, 1, 12, 1, 12),
    "more rows in one process": (4, 3, 8),
}
CASES = [(name, accumulate) for name in LENGTHS for accumulate in (1, 3)]
UPDATES = 4


def batches(name: str, *, rank: int = 0, processes: int = 1):
    """Pairs (source, target) without end; a process gets its rows of each."""
    generator = seeded(7)
    while True:
        rows = [
            torch.randint(3, 11, (n,), generator=generator).tolist()
            for n in LENGTHS[name]
        ]
        source = padded([[*row, aiayn.EOS] for row in rows])
        target = padded([[aiayn.BOS, *row, aiayn.EOS] for row in rows])
        mine = slice(rank, None, processes)
        yield source[mine], target[mine]


def run(name: str, accumulate: int, accelerator=None):
    """Losses and weights of a short run in float64, on one process or on all."""
    model = small_model(seed=3, dropout=0.0).train()
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    schedule = aiayn.NoamSchedule(optimizer, 16, warmup=4)
    here = {}
    if accelerator is not None:
        here = {"rank": accelerator.process_index, "processes": 2}
        model, optimizer = accelerator.prepare(model, optimizer)
    losses = train(
        model,
        islice(batches(name, **here), UPDATES * accumulate - accumulate // 2),
        optimizer=optimizer,
        schedule=schedule,
        accumulate=accumulate,
        accelerator=accelerator,
    )
    plain = model if accelerator is None else accelerator.unwrap_model(model)
    return losses, {k: v.detach().clone() for k, v in plain.state_dict().items()}


def run_sharded(accelerator) -> dict | None:
    """The first case, with FSDP: each process holds a half of every parameter."""
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        return None

    model = small_model(seed=3, dropout=0.0).train()
    whole = sum(parameter.numel() for parameter in model.parameters())
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.modules():
        if isinstance(layer, aiayn.EncoderLayer | aiayn.DecoderLayer):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    losses = train(
        model,
        islice(batches("even", rank=accelerator.process_index, processes=2), UPDATES),
        optimizer=optimizer,
        schedule=aiayn.NoamSchedule(optimizer, 16, warmup=4),
        accelerator=accelerator,
    )
    held = {
        "parameters": list(model.parameters()),
        "gradients": [parameter.grad for parameter in model.parameters()],
        "moments": [
            state[name]
            for state in optimizer.state.values()
            for name in ("exp_avg", "exp_avg_sq")
        ],
    }
    shares = {
        name: sum(tensor.to_local().numel() for tensor in tensors) / whole
        for name, tensors in held.items()
    }
    return {"losses": losses, "shares": shares}


def worker(rank: int, port: int, folder: str) -> None:
    """What each of the two processes does: all cases, one after the other."""
    from accelerate import Accelerator

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    found = {case: run(*case, accelerator) for case in CASES}
    found["sharded"] = run_sharded(accelerator)
    torch.save(found, Path(folder) / f"{rank}.pt")
    accelerator.end_training()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory) -> tuple[dict, dict]:
    """What each process found, in all cases."""
    folder = tmp_path_factory.mktemp("two")
    torch.multiprocessing.spawn(worker, (free_port(), str(folder)), nprocs=2)
    return tuple(torch.load(folder / f"{rank}.pt") for rank in range(2))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}, {case[1]}")
def test_two_processes_train_as_one_does(two_processes, case):
    losses, weights = run(*case)
    assert len(losses) == UPDATES
    assert len(set(losses)) == UPDATES
    for found, theirs in (process[case] for process in two_processes):
        assert found == pytest.approx(losses, rel=0, abs=1e-10)
        for name, weight in weights.items():  # where a gradient is 0 but for rounding,
            # as for a key's bias, Adam with its ε of 1e-9 makes the rounding larger
            torch.testing.assert_close(theirs[name], weight, rtol=0, atol=1e-7)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}, {case[1]}")
def test_both_have_the_same_weights(two_processes, case):
    (losses, weights), (others, theirs) = (process[case] for process in two_processes)
    assert losses == others
    for name, weight in weights.items():
        assert torch.equal(weight, theirs[name]), name


def test_sharding_halves_what_a_process_holds(two_processes):
    """FSDP: parameters, gradients, both moments are split; the losses are the same."""
    if two_processes[0]["sharded"] is None:
        pytest.skip("torch before 2.6 has no torch.distributed.fsdp.fully_shard")
    losses, _ = run("even", 1)
    for found in (process["sharded"] for process in two_processes):
        assert found["losses"] == pytest.approx(losses, rel=0, abs=1e-10)
        assert found["shares"]["parameters"] == pytest.approx(0.5, abs=0.01)
        assert found["shares"]["gradients"] == pytest.approx(0.5, abs=0.01)
        assert found["shares"]["moments"] == pytest.approx(1.0, abs=0.01)  # of two


# --- the command line, under launchers ------------------------------------------------

COMMAND = (
    *("-m", "aiayn", "train", "copy", "--preset", "small", "--no-plot"),
    *("--no-progress", "--held-out", "20", "--device", "cpu"),
)
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
ACCELERATE = (
    *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
    *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
)


def launch(folder: Path, *options: str, launcher: tuple = (), code: int = 0) -> str:
    """Run the command in one process or under a launcher; what it said."""
    if launcher == TORCHRUN:
        launcher = (*TORCHRUN, "--master-port", str(free_port()))
    if launcher == ACCELERATE:
        launcher = (*ACCELERATE, "--main_process_port", str(free_port()))
    found, said = ended(*launcher, *COMMAND, "--output", str(folder), *options)
    assert found == code, said
    return said


def ended(*arguments: str, cwd: Path | None = None) -> tuple[int, str]:
    """Run Python with these arguments; its exit code and all that it said."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        said, _ = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.terminate()  # a launcher ends its processes; killed, it would not
        said = "took too long: " + process.communicate(timeout=60)[0]
    return process.returncode, said


def losses_of(folder: Path) -> list[float]:
    """One line for each update, whoever wrote it."""
    text = (folder / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return [line["loss"] for line in lines]


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return read_checkpoint(folder / "checkpoint.safetensors").state_dict()


@pytest.fixture(scope="module")
def one_process(tmp_path_factory) -> Path:
    """Ten updates in float64, in one process."""
    folder = tmp_path_factory.mktemp("one")
    launch(folder, "--precision", "float64", "--max-steps", "10")
    return folder


def test_the_command_in_two_processes_and_back(one_process, tmp_path):
    """Half of a run in two processes, the rest in one: as if it had been one all along.

    The first half under `accelerate launch`. Everything is written and said once.
    """
    start = ("--precision", "float64", "--max-steps", "5")
    said = launch(tmp_path, *start, launcher=ACCELERATE)
    assert said.count("training: 2 processes") == 1
    assert said.count("held-out sequences copied exactly") == 1
    assert len(list(tmp_path.iterdir())) == 4
    assert read_checkpoint(tmp_path / "checkpoint.safetensors").step == 5
    said = launch(tmp_path, "--resume", "--max-steps", "10")
    assert "continuing after update 5: cpu, one process" in said
    check_equal(one_process, tmp_path)


def test_the_command_in_one_process_and_then_in_two(one_process, tmp_path):
    """The reverse, under torchrun."""
    launch(tmp_path, "--precision", "float64", "--max-steps", "5")
    said = launch(tmp_path, "--resume", "--max-steps", "10", launcher=TORCHRUN)
    assert said.count("continuing after update 5: 2 processes") == 1
    check_equal(one_process, tmp_path)


def check_equal(one: Path, other: Path) -> None:
    assert losses_of(other) == pytest.approx(losses_of(one), rel=0, abs=1e-10)
    assert len(losses_of(other)) == 10
    for name, weight in weights_of(one).items():
        close = {"rtol": 0, "atol": 1e-6}
        torch.testing.assert_close(weights_of(other)[name], weight, **close)


def test_a_refusal_is_said_once_by_two_processes(one_process):
    before = (one_process / "metrics.jsonl").read_bytes()
    said = launch(one_process, launcher=TORCHRUN, code=1)
    assert said.count("already holds a run: continue it with --resume") == 1
    assert "__main__.py" not in said  # no process fell over it
    assert (one_process / "metrics.jsonl").read_bytes() == before


def test_a_folder_that_not_all_machines_see_is_refused(one_process, tmp_path):
    """Two machines with a disk each: only the first has the checkpoint."""
    for rank in "01":
        (tmp_path / rank).mkdir()
    shutil.copytree(one_process, tmp_path / "0" / "run")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys; os.chdir(os.environ['RANK']); sys.path.pop(0)\n"
        "from aiayn.__main__ import main; raise SystemExit(main())"
    )
    launcher = [*TORCHRUN, "--master-port", str(free_port()), str(script)]
    options = ["--output", "run", "--resume", "--max-steps", "11"]
    code, said = ended(*launcher, *COMMAND[2:], *options, cwd=tmp_path)
    assert code == 1, said
    assert said.count("a process does not see run") == 1
    assert not (tmp_path / "1" / "run").exists()
    assert len(losses_of(tmp_path / "0" / "run")) == 10


def test_a_launcher_gives_devices_and_says_the_precision(monkeypatch, tmp_path, capsys):
    """What cannot be meant is refused in each process, before they meet."""
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    command = [*COMMAND[2:], "--output", str(tmp_path / "run")]
    with pytest.raises(SystemExit):
        main([*command, "--device", "cuda:1"])
    assert "a launcher gives each process its own" in capsys.readouterr().err
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    with pytest.raises(SystemExit):
        main(command)
    assert "the launcher asks for fp16: expected bf16 or no" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_launcher_that_asks_for_shards_is_refused(monkeypatch):
    """A checkpoint of one process would hold its shards alone."""
    import accelerate

    sharded = SimpleNamespace(distributed_type=accelerate.DistributedType.FSDP)
    monkeypatch.setattr(accelerate, "Accelerator", lambda **settings: sharded)
    with pytest.raises(Refused, match="copies the model to each process, not FSDP"):
        make_accelerator("float32", cpu=True)


def test_bf16_is_close_to_float32_and_finite(tmp_path):
    """Products in bfloat16, weights and what adds up in float32."""
    steps = ("--max-steps", "20")
    launch(tmp_path / "float32", *steps)
    launch(tmp_path / "bf16", *steps, "--precision", "bf16")
    single, half = (losses_of(tmp_path / name) for name in ("float32", "bf16"))
    assert half != single
    assert half == pytest.approx(single, rel=0.02)
    assert half[-1] < half[0] - 0.5
    for name, weight in weights_of(tmp_path / "bf16").items():
        assert weight.dtype == torch.float32, name
        assert weight.isfinite().all(), name
