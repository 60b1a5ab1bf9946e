// A wide formula, table or listing scrolls inside its box. Such a box must be
// reachable by keyboard, but only while there is something to scroll.
(() => {
  const boxes = ".katex-display, div.highlight pre, .pst-scrollable-table-container, .output pre";
  const sweep = () => {
    for (const box of document.querySelectorAll(boxes)) {
      if (box.scrollWidth > box.clientWidth + 1) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  // An equation that would be cut beside its code stands above it (book.css).
  const part = () => {
    for (const pair of document.querySelectorAll(".beside")) {
      pair.classList.remove("too-wide");
      const formulas = [...pair.querySelectorAll(".beside-words > div.math > .katex-display")];
      const cut = formulas.some((box) => box.scrollWidth > box.clientWidth + 1);
      pair.classList.toggle("too-wide", cut);
    }
    sweep();
  };
  addEventListener("load", part);
  addEventListener("resize", part);
  addEventListener("toggle", sweep, true); // what a fold held back has no size until now
  // A link into a fold opens it, and so does a link to the heading above one.
  const unfold = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const own = target?.querySelector(":scope > details.fold:not(.solution)");
    for (let fold = own ?? target; fold; fold = fold.parentElement) {
      if (fold.localName === "details") fold.open = true;
    }
    if (target?.closest("details")) target.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  addEventListener("DOMContentLoaded", unfold);
  // Who comes back finds the folds as they were.
  const folds = () => [...document.querySelectorAll("details.fold, details.hide")];
  addEventListener("toggle", () => {
    const open = folds().map((fold, i) => (fold.open ? i : -1)).filter((i) => i >= 0);
    history.replaceState({ ...history.state, open }, "");
  }, true);
  addEventListener("DOMContentLoaded", () => {
    const all = folds();
    for (const i of history.state?.open ?? []) if (all[i]) all[i].open = true;
  });
  // A search leads to the first of the words that it marked.
  addEventListener("load", () => {
    const found = !location.hash && document.querySelector(".bd-article .highlighted");
    if (!found) return;
    for (let e = found; e; e = e.parentElement) if (e.localName === "details") e.open = true;
    found.scrollIntoView({ block: "center" });
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
