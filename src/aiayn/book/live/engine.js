// The Transformer of chapter 6 for one sequence, in plain loops: weights by the names
// that they have in PyTorch, one vector a token, past keys and values kept.
(() => {
  const DIGITS =
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";

  // Half precision: a sign, five bits of exponent, ten of fraction.
  const fromHalf = (bits) => {
    const exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const size = exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction;
    return bits & 32768 ? -size : size;
  };

  // Five characters are four bytes, the first the largest; two bytes are a number.
  const unpack = (text) => {
    const digit = new Uint8Array(128);
    [...DIGITS].forEach((character, i) => (digit[character.charCodeAt(0)] = i));
    const bytes = new DataView(new ArrayBuffer((text.length / 5) * 4));
    for (let i = 0, at = 0; i < text.length; i += 5, at += 4) {
      let number = 0;
      for (let j = 0; j < 5; j++) number = number * 85 + digit[text.charCodeAt(i + j)];
      bytes.setUint32(at, number);
    }
    const numbers = new Float64Array(bytes.byteLength / 2);
    for (let i = 0; i < numbers.length; i++) numbers[i] = fromHalf(bytes.getUint16(2 * i, true));
    return numbers;
  };

  const add = (a, b) => a.map((value, i) => value + b[i]);

  const softmax = (scores) => {
    const most = Math.max(...scores), shares = scores.map((score) => Math.exp(score - most));
    const sum = shares.reduce((a, b) => a + b);
    return shares.map((share) => share / sum);
  };

  const sinusoids = (position, width) =>
    Float64Array.from({ length: width }, (_, i) => {
      const angle = position * 10000 ** -((i - (i % 2)) / width);
      return i % 2 ? Math.cos(angle) : Math.sin(angle);
    });

  class CopyTransformer {
    // `shapes` are those of the tensors by name, `weights` all their numbers, packed.
    constructor({ config, bos, eos, shapes, weights }) {
      Object.assign(this, { config, bos, eos, tensors: {} });
      const numbers = unpack(weights);
      let start = 0;
      for (const [name, shape] of Object.entries(shapes)) {
        const size = shape.reduce((a, b) => a * b);
        this.tensors[name] = numbers.subarray(start, (start += size));
      }
    }

    linear(name, x) {
      const weight = this.tensors[`${name}.weight`], bias = this.tensors[`${name}.bias`];
      const width = x.length, y = new Float64Array(weight.length / width);
      for (let row = 0, at = 0; row < y.length; row++) {
        let even = bias ? bias[row] : 0, odd = 0; // two sums need not wait for each other
        for (let i = 0; i < width; i += 2, at += 2) {
          even += weight[at] * x[i];
          odd += weight[at + 1] * x[i + 1];
        }
        y[row] = even + odd;
      }
      return y;
    }

    addAndNormalise(name, x, change) {
      const sum = add(x, change), n = sum.length;
      const mean = sum.reduce((a, b) => a + b) / n;
      const variance = sum.reduce((a, b) => a + (b - mean) ** 2, 0) / n;
      const weight = this.tensors[`${name}.norm.weight`], bias = this.tensors[`${name}.norm.bias`];
      return sum.map((v, i) => ((v - mean) / Math.sqrt(variance + 1e-5)) * weight[i] + bias[i]);
    }

    feedForward(layer, x) {
      const inner = this.linear(`${layer}.feed_forward.inner`, x).map((v) => Math.max(0, v));
      const change = this.linear(`${layer}.feed_forward.outer`, inner);
      return this.addAndNormalise(`${layer}.around_feed_forward`, x, change);
    }

    embed(side, token, position, knobs) {
      const width = this.config.d_model, start = token * width;
      const row = this.tensors[`${side}_embedding.weight`].subarray(start, start + width);
      const x = Float64Array.from(row, (value) => value * Math.sqrt(width));
      return knobs.positions ? add(x, sinusoids(position, width)) : x;
    }

    project(name, x) {
      return [this.linear(`${name}.key_projection`, x), this.linear(`${name}.value_projection`, x)];
    }

    // One query against all pairs of key and value; each head's weights go into `maps`.
    attend(name, x, pairs, knobs, maps) {
      const heads = this.config.n_heads, width = this.config.d_model / heads;
      const query = this.linear(`${name}.query_projection`, x);
      const joined = new Float64Array(query.length);
      for (let head = 0; head < heads; head++) {
        const start = head * width;
        const scores = Float64Array.from(pairs, ([key]) => {
          let sum = 0;
          for (let i = start; i < start + width; i++) sum += query[i] * key[i];
          return knobs.scaled ? sum / Math.sqrt(width) : sum;
        });
        const weights = softmax(scores);
        ((maps[name] ??= [])[head] ??= []).push(weights);
        if (knobs.silenced.has(`${name}.${head}`)) continue; // its output stays zero
        pairs.forEach(([, value], j) => {
          for (let i = start; i < start + width; i++) joined[i] += weights[j] * value[i];
        });
      }
      return this.linear(`${name}.output_projection`, joined);
    }

    encode(source, knobs, maps) {
      let x = source.map((token, i) => this.embed("source", token, i, knobs));
      for (let i = 0; i < this.config.n_layers; i++) {
        const layer = `encoder_layers.${i}`, name = `${layer}.self_attention`;
        const pairs = x.map((row) => this.project(name, row));
        x = x.map((row) => {
          const change = this.attend(name, row, pairs, knobs, maps);
          return this.feedForward(
            layer, this.addAndNormalise(`${layer}.around_self_attention`, row, change));
        });
      }
      return x;
    }

    // Reads the source, writes greedily until the end or `limit` tokens. `maps` has, by the
    // attention's name, a list of weights for each head and row; logits, a row a token.
    run(source, { positions = true, scaled = true, silenced = new Set() } = {}) {
      const knobs = { positions, scaled, silenced }, maps = {}, logits = [], written = [];
      const limit = source.length + 1; // one too many, so that a missing end is seen
      const memory = this.encode(source, knobs, maps);
      const layers = Array.from({ length: this.config.n_layers }, (_, i) => {
        const layer = `decoder_layers.${i}`;
        const across = memory.map((row) => this.project(`${layer}.cross_attention`, row));
        return { layer, past: [], across };
      });
      while (written.length < limit && written.at(-1) !== this.eos) {
        const last = written.at(-1) ?? this.bos;
        let x = this.embed("target", last, written.length, knobs);
        for (const { layer, past, across } of layers) {
          for (const [kind, pairs] of [["self_attention", past], ["cross_attention", across]]) {
            const name = `${layer}.${kind}`;
            if (kind === "self_attention") past.push(this.project(name, x));
            const change = this.attend(name, x, pairs, knobs, maps);
            x = this.addAndNormalise(`${layer}.around_${kind}`, x, change);
          }
          x = this.feedForward(layer, x);
        }
        const row = this.linear("output_projection", x);
        logits.push(row);
        written.push(row.indexOf(Math.max(...row)));
      }
      return { maps, logits, written, chances: logits.map(softmax) };
    }
  }

  globalThis.AiaynCopyTransformer = CopyTransformer;
})();
