"""Static plots on a phone: their text stays legible, and the page does not scroll."""

import pytest

SMALLEST = 9  # pixels

TEXTS = """() => [...document.querySelectorAll('svg.plot')].flatMap(plot => {
  const scale = plot.getBoundingClientRect().width / plot.viewBox.baseVal.width;
  const name = (plot.closest('figure') ?? plot.parentElement).id;
  return [...plot.querySelectorAll('text')].filter(text => text.textContent.trim())
    .map(text => [name, text.textContent,
                  scale * parseFloat(getComputedStyle(text).fontSize)]);
})"""


@pytest.fixture
def phone(tab, site):
    tab.set_viewport_size({"width": 390, "height": 844})
    return tab


def test_the_text_of_every_plot_is_legible_on_a_phone(page, phone, site):
    if 'svg class="plot"' not in (site / page).read_text("utf8"):
        return
    phone.goto((site / page).as_uri())
    phone.evaluate(
        "document.querySelectorAll('details').forEach(fold => (fold.open = true))"
    )
    small = [text for text in phone.evaluate(TEXTS) if text[-1] < SMALLEST - 0.05]
    assert small == []
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
