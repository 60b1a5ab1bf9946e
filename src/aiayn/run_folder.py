"""The folder of a training run: settings, checkpoint, metrics, curve and result.

Hand-written, for ``python -m aiayn train``. Every file except the metrics, which grow
line by line, appears whole or not at all: it is written under another name, then
renamed.
"""

import dataclasses
import json
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

__all__ = ["Refused", "Reporter", "RunFolder"]


class Refused(Exception):
    """Says in one line why nothing was done."""


def write_text(path: Path, text: str) -> None:
    """Write a whole file, or leave the old one."""
    from aiayn.training import write_whole

    write_whole(path, lambda file: file.write_text(text, encoding="utf8"))


class RunFolder:
    """Where a run keeps what it has; nothing is written before :meth:`prepare`.

    Args:
        path: a folder that may not exist yet.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.settings = self.path / "config.json"
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.metrics = self.path / "metrics.jsonl"
        self.curve = self.path / "curve.svg"
        self.result = self.path / "result.json"

    def stored_settings(self) -> dict | None:
        """What the run in this folder was asked for; None where there is no run.

        Raises:
            Refused: if there are files of a run but no readable settings.
        """
        if not self.settings.exists():
            rest = (self.checkpoint, self.metrics, self.curve, self.result)
            if there := [file.name for file in rest if file.exists()]:
                raise Refused(
                    f"{self.path} holds {there[0]} but no {self.settings.name}: it is "
                    "not a run that this command can continue"
                )
            return None
        try:
            return dict(json.loads(self.settings.read_text("utf8"))["settings"])
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise Refused(f"{self.settings} cannot be read: {error!r}") from None

    def settle(self, asked: dict, defaults: dict, *, resume: bool, free: set) -> dict:
        """The settings of this run: those of the folder, if it continues one.

        Args:
            asked: what the command line says; None where it says nothing.
            defaults: for what it does not say, in a new run.
            resume: whether a run in the folder may be continued.
            free: names of settings that may change from one start to the next.

        Raises:
            Refused: if there is a run and none may be continued, or one with other
                settings than were asked for.
        """
        if self.path.exists() and not self.path.is_dir():
            raise Refused(f"{self.path} is a file, expected a folder")
        given = {name: value for name, value in asked.items() if value is not None}
        stored = self.stored_settings()
        if stored is None:
            return defaults | given
        if not resume:
            raise Refused(
                f"{self.path} already holds a run: continue it with --resume, or name "
                "another folder with --output"
            )
        for name, value in given.items():
            if name not in free and stored.get(name) != value:
                raise Refused(
                    f"--{name.replace('_', '-')} is {value}, but the run in "
                    f"{self.path} has {stored.get(name)}"
                )
        return stored | given

    def saved_step(self) -> int:
        """The last update that the checkpoint holds; 0 where there is none.

        Raises:
            Refused: if the checkpoint is damaged or another program's.
        """
        if not self.checkpoint.exists():
            return 0
        from aiayn.training import read_checkpoint

        try:
            return read_checkpoint(self.checkpoint).step
        except (OSError, TypeError, ValueError) as error:
            raise Refused(f"cannot continue: {error}") from None

    def prepare(self, settings: dict, *, task, config, recipe: dict) -> None:
        """Make the folder, and write down what the run was asked for."""
        from aiayn import __version__

        self.path.mkdir(parents=True, exist_ok=True)
        content = {
            "settings": settings,
            "task": dataclasses.asdict(task),
            "config": dataclasses.asdict(config),
            "recipe": recipe,
            "aiayn": __version__,
        }
        if self.stored_settings() != settings:
            self.write_json(self.settings, content)

    def write_json(self, path: Path, content: dict) -> None:
        """Write a whole file, or leave the old one."""
        write_text(path, json.dumps(content, indent=2) + "\n")

    def lines(self) -> Iterator[dict]:
        """The metrics, update by update; a last line that was cut off is left out."""
        if not self.metrics.exists():
            return
        for line in self.metrics.read_text("utf8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                return

    def forget_after(self, step: int) -> None:
        """Drop the metrics of updates that the checkpoint does not have."""
        kept = [line for line in self.lines() if line["step"] <= step]
        write_text(self.metrics, "".join(json.dumps(x) + "\n" for x in kept))

    def draw_curve(self) -> None:
        """Plot loss and validation against the number of updates, as SVG."""
        import matplotlib
        from matplotlib.figure import Figure

        from aiayn.book import style
        from aiayn.training import write_whole

        lines = list(self.lines())
        checked = [line for line in lines if "validation" in line]
        with matplotlib.rc_context():
            style.use()
            figure = Figure(figsize=(5.8, 4.4))
            loss, right = figure.subplots(2, sharex=True)
            steps, losses = [x["step"] for x in lines], [x["loss"] for x in lines]
            loss.plot(steps, losses, color=style.COLORS["query"])
            loss.set(ylabel="loss (nats a token)", ylim=(0, None))
            steps = [x["step"] for x in checked]
            shares = [100 * x["validation"] for x in checked]
            right.plot(steps, shares, marker="o", color=style.COLORS["value"])
            right.set(xlabel="update", ylabel="copied exactly (%)", ylim=(-5, 105))
            nothing = {"Date": None, "Creator": None}  # that would differ next time
            draw = partial(figure.savefig, format="svg", metadata=nothing)
            write_whole(self.curve, draw)


class Reporter:
    """Writes the metrics of each update, and moves the progress bar.

    Args:
        folder: whose metrics grow; those after ``step`` are dropped.
        step: the last update of the checkpoint.
        most: where the bar ends.
        bar: whether there is one.
    """

    def __init__(self, folder: RunFolder, *, step: int, most: int, bar: bool):
        folder.forget_after(step)
        self.folder = folder
        self.file = folder.metrics.open("a", encoding="utf8")
        self.bar = None
        if bar:
            from tqdm.auto import tqdm

            self.bar = tqdm(total=most, initial=step, unit=" updates")
        self.before = time.perf_counter()

    def __call__(self, update) -> None:
        self.folder.result.unlink(missing_ok=True)  # of a shorter run
        now = time.perf_counter()
        line = {
            "step": update.step,
            "loss": update.loss,
            "rate": update.rate,
            "tokens": update.tokens,
            "seconds": round(now - self.before, 6),
        }
        if update.validation is not None:
            line["validation"] = update.validation
        self.before = now
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()
        if self.bar is not None:
            self.bar.set_postfix(loss=f"{update.loss:.3f}", refresh=False)
            if update.validation is not None:
                self.bar.set_description(f"{update.validation:.1%} copied")
            self.bar.update()

    def close(self) -> None:
        self.file.close()
        if self.bar is not None:
            self.bar.close()
