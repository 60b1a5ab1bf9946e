// What a visit to a page asks for; visits.py evaluates this file in the page.
(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const first = (text, length) => text.slice(0, length);

  const visible = (element) => {
    const box = element?.getBoundingClientRect();
    return Boolean(box && box.width > 0 && box.height > 0);
  };

  // A closed fold draws nothing: nobody could say whether its content fits the page.
  const unfold = () => all("details:not(.hide)").forEach((fold) => (fold.open = true));

  const rendered = (formula) =>
    formula.querySelector("math") && visible(formula.querySelector(".katex-html"));

  const facts = () => {
    const article = document.querySelector("article")?.cloneNode(true);
    article?.querySelectorAll(".katex, pre, code, script, style").forEach((e) => e.remove());
    const words = article?.textContent ?? "";
    const formulas = all("article .math");
    const tex = /\$\$|\\[(\[]|\\(?:frac|begin|operatorname|text|mathbf|sqrt)\b/g;
    const lines = (selector) => all(selector).flatMap((e) => e.textContent.split("\n"));
    return {
      formulas: formulas.length,
      unrendered: formulas.filter((f) => !rendered(f)).map((f) => first(f.textContent, 80)),
      errors: all(".katex-error, [style*='cc0000']").map((e) => e.textContent),
      rawTex: words.match(tex) ?? [],
      marks: [
        ...lines("pre").filter((line) => /^#\s?\|/.test(line)),
        ...lines(".cell pre").filter((line) => /# (fmt: |noqa)/.test(line)),
      ],
    };
  };

  const overflow = () => {
    const excess = document.documentElement.scrollWidth - innerWidth;
    if (excess <= 0) return [];
    const wide = all("body *").filter((e) => e.getBoundingClientRect().right > innerWidth + 1);
    return [`${excess} px too wide`, ...wide.slice(0, 5).map((e) => first(e.outerHTML, 120))];
  };

  // Leaves out what takes axe minutes and tells it nothing.
  const prepareAxe = () => {
    // Drawn formulas are hidden from assistive technology, which reads their MathML, and
    // have the colour of the text around them. The parts of a plot have one name, its own.
    all(".katex-html, svg.plot").forEach((e) => e.replaceChildren());
    // Code and signatures have a handful of colours: one span of each kind stands for all.
    for (const place of ["div.highlight pre", "dt.sig", "code.literal"]) {
      const kinds = new Set();
      for (const span of all(`${place} span`)) {
        const kind = `${span.parentElement.closest("[class]").className} > ${span.className}`;
        if (kinds.has(kind)) span.replaceWith(...span.childNodes);
        kinds.add(kind);
      }
    }
    // A transition in progress would show a colour that nobody sees.
    const still = document.createElement("style");
    still.textContent = "* { transition: none !important; }";
    document.head.append(still);
  };

  const runAxe = async (runOnly) => {
    // Preloading would fetch the style sheets again, which a page opened as a file may not.
    const options = { runOnly, resultTypes: ["violations"], preload: false };
    const { violations } = await axe.run(document, options);
    const describe = ({ target, html }) => `${target.join(" ")} ${first(html, 120)}`;
    const found = [];
    for (const { id, impact, nodes } of violations) {
      // axe does not count a formula as text and calls a column headed by one nameless.
      const real = nodes.filter(
        ({ target }) =>
          id !== "empty-table-header" ||
          !document.querySelector(target[0]).querySelector("math"),
      );
      if (real.length) found.push(`${impact} ${id}: ${real.slice(0, 3).map(describe).join(" || ")}`);
    }
    return found;
  };

  window.look = { unfold, facts, overflow, prepareAxe, runAxe };
})();
