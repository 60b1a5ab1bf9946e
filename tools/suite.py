"""Everything that has to hold, stage by stage; one failure does not hide the next.

    make test

Ends with the time of each stage, what was skipped and why. Under CI=true a skip whose
reason is not listed in tools/allowed_skips.txt is a failure.
"""

import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import facts
from environment import FIXED, ROOT

CI = os.environ.get("CI") == "true"
REPORTS = ROOT / "_build" / "reports"


@dataclass
class Stage:
    """One command, and what came of it."""

    name: str
    arguments: list[str]  # of this Python
    report: str | None = None  # file name of the tests' own report
    environment: dict[str, str] = field(default_factory=dict)
    passed: int = 0
    failed: int = 0
    skipped: dict[str, str] = field(default_factory=dict)  # what -> why
    seconds: float = 0.0

    def run(self) -> None:
        print(f"\n=== {self.name}", flush=True)
        report = REPORTS / self.report if self.report else None
        start = time.perf_counter()
        env = os.environ | FIXED | self.environment
        code = subprocess.call([sys.executable, *self.arguments], cwd=ROOT, env=env)
        self.seconds = time.perf_counter() - start
        if report and report.exists():
            self.read(report)
        else:
            self.passed = int(code == 0)
        if code and not self.failed:
            self.failed = 1

    def read(self, report: Path) -> None:
        """Count the tests of a pytest run."""
        for case in ElementTree.parse(report).iter("testcase"):
            if (skip := case.find("skipped")) is not None:
                name = f"{case.get('classname')}::{case.get('name')}"
                self.skipped[name] = skip.get("message", "")
            elif case.find("failure") is None and case.find("error") is None:
                self.passed += 1
            else:
                self.failed += 1


def pytest(name: str, report: str, *arguments: str, **settings) -> Stage:
    command = ["-m", "pytest", f"--junitxml={REPORTS / report}", *arguments]
    return Stage(name, command, report, **settings)


def stages() -> list[Stage]:
    elsewhere = ["--ignore=tests/site", "--ignore=tests/packaging"]  # stages below
    coverage = ["--cov=aiayn", "--cov-context=test", "--cov-report="]
    return [
        Stage("modules are what notebooks export", ["tools/export.py", "--check"]),
        Stage("chapters use earlier chapters only", ["tools/import_graph.py"]),
        Stage("style and spelling", ["tools/lint.py"]),
        Stage("notebooks are in order", ["tools/check_notebooks.py"]),
        Stage(
            "the record of five seeds is current", ["tools/copy_seeds.py", "--check"]
        ),
        Stage(
            "the record of pooled heads is current",
            ["tools/pooled_seeds.py", "--check"],
        ),
        Stage("the record of ablations is current", ["tools/ablations.py", "--check"]),
        Stage(
            "the shipped copy model is current", ["tools/ship_copy_model.py", "--check"]
        ),
        pytest(
            "units, equivalence, properties",
            "units.xml",
            *("-q", "-n", "2", "--dist", "loadfile", *coverage, "tests", *elsewhere),
            environment={
                "COVERAGE_FILE": str(ROOT / "_build" / "coverage"),
                "COVERAGE_CORE": "ctrace",  # the newer core cannot tell tests apart
            },
        ),
        Stage("the ledger of equations has no hole", ["tools/ledger.py"]),
        Stage("stored outputs are true", ["tools/verify.py"], "outputs.xml"),
        Stage("the pages build without a warning", ["tools/pages.py"]),
        pytest(
            *("the pages in a browser", "site.xml"),
            *("-q", "-n", "2", "--dist", "loadfile", "tests/site"),
        ),
        pytest("the wheel, installed elsewhere", "wheel.xml", "-q", "tests/packaging"),
    ]


def unlisted(skipped: dict[str, str]) -> list[str]:
    """What was skipped for a reason that CI does not accept."""
    text = (ROOT / "tools" / "allowed_skips.txt").read_text(encoding="utf-8")
    allowed = [line for line in text.splitlines() if line and line[0] != "#"]
    return [
        name
        for name, reason in skipped.items()
        if not any(re.match(pattern, reason) for pattern in allowed)
    ]


def main() -> None:
    # what an earlier run left must not pass for this one's
    for name in ("html", "reports"):
        shutil.rmtree(ROOT / "_build" / name, ignore_errors=True)
    for name in ("coverage", "equations.json", facts.NAME):
        (ROOT / "_build" / name).unlink(missing_ok=True)
    REPORTS.mkdir(parents=True)
    todo = stages()
    for stage in todo:
        stage.run()

    print("\n=== summary")
    skipped: dict[str, str] = {}
    for stage in todo:
        counts = {"passed": stage.passed, "failed": stage.failed}
        counts["skipped"] = len(stage.skipped)
        said = ", ".join(f"{n} {what}" for what, n in counts.items() if n)
        state = "FAILED" if stage.failed else "ok" if stage.passed else "SKIPPED"
        print(f"{state:8}{stage.seconds:7.1f} s   {stage.name} ({said})")
        skipped |= stage.skipped
    print(f"{sum(stage.seconds for stage in todo):15.1f} s   in all")
    for reason, number in Counter(skipped.values()).items():
        print(f"skipped: {number} because {reason}")
    failed = sum(stage.failed for stage in todo)
    bad = unlisted(skipped)
    if CI and bad:
        print("under CI=true these may not be skipped:", *bad, sep="\n  ")
        failed += len(bad)
    passed = sum(stage.passed for stage in todo)
    if passed and not failed and not bad:
        facts.store_passed(ROOT)
    print(f"\n{passed} passed, {failed} failed, {len(skipped)} skipped", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
