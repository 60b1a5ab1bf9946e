"""The command line: trains the book's models on one CPU, a GPU, or many machines.

    python -m aiayn train copy
    accelerate launch -m aiayn train copy

Hand-written. It settles what to run and where, and shows how it goes; the files are in
a :class:`~aiayn.run_folder.RunFolder`, and what trains is
:func:`aiayn.train_copy_model`, as in chapter 14.
"""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, NoReturn

from aiayn import __version__
from aiayn.run_folder import Refused, Reporter, RunFolder

__all__ = ["main"]

EXTRA = 'pip install "aiayn[train]"'

# Arguments of CopyTask, of TransformerConfig.toy or .base, and of train_copy_model;
# what is missing has the book's value.
PRESETS = {
    "book": {
        "about": "the model of chapter 14, up to 20 symbols, a minute on a CPU",
        "recipe": {"batch_size": 128, "max_steps": 1000},
    },
    "small": {
        "about": "one layer, one head, up to 10 symbols, a few seconds",
        "task": {"max_length": 10},
        "config": {"d_model": 32, "n_layers": 1, "n_heads": 1, "d_ff": 128},
        "recipe": {
            **{"batch_size": 64, "peak_rate": 3e-3, "warmup": 50, "max_steps": 400},
            **{"n_validation": 200, "validate_every": 10},
        },
    },
    "base": {
        "about": "the paper's base model and schedule, to try a GPU with; nobody "
        "has run it to its end",
        "make": "base",
        "recipe": {
            **{"batch_size": 128, "peak_rate": (512 * 4000) ** -0.5, "warmup": 4000},
            **{"beta2": 0.98, "max_steps": 20_000, "validate_every": 500},
        },
    },
}
DEFAULTS = {"preset": "book", "seed": 0, "precision": "float32", "held_out": 10_000}
MAY_CHANGE = {"max_steps", "held_out"}  # when a run is continued

EPILOG = """
examples:
  python -m aiayn train copy                       the model of chapter 14
  python -m aiayn train copy --preset small        seconds, to see it work
  python -m aiayn train copy --output runs/b --seed 1
  python -m aiayn train copy --output runs/b --resume
  accelerate launch -m aiayn train copy            as `accelerate config` was told
  accelerate launch --multi_gpu --num_processes 4 -m aiayn train copy --precision bf16
  torchrun --nproc-per-node 4 -m aiayn train copy --precision bf16
  torchrun --nproc-per-node 2 -m aiayn train copy --device cpu

files in the output folder, written by the first process alone:
  config.json             what was asked for, task, model and recipe
  checkpoint.safetensors  weights, optimiser, schedule, place in the data
  metrics.jsonl           for each update: step, loss, rate, tokens, seconds
  curve.svg               loss and validation, at the end
  result.json             held-out sequences copied exactly, at the end

exit codes: 0 done; 1 the training failed; 2 bad options, nothing was written;
130 stopped by Ctrl-C; under a launcher its own (torchrun's is 1 for any failure)
"""


class OneLineParser(argparse.ArgumentParser):
    """Complains in one line, and once however many processes there are."""

    def error(self, message: str) -> NoReturn:
        say(f"{self.prog}: error: {message} (see --help)")
        if not is_main():
            time.sleep(2)  # a launcher ends all with the first: let the main one speak
        raise SystemExit(2)


def is_main() -> bool:
    """Whether this is the only process, or the first of those a launcher started."""
    return os.environ.get("RANK", "0") == "0"


def launched() -> bool:
    """Whether torchrun or `accelerate launch` started this process."""
    return "RANK" in os.environ or "ACCELERATE_MIXED_PRECISION" in os.environ


def say(text: str) -> None:
    """Status for the person who waits; standard output has the result alone."""
    if is_main():
        print(text, file=sys.stderr, flush=True)


def whole_number(least: int, most: int = 10**9) -> Callable[[str], int]:
    """A type for options that count something."""

    def convert(text: str) -> int:
        if not text.isdecimal() or not least <= int(text[:20]) <= most:
            raise argparse.ArgumentTypeError(
                f"expected a whole number from {least} to {most:,}, got {text!r}"
            )
        return int(text)

    return convert


def make_parser() -> argparse.ArgumentParser:
    """The options of every command."""
    parser = OneLineParser(
        prog="python -m aiayn",
        description='Trains models of the book "Attention, Line by Line".',
    )
    parser.add_argument("--version", action="version", version=f"aiayn {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    train = commands.add_parser("train", help="train a model")
    copy = train.add_subparsers(metavar="TASK", required=True).add_parser(
        "copy",
        help="a Transformer that copies sequences (chapter 14)",
        description="Train a Transformer to copy sequences, and test it on others.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    copy.set_defaults(command=train_copy, parser=copy)
    presets = "; ".join(f"{name}: {each['about']}" for name, each in PRESETS.items())
    count = {"type": whole_number(1), "metavar": "N"}
    run, files = copy.add_argument_group("the run"), copy.add_argument_group("files")
    for group, option, settings, help in (
        (run, "--preset", {"choices": tuple(PRESETS)}, f"{presets} [book]"),
        (run, "--seed", {"type": whole_number(0), "metavar": "N"},
         "of weights, data and dropout [0]"),
        (run, "--max-steps", count, "most updates [of the preset]"),
        (run, "--batch-size", count,
         "sequences in an update, all processes together [of the preset]"),
        (run, "--precision", {"choices": ("float32", "bf16", "float64")},
         "bf16: matrix products in bfloat16, weights in float32; float64: to compare "
         "runs [float32, or what the launcher says]"),
        (run, "--device", {"metavar": "NAME"},
         "cpu, cuda, cuda:1, mps; under a launcher only cpu may be named "
         "[AIAYN_DEVICE, else the first of cuda, mps, cpu that is there]"),
        (run, "--held-out", {"type": whole_number(1, 10**6), "metavar": "N"},
         "sequences to test with at the end [10000]"),
        (files, "--output", {"metavar": "FOLDER", "default": "runs/copy"},
         "[runs/copy]; a run that is there is never overwritten"),
        (files, "--resume", {"action": "store_true"},
         "continue the run in that folder, once it has ended; begin it if there is none"),
        (files, "--save-every", count,
         "updates between checkpoints [one at each validation]"),
        (files, "--no-progress", {"action": "store_true"}, "no progress bar"),
        (files, "--no-plot", {"action": "store_true"}, "no curve.svg"),
    ):  # fmt: skip
        group.add_argument(option, help=help, **settings)
    return parser


# --- what this machine has ------------------------------------------------------------


def check_extra(options: argparse.Namespace, precision: str | None) -> None:
    """Refuse to begin what a missing package would stop later."""
    wanted = {
        "accelerate": (
            launched() or precision == "bf16",
            "several processes, and bf16,",
        ),
        "tqdm": (not options.no_progress, "the progress bar (see --no-progress)"),
        "matplotlib": (not options.no_plot, "the plot (see --no-plot)"),
    }
    for package, (needed, what) in wanted.items():
        if needed and find_spec(package) is None:
            raise Refused(f"{what} needs {package}: {EXTRA}")


def choose_device(name: str | None):
    """Where a single process computes; refused if torch cannot use it here."""
    import torch

    from aiayn.tokens import device

    try:
        chosen = device() if name is None else torch.device(name)
        torch.zeros(1, device=chosen).item()
    except (ValueError, RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise Refused(f"device {name or ''} cannot be used: {reason}") from None
    return chosen


def on_cpu(options: argparse.Namespace) -> bool:
    """Whether launched processes are to stay on the CPU."""
    name = options.device or os.environ.get("AIAYN_DEVICE")
    if name is not None and name != "cpu":
        raise Refused(
            f"device {name}: a launcher gives each process its own, only cpu can be "
            "asked for"
        )
    return name == "cpu"


def launcher_precision() -> str | None:
    """What `accelerate launch` was told about mixed precision."""
    name = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if name not in ("no", "bf16"):
        raise Refused(f"the launcher asks for {name}: expected bf16 or no")
    return "bf16" if name == "bf16" else None


def agree(decide: Callable[[], Any]) -> Any:
    """What the first process decides, or why it refuses, in every process."""
    outcome: list = [None, None]
    if is_main():
        try:
            outcome[0] = decide()
        except Refused as refusal:
            outcome[1] = str(refusal)
    if launched():
        from accelerate.utils import broadcast_object_list

        broadcast_object_list(outcome)  # nothing to do for one process
    if outcome[1] is not None:
        raise Refused(outcome[1])
    return outcome[0]


def make_accelerator(precision: str, cpu: bool):
    """What spreads the work over processes and halves the precision of products."""
    from accelerate import Accelerator

    accelerator = Accelerator(
        mixed_precision="bf16" if precision == "bf16" else "no", cpu=cpu
    )
    kind = accelerator.distributed_type.value
    if kind != "NO" and not kind.startswith("MULTI_"):
        raise Refused(f"this command copies the model to each process, not {kind}")
    return accelerator


def check_shared(accelerator, folder: RunFolder, step: int) -> None:
    """Refuse to go on from a checkpoint that some machine does not see."""
    if accelerator is None or step == 0:
        return
    from accelerate.utils import gather_object

    if not all(gather_object([folder.checkpoint.exists()])):
        raise Refused(
            f"a process does not see {folder.checkpoint}: all machines have to share "
            "the output folder"
        )


# --- the command ----------------------------------------------------------------------


def build(settings: dict) -> tuple:
    """Task, configuration and recipe of a run."""
    from aiayn.copy_task import CopyTask
    from aiayn.transformer import TransformerConfig

    preset = PRESETS[settings["preset"]]
    task = CopyTask(**preset.get("task", {}))
    make = getattr(TransformerConfig, preset.get("make", "toy"))
    config = make(task.vocab_size, **preset.get("config", {}))
    given = {name: settings[name] for name in ("seed", "batch_size", "max_steps")}
    return task, config, preset["recipe"] | given


def settle(options: argparse.Namespace, folder: RunFolder) -> tuple[dict, int]:
    """The settings of the run, and the update from which it goes on."""
    names = ("preset", "seed", "max_steps", "batch_size", "precision", "held_out")
    asked = {name: getattr(options, name) for name in names}
    recipe = PRESETS[options.preset or DEFAULTS["preset"]]["recipe"]
    defaults = DEFAULTS | {name: recipe[name] for name in ("max_steps", "batch_size")}
    settings = folder.settle(asked, defaults, resume=options.resume, free=MAY_CHANGE)
    if settings.keys() != defaults.keys() or settings["preset"] not in PRESETS:
        raise Refused(f"{folder.settings} is not one of this version's")
    return settings, folder.saved_step()


@contextmanager
def default_dtype(precision: str) -> Iterator[None]:
    """Weights are made in float64 for the time of a run in that precision."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if precision == "float64" else torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def train_copy(options: argparse.Namespace) -> int:
    """`python -m aiayn train copy`: the exit code."""
    folder = RunFolder(options.output)
    options.precision = options.precision or launcher_precision()
    check_extra(options, options.precision)
    if launched():
        from accelerate import PartialState

        PartialState(cpu=(cpu := on_cpu(options)))  # the processes meet
        device = None
    else:
        device = choose_device(options.device)
        cpu = device.type == "cpu"
        os.environ["ACCELERATE_TORCH_DEVICE"] = str(device)
    settings, step = agree(lambda: settle(options, folder))
    check_extra(options, settings["precision"])  # of a run that is continued
    accelerator = None
    if launched() or settings["precision"] == "bf16":
        accelerator = make_accelerator(settings["precision"], cpu)
        check_shared(accelerator, folder, step)
    with default_dtype(settings["precision"]):
        return run_copy(options, folder, settings, step, device, accelerator)


def process_seed(seed: int, rank: int, step: int) -> int:
    """A seed for dropout, another in each process and wherever a run is continued.

    Of 32 bits, all that a CPU's generator looks at.
    """
    from numpy.random import SeedSequence

    return int(SeedSequence([seed, rank, step]).generate_state(1)[0])


def run_copy(options, folder, settings: dict, step: int, device, accelerator) -> int:
    """Train, test, and write down what came of it."""
    import torch

    from aiayn.copy_task import train_copy_model

    task, config, recipe = build(settings)
    if options.save_every is not None:
        recipe["save_every"] = options.save_every
    rank = int(os.environ.get("RANK", "0"))
    # for the first process a checkpoint brings the generator itself
    torch.manual_seed(process_seed(settings["seed"], rank, step))
    report = None
    if is_main():
        where = device if accelerator is None else accelerator.device
        n = 1 if accelerator is None else accelerator.num_processes
        here = (
            f"{where}, one process" if n == 1 else f"{n} processes, this one on {where}"
        )
        begin = f"continuing after update {step}" if step else "training"
        say(f"{begin}: {here}; files in {folder.path}")
        folder.prepare(settings, task=task, config=config, recipe=recipe)
        report = Reporter(
            folder, step=step, most=recipe["max_steps"], bar=not options.no_progress
        )
    try:
        run = train_copy_model(
            task, config, **recipe, device=None if accelerator else device,
            accelerator=accelerator, checkpoint=folder.checkpoint, after_step=report,
        )  # fmt: skip
    except KeyboardInterrupt:
        again = shlex.join(["--output", str(folder.path), "--resume"])
        saved = folder.saved_step()
        kept = (
            f"the checkpoint of update {saved} is kept"
            if saved
            else "nothing saved yet"
        )
        say(f"\nstopped; {kept}. To go on: {options.parser.prog} {again}")
        return 130
    finally:
        if report is not None:
            report.close()
    if is_main():
        finish(options, folder, settings, task, run)
    if accelerator is not None:
        accelerator.wait_for_everyone()
        accelerator.end_training()
    return 0


def finish(options, folder, settings: dict, task, run) -> None:
    """Test on sequences that were never trained on, and draw the curve."""
    from aiayn.copy_task import exact_match, held_out_set

    say(f"testing on {settings['held_out']:,} held-out sequences")
    right = exact_match(run.model, task, held_out_set(task, settings["held_out"]))
    if not options.no_plot:
        folder.draw_curve()
    folder.write_json(
        folder.result,
        {
            "updates": len(run.losses),
            "validation_perfect": run.finished,
            "held_out": len(right),
            "copied_exactly": int(right.sum()),
            "accuracy": right.double().mean().item(),
            "seconds": round(sum(line["seconds"] for line in folder.lines()), 3),
        },
    )
    print(
        f"{len(run.losses)} updates; {int(right.sum()):,} of {len(right):,} held-out "
        f"sequences copied exactly ({right.double().mean():.2%}); all in {folder.path}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code.

    Args:
        arguments: as on the command line, which they are taken from unless given.
    """
    options = make_parser().parse_args(arguments)
    try:
        return options.command(options)
    except Refused as refusal:
        options.parser.error(str(refusal))
    except (FloatingPointError, OSError, ValueError) as error:
        who = "" if is_main() else f" in process {os.environ['RANK']}"
        print(f"{options.parser.prog}: failed{who}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
