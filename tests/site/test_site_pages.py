"""Every built page in a real browser, opened as a file, with all hosts blocked."""

import checks
import pytest


@pytest.mark.parametrize("check", checks.VISIT_CHECKS, ids=lambda check: check.__name__)
def test_page(visit, check):
    assert check(visit) == []


def test_some_page_has_formulas_and_some_a_figure(visitor, pages):
    """The checks above would also pass on a site without any."""
    facts = [visitor.visit(page).facts for page in pages]
    assert any(page["formulas"] for page in facts)
    assert any(page["figures"] for page in facts)
