// The live model: what a reader sees and touches. The engine computes, `page.py` drew the
// first state; this script fills the same elements anew.
(() => {
  if (customElements.get("aiayn-live")) return;

  const SHADES = 16;
  const AT = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const loads = {};

  // The weights, once a page: a page that was opened as a file may not fetch.
  const load = (address) =>
    (loads[address] ??= new Promise((resolve, reject) => {
      if (globalThis.aiaynCopyModel) return resolve();
      const script = document.createElement("script");
      Object.assign(script, { src: address, onload: resolve, onerror: reject });
      document.head.append(script);
    }));

  const isEncoder = (name) => name.startsWith("encoder");
  const isSelf = (name) => name.endsWith("self_attention");
  const shade = (weight) => Math.floor(weight * SHADES + 0.5);
  const fill = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };
  const capital = (text) => text[0].toUpperCase() + text.slice(1);
  const random = (n) => Math.floor(Math.random() * n);

  // A map as one path for each shade, over the cells that exist.
  const drawn = (rows) => {
    const squares = {};
    rows.forEach((row, y) =>
      row.forEach((weight, x) => {
        if (shade(weight)) (squares[shade(weight)] ??= []).push(`M${x} ${y}h1v1h-1z`);
      }));
    const ground = rows.map((row, y) => `M0 ${y}h${row.length}v1h-${row.length}z`).join("");
    const paths = Object.entries(squares).map(
      ([n, parts]) => `<path d="${parts.join("")}" fill-opacity="${n / SHADES}"/>`);
    return `<path class="ground" d="${ground}" fill-opacity=".06"/>${paths.join("")}`;
  };

  class Live extends HTMLElement {
    connectedCallback() {
      if (this.begun) return;
      if (document.readyState === "loading") {
        const again = () => this.connectedCallback();
        document.addEventListener("DOMContentLoaded", again, { once: true });
        return;
      }
      const json = this.querySelector("script[type='application/json']");
      if (!json) return;
      this.begun = true;
      Object.assign(this, JSON.parse(json.textContent)); // letters, longest
      this.one = (selector) => this.querySelector(selector);
      this.fields = this.one("form").elements;
      this.listen();
      this.wait();
    }

    disconnectedCallback() {
      clearInterval(this.timer);
    }

    // ---- loading: when the figure comes near, or at once if the weights are here
    wait() {
      if (globalThis.aiaynCopyModel) return this.start();
      const status = this.one(".status"), button = this.one("[data-do=load]");
      fill(status, "A stored run.");
      if (navigator.connection?.saveData) {
        button.hidden = false;
        button.closest("fieldset").disabled = false;
        return;
      }
      const near = new IntersectionObserver((entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        near.disconnect();
        this.start();
      }, { rootMargin: "300px" });
      near.observe(this);
    }

    async start() {
      const status = this.one(".status");
      this.one("[data-do=load]").hidden = true;
      try {
        if (!globalThis.aiaynCopyModel) {
          fill(status, "A stored run. Loading the model (590 kB) …");
          await load(this.dataset.weights);
        }
        this.model = new globalThis.AiaynCopyTransformer(globalThis.aiaynCopyModel);
      } catch {
        fill(status, "A stored run. The model could not be loaded.");
        return;
      }
      this.querySelectorAll("fieldset").forEach((fieldset) => (fieldset.disabled = false));
      const chosen = this.one(".heads [aria-pressed=true]").dataset;
      this.head = { name: chosen.attention, index: +chosen.head };
      this.pick = { side: "written", at: +this.one(".tape [aria-pressed=true]").dataset.at };
      this.knobs = { positions: true, scaled: true, silenced: new Set() };
      this.read(this.fields.sequence.value);
      this.dataset.ready = "";
    }

    // ---- what was asked for
    listen() {
      this.addEventListener("input", ({ target }) => {
        if (!this.model) return;
        this.pause();
        if (target.name === "sequence") this.read(target.value);
        else if (target.name === "step") this.go(+target.value);
        else this.turn(target.name, target.checked);
      });
      this.addEventListener("click", ({ target }) => {
        const button = target.closest("button"), data = button?.dataset;
        if (data?.do === "load") this.start();
        if (!data || !this.model) return;
        if (data.do) this.act(data.do);
        else if (data.attention) this.choose(button);
        else this.ask(data.side, +data.at);
      });
      const point = ({ target, type }) => {
        const button = target.closest?.("button");
        if (!button || !this.model) return;
        const { side, at, attention } = button.dataset;
        if (side) this.point(side, +at);
        else if (attention && type === "focusin") this.choose(button);
      };
      this.addEventListener("focusin", point);
      this.addEventListener("pointerover", point);
      const plan = this.one(".plan");
      const over = (event) => this.model && this.over(event);
      plan.addEventListener("pointermove", over);
      plan.addEventListener("pointerdown", over);
      plan.addEventListener("pointerleave", () => this.model && this.over(null));
      this.one("details").addEventListener("toggle", () => this.model && this.drawTable());
      this.one("form").addEventListener("submit", (event) => event.preventDefault());
      this.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        if (this.model) this.walk(event);
        // JupyterLab and the page's theme have keys of their own
        if (event.key !== "Escape") event.stopPropagation();
      });
    }

    read(text) {
      const letters = [...text.toLowerCase().replace(/[\s,]/g, "")];
      const strange = letters.find((letter) => !this.letters.includes(letter));
      const range = `from ${this.letters[0]} to ${this.letters.at(-1)}`;
      let problem = "";
      if (strange) problem = `“${strange}” is not a symbol: type letters ${range}.`;
      else if (!letters.length) problem = `Type at least one letter ${range}.`;
      else if (letters.length > this.longest) {
        problem = `${letters.length} symbols: this model was trained on 1 to ${this.longest}.`;
      }
      this.fields.sequence.setAttribute("aria-invalid", String(Boolean(problem)));
      this.one(".status").classList.toggle("problem", Boolean(problem));
      if (problem && this.source) {
        problem += ` Shown is still ${this.source.slice(0, -1).map((t) => this.name(t)).join("")}.`;
      }
      fill(this.one(".status"), problem || "It runs in your browser.");
      if (problem) return;
      this.symbols = letters.map((letter) => this.letters.indexOf(letter) + this.model.eos + 1);
      this.run();
    }

    act(what) {
      if (what !== "play") this.pause();
      if (what === "shuffle" || what === "random") {
        let letters = this.symbols.map((token) => this.name(token));
        const before = letters.join("");
        if (what === "random") {
          const length = 1 + random(this.longest);
          letters = Array.from({ length }, () => this.letters[random(this.letters.length)]);
        }
        for (let tries = 0; tries < 20 && letters.join("") === before; tries++) {
          for (let i = letters.length - 1; i > 0; i--) {
            const j = random(i + 1);
            [letters[i], letters[j]] = [letters[j], letters[i]];
          }
        }
        this.fields.sequence.value = letters.join("");
        this.read(this.fields.sequence.value);
      } else if (what === "back" || what === "next") {
        this.go(this.step + (what === "next" ? 1 : -1));
      } else if (what === "play") {
        if (this.timer) return this.pause();
        fill(this.one("[data-do=play]"), "Pause");
        this.go(this.step === this.total ? 0 : this.step + 1);
        this.timer = setInterval(() => {
          this.go(this.step + 1);
          if (this.step === this.total) this.pause();
        }, 700);
      } else if (what === "repair") {
        this.fields.positions.checked = this.fields.scaled.checked = true;
        this.knobs = { positions: true, scaled: true, silenced: new Set() };
        this.run();
      }
    }

    pause() {
      clearInterval(this.timer);
      this.timer = 0;
      fill(this.one("[data-do=play]"), "Play");
    }

    turn(knob, on) {
      const { silenced } = this.knobs, key = `${this.head.name}.${this.head.index}`;
      if (knob !== "head") this.knobs[knob] = on;
      else if (on) silenced.delete(key);
      else silenced.add(key);
      this.run();
    }

    run() {
      this.source = [...this.symbols, this.model.eos];
      this.result = this.model.run(this.source, this.knobs);
      this.written = this.result.written;
      this.step = this.total = this.model.config.n_layers + this.written.length;
      const { side } = this.pick;
      const wrong = this.written.findIndex((token, i) => token !== this.source[i]);
      if (wrong >= 0 && !isEncoder(this.head.name)) this.pick = { side: "written", at: wrong };
      else this.pick.at = Math.min(this.pick.at, this[side].length - 1);
      this.draw();
    }

    // To a step: the newest token is chosen, and a head of what works in it.
    go(step) {
      this.step = Math.max(0, Math.min(this.total, step));
      const layers = this.model.config.n_layers;
      if (this.step > layers) {
        this.pick = { side: "written", at: this.step - layers - 1 };
        if (isEncoder(this.head.name)) this.head.name = this.decoder ?? this.lastCross;
      } else {
        if (!isEncoder(this.head.name)) this.decoder = this.head.name;
        this.head.name = `encoder_layers.${Math.max(0, this.step - 1)}.self_attention`;
        this.pick = { side: "source", at: Math.min(this.pick.at, this.source.length - 1) };
      }
      this.draw();
    }

    get lastCross() {
      return `decoder_layers.${this.model.config.n_layers - 1}.cross_attention`;
    }

    choose(button) {
      this.head = { name: button.dataset.attention, index: +button.dataset.head };
      const side = isEncoder(this.head.name) ? "source" : "written";
      const at = Math.min(this.pick.at, this[side].length - 1);
      this.pick = { side, at };
      this.draw();
    }

    // A token under the pointer or the focus: what the chosen head makes of it.
    point(side, at) {
      this.cell = null;
      this.pick = { side, at };
      this.drawPick();
    }

    // A token that is pressed: what does it look at? Shown is a head in which it looks.
    ask(side, at) {
      if (side === "source" && !isEncoder(this.head.name)) {
        this.head.name = this.head.name.replace(/^decoder(.*)\..*/, "encoder$1.self_attention");
      } else if (side === "written" && isEncoder(this.head.name)) {
        this.head.name = this.head.name.replace(/^encoder(.*)\..*/, "decoder$1.cross_attention");
      }
      this.pick = { side, at };
      this.draw();
    }

    over(event) {
      this.cell = null;
      if (event) {
        const plan = this.one(".plan");
        const place = new DOMPoint(event.clientX, event.clientY);
        const { x, y } = place.matrixTransform(plan.getScreenCTM().inverse());
        const [row, column] = [Math.floor(y), Math.floor(x)];
        if (!(row in this.rows())) return;
        this.pick = { side: isEncoder(this.head.name) ? "source" : "written", at: row };
        if (column in this.rows()[row]) this.cell = column;
      }
      this.drawPick();
    }

    // Arrow keys in the tokens and in the heads: Tab enters each at one place.
    walk(event) {
      const from = event.target.closest("[data-side], [data-attention]");
      if (!from) return;
      const steps = AT[event.key];
      if (!steps && event.key !== "Home" && event.key !== "End") return;
      event.preventDefault();
      const lines = from.dataset.side
        ? ["source", "written"].map((side) => [...this.querySelectorAll(`[data-side=${side}]`)])
        : [...this.querySelectorAll(".block")].map((block) => [...block.querySelectorAll("button")]);
      const r = lines.findIndex((line) => line.includes(from)), c = lines[r].indexOf(from);
      const line = lines[r + (steps?.[0] ?? 0)];
      const to = steps ? line?.[c + steps[1]] : line.at(event.key === "Home" ? 0 : -1);
      if (to && !to.disabled) to.focus();
    }

    // ---- what is shown
    name(token) {
      if (token > this.model.eos) return this.letters[token - this.model.eos - 1];
      return ["pad", "start", "end"][token];
    }

    spoken(token) {
      return token === this.model.eos ? "the end" : this.name(token);
    }

    headName({ name, index } = this.head) {
      const [stack, layer, kind] = name.split(".");
      return `${kind.replace("_", "-")} head ${index + 1} of ${stack.split("_")[0]} layer ${+layer + 1}`;
    }

    // Rows of a map that are computed by now.
    rows({ name, index } = this.head) {
      const layers = this.model.config.n_layers, all = this.result.maps[name][index];
      if (isEncoder(name)) return this.step > +name.split(".")[1] ? all : [];
      return all.slice(0, Math.max(0, this.step - layers));
    }

    keys(name = this.head.name) {
      if (isEncoder(name) || !isSelf(name)) return this.source;
      return [this.model.bos, ...this.written.slice(0, -1)];
    }

    // Columns and rows of a map: the longer of source and written, so that nothing jumps.
    size(name = this.head.name) {
      const most = Math.max(this.source.length, this.written.length);
      const encoder = isEncoder(name);
      return [encoder || !isSelf(name) ? this.source.length : most, encoder ? this.source.length : most];
    }

    draw() {
      this.cell = null;
      this.drawTape();
      this.drawHeads();
      this.drawSteps();
      this.drawPick();
      fill(this.one(".verdict"), this.verdict());
      const right = this.written.filter((token, i) => token === this.source[i]).length;
      fill(this.one(".score"), `${right} of ${this.source.length} tokens right`);
    }

    drawTape() {
      const tape = this.one(".tape"), { source, written, model } = this;
      const now = this.step - model.config.n_layers, count = Math.max(source.length, written.length);
      while (tape.children.length > count + 1) tape.lastChild.remove();
      while (tape.children.length <= count) {
        const i = tape.children.length - 1, pair = document.createElement("div");
        pair.className = "pair";
        pair.innerHTML =
          `<span>${i + 1}</span>` + ["source", "written"].map((side) =>
            `<button type="button" data-side="${side}" data-at="${i}" tabindex="-1"></button>`).join("");
        tape.append(pair);
      }
      for (const button of tape.querySelectorAll("button")) {
        const { side } = button.dataset, at = +button.dataset.at, isSource = side === "source";
        const token = this[side][at], there = isSource ? at < source.length : at < now;
        const wrong = there && !isSource && token !== source[at];
        fill(button, there ? this.name(token) : "");
        button.disabled = !there;
        button.className = wrong ? "wrong" : "";
        let said = `token ${at + 1} ${isSource ? "of the source" : "written"}`;
        if (there) said += `: ${this.spoken(token)}`;
        if (there && !isSource) {
          said += wrong ? `, wrong, expected ${this.spoken(source[at]) ?? "nothing"}` : ", right";
        }
        button.setAttribute("aria-label", there ? said : `${said}: nothing`);
      }
    }

    drawHeads() {
      for (const button of this.querySelectorAll(".heads button")) {
        const { attention: name, head } = button.dataset, index = +head;
        const svg = button.firstChild;
        const off = this.knobs.silenced.has(`${name}.${index}`);
        const chosen = name === this.head.name && index === this.head.index;
        svg.setAttribute("viewBox", `0 0 ${this.size(name).join(" ")}`);
        svg.innerHTML = drawn(this.rows({ name, index }));
        button.classList.toggle("off", off);
        button.setAttribute("aria-pressed", String(chosen));
        button.tabIndex = chosen ? 0 : -1;
        button.setAttribute("aria-label", this.headName({ name, index }) + (off ? ", silenced" : ""));
      }
      this.querySelectorAll(".name").forEach((name) => fill(name, this.headName()));
      this.fields.head.checked = !this.knobs.silenced.has(`${this.head.name}.${this.head.index}`);
    }

    drawSteps() {
      const { step: slider } = this.fields, layers = this.model.config.n_layers;
      const at = this.step - layers - 1;
      let what = this.step ? `encoder layer ${this.step}` : "the source, embedded";
      if (at >= 0) what = `token ${at + 1}, ${this.spoken(this.written[at])}`;
      const last = this.pick.side === "written" && this.pick.at === at;
      if (this.step === this.total && !last) what = "all is written";
      const text = `Step ${this.step} of ${this.total}: ${what}`;
      slider.max = this.total;
      slider.value = this.step;
      slider.setAttribute("aria-valuetext", text);
      fill(this.one(".where"), text);
    }

    // Everything that follows the chosen token.
    drawPick() {
      const { side, at } = this.pick, { name } = this.head, rows = this.rows();
      const looks = side === (isEncoder(name) ? "source" : "written"); // a row of this map
      const row = looks && at in rows ? rows[at] : null;
      const column = !looks && side === "source" && !isSelf(name) ? at : -1;
      const enters = [...this.querySelectorAll(".tape button:not(:disabled)")];
      const chosen = enters.find((b) => b.dataset.side === side && +b.dataset.at === at);
      for (const button of this.querySelectorAll(".tape button")) {
        const i = +button.dataset.at, isSource = button.dataset.side === "source";
        let weight;
        if (row && !isEncoder(name) && isSelf(name)) weight = isSource ? 0 : row[i + 1];
        else if (row) weight = isSource ? row[i] : 0;
        else if (column >= 0 && !isSource) weight = rows[i]?.[column];
        button.style.setProperty("--w", `${Math.round(100 * (weight ?? 0))}%`);
        button.setAttribute("aria-pressed", String(button === chosen));
        button.tabIndex = button === (chosen ?? enters[0]) ? 0 : -1;
      }
      this.drawMap(row ? at : -1, this.cell ?? column);
      this.drawChances();
      this.drawTable();
      fill(this.one(".words"), this.words(row, column));
    }

    drawMap(row, column) {
      const keys = this.keys(), queries = isEncoder(this.head.name) ? this.source : this.written;
      const rows = this.rows(), [width, height] = this.size();
      const label = (token) => ["∅", "▸", "■"][token] ?? this.name(token);
      const text = (x, y, token, on) =>
        `<text x="${x}" y="${y}"${on ? ' class="on"' : ""}>${label(token)}</text>`;
      const plan = this.one(".plan");
      plan.setAttribute("viewBox", `-1.2 -1 ${+(width + 1.3).toFixed(2)} ${+(height + 1.1).toFixed(2)}`);
      plan.style.fontSize = `${Math.min(0.72, 0.042 * (width + 1)).toFixed(3)}px`;
      plan.innerHTML =
        drawn(rows) +
        keys.slice(0, rows.at(-1)?.length).map((token, x) => text(x + 0.5, -0.5, token, x === column)).join("") +
        queries.slice(0, rows.length).map((token, y) => text(-0.6, y + 0.5, token, y === row)).join("") +
        (row >= 0 ? `<path class="row" d="M0 ${row}h${rows[row].length}v1h-${rows[row].length}z" fill="none"/>` : "") +
        (column >= 0 && rows.length ? `<path class="row" d="M${column} 0h1v${rows.length}h-1z" fill="none"/>` : "");
      plan.classList.toggle("off", !this.fields.head.checked);
    }

    drawChances() {
      const now = this.step - this.model.config.n_layers - 1;
      const { side, at } = this.pick, i = side === "written" && at <= now ? at : now;
      const shares = this.result.chances[i], expected = this.source[i];
      fill(this.one(".chances caption"), shares ? `Probability of token ${i + 1}` : "No token is written yet");
      for (const line of this.querySelectorAll(".chances tr")) {
        const token = +line.dataset.token, share = shares?.[token] ?? 0, cell = line.cells[1];
        const missed = shares && token === expected && token !== this.written[i];
        line.className = shares && token === this.written[i] ? "on" : "";
        cell.style.setProperty("--w", `${(100 * share).toFixed(1)}%`);
        fill(cell, shares ? share.toFixed(2) + (missed ? " expected" : "") : "");
      }
    }

    drawTable() {
      if (!this.one("details").open) return;
      const queries = isEncoder(this.head.name) ? this.source : this.written;
      const head = this.keys().map((token) => `<th scope="col">${this.name(token)}</th>`).join("");
      const body = this.rows().map((row, i) =>
        `<tr><th scope="row">${this.name(queries[i])}</th>${
          [...row].map((weight) => `<td>${weight.toFixed(2)}</td>`).join("")}</tr>`);
      this.one(".map thead").innerHTML = `<tr><th scope="col">token</th>${head}</tr>`;
      this.one(".map tbody").innerHTML = body.join("");
    }

    // ---- in words
    words(row, column) {
      const { side, at } = this.pick, { name } = this.head, keys = this.keys();
      const silenced = this.fields.head.checked ? "" : " It is silenced: what it reads is lost.";
      const place = (j) => {
        if (isSelf(name) && !isEncoder(name)) return j ? `token ${j}, ${this.spoken(keys[j])}` : "the start";
        return `token ${j + 1} of the source, ${this.spoken(keys[j])}`;
      };
      if (!this.step) {
        const where = this.knobs.positions ? "its symbol and its position" : "its symbol, and no position";
        return `Before the first layer each source token is a vector: ${where}. No token has seen another.`;
      }
      const token = this.spoken(this[side][at]);
      const subject = isEncoder(name)
        ? `In ${this.headName()}, token ${at + 1} of the source, ${token},`
        : `While token ${at + 1}, ${token}, is written, ${this.headName()}`;
      if (row && this.cell !== null && this.cell < row.length) {
        return `${subject} gives ${place(this.cell)} the weight ${row[this.cell].toFixed(2)}.`;
      }
      if (row) {
        const order = [...row.keys()].sort((a, b) => row[b] - row[a]);
        const [first, second] = order.map((j) => `${place(j)} (${row[j].toFixed(2)})`);
        return `${subject} looks most at ${first}${second ? `, then at ${second}` : ""}.${silenced}`;
      }
      const rows = this.rows();
      if (column >= 0 && rows.length) {
        const weights = rows.map((weights) => weights[column]), most = weights.indexOf(Math.max(...weights));
        return `${capital(this.headName())} looks most at token ${column + 1} of the source, ${token}, while ` +
          `token ${most + 1}, ${this.spoken(this.written[most])}, is written (${weights[most].toFixed(2)}).`;
      }
      if (side === "source" && isSelf(name) && !isEncoder(name)) {
        return `${capital(this.headName())} sees only what is written. Press the token to see where it looks itself.`;
      }
      if (side === "written") return "The encoder reads the source only. Press the token to see where it looks.";
      return "This step comes later.";
    }

    verdict() {
      const { source, written, total } = this, end = this.model.eos, done = this.step === total;
      const shown = written.slice(0, Math.max(0, this.step - this.model.config.n_layers));
      const { positions, scaled, silenced } = this.knobs;
      const without = [!positions && "positions", !scaled && "the scaling"].filter(Boolean);
      const heads = [...silenced].map((key) => {
        const dot = key.lastIndexOf(".");
        return this.headName({ name: key.slice(0, dot), index: +key.slice(dot + 1) });
      });
      without.push(...(heads.length > 2 ? [`${heads.length} heads`] : heads));
      const prefix = without.length ? `Without ${without.join(" and ")}: ` : "";
      const right = shown.filter((token, i) => token === source[i]).length;
      const wrong = shown.findIndex((token, i) => token !== source[i]);
      let text;
      if (!shown.length) text = "nothing is written yet.";
      else if (done && right === source.length && wrong < 0) {
        text = `all ${right} tokens are right, the end included.`;
      } else {
        const of = done ? source.length : shown.length;
        text = `${right} of ${of} tokens are right${done ? "" : " so far"}`;
        if (wrong >= 0) {
          const expected = wrong < source.length ? this.spoken(source[wrong]) : "nothing";
          text += `; the first error is token ${wrong + 1}, ${this.spoken(shown[wrong])} in place of ${expected}`;
        }
        text += ".";
        if (done && written.at(-1) !== end) text += " It did not stop by itself.";
        else if (done && written.length < source.length) text += ` It stopped after ${written.length} tokens.`;
      }
      text = prefix + text;
      return capital(text);
    }
  }
  customElements.define("aiayn-live", Live);
})();
