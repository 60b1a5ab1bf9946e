"""The virtual environment is made once, and an old Python is told so."""

import re
from importlib.metadata import distribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import environment


@pytest.fixture
def commands(monkeypatch, project) -> list:
    """What would have been run, in a project whose environment is imaginary."""
    called = []

    class Done:
        returncode = 0

    def run(command, **_):
        called.append(command)
        if "venv" in command:
            python = environment.python_of(project / ".venv")
            python.parent.mkdir(parents=True)
            python.touch()
        return Done

    monkeypatch.setattr(environment.subprocess, "run", run)
    (project / "requirements.txt").write_text("torch==1\n")
    return called


def test_an_old_python_is_told(monkeypatch, project, commands):
    monkeypatch.setattr(environment.sys, "version_info", (3, 9, 1))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer; .* is 3\.9"):
        environment.ensure(project)
    assert commands == []


def test_it_is_made_once_and_renewed_when_pins_change(project, commands):
    environment.ensure(project)
    assert [("venv" in c, "-r" in c, "--editable" in c) for c in commands] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]
    commands.clear()
    environment.ensure(project)
    assert commands == []
    (project / "requirements.txt").write_text("torch==2\n")
    environment.ensure(project)
    assert len(commands) == 2  # installed again, not made again


def test_a_failed_install_is_not_taken_for_done(monkeypatch, project, commands):
    monkeypatch.setattr(environment.subprocess, "run", lambda *_, **__: commands_fail())
    python = environment.python_of(project / ".venv")
    python.parent.mkdir(parents=True)
    python.touch()
    with pytest.raises(SystemExit, match="pip could not install"):
        environment.ensure(project)
    assert not (project / ".venv/installed.txt").exists()


def commands_fail():
    class Failed:
        returncode = 1

    return Failed


def pins(name: str) -> dict[str, str]:
    """The pins of one file; a line of any other form is an error."""
    lines = (environment.ROOT / name).read_text(encoding="utf-8").splitlines()
    found = {}
    for line in lines:
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([\w.-]+)==([\w.!]+)", line)
            assert match, f"{name}: {line!r} is not of the form name==version"
            found[canonicalize_name(match[1])] = match[2]
    return found


def test_pins_are_complete_and_are_what_is_installed():
    named, brought = pins("requirements.txt"), pins("constraints.txt")
    assert not set(named) & set(brought)
    reached, waiting = set(), list(named)
    while waiting:
        name = waiting.pop()
        reached.add(name)
        needs = distribution(name)
        assert needs.version.split("+")[0] == (named | brought)[name], name
        for line in needs.requires or []:
            need = Requirement(line)
            if need.marker and not need.marker.evaluate({"extra": ""}):
                continue
            if (other := canonicalize_name(need.name)) not in reached:
                assert other in named | brought, f"{name} needs {other}: not pinned"
                waiting.append(other)
