// What a visit to a page asks for; visits.py evaluates this file in the page.
(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const first = (text, length) => text.slice(0, length);

  const visible = (element) => {
    const box = element?.getBoundingClientRect();
    return Boolean(box && box.width > 0 && box.height > 0);
  };

  // A closed fold draws nothing, and a section far away neither: nobody could say whether
  // its content fits the page.
  const unfold = () => {
    all("details:not(.hide)").forEach((fold) => (fold.open = true));
    all(".late").forEach((section) => (section.style.contentVisibility = "visible"));
  };

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
      headings: all("h1, h2, h3, h4, h5, h6").filter(visible).map((e) => Number(e.tagName[1])),
      figures: all("aiayn-figure").length,
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
    // Of MathML axe reads the text, so one node does for thousands.
    for (const e of all("math")) e.replaceChildren(e.querySelector("annotation")?.textContent ?? "");
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

  // What axe says of colours follows from the colour and size of a text and from what is
  // painted behind it: one element for each such combination stands for all of them.
  const oneOfEachKind = () => {
    const kinds = new Map([[document.documentElement, ""]]);
    const kind = (element) => {
      if (!kinds.has(element)) {
        const style = getComputedStyle(element);
        const above = kind(element.parentElement);
        const own = [
          style.color, style.backgroundColor, style.backgroundImage, style.opacity,
          style.fontSize, style.fontWeight, style.textDecorationLine,
          // what lies above other elements is judged by itself
          ["absolute", "fixed"].includes(style.position) ? kinds.size : "",
        ].join();
        kinds.set(element, above.endsWith(own) ? above : `${above} / ${own}`);
      }
      return kinds.get(element);
    };
    const found = new Map();
    for (const element of all("body *")) {
      const text = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
      if (!text || element.closest("svg, math, script, style, noscript")) continue;
      if (visible(element) && !found.has(kind(element))) found.set(kind(element), element);
    }
    return [...found.values()];
  };

  const COLOURS = ["color-contrast", "link-in-text-block"];

  // Runs the rules with these tags, and those on colours where they can differ. With no
  // tags only the latter: a theme changes nothing else.
  const runAxe = async (tags) => {
    // Preloading would fetch the style sheets again, which a page opened as a file may not.
    const options = { resultTypes: ["violations"], preload: false };
    const off = Object.fromEntries(COLOURS.map((rule) => [rule, { enabled: false }]));
    const colours = await axe.run({ include: oneOfEachKind() }, { ...options, runOnly: COLOURS });
    const rest = tags && (await axe.run(document, { ...options, runOnly: tags, rules: off }));
    const describe = ({ target, html }) => `${target.join(" ")} ${first(html, 120)}`;
    const found = [];
    for (const { id, impact, nodes } of [...colours.violations, ...(rest?.violations ?? [])]) {
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

  // How far things moved while the page came, as the sum that browsers call CLS. What
  // happens before something is seen moves nothing, so the sum is taken some time after that.
  // A page that a test opens has no input, but Chromium takes the size of its window for one.
  const seen = new Promise((resolve) => {
    new PerformanceObserver((list) => {
      if (list.getEntriesByName("first-contentful-paint").length) resolve();
    }).observe({ type: "paint", buffered: true });
  });
  const shift = async () => {
    let sum = 0;
    const note = (entries) => {
      for (const entry of entries) sum += entry.value;
    };
    const observer = new PerformanceObserver((list) => note(list.getEntries()));
    observer.observe({ type: "layout-shift", buffered: true });
    await seen;
    await new Promise((resolve) => setTimeout(resolve, 100));
    await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    note(observer.takeRecords());
    return sum;
  };

  window.look = { unfold, facts, overflow, prepareAxe, runAxe, shift };
})();
