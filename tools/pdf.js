// Used by tools/pdf.py. `book.gather` runs in a page of the site and hands over its
// article as it belongs into one document for paper; the others run in that document.
const book = {
  /** The article of this page: ids that are unique in the book, links that lead within it. */
  gather({ root, address, names }) {
    const name = names[decodeURIComponent(location.href.slice(root.length))];
    const article = document.querySelector("article.bd-article").cloneNode(true);
    book.freeze(document.querySelector("article.bd-article"), article);
    book.plainCode(document.querySelector("article.bd-article"), article);
    const junk = "script, button:not(aiayn-live .tape *, aiayn-live .heads *), .headerlink, .viewcode-link";
    for (const element of article.querySelectorAll(junk)) element.remove();
    book.nameFormulas(article);
    for (const fold of article.querySelectorAll("details")) fold.open = true;
    book.moveSolutions(article);

    // the heading, and not its section, tells the page: a break may lie between the two
    for (const heading of article.querySelectorAll("section[id] > :is(h1, h2, h3, h4):first-of-type")) {
      heading.id = heading.parentElement.id;
      heading.parentElement.removeAttribute("id");
    }

    const own = (id) => `${name}--${id}`;
    const site = []; // pages of the site that are not in the book
    for (const link of article.querySelectorAll("a")) {
      const attribute = link.hasAttribute("href") ? "href" : "xlink:href";
      if (!link.getAttribute(attribute)) continue;
      const url = new URL(link.getAttribute(attribute), location.href);
      if (!url.href.startsWith(root)) continue;
      const file = decodeURIComponent(url.pathname.slice(new URL(root).pathname.length));
      const id = decodeURIComponent(url.hash.slice(1));
      if (names[file]) {
        link.setAttribute(attribute, `#${names[file]}${id && `--${id}`}`);
      } else {
        site.push(file);
        link.setAttribute(attribute, address + file + url.hash);
      }
    }
    const lists = ["for", "headers", "aria-labelledby", "aria-describedby", "aria-controls"];
    const ids = new Set([...article.querySelectorAll("[id]")].map((element) => element.id));
    for (const element of [article, ...article.querySelectorAll("*")]) {
      for (const { name: attribute, value } of [...element.attributes]) {
        let wanted = value;
        if (attribute === "id" || (attribute === "name" && element.localName === "input")) {
          wanted = own(value);
        } else if (lists.includes(attribute)) {
          wanted = value.trim().split(/\s+/).map(own).join(" ");
        } else if (/^(xlink:)?href$/.test(attribute) && element.localName !== "a") {
          wanted = value.replace(/^#(.+)/, (_, id) => `#${own(id)}`);
        } else if (value.includes("url(")) {
          wanted = value.replace(/url\((["']?)#([^)"']+)\1\)/g, (_, quote, id) => `url(#${own(id)})`);
        } else if (attribute === "src") {
          wanted = element.src;
        }
        if (wanted !== value) element.setAttribute(attribute, wanted);
      }
      if (element.localName === "style") {
        element.textContent = element.textContent.replace(/#([\w-]+)/g, (all, id) =>
          ids.has(id) ? `#${own(id)}` : all);
      }
    }
    article.id = name;
    for (const heading of article.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
      heading.ariaLevel = +heading.localName[1] + 1; // a part is above them
    }
    const sections = [...article.querySelectorAll("section > h2")];
    return {
      name,
      html: article.outerHTML,
      title: book.words(article.querySelector("h1")).textContent.trim(),
      heading: book.words(article.querySelector("h1")).innerHTML,
      sections: sections.map((h) => ({ id: h.id, heading: book.words(h).innerHTML })),
      styles: [...document.querySelectorAll("link[rel=stylesheet]")].map((l) => [l.href, l.media]),
      site,
    };
  },

  /** What a script drew or set, as attributes and pictures. */
  freeze(live, copy) {
    const canvases = copy.querySelectorAll("canvas");
    live.querySelectorAll("canvas").forEach((canvas, i) => {
      const image = new Image();
      image.src = canvas.toDataURL();
      image.alt = canvas.getAttribute("aria-label") ?? "";
      canvases[i].replaceWith(image);
    });
    const inputs = copy.querySelectorAll("input, select");
    live.querySelectorAll("input, select").forEach((input, i) => {
      if (input.localName === "select") {
        [...inputs[i].options].forEach((option, j) =>
          option.toggleAttribute("selected", j === input.selectedIndex));
      } else if (["checkbox", "radio"].includes(input.type)) {
        inputs[i].toggleAttribute("checked", input.checked);
      } else {
        inputs[i].setAttribute("value", input.value);
      }
    });
  },

  /** Code, with an element only where its look changes. */
  plainCode(live, copy) {
    const look = (element) => {
      const { color, fontWeight, fontStyle } = getComputedStyle(element);
      return `${color} ${fontWeight} ${fontStyle}`;
    };
    const spans = [...copy.querySelectorAll("pre span:not([id])")];
    const looks = new Map();
    [...live.querySelectorAll("pre span:not([id])")].forEach((span, i) => {
      looks.set(spans[i], look(span));
      if (look(span) === look(span.parentElement)) spans[i].replaceWith(...spans[i].childNodes);
    });
    for (const pre of copy.querySelectorAll("pre")) {
      pre.normalize();
      pre.role = pre.closest(".cell_output") ? "paragraph" : "code";
    }
    for (const span of spans) {
      const before = span.previousSibling;
      if (!span.parentNode || !looks.has(before)) continue;
      if (looks.get(before) === looks.get(span)) {
        before.append(...span.childNodes);
        span.remove();
      }
    }
  },

  /** For a screen reader each formula is one thing, named by its TeX. */
  nameFormulas(article) {
    for (const formula of article.querySelectorAll(".katex")) {
      const tex = formula.querySelector("annotation").textContent.replace(/\s+/g, " ").trim();
      formula.querySelector(".katex-mathml").remove();
      formula.querySelector(".katex-html").removeAttribute("aria-hidden");
      formula.role = "img"; // Chromium gives no other role an alternative text in the PDF
      formula.ariaLabel = `formula: ${tex}`;
    }
  },

  /** Solutions go to the end of their chapter, where they do not meet the eye too early. */
  moveSolutions(article) {
    const solutions = article.querySelectorAll("details.solution");
    if (!solutions.length) return;
    const end = document.createElement("section");
    end.id = "solutions";
    end.innerHTML = "<h2>Solutions</h2>";
    for (const solution of solutions) {
      const pointer = document.createElement("p");
      pointer.className = "solution-pointer";
      pointer.innerHTML = `<a href="#${solution.id}">Solution on page <span class="page-number">000</span></a>`;
      solution.replaceWith(pointer);
      end.append(solution);
    }
    article.querySelector("section").append(end);
  },

  /** A heading without links and ids. */
  words(heading) {
    const copy = heading.cloneNode(true);
    for (const element of copy.querySelectorAll("[id]")) element.removeAttribute("id");
    for (const link of copy.querySelectorAll("a")) link.replaceWith(...link.childNodes);
    return copy;
  },

  /** Make smaller what is wider than the page. */
  fit() {
    const all = (selector) => [...document.querySelectorAll(selector)];
    const inner = [...all(".katex-display > .katex"), ...all("article table")];
    // first all that reads the layout, then all that changes it: else each would lay it out anew
    const ratios = inner.map((part) =>
      part.parentElement.clientWidth / part.getBoundingClientRect().width);
    inner.forEach((part, i) => {
      if (ratios[i] < 1) part.style.zoom = ratios[i] * 0.995;
    });
  },

  /** What reaches beyond the right edge of the text, by two pixels at least. */
  tooWide() {
    const edge = document.documentElement.clientWidth + 2;
    const found = [];
    for (const element of document.querySelectorAll("article *")) {
      if (element.closest(".katex-mathml, svg")) continue; // not seen; cut by its frame
      const { right, width } = element.getBoundingClientRect();
      if (width && right > edge) {
        const chapter = element.closest("article").id;
        found.push(`${chapter}: ${Math.round(right - edge)} px: ${element.outerHTML.slice(0, 90)}`);
      }
    }
    return found;
  },

  /** Links within the document that have no target. */
  missing() {
    const within = [...document.querySelectorAll("a")].map((link) => link.getAttribute("href"));
    const wanted = within.filter((href) => href?.startsWith("#")).map((href) => href.slice(1));
    return [...new Set(wanted)].filter((id) => !document.getElementById(decodeURIComponent(id)));
  },

  /** The text of every heading, in order: what the outline has to say. */
  headings() {
    const all = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")];
    return all.map((heading) => book.words(heading).textContent.replace(/\s+/g, " ").trim());
  },

  /** Write page numbers into the links that ask for one. */
  number(pages) {
    for (const place of document.querySelectorAll(".page-number")) {
      place.textContent = pages[decodeURIComponent(place.closest("a").hash.slice(1))];
    }
  },
};
