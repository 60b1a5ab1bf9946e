"""The page on many machines: its blocks run, and its tables are what they compute."""

import json
import os
import re
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from helpers import small_config

from aiayn import Transformer, label_smoothed_loss
from aiayn.__main__ import EPILOG, make_parser

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "book" / "beyond_one_machine.md").read_text("utf8")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
TABLE = re.compile(r"(?:^\|.*\|\n)+", re.M)


def rows(text: str) -> list[list[str]]:
    """The body of a Markdown table."""
    lines = text.strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@cache
def executed() -> tuple[dict, list[tuple[list, str]]]:
    """The blocks run in order: what they define, and each `table` with its place."""
    namespace: dict = {"__name__": "beyond_one_machine"}
    tables = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for match in BLOCK.finditer(PAGE):
            line = PAGE[: match.start()].count("\n") + 1
            source = "\n" * line + match[1]
            exec(compile(source, "beyond_one_machine.md", "exec"), namespace)
            if "table" in namespace:
                found = TABLE.search(PAGE, match.end())
                tables.append((namespace.pop("table"), found[0]))
    return namespace, tables


def test_every_table_is_what_its_block_computes():
    _, tables = executed()
    assert len(tables) == 4
    for computed, text in tables:
        assert rows(text) == computed


def test_every_block_of_the_page_ran():
    assert len(BLOCK.findall(PAGE)) == PAGE.count("```python") >= 8


@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_the_ring_adds_up_whatever_its_size(p):
    page, _ = executed()
    parts = [torch.randn(8 * p, dtype=torch.float64) for _ in range(p)]
    held, sent = page["ring"](parts)
    for each in held:
        torch.testing.assert_close(each, torch.stack(parts).sum(0))
    assert sent == [2 * (p - 1) * 8] * p
    assert page["bytes_sent"](8 * p, p) == pytest.approx(4 * sent[0])


def test_what_is_kept_on_meta_is_kept_on_the_cpu():
    """Numbers of a small model that really ran, with torch's own kernel."""
    page, _ = executed()
    config = small_config(dropout=0.1)
    model = Transformer(config).train()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    source, kept = torch.full((4, 12), 3), {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        label_smoothed_loss(model(source, source), source)
    real = sum(storage.nbytes() for storage in kept.values()) / source.numel()
    assert page["kept_bytes"](config, 4, 12) == pytest.approx(real, rel=0.03)


def commands() -> list[str]:
    """Every command line of the page, the help and the README that trains."""
    texts = (PAGE, EPILOG, (ROOT / "README.md").read_text("utf8"))
    joined = "\n".join(texts).replace("\\\n", " ")
    found = set(re.findall(r"-m aiayn (train copy[^`\n|]*)", joined))
    return sorted(x for x in found if "--help" not in x)


def test_the_commands_of_the_page_are_understood():
    found = commands()
    assert len(found) >= 8
    for command in found:
        arguments = re.split(r" {2,}", command)[0].split()
        assert make_parser().parse_args(arguments).output


SHORT = (
    *("-m", "aiayn", "train", "copy", "--preset", "small", "--max-steps", "2"),
    *("--held-out", "20", "--no-plot", "--no-progress", "--device", "cpu"),
)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def two_launchers(output: Path, *launchers: list[str]) -> dict:
    """Run both to their end; the settings of the run."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", *launcher, *SHORT, "--output", str(output)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for launcher in launchers
    ]
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert sum(text.count("training: 2 processes") for text in said) == 1
    assert len((output / "metrics.jsonl").read_text().splitlines()) == 2
    return json.loads((output / "config.json").read_text())["settings"]


@pytest.mark.skipif(sys.platform != "linux", reason="names of hosts are resolved so")
def test_two_launchers_of_torch_meet(tmp_path):
    """As on two machines, with the options of the page."""
    (options,) = re.findall(r"^torchrun (--nnodes.*?)-m aiayn", PAGE, re.M | re.S)
    options = options.replace("\\", " ").replace("nproc-per-node 4", "nproc-per-node 1")
    options = options.replace("node0:29500", f"localhost:{free_port()}").split()
    launcher = ["torch.distributed.run", *options]
    two_launchers(tmp_path / "run", launcher, launcher)


@pytest.mark.skipif(sys.platform != "linux", reason="names of hosts are resolved so")
def test_two_launchers_of_accelerate_meet(tmp_path):
    """With the page's file, but for the address, the GPUs and the port."""
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)
    settings = yaml.safe_load(text)
    assert settings["num_processes"] == 8
    settings |= {"num_processes": 2, "main_process_ip": "127.0.0.1"}
    settings["main_process_port"] = free_port()
    file = tmp_path / "two_nodes.yaml"
    file.write_text(yaml.safe_dump(settings))
    common = ["accelerate.commands.launch", "--config_file", str(file)]
    found = two_launchers(
        tmp_path / "run",
        [*common, "--machine_rank", "0"],
        [*common, "--machine_rank", "1"],
    )
    assert found["precision"] == "bf16"
