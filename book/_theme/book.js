// A wide formula, table or listing scrolls inside its box. Such a box must be reachable by
// keyboard, but only while there is something to scroll. A box has a size, and is observed to
// get one, when its fold opens or its section is laid out (late_sections.py).
(() => {
  const cut = (box) => box.scrollWidth > box.clientWidth + 1;
  const sizes = new ResizeObserver((entries) => {
    for (const { target: box } of entries) {
      if (cut(box)) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  });
  // An equation that would be cut beside its code stands above it (book.css).
  const judged = new WeakMap(); // pair -> for which width of the window
  const pairs = new ResizeObserver((entries) => {
    for (const { target: pair } of entries) {
      if (judged.get(pair) === innerWidth) continue;
      judged.set(pair, innerWidth);
      pair.classList.remove("too-wide");
      const formulas = [...pair.querySelectorAll(".beside-words > div.math > .katex-display")];
      pair.classList.toggle("too-wide", formulas.some(cut));
    }
  });
  const boxes = ".katex-display, pre, .pst-scrollable-table-container";
  const observe = () => { // or hear of it again
    for (const box of document.querySelectorAll(`article :is(${boxes})`)) {
      sizes.unobserve(box);
      sizes.observe(box);
    }
    for (const pair of document.querySelectorAll(".beside")) {
      judged.delete(pair);
      pairs.unobserve(pair);
      pairs.observe(pair);
    }
  };
  addEventListener("DOMContentLoaded", observe);
  document.fonts.addEventListener("loadingdone", observe); // wider or narrower letters
  // A link into a fold opens it, and so does a link to the heading above one.
  const unfold = (target) => {
    const own = target?.querySelector(":scope > details.fold:not(.solution)");
    for (let fold = own ?? target; fold; fold = fold.parentElement) {
      if (fold.localName === "details") fold.open = true;
    }
  };
  const target = () => document.getElementById(decodeURIComponent(location.hash.slice(1)));
  // What is laid out around a place moves it while one arrives, unless one moves on oneself.
  const moves = ["wheel", "touchmove", "keydown", "pointerdown"];
  const arrive = (element, options = { behavior: "instant" }) => {
    element.scrollIntoView(options);
    settle(element, element.getBoundingClientRect().top);
  };
  const settle = (element, top) => {
    let frames = 60;
    const stop = () => (frames = 0);
    for (const type of moves) addEventListener(type, stop, { once: true, passive: true, capture: true });
    const step = () => {
      if (frames-- <= 0) return;
      const off = element.getBoundingClientRect().top - top;
      if (Math.abs(off) > 1) scrollBy({ top: off, behavior: "instant" });
      requestAnimationFrame(step);
    };
    step();
  };
  // A tap on the heading above a fold does what its line does.
  addEventListener("click", ({ target }) => {
    const fold = target.closest?.("h2, h3, h4")?.nextElementSibling;
    const other = target.closest?.("a") || !getSelection().isCollapsed;
    if (fold?.matches("details.fold") && !other) fold.open = !fold.open;
  });
  // Who comes back finds the folds as they were, and the place that was being read. Sections
  // that are not laid out yet have other heights than they had, so the place is kept by the
  // element that stood there.
  const came = window.cameWith ?? history.state;
  const state = { ...came };
  const keep = (change) => history.replaceState(Object.assign(state, change), "");
  const folds = () => [...document.querySelectorAll("details.fold, details.hide")];
  addEventListener("toggle", () => {
    keep({ open: folds().map((fold, i) => (fold.open ? i : -1)).filter((i) => i >= 0) });
  }, true);
  const lines = (section) => [...section.querySelectorAll("section > *, .beside > * > *")];
  const place = () => {
    const top = (element) => element.getBoundingClientRect().top;
    const below = (element) => element.getBoundingClientRect().bottom > 80; // the bar's height
    for (const [at, section] of document.querySelectorAll(".late").entries()) {
      const line = below(section) ? lines(section).findIndex(below) : -1;
      if (line >= 0) return { section: at, line, top: top(lines(section)[line]) };
    }
    return null;
  };
  const goBack = ({ section, line, top }) => {
    const stood = document.querySelectorAll(".late")[section];
    const element = stood && lines(stood)[line];
    if (element) settle(element, top);
  };
  addEventListener("hashchange", () => {
    unfold(target());
    if (history.state?.place) goBack(history.state.place); // by the browser's Back or Forward
    else if (!history.state && target()) arrive(target());
  });
  let still;
  addEventListener("scroll", () => {
    clearTimeout(still);
    still = setTimeout(() => keep({ place: place() }), 150);
  });
  let moved = false; // before everything was there
  for (const type of moves) {
    addEventListener(type, () => (moved = true), { once: true, passive: true, capture: true });
  }
  addEventListener("DOMContentLoaded", () => {
    if (location.hash) unfold(target());
    const all = folds();
    for (const i of came?.open ?? []) if (all[i]) all[i].open = true;
  });
  // Where to go can be found when there is something to see.
  const loaded = new Promise((resolve) => addEventListener("load", resolve));
  Promise.all([loaded, window.shown]).then(() => {
    if (moved) return;
    const found = document.querySelector(".bd-article .highlighted");
    if (came?.place) goBack(came.place);
    else if (location.hash && target()) arrive(target());
    else if (found) { // a search leads to the first of the words that it marked
      unfold(found);
      arrive(found, { block: "center", behavior: "instant" });
    }
  });
  // The drawer of contents opens at the page that one is on.
  addEventListener("click", (event) => {
    if (!event.target.closest?.(".primary-toggle")) return;
    const here = () => document.querySelector("dialog[open] .bd-links li.current > a");
    setTimeout(() => here()?.scrollIntoView({ block: "center" }), 50);
  });
  // On a phone the page's contents lie over the page: a chosen line closes them.
  addEventListener("click", (event) => {
    if (event.target.closest?.('dialog a[href^="#"]')) event.target.closest("dialog").close();
  });
  // "Copied" is shown by the button's picture; this says it.
  const status = document.createElement("p");
  status.className = "visually-hidden";
  status.setAttribute("role", "status");
  addEventListener("DOMContentLoaded", () => document.querySelector("main")?.append(status));
  addEventListener("click", (event) => {
    const button = event.target.closest?.("button.copybtn");
    if (!button) return;
    status.textContent = "";
    setTimeout(() => {
      status.textContent = button.classList.contains("success") ? "Copied" : "Not copied";
    }, 100);
  });
  // Paper cannot unfold; the screen gets its folds back afterwards.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const fold of closed) fold.open = true;
  });
  addEventListener("afterprint", () => {
    for (const fold of closed) fold.open = false;
  });
})();
