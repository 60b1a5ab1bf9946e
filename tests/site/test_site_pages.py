"""Every built page in a real browser, opened as a file, with all hosts blocked."""


def test_no_request_leaves_the_site_or_fails(visit):
    assert visit.outside == []
    assert visit.failed == []


def test_the_console_stays_silent(visit):
    assert visit.messages == []


def test_every_formula_is_shown_with_its_mathml(visit):
    assert visit.facts["unrendered"] == []
    assert visit.facts["errors"] == []
    assert visit.facts["rawTex"] == []


def test_no_export_mark_is_shown(visit):
    assert visit.facts["marks"] == []


def test_no_accessibility_violation(visit):
    found = {mode: problems for mode, problems in visit.axe.items() if problems}
    assert found == {}


def test_nothing_scrolls_sideways(visit):
    assert visit.overflow == {390: [], 320: []}


def test_some_page_has_formulas(visitor, pages):
    """The checks above would also pass on a site without any formula."""
    assert any(visitor.visit(page).facts["formulas"] for page in pages)
