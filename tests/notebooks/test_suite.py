"""`make test` goes on after a failure, counts what ran, and says what did not."""

import pytest

import suite
from suite import Stage

PASSING = "def test_a():\n    pass\n\n\ndef test_b():\n    pass\n"
MIXED = (
    "import pytest\n\n\ndef test_red():\n    assert 0\n\n\n"
    "@pytest.mark.skip(reason='needs a dragon')\ndef test_skipped():\n    pass\n"
)


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A repository in which `make test` would run the stages of one test."""
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    monkeypatch.setattr(suite, "REPORTS", tmp_path / "_build" / "reports")
    monkeypatch.setattr(suite, "CI", False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # quicker
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "allowed_skips.txt").write_text("# why\nneeds a GPU\n")
    (tmp_path / "passing.py").write_text(PASSING)
    (tmp_path / "mixed.py").write_text(MIXED)
    return tmp_path


def run(monkeypatch, capfd, *stages: Stage) -> tuple[int, list[str]]:
    """Exit code and printed lines."""
    monkeypatch.setattr(suite, "stages", lambda: list(stages))
    with pytest.raises(SystemExit) as end:
        suite.main()
    return end.value.code, capfd.readouterr().out.splitlines()


def passing() -> Stage:
    return suite.pytest("passing", "passing.xml", "-q", "passing.py")


def test_a_failure_does_not_hide_the_next_stage(here, monkeypatch, capfd):
    mixed = suite.pytest("mixed", "mixed.xml", "-q", "mixed.py")
    broken = Stage("broken", ["-c", "raise SystemExit(3)"])
    code, lines = run(monkeypatch, capfd, mixed, broken, passing())
    assert code == 1
    assert lines[-1] == "2 passed, 2 failed, 1 skipped"
    assert "skipped: 1 because needs a dragon" in lines
    states = [line.split()[0] for line in lines if " s   " in line]
    assert states[:3] == ["FAILED", "FAILED", "ok"]


def test_all_green(here, monkeypatch, capfd):
    code, lines = run(monkeypatch, capfd, passing(), Stage("fine", ["-c", ""]))
    assert (code, lines[-1]) == (0, "3 passed, 0 failed, 0 skipped")


def test_no_test_at_all_is_a_failure(here, monkeypatch, capfd):
    (here / "empty.py").write_text("")
    stage = suite.pytest("empty", "empty.xml", "-q", "empty.py")
    code, lines = run(monkeypatch, capfd, stage)
    assert (code, lines[-1]) == (1, "0 passed, 1 failed, 0 skipped")


@pytest.mark.parametrize(("reason", "failed"), [("a GPU", 0), ("a dragon", 1)])
def test_only_listed_skips_are_allowed_in_ci(here, monkeypatch, capfd, reason, failed):
    monkeypatch.setattr(suite, "CI", True)
    skipping = MIXED.replace("assert 0", "pass").replace("a dragon", reason)
    (here / "skipping.py").write_text(skipping)
    stage = suite.pytest("skipping", "skipping.xml", "-q", "skipping.py")
    code, lines = run(monkeypatch, capfd, stage)
    assert (code, lines[-1]) == (failed, f"1 passed, {failed} failed, 1 skipped")


@pytest.mark.parametrize(
    ("stage", "stored"),
    [("pass", True), ("assert 0", False), ("import pytest; pytest.skip('x')", False)],
)
def test_only_a_full_success_is_stored_as_such(here, monkeypatch, capfd, stage, stored):
    facts = here / "_build" / "verified.json"
    facts.parent.mkdir()
    facts.write_text("of an earlier run")
    (here / "one.py").write_text(f"def test_one():\n    {stage}\n")
    one = suite.pytest("one", "one.xml", "-q", "one.py")
    run(monkeypatch, capfd, passing(), one)
    assert facts.exists() == stored
    assert not stored or '"passed"' in facts.read_text()
