// Interactive figures: shows the stored numbers of the state that the controls name.
// All numbers come from Python and stand in the page; the panels' Python draws the first state.
(() => {
  if (customElements.get("aiayn-figure")) return;

  const make = (tag, text = "", attributes = {}) => {
    const element = document.createElement(tag);
    element.textContent = text;
    for (const name in attributes) element.setAttribute(name, attributes[name]);
    return element;
  };
  const fixed = (value, decimals) => value.toFixed(decimals).replace("-", "−");
  const set = (box, selector, text) => {
    const element = box.querySelector(selector);
    if (element.textContent !== text) element.textContent = text;
  };
  const filled = (sentence, words) => sentence.replace(/\{(\w+)\}/g, (all, name) => words[name] ?? all);
  const tableRow = (name, cells) => {
    const row = make("tr");
    row.append(make("th", name, { scope: "row" }), ...cells);
    return row;
  };

  // ---- plots: paths in a frame of 100 by 100, and the same numbers in a table
  const height = (panel, value) =>
    +(100 - (100 * (value - panel.low)) / (panel.high - panel.low)).toFixed(2);

  const fill = (panel, box, rows, lefts) => {
    const body = rows.map(([name, ...cells]) => tableRow(name, cells.map((c) => make("td", c))));
    box.querySelector("tbody").replaceChildren(...body);
    // the pointer reads values off the plot; the keyboard reads the table
    const frame = box.querySelector("svg");
    const heads = [...box.querySelectorAll("thead th")].slice(1).map((h) => h.textContent);
    const guide = (at) => {
      box.querySelector(".guide").setAttribute("d", at < 0 ? "" : `M${lefts[at]} 0V100`);
      const one = heads.length < 2;
      const said = rows[at]?.slice(1).map((text, i) => (one ? text : `${heads[i]} ${text}`));
      set(box, ".read", at < 0 ? "" : `${rows[at][0]}: ${said.join(", ")}`);
    };
    guide(-1);
    frame.onpointerleave = () => guide(-1);
    frame.onpointermove = frame.onpointerdown = (event) => {
      const edges = frame.getBoundingClientRect();
      const x = (100 * (event.clientX - edges.left)) / edges.width;
      let nearest = 0;
      lefts.forEach((left, i) => {
        if (Math.abs(left - x) < Math.abs(lefts[nearest] - x)) nearest = i;
      });
      guide(nearest);
    };
  };

  const show = {
    bars(panel, box, get) {
      const values = get("values"), names = get("names"), zero = height(panel, 0);
      const part = 100 / values.length, step = Math.ceil(values.length / 8);
      const path = values.map((value, i) => {
        const [left, right] = [(i + 0.1) * part, (i + 0.9) * part].map((x) => x.toFixed(2));
        return `M${left} ${zero}V${height(panel, value)}H${right}V${zero}Z`;
      });
      box.querySelector(".area").setAttribute("d", path.join(""));
      const lefts = values.map((_, i) => ((i + 0.5) * part).toFixed(2));
      const labels = lefts.map((left, i) => make("span", names[i], { style: `left:${left}%` }));
      box.querySelector(".xs").replaceChildren(...labels.filter((_, i) => i % step === 0));
      fill(panel, box, values.map((v, i) => [names[i], fixed(v, panel.decimals)]), lefts);
    },

    curve(panel, box, get) {
      const { x } = panel, along = (v) => +((100 * (v - x[0])) / (x.at(-1) - x[0])).toFixed(2);
      const lefts = x.map(along), lines = panel.names.map((_, i) => get(i));
      box.querySelectorAll(".line").forEach((path, i) => {
        const points = lines[i].map((value, j) => `${lefts[j]} ${height(panel, value)}`);
        path.setAttribute("d", `M${points.join("L")}`);
      });
      if (panel.parts.mark) {
        box.querySelector(".mark").setAttribute("d", `M${along(get("mark"))} 0V100`);
      }
      const numbers = (j) => lines.map((line) => fixed(line[j], panel.decimals));
      fill(panel, box, x.map((v, j) => [fixed(v, panel.xDecimals), ...numbers(j)]), lefts);
    },

    grid(panel, box, get) {
      const cells = get("cells"), rows = get("rows");
      const columns = get("columns").slice(0, cells[0].length);
      const mask = panel.cells === "mask";
      const said = (value, text, r, c) =>
        filled(panel.say[mask && !value ? 1 : 0], { row: rows[r], column: columns[c], value: text });
      const tile = (value, r, c) => {
        const [state, text = panel.signs[state]] = [value].flat();
        const td = make("td", text, { class: `state ${panel.roles[state]}`, tabindex: -1 });
        const words = { row: rows[r], column: columns[c], value: panel.names[state], text };
        td.says = filled(panel.say[0], words);
        td.setAttribute("aria-label", td.says);
        return td;
      };
      const cell = (value, r, c) => {
        if (value === null) return make("td", "", { class: "none" });
        if (panel.cells === "states") return tile(value, r, c);
        const text = mask ? (value ? "✓" : "·") : fixed(value, panel.decimals);
        const td = make("td", text, { tabindex: -1 });
        td.says = said(value, text, r, c);
        if (mask) {
          td.className = value ? "yes" : "no";
          td.setAttribute("aria-label", td.says);
        } else {
          if (value < 0) td.className = "minus";
          const share = Math.min(100, (100 * Math.abs(value)) / panel.high);
          td.style.setProperty("--w", `${+share.toFixed(1)}%`);
        }
        return td;
      };
      box.querySelector("table").setAttribute("role", "grid");
      const head = make("tr");
      head.append(...[panel.corner, ...columns].map((name) => make("th", name, { scope: "col" })));
      box.querySelector("thead").replaceChildren(head);
      const body = cells.map((row, r) => tableRow(rows[r], row.map((v, c) => cell(v, r, c))));
      box.querySelector("tbody").replaceChildren(...body);
      const first = box.querySelector("td:not(.none)"); // Tab enters the grid here
      if (first) first.tabIndex = 0;
      set(box, ".cell", "");
    },

    numbers(panel, box, get) {
      box.querySelectorAll("dd").forEach((dd, i) => (dd.textContent = get(i)));
    },

    words(panel, box, get) {
      set(box, "output", get("words"));
    },
  };

  // ---- grids: the arrow keys walk over the cells, a pointer or the focus names one
  const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

  const walk = (event) => {
    const from = event.target.closest("td");
    if (!from) return;
    const rows = [...from.closest("tbody").rows];
    const [r, c] = [rows.indexOf(from.parentElement), from.cellIndex];
    const real = (td) => td?.matches("td:not(.none)");
    let to;
    if (event.key === "Home") to = [...rows[r].cells].find(real);
    else if (event.key === "End") to = [...rows[r].cells].findLast(real);
    else if (STEPS[event.key]) {
      const [down, right] = STEPS[event.key];
      let [i, j] = [r, c];
      do to = rows[(i += down)]?.cells[(j += right)];
      while (to && !real(to)); // over holes
    } else return;
    event.preventDefault();
    if (real(to)) to.focus();
  };

  const name = (event) => {
    const td = event.target.closest?.("td");
    const panel = event.target.closest?.(".grid");
    if (!panel) return;
    panel.querySelectorAll("th").forEach((th) => th.classList.remove("on"));
    const chosen = td?.says && event.type !== "focusout" && event.type !== "pointerout";
    if (chosen) {
      td.parentElement.cells[0].classList.add("on");
      panel.querySelector("thead").rows[0].cells[td.cellIndex].classList.add("on");
      if (event.type === "focusin") {
        panel.querySelectorAll("td[tabindex='0']").forEach((other) => (other.tabIndex = -1));
        td.tabIndex = 0;
      }
    }
    set(panel, ".cell", chosen ? td.says : "");
  };

  // ---- calculators: numbers of the reader, worked out by the stack
  const whole = (value) => value.toLocaleString("en");
  const workedOut = (program, values) => {
    const stack = [];
    const does = { "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "/": (a, b) => a / b };
    for (const step of program) {
      const [b, a] = does[step] ? [stack.pop(), stack.pop()] : [];
      stack.push(does[step]?.(a, b) ?? values[step] ?? step);
    }
    return stack.pop();
  };
  const readable = (size, units) => {
    let at = 0;
    for (; size >= 1000 && at < units.length - 1; at++) size /= 1000;
    return `${whole(+size.toPrecision(3))} ${units[at]}`;
  };

  // ---- steppers: one step back, one on, or one after another until the last
  const PACE = 1600; // milliseconds for a step: its sentence has to be read

  class Figure extends HTMLElement {
    connectedCallback() {
      if (this.ready) return;
      if (document.readyState === "loading") {
        const again = () => this.connectedCallback();
        document.addEventListener("DOMContentLoaded", again, { once: true });
        return;
      }
      const json = this.querySelector("script[type='application/json']");
      if (!json) return;
      this.ready = true;
      this.stored = JSON.parse(json.textContent);
      this.controls = [...this.querySelectorAll("[data-control]")];
      this.draw = this.stored.programs ? () => this.calculate() : this.draw;
      this.boxes = [...this.querySelectorAll(".panel")];
      this.querySelector(".controls").disabled = false;
      this.addEventListener("input", (event) => {
        this.pause();
        if (event.target.matches("[data-preset]")) this.choose(event.target.selectedIndex);
        this.draw();
      });
      this.addEventListener("click", (event) => {
        const button = event.target.closest("[data-go]");
        if (button) this.go(button, +button.dataset.go);
      });
      for (const type of ["focusin", "focusout", "pointerover", "pointerout"]) {
        this.addEventListener(type, name);
      }
      this.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        walk(event);
        // JupyterLab and the page's theme have keys of their own
        if (event.key !== "Escape") event.stopPropagation();
      });
      this.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
      this.draw();
      this.dataset.ready = "";
    }

    // ---- a calculator's entries, and what its formulas make of them
    get fields() {
      return [...this.querySelectorAll("[data-field]")];
    }

    choose(preset) {
      const values = this.stored.presets[preset - 1] ?? {};
      for (const field of this.fields) field.value = values[field.dataset.field] ?? field.value;
    }

    calculate() {
      const { programs, presets, say, units } = this.stored, fields = this.fields;
      const wrong = fields.find((field) => !field.checkValidity());
      const values = {}, words = {};
      for (const field of fields) {
        const { field: name } = field.dataset;
        values[name] = +field.value;
        words[name] = field.selectedOptions?.[0].text ?? whole(values[name]);
        field.setAttribute("aria-invalid", field === wrong);
      }
      Object.keys(programs).forEach((name, i) => {
        const size = Math.ceil(workedOut(programs[name], values));
        words[name] = readable(size, units);
        const dd = this.querySelectorAll("dd")[i];
        dd.textContent = wrong ? "–" : `${words[name]} `;
        if (!wrong) dd.append(make("small", `${whole(size)} bytes`));
      });
      const range = (field) => `from ${whole(+field.min)} to ${whole(+field.max)}`;
      const name = wrong?.previousElementSibling.textContent;
      set(this, "output", wrong ? `${name}: a whole number ${range(wrong)}.` : filled(say, words));
      const menu = this.querySelector("[data-preset]");
      const fits = (preset) => Object.keys(preset).every((key) => preset[key] === values[key]);
      if (menu) menu.selectedIndex = wrong ? 0 : presets.findIndex(fits) + 1;
    }

    // The index of each control's value.
    get state() {
      return this.controls.map((control) => {
        if (control.type === "checkbox") return +control.checked;
        if (control.tagName === "SELECT") return control.selectedIndex;
        return +(control.querySelector?.(":checked") ?? control).value;
      });
    }

    go(button, by) {
      const input = button.closest(".stepper").querySelector("input");
      const last = +input.max, playing = this.button === button;
      const move = (to) => {
        input.value = to;
        this.draw();
      };
      this.pause();
      if (by) move(+input.value + by);
      if (by || playing) return;
      this.button = button;
      button.textContent = "Pause";
      this.announce("off"); // until the last step: sentences would queue up
      if (+input.value === last) move(0);
      this.timer = setInterval(() => {
        if (+input.value + 1 >= last || !this.isConnected) this.pause();
        move(+input.value + 1);
      }, PACE);
    }

    pause() {
      if (!this.button) return;
      clearInterval(this.timer);
      this.button.textContent = "Play";
      this.button = null;
      this.announce("polite");
    }

    announce(how) {
      this.querySelectorAll("output").forEach((output) => output.setAttribute("aria-live", how));
    }

    draw() {
      const { texts, panels } = this.stored, state = this.state;
      this.controls.forEach((control, i) => {
        if (control.type !== "range") return;
        control.setAttribute("aria-valuetext", texts[i][state[i]]);
        control.nextElementSibling.textContent = texts[i][state[i]];
        const stepper = control.closest(".stepper");
        stepper?.querySelectorAll("[data-go]").forEach((button) => {
          const end = { "-1": 0, 1: +control.max }[button.dataset.go];
          button.setAttribute("aria-disabled", state[i] === end);
        });
      });
      panels.forEach((panel, i) => {
        const get = (part) => {
          const { on, states, at } = panel.parts[part];
          const index = on.reduce((sum, c) => sum * texts[c].length + state[c], 0);
          return states[at ? at[index] : index];
        };
        show[panel.kind](panel, this.boxes[i], get);
      });
    }
  }
  customElements.define("aiayn-figure", Figure);
})();
