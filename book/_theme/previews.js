// Shows what a reference points to beside it: an equation, a figure, a glossary term, a
// cited work. Works with a mouse and with the keyboard; a tap follows the link as ever.
(() => {
  const LINK = ".bd-article :not(.letters) > a.reference.internal";
  const LABEL = /#((?:eq|res|fig|term)-[\w-]+)$/;
  const PAUSE = 250; // ms before a preview comes, and before it goes
  const EDGE = 12; // px kept free at the window's edges
  const loads = new Map(); // label -> promise of {html, place}
  const titles = new WeakMap(); // the title of a citation, which would be a second box
  let box, shown, wanted, timer;

  // Each preview is a script that calls this: a page opened as a file may not fetch.
  const arrived = new Map();
  window.bookPreviews = {
    add: (label, html, place) => arrived.set(label, { html, place }),
  };

  const load = (label) => {
    if (!loads.has(label)) {
      loads.set(label, new Promise((resolve, reject) => {
        const script = document.createElement("script");
        const root = document.documentElement.dataset.content_root;
        script.src = `${root}_static/previews/${label}.js`;
        script.onload = () => resolve(arrived.get(label));
        script.onerror = reject;
        document.head.append(script);
      }));
    }
    return loads.get(label);
  };

  const labelOf = (link) => LABEL.exec(link.getAttribute("href"))?.[1];

  // The link under an event, if there is something to show for it.
  const linkOf = (event) => {
    const link = event.target.closest?.(LINK);
    if (link?.title) {
      titles.set(link, link.title);
      link.removeAttribute("title");
    }
    return link && (titles.has(link) || labelOf(link)) ? link : null;
  };

  const hide = () => {
    clearTimeout(timer);
    wanted = null;
    shown?.removeAttribute("aria-describedby");
    shown = null;
    if (box) box.hidden = true;
  };

  const hideSoon = () => {
    clearTimeout(timer);
    timer = setTimeout(hide, PAUSE);
  };

  // A mouse that leaves takes nothing from a link that has the focus.
  const leave = () => {
    clearTimeout(timer);
    if (!shown?.matches(":focus-visible")) hideSoon();
  };

  const makeBox = () => {
    box = document.createElement("div");
    box.id = "preview";
    box.className = "preview";
    box.setAttribute("role", "tooltip");
    box.addEventListener("pointerenter", () => clearTimeout(timer));
    box.addEventListener("pointerleave", leave);
    document.querySelector(".bd-article").append(box);
  };

  const fill = (link, found) => {
    box.replaceChildren();
    if (found) box.innerHTML = found.html;
    else box.textContent = titles.get(link);
    box.classList.toggle("wide", Boolean(found && !labelOf(link).startsWith("term-")));
    const elsewhere = !link.getAttribute("href").startsWith("#");
    if (found?.place && elsewhere) {
      const place = document.createElement("p");
      place.className = "place";
      place.textContent = found.place;
      box.append(place);
    }
  };

  // A formula wider than the box is made smaller: a box that scrolls would need the focus.
  const fit = () => {
    const view = box.querySelector(".katex-display");
    const formula = view?.querySelector(".katex");
    if (!formula) return;
    const ratio = view.clientWidth / formula.getBoundingClientRect().width;
    if (ratio < 1) formula.style.fontSize = `${1.1 * ratio * 0.98}em`;
  };

  // Under the link, or above it where that has more room; always inside the window.
  const place = (line) => {
    const frame = box.offsetParent.getBoundingClientRect();
    const { width, height } = box.getBoundingClientRect();
    const below = innerHeight - line.bottom >= height + EDGE || line.top < innerHeight / 2;
    const top = below ? line.bottom + 6 : line.top - height - 6;
    const clamp = (at, size, room) => Math.max(EDGE, Math.min(at, room - size - EDGE));
    box.style.top = `${clamp(top, height, innerHeight) - frame.top}px`;
    box.style.left = `${clamp(line.left, width, document.documentElement.clientWidth) - frame.left}px`;
  };

  // Nothing to add when the target stands in full view.
  const inView = (label) => {
    const target = document.getElementById(label)?.getBoundingClientRect();
    return Boolean(target?.height) && target.top >= 0 && target.bottom <= innerHeight;
  };

  const show = async (link, y) => {
    const label = labelOf(link);
    const found = titles.has(link) ? null : await load(label).catch(() => null);
    if (wanted !== link || !(found || titles.has(link))) return;
    if (link.getAttribute("href") === `#${label}` && inView(label)) return;
    if (!box) makeBox();
    shown?.removeAttribute("aria-describedby");
    shown = link;
    box.hidden = false;
    fill(link, found);
    fit();
    const lines = [...link.getClientRects()];
    place(lines.find((line) => line.top <= y && y <= line.bottom) ?? lines[0]);
    link.setAttribute("aria-describedby", box.id);
  };

  const showSoon = (link, y) => {
    clearTimeout(timer);
    if (shown === link) return;
    wanted = link;
    if (!titles.has(link)) load(labelOf(link)).catch(() => {}); // on its way during the pause
    timer = setTimeout(show, PAUSE, link, y);
  };

  document.addEventListener("pointerover", (event) => {
    const link = event.pointerType === "touch" ? null : linkOf(event);
    if (link) showSoon(link, event.clientY);
  });
  document.addEventListener("pointerout", (event) => {
    const link = linkOf(event);
    if (link && !link.contains(event.relatedTarget)) leave();
  });
  document.addEventListener("focusin", (event) => {
    const link = linkOf(event);
    if (link?.matches(":focus-visible")) showSoon(link);
    else if (shown && !box.contains(event.target)) hideSoon();
  });
  document.addEventListener("focusout", (event) => linkOf(event) && hideSoon());
  document.addEventListener("click", (event) => linkOf(event) && hide());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });
})();
