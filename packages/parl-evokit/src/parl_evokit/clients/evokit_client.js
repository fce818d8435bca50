// The part of evolution that runs in a browser (or in Node): from a token of the service to a perturbed model and its
// predictions. It never draws keys and never holds the secret; the page gives the token back with the reward.
//
//   const published = {                            // fetched from the service; files of the model's directory
//     quantiles,                                   // quantiles_v1.i2, an ArrayBuffer
//     parameters,                                  // params.npz, an ArrayBuffer
//     solver,                                      // of solver.json: model_iter_id, fingerprint, config and model
//   };
//   const model = new evokit.Model(published);
//   const sample = model.sample(token);            // an Error if the token is of another model
//   const y = sample.predict([0.1, 0.2, 0.3, 0.4]);  // of mlp(...); else sample.parameters.w is a Float32Array
//
// As <script src="evokit_client.js"> it defines `evokit`; in Node, require() returns the same. The formats are in
// docs/reference/evokit of the repository: noise.md, tokens.md, solver_directory.md.
"use strict";

(function (root) {
  const CONTROL_FLAG = 1;

  // 64-bit numbers are pairs of unsigned 32-bit halves, [high, low]: BigInt is fifty times slower here.
  function halves(big) {
    return [Number((big >> 32n) & 0xffffffffn), Number(big & 0xffffffffn)];
  }

  // The upper 32 bits of a product of two 32-bit numbers; Math.imul has the lower ones.
  function upper(a, b) {
    const a0 = a & 0xffff, a1 = a >>> 16, b0 = b & 0xffff, b1 = b >>> 16;
    const low = a0 * b0, mid = a1 * b0 + (low >>> 16), other = a0 * b1 + (mid % 65536);
    return (a1 * b1 + Math.floor(mid / 65536) + Math.floor(other / 65536)) >>> 0;
  }

  const WIDE = new Uint32Array(4); // a product of 128 bits, lowest first
  function multiply(ah, al, bh, bl) {
    const ll = Math.imul(al, bl) >>> 0, lh = Math.imul(al, bh) >>> 0, hl = Math.imul(ah, bl) >>> 0;
    const hh = Math.imul(ah, bh) >>> 0;
    let sum = upper(al, bl) + lh + hl;
    WIDE[0] = ll;
    WIDE[1] = sum >>> 0;
    sum = Math.floor(sum / 4294967296) + upper(al, bh) + upper(ah, bl) + hh;
    WIDE[2] = sum >>> 0;
    WIDE[3] = (Math.floor(sum / 4294967296) + upper(ah, bh)) >>> 0;
  }

  // Philox4x64-10 of a counter below 2**32: fills `out` with eight 32-bit words, lowest first.
  function philox(counter, seed, stream, out) {
    let c0h = 0, c0l = counter, c1h = 0, c1l = 0, c2h = 0, c2l = 0, c3h = 0, c3l = 0;
    let [k0h, k0l] = seed, [k1h, k1l] = stream;
    for (let round = 0; round < 10; round++) {
      multiply(0xd2e7470e, 0xe14c6c93, c0h, c0l);
      const a0 = WIDE[0], a1 = WIDE[1], a2 = WIDE[2], a3 = WIDE[3];
      multiply(0xca5a8263, 0x95121157, c2h, c2l);
      c0h = (WIDE[3] ^ c1h ^ k0h) >>> 0, c0l = (WIDE[2] ^ c1l ^ k0l) >>> 0;
      c2h = (a3 ^ c3h ^ k1h) >>> 0, c2l = (a2 ^ c3l ^ k1l) >>> 0;
      c1h = WIDE[1], c1l = WIDE[0], c3h = a1, c3l = a0;
      let sum = k0l + 0x7f4a7c15;
      k0l = sum >>> 0, k0h = (k0h + 0x9e3779b9 + (sum > 0xffffffff ? 1 : 0)) >>> 0;
      sum = k1l + 0x84caa73b;
      k1l = sum >>> 0, k1h = (k1h + 0xbb67ae85 + (sum > 0xffffffff ? 1 : 0)) >>> 0;
    }
    out[0] = c0l, out[1] = c0h, out[2] = c1l, out[3] = c1h, out[4] = c2l, out[5] = c2h, out[6] = c3l, out[7] = c3h;
  }

  const U64 = (x) => BigInt.asUintN(64, x);

  function splitmix64(key, n) {
    let z = U64(key + (n + 1n) * 0x9e3779b97f4a7c15n);
    z = U64((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n);
    z = U64((z ^ (z >> 27n)) * 0x94d049bb133111ebn);
    return z ^ (z >> 31n);
  }

  class Noise {
    // quantiles: the shipped file, an ArrayBuffer; seed: a BigInt; tableSize: 0 stands for cached: false.
    constructor(quantiles, seed, tableSize) {
      const view = new DataView(quantiles);
      if (view.byteLength !== 65536) throw new Error("this is not quantiles_v1.i2");
      this.quantiles = new Int16Array(65536);
      for (let i = 0; i < 32768; i++) {
        const unit = view.getInt16(2 * i, true);
        this.quantiles[32768 + i] = unit;
        this.quantiles[32767 - i] = -unit;
      }
      this.seed = halves(BigInt(seed));
      this.block = 65536;
      while (tableSize && this.block > Math.floor(tableSize / 4)) this.block /= 2;
      this.table = tableSize ? this.computed(0n, 0, tableSize) : null;
    }

    // Noise without a table: stream `stream`, coordinates `start` to `start + count - 1`.
    computed(stream, start, count) {
      const units = new Int16Array(count), words = new Uint32Array(8), key = halves(stream);
      for (let i = 0; i < count; i++) {
        const c = start + i, place = c % 16;
        if (i === 0 || place === 0) philox(Math.floor(c / 16) + 1, this.seed, key, words);
        const word = words[place >> 1];
        units[i] = this.quantiles[place & 1 ? word >>> 16 : word & 0xffff];
      }
      return units;
    }

    fromTable(pair, start, count) {
      const units = new Int16Array(count), windows = BigInt(this.table.length - this.block + 1);
      for (let i = 0, window; i < count; i++) {
        const c = start + i, place = c % this.block;
        if (i === 0 || place === 0) window = Number(splitmix64(pair, BigInt(Math.floor(c / this.block))) % windows);
        units[i] = this.table[window + place];
      }
      return units;
    }

    // The noise of a key (a BigInt), in 1/4096 of the standard deviation.
    units(key, start, count) {
      if (key === 0n) return new Int16Array(count); // control traffic
      const pair = key >> 1n;
      const units = this.table ? this.fromTable(pair, start, count) : this.computed(pair, start, count);
      if (key & 1n) for (let i = 0; i < count; i++) units[i] = -units[i];
      return units;
    }

    // parameters: a Float32Array, whose first has the coordinate `start`; std: one number, or one a parameter.
    perturbed(parameters, key, std, start = 0) {
      const units = this.units(key, start, parameters.length), out = new Float32Array(parameters.length);
      const each = typeof std !== "number", one = each ? 0 : Math.fround(Math.fround(std) / 4096);
      if (key === 0n) return parameters.slice();
      for (let i = 0; i < out.length; i++) {
        const step = each ? Math.fround(std[i] / 4096) : one;
        out[i] = parameters[i] + Math.fround(units[i] * step);
      }
      return out;
    }
  }

  // What a token says. Only the service can tell whether it is genuine; a page got it from there.
  function readToken(token) {
    if (!/^[A-Za-z0-9_-]{56}$/.test(token)) throw new Error("a token is 56 characters of base64url");
    const text = atob(token.replace(/-/g, "+").replace(/_/g, "/"));
    const view = new DataView(Uint8Array.from(text, (character) => character.charCodeAt(0)).buffer);
    const flags = view.getUint8(1);
    if (view.getUint8(0) !== 1 || flags & ~CONTROL_FLAG) throw new Error("this is not a token of format 1");
    return {
      key: flags & CONTROL_FLAG ? 0n : view.getBigUint64(18, true),
      identity: flags & CONTROL_FLAG ? view.getBigUint64(18, true) : 0n,
      expires: new Date(1000 * view.getUint32(6, true)),
      modelIterId: view.getUint32(10, true),
      fingerprint: view.getUint32(14, true),
    };
  }

  const TYPES = { "<f4": Float32Array, "<f8": Float64Array, "<i8": BigInt64Array, "<u8": BigUint64Array };

  // The arrays of an .npz file as numpy's savez writes it, in their order: [{ name, shape, values }].
  function readNpz(buffer) {
    const view = new DataView(buffer), bytes = new Uint8Array(buffer), text = new TextDecoder("latin1");
    let end = buffer.byteLength - 22;
    while (end > 0 && view.getUint32(end, true) !== 0x06054b50) end--;
    if (end < 0 || view.getUint32(end, true) !== 0x06054b50) throw new Error("the .npz file has no directory");
    const arrays = [];
    for (let left = view.getUint16(end + 10, true), place = view.getUint32(end + 16, true); left > 0; left--) {
      const nameSize = view.getUint16(place + 28, true), local = view.getUint32(place + 42, true);
      if (view.getUint16(place + 10, true) !== 0) throw new Error("an array of the .npz file is compressed");
      const name = text.decode(bytes.subarray(place + 46, place + 46 + nameSize)).replace(/\.npy$/, "");
      place += 46 + nameSize + view.getUint16(place + 30, true) + view.getUint16(place + 32, true);
      const npy = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
      const long = view.getUint8(npy + 6) > 1;
      const from = npy + (long ? 12 : 10), size = long ? view.getUint32(npy + 8, true) : view.getUint16(npy + 8, true);
      const head = text.decode(bytes.subarray(from, from + size));
      const type = /'descr': '(<[fiu][48])'/.exec(head), shape = /'shape': \(([^)]*)\)/.exec(head);
      if (!type || !TYPES[type[1]]) continue; // nothing that is needed here
      if (!shape || !/'fortran_order': False/.test(head)) throw new Error(`array ${name} is of another kind`);
      const sides = shape[1].split(",").filter((side) => side.trim()).map(Number);
      const count = sides.reduce((a, b) => a * b, 1), Kind = TYPES[type[1]];
      const data = buffer.slice(from + size, from + size + count * Kind.BYTES_PER_ELEMENT);
      arrays.push({ name, shape: sides, values: new Kind(data) });
    }
    return arrays;
  }

  // One setting of the prototxt that parl-evokit writes; names do not repeat but for `std` and `type`, hence the block.
  function setting(config, block, name, otherwise) {
    const inner = block ? (new RegExp(`\\b${block}\\s*\\{([^{}]*)`).exec(config) || ["", ""])[1] : config;
    const found = new RegExp(`\\b${name}\\s*:\\s*"?([^\\s"]+)`).exec(inner);
    return found ? found[1] : otherwise;
  }

  // All numbers of a repeated setting of the CMA family.
  function settings(config, name) {
    const inner = (/\bcma_sampling\s*\{([^{}]*)/.exec(config) || ["", ""])[1];
    const found = inner.matchAll(new RegExp(`\\b${name}\\s*:\\s*(\\S+)`, "g"));
    return Array.from(found, ([, text]) => Number(text.replace("inf", "Infinity")));
  }

  const PARENT_INDEX = 1n << 32n;
  const ARM_BIT = 60n, HELD_OUT = 2n; // the number of the arm in an identity
  const dot = (a, b, start = 0) => a.reduce((sum, value, i) => sum + value * b[start + i], 0);

  // The matrix that an algorithm multiplies noise by, as a function of the normal numbers; null where it has none.
  function shapeOf(algorithm, arrays, n) {
    if (algorithm === "CMA_ES") {
      const lengths = arrays.lengths.values, matrix = arrays.axes.values.map((value, i) => value * lengths[i % n]);
      return (z) => z.map((_, row) => dot(z, matrix, row * n));
    }
    if (algorithm === "LM_MA_ES") {
      const vectors = arrays.directions.values, used = Math.min(Number(arrays.steps.values[0]), vectors.length / n);
      return (z) => {
        for (let k = 0, rate = 1 / n; k < used; k++, rate /= 1.5) {
          const along = dot(z, vectors, k * n), part = Math.min(0.5, 0.1 * n, rate);
          z = z.map((value, i) => (1 - part) * value + along * (part * vectors[k * n + i]));
        }
        return z;
      };
    }
    if (algorithm === "CR_FM_NES") {
      const v = arrays.direction.values, norm2 = dot(v, v), deviations = arrays.deviations.values;
      const direction = v.map((value) => value / Math.sqrt(norm2)), factor = Math.sqrt(1 + norm2) - 1;
      return (z) => {
        const along = dot(z, direction);
        return z.map((value, i) => (value + along * (factor * direction[i])) * deviations[i]);
      };
    }
    return null;
  }

  // The parents of a genetic algorithm: each from its origin, by its mutations in their order.
  function parentsOf(arrays, noise, std, n) {
    let first = 0;
    return Array.from(arrays.origin_of.values, (origin, k) => {
      let row = arrays.origins.values.slice(Number(origin) * n, (Number(origin) + 1) * n);
      for (const last = first + Number(arrays.chain_lengths.values[k]); first < last; first++)
        row = noise.perturbed(row, arrays.chains.values[first], std);
      return row;
    });
  }

  // The largest float32 number that is not above x.
  function below(x) {
    const number = new Float32Array([x]), bits = new Int32Array(number.buffer);
    if (number[0] > x) bits[0] = number[0] > 0 ? bits[0] - 1 : number[0] < 0 ? bits[0] + 1 : (1 << 31) + 1;
    return number[0];
  }

  // y mirrored at a low and a high side, which may be infinite.
  function folded(y, low, high) {
    if (y >= low && y <= high) return y;
    if (!Number.isFinite(low) || !Number.isFinite(high)) return y < low ? 2 * low - y : 2 * high - y;
    const width = high - low;
    let way = (y - low) % (2 * width);
    if (way < 0) way += 2 * width;
    return low + (way > width ? 2 * width - way : way);
  }

  // Where a step leads from x: in coordinates that are bent within a margin of the sides, so that all is smooth there.
  function moved(x, step, [lower, upper, margin]) {
    if (step === 0) return x;
    const low = lower - margin, high = upper + margin;
    let y = x;
    if (x < lower + margin) y = low + 2 * Math.sqrt(margin * (x - lower));
    else if (x > upper - margin) y = high - 2 * Math.sqrt(margin * (upper - x));
    y = folded(y + step, low, high);
    if (y < lower + margin) y = lower + ((y - low) * (y - low)) / (4 * margin);
    else if (y > upper - margin) y = upper - ((high - y) * (high - y)) / (4 * margin);
    return Math.min(Math.max(y, lower), upper);
  }

  // The nearest whole number, the even one of two.
  function rounded(x) {
    const up = Math.round(x);
    return up - x === 0.5 && up % 2 ? up - 1 : up;
  }

  const ACTIVATIONS = {
    tanh: (y) => y.forEach((value, i) => (y[i] = Math.tanh(value))),
    relu: (y) => y.forEach((value, i) => (y[i] = Math.max(value, 0))),
    linear: () => undefined,
    softmax: (y) => {
      const largest = Math.max(...y);
      let sum = 0;
      y.forEach((value, i) => (sum += y[i] = Math.exp(value - largest)));
      y.forEach((value, i) => (y[i] = value / sum));
    },
  };

  // activation(x . weights + bias); weights [inputs, outputs], row by row.
  function dense(weights, bias, x, activation = "linear") {
    const outputs = weights.length / x.length, y = new Float32Array(outputs);
    if (!Number.isInteger(outputs)) throw new Error(`${weights.length} weights do not fit ${x.length} inputs`);
    for (let i = 0; i < x.length; i++) for (let o = 0; o < outputs; o++) y[o] += x[i] * weights[i * outputs + o];
    if (bias) for (let o = 0; o < outputs; o++) y[o] += bias[o];
    ACTIVATIONS[activation](y);
    return y;
  }

  const WITHOUT_STATE = ["BASIC_ES", "ARS"]; // but for schedules and for tokens of the holdout arm

  // A published model; other algorithms than these need `state`: solver.npz.
  class Model {
    constructor({ quantiles, parameters, solver, state }) {
      const config = solver.config, sampling = (name, otherwise) => setting(config, "gaussian_sampling", name, otherwise);
      const algorithm = setting(config, "solver", "type", "BASIC_ES");
      if (!state && !WITHOUT_STATE.includes(algorithm)) throw new Error(`${algorithm} needs state: solver.npz`);
      const schedule = /\bgaussian_sampling\s*\{[^{}]*\bschedule\s*\{([^{}]*)/.exec(config);
      if (!state && schedule && setting(schedule[1], null, "type", "CONSTANT") !== "CONSTANT")
        throw new Error("a schedule of std needs state: solver.npz");
      this.modelIterId = solver.model_iter_id;
      this.fingerprint = solver.fingerprint;
      this.arrays = readNpz(parameters);
      this.flat = new Float32Array(this.arrays.reduce((sum, array) => sum + array.values.length, 0));
      this.arrays.reduce((start, array) => (this.flat.set(array.values, start), start + array.values.length), 0);
      const firstStd = Number(sampling("std", "1"));
      this.std = firstStd;
      const arrays = Object.fromEntries((state ? readNpz(state) : []).map((array) => [array.name, array]));
      const std = arrays.std, trusted = arrays["guard.parameters"];
      this.trusted = trusted ? trusted.values : null;
      if (std) this.std = std.shape.length ? Float32Array.from(std.values) : std.values[0];
      if (arrays.sigma) this.std = arrays.sigma.values[0];
      if (algorithm === "SEP_CMA_ES") this.std = Float32Array.from(arrays.variances.values, (each) => this.std * Math.sqrt(each));
      const table = sampling("cached", "false") === "true" ? Number(sampling("cache_size", "100000")) : 0;
      this.noise = new Noise(quantiles, BigInt(sampling("seed", "18")), table);
      const n = this.flat.length;
      const sides = (name, none) => Object.assign(new Array(n).fill(none), this.each(settings(config, name)));
      this.shape = shapeOf(algorithm, arrays, n);
      this.parents = algorithm === "GA" ? parentsOf(arrays, this.noise, this.std, n) : null;
      this.integers = new Set(settings(config, "integers"));
      const lower = sides("lower", -Infinity).map((side) => -below(-side)), upper = sides("upper", Infinity).map(below);
      const bounded = [...lower, ...upper].some(Number.isFinite);
      const margin = (low, high, i) => (this.integers.has(i) ? 0 : Math.min((high - low) / 20, firstStd / 2));
      this.box = bounded ? lower.map((low, i) => [low, upper[i], margin(low, upper[i], i)]) : null;
      if (this.trusted) this.confine(this.trusted);
      const [kind, , ...words] = (solver.model || "").split(":");
      this.layers = kind === "mlp" ? this.arrays.filter((array) => /^w\d+$/.test(array.name)).length : 0;
      this.activation = words.find((word) => word in ACTIVATIONS) || "tanh";
      this.last = words.includes("logits") ? "linear" : "softmax";
    }

    // One number stands for all parameters.
    each(numbers) {
      return numbers.length === 1 ? new Array(this.flat.length).fill(numbers[0]) : numbers;
    }

    confine(flat) {
      const limit = (i, low, high) => (flat[i] = Math.min(Math.max(flat[i], low), high));
      if (this.box) this.box.forEach(([lower, upper], i) => limit(i, lower, upper));
      for (const i of this.integers) {
        flat[i] = rounded(flat[i]);
        if (this.box) limit(i, Math.ceil(this.box[i][0]), Math.floor(this.box[i][1]));
      }
      return flat;
    }

    // The model with the noise of a token; the trusted model for a token of the holdout arm, which needs `state`.
    sample(token) {
      const said = readToken(token), same = said.fingerprint === this.fingerprint;
      if (said.modelIterId !== this.modelIterId || !same)
        throw new Error(`the token is of model ${said.modelIterId}, here is ${this.modelIterId}: load it anew`);
      if (said.identity >> ARM_BIT !== HELD_OUT) return this.perturbed(said.key);
      if (!this.trusted) throw new Error("the token is of the holdout arm, which needs state: solver.npz");
      return this.parts(this.trusted.slice());
    }

    perturbed(key) {
      if (this.shape || this.box) {
        let z = Float64Array.from(this.noise.units(key, 0, this.flat.length));
        if (this.shape) z = this.shape(z);
        const step = (i) => z[i] * ((this.std.length ? this.std[i] : this.std) / 4096), flat = this.flat;
        const at = (x, i) => (this.box ? moved(x, step(i), this.box[i]) : x + step(i));
        return this.parts(this.confine(Float32Array.from(flat, at)));
      }
      const child = this.parents && key !== 0n;
      const number = child ? Number(splitmix64(key >> 1n, PARENT_INDEX) % BigInt(this.parents.length)) : 0;
      return this.parts(this.confine(this.noise.perturbed(child ? this.parents[number] : this.flat, key, this.std)));
    }

    parts(flat) {
      const parameters = {};
      let start = 0;
      for (const { name, values } of this.arrays) parameters[name] = flat.subarray(start, (start += values.length));
      return { flat, parameters, predict: (x) => this.predict(parameters, x) };
    }

    predict(parameters, x) {
      if (!this.layers) throw new Error("the model is no built-in perceptron: use parameters and evokit.dense");
      let y = Float32Array.from(x);
      for (let i = 0; i < this.layers; i++)
        y = dense(parameters[`w${i}`], parameters[`b${i}`], y, i + 1 < this.layers ? this.activation : this.last);
      return y;
    }
  }

  const evokit = { Model, Noise, readToken, dense };
  if (typeof module === "object" && module.exports) module.exports = evokit;
  else root.evokit = evokit;
})(typeof globalThis === "object" ? globalThis : this);
