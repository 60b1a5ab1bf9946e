"""``python -m aiayn train copy``: what it writes, what it refuses, how it goes on."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

from aiayn.__main__ import DEFAULTS, PRESETS, build, main, process_seed
from aiayn.run_folder import Refused, RunFolder
from aiayn.training import noam_rate, read_checkpoint

SHORT = ("train", "copy", "--preset", "small", "--device", "cpu")
SHORT = (*SHORT, "--no-progress", "--no-plot", "--held-out", "20")
FILES = {"checkpoint.safetensors", "config.json", "metrics.jsonl", "result.json"}


def command(*arguments: str, cwd: Path, **popen) -> subprocess.Popen:
    """The command as a user starts it, from a folder that is not the checkout."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.Popen(
        [sys.executable, "-W", "error::UserWarning", "-m", "aiayn", *arguments],
        cwd=cwd,
        env=environment | popen.pop("env", {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **popen,
    )


def lines(folder: Path) -> list[dict]:
    return [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """An empty folder to be in; no launcher's variables."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu")  # which main sets as well
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, str, str]:
    """The small preset, trained to its end as a user would: folder, output, errors."""
    cwd = tmp_path_factory.mktemp("elsewhere")
    process = command("train", "copy", "--preset", "small", "--device", "cpu", cwd=cwd)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return cwd / "runs" / "copy", out, err


# --- a run to its end -----------------------------------------------------------------


def test_the_small_preset_learns_to_copy_in_seconds(trained):
    folder, out, _ = trained
    result = json.loads((folder / "result.json").read_text())
    assert result["validation_perfect"]
    assert result["held_out"] == 10_000
    assert result["accuracy"] == result["copied_exactly"] / 10_000 >= 0.999
    assert result["updates"] <= 250
    expected = f"{result['copied_exactly']:,} of 10,000 held-out sequences"
    assert expected in out
    assert len(out.splitlines()) == 1


def test_only_finished_files_are_left(trained):
    folder, _, _ = trained
    assert names(folder) == FILES | {"curve.svg"}


def test_the_progress_bar_shows_rate_and_time_left(trained):
    _, _, err = trained
    last = err.split("\r")[-1]
    assert " updates/s" in last
    assert "/400 [" in last  # done, of how many, [elapsed<left
    assert "loss=" in last
    assert "100.0% copied" in last


def test_metrics_are_one_line_for_each_update(trained):
    folder, _, _ = trained
    found = lines(folder)
    result = json.loads((folder / "result.json").read_text())
    assert [line["step"] for line in found] == list(range(1, result["updates"] + 1))
    saved = read_checkpoint(folder / "checkpoint.safetensors")
    assert saved.step == len(found)
    assert [line["loss"] for line in found] == saved.extra["losses"]
    factor = 3e-3 * (32 * 50) ** 0.5
    for line in found:
        assert line["rate"] == pytest.approx(noam_rate(line["step"], 32, 50, factor))
        assert 64 * 2 <= line["tokens"] <= 64 * 11  # one to ten symbols, and EOS
        assert line["seconds"] > 0
    checked = {x["step"]: x["validation"] for x in found if "validation" in x}
    assert list(checked) == list(range(10, len(found) + 1, 10))
    assert [checked[step] for step in list(checked)[-3:]] == [1.0] * 3
    assert result["seconds"] == pytest.approx(
        sum(x["seconds"] for x in found), abs=1e-2
    )


def test_the_curve_is_a_picture_with_both_axes_named(trained):
    folder, _, _ = trained
    text = (folder / "curve.svg").read_text("utf8")
    ElementTree.fromstring(text)
    for label in ("update", "loss (nats a token)", "copied exactly (%)"):
        assert label in text
    assert "dc:date" not in text


def test_the_curve_is_the_same_when_drawn_again(trained, tmp_path):
    folder, _, _ = trained
    copy = RunFolder(tmp_path)
    copy.metrics.write_bytes((folder / "metrics.jsonl").read_bytes())
    copy.draw_curve()
    assert copy.curve.read_bytes() == (folder / "curve.svg").read_bytes()


def test_the_settings_say_how_to_make_the_run_again(trained):
    folder, _, _ = trained
    stored = json.loads((folder / "config.json").read_text())
    assert stored["settings"]["preset"] == "small"
    task, config, recipe = build(stored["settings"])
    assert stored["task"] == vars(task)
    assert stored["config"] == vars(config)
    assert stored["recipe"] == recipe


def test_a_finished_run_is_not_trained_again(trained):
    folder, _, _ = trained
    before = (folder / "checkpoint.safetensors").read_bytes()
    told = lines(folder)
    arguments = ("train", "copy", "--device", "cpu", "--resume", "--no-progress")
    process = command(*arguments, "--no-plot", cwd=folder.parents[1])
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert (folder / "checkpoint.safetensors").read_bytes() == before
    assert lines(folder) == told


# --- going on -------------------------------------------------------------------------


def test_a_continued_run_equals_the_uninterrupted_one(here):
    whole = ("--max-steps", "12", "--output", "whole")
    assert main([*SHORT, *whole]) == 0
    assert main([*SHORT, "--max-steps", "5", "--output", "parts"]) == 0
    assert lines(here / "parts")[-1]["step"] == 5
    arguments = ["train", "copy", "--device", "cpu", "--no-progress", "--no-plot"]
    assert main([*arguments, "--max-steps", "12", "--output", "parts", "--resume"]) == 0
    strip = [{**x, "seconds": 0} for x in lines(here / "whole")]
    assert [{**x, "seconds": 0} for x in lines(here / "parts")] == strip
    one, two = (
        read_checkpoint(here / name / "checkpoint.safetensors")
        for name in ("whole", "parts")
    )
    assert one.step == two.step == 12
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, two.state_dict()[name]), name


def test_metrics_after_the_checkpoint_are_dropped(here):
    """A run that was killed had told of updates that its checkpoint does not hold."""
    arguments = [*SHORT, "--save-every", "4", "--output", "run"]
    assert main([*arguments, "--max-steps", "4"]) == 0
    told = lines(here / "run")
    with (here / "run" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**told[-1], "step": 5}) + '\n{"step": 6, "lo')
    assert main([*arguments, "--max-steps", "7", "--resume"]) == 0
    found = lines(here / "run")
    assert [line["step"] for line in found] == list(range(1, 8))
    assert found[:4] == told


def test_resume_begins_where_there_is_nothing(here):
    assert main([*SHORT, "--max-steps", "1", "--output", "deep/er", "--resume"]) == 0
    assert names(here / "deep" / "er") == FILES


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGINT")
def test_ctrl_c_keeps_the_checkpoint_and_says_how_to_go_on(here):
    arguments = (*SHORT, "--save-every", "1", "--output", "my run")
    process = command(*arguments, cwd=here)
    checkpoint = here / "my run" / "checkpoint.safetensors"
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    step = read_checkpoint(checkpoint).step
    last = err.splitlines()[-1]
    assert last == (
        f"stopped; the checkpoint of update {step} is kept. To go on: "
        "python -m aiayn train copy --output 'my run' --resume"
    )
    assert "Traceback" not in err
    again = [*SHORT[:2], *SHORT[4:], "--output", "my run", "--resume"]
    assert main([*again, "--max-steps", str(step + 1)]) == 0
    assert read_checkpoint(checkpoint).step == step + 1


# --- refusals -------------------------------------------------------------------------

BAD_OPTIONS = {
    "no command": ([], "the following arguments are required: COMMAND"),
    "no task": (["train"], "the following arguments are required: TASK"),
    "unknown task": (["train", "sort"], "invalid choice: 'sort'"),
    "unknown option": ([*SHORT, "--depth", "3"], "unrecognized arguments: --depth 3"),
    "preset": ([*SHORT, "--preset", "huge"], "invalid choice: 'huge'"),
    "size": ([*SHORT, "--batch-size", "0"], "from 1 to 1,000,000,000, got '0'"),
    "negative": ([*SHORT, "--max-steps", "-1"], "--max-steps"),
    "no number": ([*SHORT, "--seed", "1.5"], "from 0 to 1,000,000,000, got '1.5'"),
    "too many": ([*SHORT, "--held-out", "9" * 30], "from 1 to 1,000,000, got"),
    "precision": ([*SHORT, "--precision", "fp16"], "invalid choice: 'fp16'"),
    "device": ([*SHORT, "--device", "gpu"], "device gpu cannot be used"),
    "missing device": ([*SHORT, "--device", "meta"], "device meta cannot be used"),
    "a file": ([*SHORT, "--output", "file"], "file is a file, expected a folder"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_options_are_one_line_and_nothing_is_written(here, capsys, case):
    arguments, message = BAD_OPTIONS[case]
    (here / "file").write_text("")
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert message in err
    assert err.startswith("python -m aiayn")
    assert names(here) == {"file"}


@pytest.fixture
def a_run(here) -> Path:
    """Two updates of the small preset, in the folder "run"."""
    assert main([*SHORT, "--max-steps", "2", "--output", "run"]) == 0
    return here / "run"


def refusal(capsys, *arguments: str) -> str:
    """The one line with which a command is refused."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main([*SHORT, "--output", "run", *arguments])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1, err
    return err


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_run_is_never_overwritten(a_run, capsys):
    before = content(a_run)
    assert "run already holds a run: continue it with --resume" in refusal(capsys)
    assert content(a_run) == before


@pytest.mark.parametrize(
    ("option", "value", "has"),
    [
        ("--seed", "1", "0"),
        ("--batch-size", "32", "64"),
        ("--precision", "float64", "float32"),
    ],
)
def test_a_run_is_not_continued_with_other_settings(a_run, capsys, option, value, has):
    before = content(a_run)
    err = refusal(capsys, "--resume", option, value)
    assert f"{option} is {value}, but the run in run has {has}" in err
    assert content(a_run) == before


def test_a_damaged_checkpoint_is_refused_and_kept(a_run, capsys):
    """Not begun anew over it: somebody may want to look at what is left."""
    checkpoint = a_run / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    before = content(a_run)
    assert "cannot continue: run" in refusal(capsys, "--resume")
    assert content(a_run) == before


def test_files_without_settings_are_refused(a_run, capsys):
    (a_run / "config.json").unlink()
    before = content(a_run)
    assert "but no config.json" in refusal(capsys, "--resume")
    (a_run / "config.json").write_text("[]")
    assert "config.json cannot be read" in refusal(capsys, "--resume")
    (a_run / "config.json").write_text('{"settings": {"preset": "small"}}')
    assert "is not one of this version's" in refusal(capsys, "--resume")
    (a_run / "config.json").unlink()
    assert content(a_run) == before


def test_a_checkpoint_of_another_recipe_is_refused(a_run, capsys):
    """The settings were edited: the checkpoint itself knows what it was made with."""
    path = a_run / "config.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 7'))
    names = ("checkpoint.safetensors", "config.json", "result.json")
    before = [(a_run / name).read_bytes() for name in names]
    assert main([*SHORT, "--output", "run", "--resume"]) == 1
    err = capsys.readouterr().err
    assert "failed: run" in err
    assert "seed=0, expected 7" in err
    assert "Traceback" not in err
    assert [(a_run / name).read_bytes() for name in names] == before


def test_dropout_has_another_seed_in_each_process_and_continuation():
    """A CPU's generator looks at 32 bits: seeds that differ above them are the same."""
    given = itertools.product((0, 1, 10**9), range(8), (0, 50))
    seeds = [process_seed(seed, rank, step) for seed, rank, step in given]
    assert all(0 <= seed < 2**32 for seed in seeds)
    drawn = {torch.rand(3, generator=torch.Generator().manual_seed(s)) for s in seeds}
    assert len({tuple(x.tolist()) for x in drawn}) == len(seeds)


@pytest.mark.parametrize(
    ("package", "options", "what"),
    [
        ("tqdm", ["--no-plot"], "the progress bar (see --no-progress) needs tqdm"),
        ("matplotlib", ["--no-progress"], "the plot (see --no-plot) needs matplotlib"),
        (
            "accelerate",
            ["--no-plot", "--no-progress", "--precision", "bf16"],
            "several processes, and bf16, needs accelerate",
        ),
    ],
)
def test_a_missing_package_is_named_before_anything_is_written(
    here, capsys, monkeypatch, package, options, what
):
    find = "aiayn.__main__.find_spec"
    monkeypatch.setattr(find, lambda name: None if name == package else object())
    with pytest.raises(SystemExit) as stop:
        main(["train", "copy", "--device", "cpu", *options])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert what.replace("needs", "need") in err.replace("needs", "need")
    assert 'pip install "aiayn[train]"' in err
    assert names(here) == set()


def test_without_the_extra_the_plain_loop_runs(here):
    """In a fresh process: none of the three packages is even looked at."""
    arguments = [*SHORT, "--max-steps", "2"]
    code = (
        "import sys; sys.modules.update(accelerate=None, tqdm=None, matplotlib=None); "
        f"from aiayn.__main__ import main; sys.exit(main({arguments}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=here, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert names(here / "runs" / "copy") == FILES


def test_a_loss_that_is_no_number_ends_the_run_in_one_line(here, capsys, monkeypatch):
    monkeypatch.setitem(PRESETS["small"]["recipe"], "peak_rate", 1e30)
    assert main([*SHORT, "--save-every", "1", "--output", "run"]) == 1
    err = capsys.readouterr().err
    assert "failed: the " in err
    assert "lower the learning rate" in err
    assert "Traceback" not in err
    assert read_checkpoint(here / "run" / "checkpoint.safetensors").step >= 1


# --- the parts ------------------------------------------------------------------------


def test_help_shows_presets_files_and_examples(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "copy", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for expected in (*PRESETS, "metrics.jsonl", "accelerate launch", "torchrun", "130"):
        assert expected in text
    assert max(map(len, text.splitlines())) <= 88


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_fit_their_task(preset):
    recipe = PRESETS[preset]["recipe"]
    settings = {
        **DEFAULTS,
        "preset": preset,
        "batch_size": 5,
        "max_steps": 7,
        "seed": 3,
    }
    task, config, found = build(settings)
    assert config.source_vocab_size == task.vocab_size
    assert found == {**recipe, "batch_size": 5, "max_steps": 7, "seed": 3}
    if preset == "base":
        assert (config.d_model, config.n_layers, config.dropout) == (512, 6, 0.1)
        assert found["peak_rate"] == pytest.approx(noam_rate(4000, 512))


def test_float64_leaves_no_trace(here):
    assert main([*SHORT, "--precision", "float64", "--max-steps", "1"]) == 0
    assert torch.get_default_dtype() == torch.float32
    weights = read_checkpoint(here / "runs" / "copy" / "checkpoint.safetensors").weights
    assert {weight.dtype for weight in weights.values()} == {torch.float64}


def test_settle_prefers_the_command_line_where_it_may(tmp_path):
    folder = RunFolder(tmp_path)
    defaults = {"seed": 0, "max_steps": 10}
    new = {"seed": 3, "max_steps": None}
    free = {"max_steps"}
    assert folder.settle(new, defaults, resume=False, free=free) == {
        "seed": 3,
        "max_steps": 10,
    }
    folder.settings.write_text('{"settings": {"seed": 3, "max_steps": 10}}')
    more = {"seed": None, "max_steps": 20}
    assert folder.settle(more, defaults, resume=True, free=free)["max_steps"] == 20
    assert folder.settle(more, defaults, resume=True, free=free)["seed"] == 3
    with pytest.raises(Refused, match="--seed is 4, but the run in .* has 3"):
        folder.settle({"seed": 4}, defaults, resume=True, free=free)
