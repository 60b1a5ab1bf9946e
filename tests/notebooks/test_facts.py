"""What the tools store of a run: only what happened, only of the files that ran."""

import json
import subprocess

import facts
import pages
from book import execute_all
from notebooks import chapters


def test_the_facts_of_a_full_run_hold_for_the_files_that_passed(project, edit):
    assert facts.passed(project) == {}
    facts.store_passed(project)
    stored = facts.passed(project)["passed"]
    assert stored.keys() == {"commit", "date", "processor", "torch", "inputs"}
    assert stored["commit"] is None  # no repository
    edit(project / "README.md", "See", "Look at")
    assert facts.passed(project)["passed"] == stored
    edit(project / "src/aiayn/tokens.py", "PAD = 0", "PAD = 1")
    assert facts.passed(project) == {}
    edit(project / "src/aiayn/tokens.py", "PAD = 1", "PAD = 0")
    assert facts.passed(project)["passed"] == stored
    edit(project / "notebooks/02_first.ipynb", "There is more.", "There is less.")
    assert facts.passed(project) == {}


def test_a_commit_is_named_only_while_nothing_differs_from_it(tmp_path):
    def git(*arguments):
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True)

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "one")
    assert len(facts.commit(tmp_path)) == 40
    (tmp_path / "a").write_text("2")
    assert facts.commit(tmp_path) is None


def test_a_run_on_this_machine_is_noted_chapter_by_chapter(project):
    noted = lambda: json.loads((project / "_build/stage/verified.json").read_text())
    assert execute_all(project, "2")
    assert noted()["executed"].keys() == {"02_first"}
    assert execute_all(project)
    assert noted()["executed"].keys() == {"02_first", "03_second"}
    before = noted()
    assert execute_all(project)  # nothing runs
    assert noted() == before
    # 03 changed and was not run again: its stored outputs are shown
    module = project / "src/aiayn/tokens.py"
    module.write_text(module.read_text().replace("PAD = 0", "PAD = 1"))
    assert execute_all(project, "2")
    assert noted()["executed"].keys() == {"02_first"}


def test_make_site_hands_on_the_facts_that_still_hold(project, edit, monkeypatch):
    monkeypatch.setattr(pages, "build", lambda root, source: source / "index.html")
    monkeypatch.setattr("sys.argv", ["pages.py", "--root", str(project)])
    handed = project / "_build/sources/verified.json"
    pages.main()
    assert not handed.exists()
    facts.store_passed(project)
    pages.main()
    assert json.loads(handed.read_text()) == facts.passed(project)
    edit(chapters(project)[0], "There is more.", "There is less.")
    pages.main()
    assert not handed.exists()
