/* The explorer of a report: the fitted density, asked in the page.

   The first half is the density. It follows the Python files line by line, and its functions have their names:
   densities/residuals.py, densities/anyorder/{inputs,network,labels,numbers,density}.py and tables/columns/. A row is an
   array with NaN for what is hidden: an encoded row x has one entry for each encoded column, a row of cells one for each
   column of the table (null: unknown; a place in the list of values; a number X). The second half draws the page.
   Every size and constant is read from the data that Python wrote. */
"use strict";

const LOG_SQRT_2PI = 0.5 * Math.log(2 * Math.PI), PEAK = Math.exp(-LOG_SQRT_2PI);
const TAIL = 8; // |t| beyond which probabilities are taken as logarithms
const FAR = 38; // standard deviations at which a normal density is 0 in float64
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const sum = (values) => values.reduce((total, value) => total + value, 0);

function logSumExp(values) {
  const top = Math.max(...values);
  return top === -Infinity ? top : top + Math.log(sum(values.map((value) => Math.exp(value - top))));
}

function logSoftmax(values) {
  const total = logSumExp(values);
  return values.map((value) => value - total);
}

/* Φ: a series near 0, a continued fraction in the tails; as exact as float64 allows. */
function normalCdf(t) {
  if (t > 0) return 1 - normalCdf(-t);
  if (t < -3) return Math.exp(logNormalCdf(t));
  const density = Math.exp(-0.5 * t * t - LOG_SQRT_2PI);
  let term = t, total = t;
  for (let k = 3; Math.abs(term) > 1e-17 * Math.abs(total); k += 2) total += term *= (t * t) / k;
  return 0.5 + density * total;
}

/* log Φ(t) for t far below 0. */
function logNormalCdf(t) {
  let fraction = -t;
  for (let k = 80; k > 0; k--) fraction = -t + k / fraction;
  return -0.5 * t * t - LOG_SQRT_2PI - Math.log(fraction);
}

/* Φ⁻¹: Acklam's rational approximation, then Halley's steps. */
function normalQuantile(p) {
  if (p > 0.5) return -normalQuantile(1 - p);
  if (p <= 0) return -Infinity;
  const a = [-39.69683028665376, 220.9460984245205, -275.9285104469687, 138.357751867269, -30.66479806614716, 2.506628277459239];
  const b = [-54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972, -13.28068155288572, 1];
  const c = [-0.007784894002430293, -0.3223964580411365, -2.400758277161838, -2.549732539343734, 4.374664141464968, 2.938163982698783];
  const d = [0.007784695709041462, 0.3224671290700398, 2.445134137142996, 3.754408661907416, 1];
  const at = (coefficients, z) => coefficients.reduce((total, value) => total * z + value, 0);
  const q = Math.sqrt(-2 * Math.log(p)), middle = (p - 0.5) ** 2;
  let t = p < 0.02425 ? at(c, q) / at(d, q) : ((p - 0.5) * at(a, middle)) / at(b, middle);
  for (let step = 0; step < 2; step++) {
    const u = (normalCdf(t) - p) * Math.exp(0.5 * t * t + LOG_SQRT_2PI);
    t -= u / (1 + 0.5 * t * u);
  }
  return t;
}

/* The first place whose edge is above the value (or not below it), as numpy.searchsorted. */
function search(edges, value, right) {
  let low = 0, high = edges.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (right ? edges[middle] <= value : edges[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* Random numbers in [0, 1) from a seed (mulberry32), so that the same page draws the same rows. */
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let z = Math.imul(state ^ (state >>> 15), 1 | state);
    z = (z + Math.imul(z ^ (z >>> 7), 61 | z)) ^ z;
    return ((z ^ (z >>> 14)) >>> 0) / 4294967296;
  };
}

const randomNormal = (random) => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());

/* A place drawn by weights that need not sum to 1. */
function drawPlace(weights, random) {
  let left = random() * sum(weights);
  for (let i = 0; i < weights.length; i++) if ((left -= weights[i]) < 0) return i;
  return weights.findLastIndex((weight) => weight > 0);
}

/* ---- columns: tables/columns/monotone.py, preferred.py and codecs.py ---- */

class MonotoneMap {
  constructor({ location, scale, knots, scores, slopes }) {
    Object.assign(this, { location, scale, knots, scores, slopes });
    this.inner = [knots.slice(1, -1), scores.slice(1, -1)];
  }

  /* T(X) and log T′(X). */
  withLogSlope(X) {
    const y = (X - this.location) / this.scale, r = Math.hypot(y, 1), size = Math.abs(y);
    const u = Math.sign(y) * Math.log1p(size + (size / (1 + r)) * size);
    const { left, width, bottom, height, d0, d1, s } = this.piece(0, u);
    const part = clamp((u - left) / width, 0, 1), rest = 1 - part;
    const base = s + (d0 + d1 - 2 * s) * part * rest;
    const slope = (s / base) ** 2 * (d1 * part ** 2 + 2 * s * part * rest + d0 * rest ** 2);
    const inside = bottom + (height * part * (s * part + d0 * rest)) / base;
    const beyond = d1 * Math.max(u - this.knots.at(-1), 0) - d0 * Math.max(this.knots[0] - u, 0);
    return [inside + beyond, Math.log(slope / r) - Math.log(this.scale)];
  }

  inverse(x) {
    const { left, width, bottom, height, d0, d1, s } = this.piece(1, x);
    const rise = Math.min(Math.max(x - bottom, 0), height), bend = d0 + d1 - 2 * s;
    const a = height * (s - d0) + rise * bend, b = height * d0 - rise * bend, c = -s * rise;
    const part = (2 * c) / (-b - Math.sqrt(Math.max(b * b - 4 * a * c, 0)));
    const beyond = Math.min(x - this.scores[0], 0) / d0 + Math.max(x - this.scores.at(-1), 0) / d1;
    const u = clamp(left + part * width + beyond, -709, 709);
    return clamp(this.location + this.scale * Math.sinh(u), -Number.MAX_VALUE, Number.MAX_VALUE);
  }

  piece(axis, value) {
    const { knots, scores, slopes } = this, k = search(this.inner[axis], value, false);
    const width = knots[k + 1] - knots[k], height = scores[k + 1] - scores[k];
    return { left: knots[k], width, bottom: scores[k], height, d0: slopes[k], d1: slopes[k + 1], s: height / width };
  }
}

class PreferredValues {
  constructor({ curve, knots, heights }) {
    this.smooth = new MonotoneMap(curve);
    this.table = [knots, heights];
  }

  withLogSlope(X) {
    const [t, logSlope] = this.smooth.withLogSlope(X), [x, logRate] = this.through(t, 0);
    return [x, logSlope + logRate + (x * x - t * t) / 2];
  }

  inverse(x) {
    return this.smooth.inverse(this.through(x, 1)[0]);
  }

  through(t, axis) {
    const along = this.table[axis], across = this.table[1 - axis], p = normalCdf(t);
    if (!(p > along[0] && p < along.at(-1))) return [t, 0];
    const i = clamp(search(along, p, true), 1, along.length - 1);
    const rate = (across[i] - across[i - 1]) / (along[i] - along[i - 1]);
    return [normalQuantile(across[i - 1] + rate * (p - along[i - 1])), Math.log(rate)];
  }
}

/* A map that is cut at the ends of a column and stretched again: bounds.py. */
class Bounded {
  constructor({ inner, low, high, margin }) {
    Object.assign(this, { inner: mapOf(inner), low: low ?? -Infinity, high: high ?? Infinity });
    this.edges = [this.low - margin, this.high + margin];
    const [t, u] = this.edges.map((X) => (Number.isFinite(X) ? this.inner.withLogSlope(X)[0] : NaN));
    this.tails = [t, -u].map((end) => (Number.isNaN(end) ? 0 : normalCdf(end)));
    this.logMass = Math.log(1 - sum(this.tails));
  }

  withLogSlope(X) {
    const [t, logSlope] = this.inner.withLogSlope(X), x = this.through(t, Bounded.squeezed);
    return [x, logSlope + ((x - t) * (x + t)) / 2 - this.logMass];
  }

  inverse(x) {
    return clamp(this.inner.inverse(this.through(x, Bounded.stretched)), ...this.edges);
  }

  /* From the end that is nearer, where probabilities are exact. */
  through(t, step) {
    return t < 0 ? step(t, this.tails[0], this.logMass) : -step(-t, this.tails[1], this.logMass);
  }

  static squeezed(t, below, logMass) {
    if (below === 0) return Bounded.shifted(t, -logMass);
    return normalQuantile(Math.max((normalCdf(t) - below) / Math.exp(logMass), 1e-300));
  }

  static stretched(x, below, logMass) {
    if (below === 0) return Bounded.shifted(x, logMass);
    return normalQuantile(below + Math.exp(logMass) * normalCdf(x));
  }

  /* The x with log Φ(x) = log Φ(t) + logFactor, for t ≤ 0. */
  static shifted(t, logFactor) {
    if (t > -TAIL) return normalQuantile(Math.min(normalCdf(t) * Math.exp(logFactor), 1));
    const wanted = logNormalCdf(t) + logFactor;
    let x = t;
    for (let step = 0; step < 6; step++) {
      const logP = logNormalCdf(x);
      x -= (logP - wanted) * Math.exp(logP + (x * x) / 2 + LOG_SQRT_2PI);
    }
    return x;
  }
}

const mapOf = (data) => new (data.inner ? Bounded : data.heights ? PreferredValues : MonotoneMap)(data);

class LabelColumn {
  constructor(data) {
    Object.assign(this, data);
    this.listed = true;
  }

  /* Codes and the log-density term of a cell: a place among the values, or a text that was never seen. */
  encode(cell) {
    if (cell === null) return [[NaN], 0];
    if (typeof cell === "string") return [[NaN], Math.log(this.reserve)];
    return [[this.codes[cell]], Math.log(this.shares[cell]) + Math.log1p(-this.reserve)];
  }

  decode([code], random) {
    const places = this.codes.flatMap((own, place) => (own === code ? [place] : []));
    return places[drawPlace(places.map((place) => this.shares[place]), random)];
  }

  /* Probabilities of the values from those of the codes. */
  byValue(p) {
    return this.codes.map((code, place) => p[code] * this.shares[place]);
  }

  text(cell) {
    return typeof cell === "string" ? cell : this.values[cell];
  }
}

class NumberColumn {
  constructor(data) {
    Object.assign(this, data);
    this.map = mapOf(data.curve);
    this.atomic = this.atoms.length > 0;
  }

  encode(cell) {
    const hidden = this.atomic ? [NaN, NaN] : [NaN];
    if (cell === null) return [hidden, 0];
    if (this.beyond(cell)) return [hidden, Math.log(this.reserve)];
    const atom = this.atoms.indexOf(cell) + 1, { width } = this.lattice, kept = Math.log1p(-this.reserve);
    if (atom) return [[atom, NaN], kept - (width ? Math.log(width) : 0)];
    const [x, logSlope] = this.map.withLogSlope(cell);
    return [this.atomic ? [0, Math.fround(x)] : [Math.fround(x)], kept + logSlope];
  }

  /* Whether X lies beyond the ends of the column, where there is no density. */
  beyond(X) {
    const [low, high] = this.map.edges ?? [-Infinity, Infinity];
    return (X < low || X > high) && !this.atoms.includes(X);
  }

  decode(x) {
    return this.atomic && x[0] > 0 ? this.atoms[x[0] - 1] : this.restored(x.at(-1));
  }

  /* The value that encoded x stands for. */
  restored(x) {
    return this.snap(clamp(this.map.inverse(x), this.map.low ?? -Infinity, this.map.high ?? Infinity));
  }

  /* The point of the lattice nearest to X. */
  snap(X) {
    const { step, origin, per } = this.lattice;
    return step ? (origin + step * Math.round((X * per - origin) / step)) / per : X;
  }

  text(X) {
    const { type, unit, decimals, offset, step, per } = this.lattice, value = X + offset;
    if (type === "moment") {
      const ms = Math.round(value * 86400000);
      if (!(Math.abs(ms) < 8.64e15)) return `${plain(value)} days`;
      const [day, time] = new Date(ms).toISOString().split("T");
      return unit === "D" || (step / per) % 1 === 0 ? day : `${day} ${time.slice(0, 5)}`;
    }
    if (type === "duration") return `${plain(value)} days`;
    if (type === "int") return (Math.round(value) + 0).toLocaleString("en", { useGrouping: Math.abs(value) >= 1e4 }).replace("-", "−");
    return plain(decimals >= 0 && Math.abs(value) < 1e9 ? Number(value.toFixed(decimals)) : value);
  }
}

class ConstantColumn {
  constructor(data) {
    Object.assign(this, data);
  }

  encode(cell) {
    if (cell === null) return [[], 0];
    return [[], typeof cell === "string" ? Math.log(this.reserve) : Math.log1p(-this.reserve)];
  }

  decode() {
    return this.values.length ? 0 : null;
  }

  text(cell) {
    return typeof cell === "string" ? cell : this.values[cell];
  }
}

const COLUMNS = { labels: LabelColumn, numbers: NumberColumn, constant: ConstantColumn };

/* A number in at most five digits, with a true minus sign. */
function plain(value) {
  const size = Math.abs(value);
  const text = size !== 0 && (size >= 1e7 || size < 1e-4) ? value.toExponential(2) : String(Number(value.toPrecision(5)));
  return text.replace(/-/g, "−");
}

/* ---- the network: densities/residuals.py and densities/anyorder/ ---- */

/* A⁻¹ and log det A of a small positive matrix (rows), by Cholesky. */
function inverted(a) {
  const n = a.length, root = a.map((row) => row.slice());
  let logDet = 0;
  for (let j = 0; j < n; j++) {
    for (let i = j; i < n; i++) {
      let value = root[i][j];
      for (let k = 0; k < j; k++) value -= root[i][k] * root[j][k];
      root[i][j] = i === j ? Math.sqrt(value) : value / root[j][j];
    }
    logDet += 2 * Math.log(root[j][j]);
  }
  const inverse = a.map((row) => row.map(() => 0));
  for (let column = 0; column < n; column++) {
    const y = new Float64Array(n);
    for (let i = column; i < n; i++) {
      let value = i === column ? 1 : 0;
      for (let k = column; k < i; k++) value -= root[i][k] * y[k];
      y[i] = value / root[i][i];
    }
    for (let i = n - 1; i >= 0; i--) {
      let value = y[i];
      for (let k = i + 1; k < n; k++) value -= root[k][i] * inverse[k][column];
      inverse[i][column] = value / root[i][i];
    }
  }
  return [inverse, logDet];
}

/* What networks see of a row: densities/anyorder/inputs.py. */
class Inputs {
  constructor(data) {
    Object.assign(this, data);
  }

  /* The inputs of x and the prediction { mean, spread } of every real column. */
  see(x) {
    const shown = Array.from(x, (value) => !Number.isNaN(value));
    const out = [...shown.map(Number), ...this.clock];
    this.indicators(x, shown, out);
    const seen = this.scores.map((j) => shown[j]);
    const value = this.scores.map((j, i) => (seen[i] ? Math.fround((x[j] - this.centre[i]) / this.scale[i]) : 0));
    out.push(...value);
    value.forEach((v, i) => out.push(...this.waves(v, seen[i])));
    const prediction = { mean: this.reals.map(() => 0), spread: this.reals.map(() => 1) };
    if (this.correlation) this.linear(value, seen, out, prediction);
    return { inputs: Float64Array.from(out), prediction };
  }

  indicators(x, shown, out) {
    const first = out.length;
    for (let i = 0; i < this.height.length; i++) out.push(0);
    this.discretes.forEach((j, place) => {
      if (!shown[j]) return;
      const start = this.start[place], end = this.start[place + 1] ?? this.height.length;
      for (let i = start; i < end; i++) out[first + i] = -this.mean[i];
      if (x[j] > 0) out[first + start + x[j] - 1] += this.height[start + x[j] - 1];
    });
  }

  waves(value, seen) {
    const weight = this.frequencies.map((frequency) => (seen ? this.frequencies[0] / frequency : 0));
    const of = (wave) => this.frequencies.map((frequency, i) => weight[i] * wave(value * frequency));
    return [...of(Math.sin), ...of(Math.cos)];
  }

  /* Residuals among the visible scores, appended to the inputs, and predictions of the real columns. */
  linear(value, seen, out, prediction) {
    const { correlation: C, ahead, tame, least } = this, n = value.length, f = Math.fround;
    const clear = value.map((_, i) => (seen[i] ? (this.noisy[i] ? ahead : 1) : 0));
    const at = value.flatMap((_, i) => (seen[i] ? [i] : []));
    const [inverse, logDet] = inverted(
      at.map((i) => at.map((j) => f(f(clear[i] * C[i][j]) * clear[j]) + (i === j ? f(1 - clear[i] ** 2) : 0))),
    );
    const pulled = inverse.map((row) => sum(row.map((entry, k) => entry * value[at[k]])));
    const bent = new Float64Array(2 * n + 1);
    let excess = -logDet;
    at.forEach((i, k) => {
      const r = pulled[k] / Math.sqrt(inverse[k][k]);
      bent[i] = Math.asinh(r);
      bent[n + i] = r ** 2 / (1 + (r / tame) ** 2);
      excess += (value[i] - pulled[k]) * value[i];
    });
    bent[2 * n] = Math.asinh(excess / 2);
    out.push(...bent);
    this.places.forEach((i, place) => {
      const pull = at.map((j) => clear[j] * C[i][j]);
      const told = sum(pull.map((p, k) => p * sum(pull.map((q, l) => inverse[k][l] * q))));
      prediction.mean[place] = ahead * sum(pull.map((p, k) => p * pulled[k]));
      prediction.spread[place] = Math.sqrt(Math.max(1 - ahead ** 2 * told, least));
    });
  }
}

/* out += h · weight, of which row i starts at start + i · stride; four rows at a time, entries that are 0 left out. */
function addProduct(out, h, weight, start, stride) {
  const width = out.length, at = [], value = [];
  for (let i = 0; i < h.length; i++) {
    if (h[i] === 0) continue;
    at.push(start + i * stride);
    value.push(h[i]);
  }
  let i = 0;
  for (; i + 3 < at.length; i += 4) {
    const a = at[i], b = at[i + 1], c = at[i + 2], d = at[i + 3];
    const p = value[i], q = value[i + 1], r = value[i + 2], s = value[i + 3];
    for (let o = 0; o < width; o++) out[o] += p * weight[a + o] + q * weight[b + o] + r * weight[c + o] + s * weight[d + o];
  }
  for (; i < at.length; i++) for (let o = 0; o < width; o++) out[o] += value[i] * weight[at[i] + o];
  return out;
}

/* One linear map per member, as network.py keeps it: weight (members, inputs, outputs), bias (members, 1, outputs). */
class Linear {
  constructor(weight, bias) {
    [this.weight, this.bias] = [weight.data, bias.data];
    [, this.inputs, this.outputs] = weight.shape;
  }

  /* The outputs from … to of a layer h, by one member. */
  apply(h, member, from = 0, to = this.outputs) {
    const start = member * this.outputs;
    const out = Float64Array.from(this.bias.subarray(start + from, start + to));
    return addProduct(out, h, this.weight, member * this.inputs * this.outputs + from, this.outputs);
  }
}

function norm(h) {
  const mean = sum(h) / h.length, variance = h.reduce((total, value) => total + (value - mean) ** 2, 0) / h.length;
  const scale = 1 / Math.sqrt(variance + 1e-5); // what torch's layer_norm adds
  return h.map((value) => (value - mean) * scale);
}

const silu = (value) => value / (1 + Math.exp(-value));
const studentCdf = (u) => 0.5 + (0.5 * u) / Math.sqrt(2 + u * u);
const studentQuantile = (y) => (2 * y - 1) / Math.sqrt(Math.max(2 * y * (1 - y), 1e-7));

/* Densities of numbers: densities/anyorder/numbers.py. */
class NumberHead {
  constructor(data) {
    Object.assign(this, data);
    this.size = sum(data.lengths);
    this.nodes = Float64Array.from({ length: data.nodes }, (_, i) => Math.fround(-data.far + (2 * data.far * i) / (data.nodes - 1)));
    this.below = this.nodes.map(normalCdf); // Φ of the nodes, which every real column shares
  }

  parts(found, mean, spread) {
    const split = [];
    let from = 0;
    for (const length of this.lengths) {
      split.push(Array.from({ length }, (_, i) => found[from + i] / this.scale[from + i] + this.start[from + i]));
      from += length;
    }
    const [weight, shift, stretch, a, b] = split, { far, narrowest, widest, steepest } = this;
    return {
      weight: logSoftmax(weight).map(Math.exp),
      mean: shift.map((value) => clamp(mean + spread * value, -far, far)),
      spread: stretch.map((value) => clamp(spread * Math.exp(3 * Math.tanh(value / 3)), narrowest, widest)),
      fixed: this.heights(this.polygons[0], a.map((value) => clamp(value, -steepest, steepest))),
      moving: this.heights(this.polygons[1], b.map((value) => clamp(value, -steepest, steepest))),
    };
  }

  /* Heights of a polygon that integrates to 1. */
  heights({ share }, logHeight) {
    const top = Math.max(...logHeight), height = logHeight.map((value) => Math.exp(value - top));
    const total = sum(height.map((value, i) => value * share[i]));
    return height.map((value) => value / total);
  }

  /* ρ(t), with below = Φ(t). */
  density(t, below, { weight, mean, spread, fixed, moving }) {
    let total = weight[0] * Math.exp(-0.5 * t * t) * PEAK * this.height(0, below, fixed);
    const u = (t - mean[0]) / spread[0], tail = 2 + u * u;
    total += (weight[1] * this.height(1, studentCdf(u), moving)) / (spread[0] * tail * Math.sqrt(tail));
    for (let i = 1; i < mean.length; i++) {
      const away = (t - mean[i]) / spread[i];
      if (away < FAR && away > -FAR) total += (weight[i + 1] * Math.exp(-0.5 * away * away) * PEAK) / spread[i];
    }
    return total;
  }

  /* A polygon at y. */
  height(which, y, heights) {
    const { knots } = this.polygons[which], cell = clamp(search(knots, y, true) - 1, 0, knots.length - 2);
    const share = clamp((y - knots[cell]) / (knots[cell + 1] - knots[cell]), 1e-6, 1 - 1e-6);
    return (1 - share) * heights[cell] + share * heights[cell + 1];
  }

  draw({ weight, mean, spread, fixed, moving }, random) {
    const part = drawPlace(weight, random);
    if (part === 0) return clamp(normalQuantile(this.drawPolygon(0, fixed, random)), -this.far, this.far);
    const u = part === 1 ? studentQuantile(this.drawPolygon(1, moving, random)) : randomNormal(random);
    return clamp(mean[part - 1] + spread[part - 1] * u, -this.far, this.far);
  }

  drawPolygon(which, heights, random) {
    const ends = [0, ...this.polygons[which].knots, 1], padded = [heights[0], ...heights, heights.at(-1)];
    const mass = padded.slice(1).map((height, i) => ((height + padded[i]) / 2) * (ends[i + 1] - ends[i]));
    const cell = drawPlace(mass, random), left = padded[cell], right = padded[cell + 1], u = random();
    const root = Math.sqrt(Math.max(left ** 2 + u * (right ** 2 - left ** 2), 0));
    const share = clamp((u * (left + right)) / (left + root), 0, 1);
    return ends[cell] + share * (ends[cell + 1] - ends[cell]);
  }
}

/* The density of encoded rows and of the table: density.py and tables/answers/. */
class Model {
  constructor(data) {
    Object.assign(this, data.density);
    const bytes = Uint8Array.from(atob(data.weights), (letter) => letter.charCodeAt(0));
    const whole = Float64Array.from(new Float32Array(bytes.buffer)); // sums are in float64: convert once
    const tensor = ({ shape, start }) => ({ shape, data: whole.subarray(start, start + shape.reduce((a, b) => a * b, 1)) });
    const linear = ({ weight, bias }) => new Linear(tensor(weight), tensor(bias));
    const { first, blocks, labels, numbers } = data.network;
    [this.first, this.ofLabels, this.ofNumbers] = [first, labels, numbers].map(linear);
    this.blocks = blocks.map(({ inner, outer }) => ({ inner: linear(inner), outer: linear(outer) }));
    this.inputs = new Inputs(data.inputs);
    this.numbers = new NumberHead(data.numbers);
    this.columns = data.columns.map((column) => new COLUMNS[column.codec](column));
  }

  /* Everything that can be asked of a row of cells; rows that a question looks at share their passes. */
  question(cells) {
    return new Question(this, cells);
  }
}

class Question {
  constructor(model, cells) {
    this.model = model;
    this.cells = cells;
    this.passes = new Map();
    const encoded = model.columns.map((column, j) => column.encode(cells[j]));
    this.x = encoded.flatMap(([x]) => x);
    this.terms = encoded.map(([, term]) => term);
  }

  /* log ρ of the cells that are set, all others marginalised: CTEM.score_samples. */
  logDensity() {
    return logSumExp(this.byOrder(this.x)) - Math.log(this.model.orders.length) + sum(this.terms);
  }

  /* Column j given the other cells: probabilities of its values, or of atoms and of the nodes of its real part. */
  conditional(j) {
    const { owner } = this.model.columns[j], x = this.x.slice();
    for (const i of owner) x[i] = NaN;
    const column = this.model.columns[j];
    if (column.listed) return { values: column.byValue(this.weighted(x, owner[0])) };
    if (!column.atomic) return { continuous: 1, atoms: [], nodes: this.weighted(x, owner[0]) };
    const [continuous, ...atoms] = this.weighted(x, owner[0]);
    x[owner[0]] = 0;
    return { continuous, atoms, nodes: this.weighted(x, owner[1]) };
  }

  /* A row with the unknown cells drawn given the others. */
  draw(random) {
    const x = this.x.slice(), { orders, columns, parents, numbers } = this.model;
    const order = orders[drawPlace(logSoftmax(this.byOrder(x)).map(Math.exp), random)];
    const fresh = new Question(this.model, this.cells); // its passes are of no use to others
    for (const j of order) {
      if (!Number.isNaN(x[j]) || (j in parents && x[parents[j]] > 0)) continue;
      x[j] = this.model.sizes[j] ? drawPlace(fresh.labels(x, j), random) : Math.fround(numbers.draw(fresh.parts(x, j, Math.floor(random() * this.model.members)), random));
    }
    return columns.map((column, j) => this.cells[j] ?? column.decode(column.owner.map((i) => x[i]), random));
  }

  /* Probabilities of the codes of encoded column j, or of the nodes of a real one, given what x shows. */
  weighted(x, j) {
    if (this.model.sizes[j]) return this.labels(x, j);
    const { numbers } = this.model, total = new Float64Array(numbers.nodes.length);
    for (const k of this.members()) {
      const parts = this.parts(x, j, k);
      numbers.nodes.forEach((t, i) => (total[i] += numbers.density(t, numbers.below[i], parts)));
    }
    for (const end of [0, total.length - 1]) total[end] /= 2;
    const mass = sum(total);
    return Array.from(total, (p) => p / mass);
  }

  /* log ρ of the cells that x shows, in every order. */
  byOrder(x) {
    return this.model.orders.map((order) => {
      const shown = x.map(() => NaN);
      let total = 0;
      for (const j of order) {
        if (Number.isNaN(x[j])) continue;
        total += this.term(shown, j, x[j]);
        shown[j] = x[j];
      }
      return total;
    });
  }

  /* Every conditional is the mean of the members'. */
  term(shown, j, value) {
    if (this.model.sizes[j]) return Math.log(this.labels(shown, j)[value]);
    const below = normalCdf(value), each = this.members().map((k) => this.model.numbers.density(value, below, this.parts(shown, j, k)));
    return Math.log(sum(each) / each.length);
  }

  members() {
    return Array.from({ length: this.model.members }, (_, k) => k);
  }

  /* Probabilities of the codes of a discrete column. */
  labels(x, j) {
    const each = this.members().map((k) => this.labelsBy(x, j, k).map(Math.exp));
    return each[0].map((_, v) => sum(each.map((p) => p[v])) / each.length);
  }

  labelsBy(x, j, member) {
    const { hidden } = this.pass(x, member), { start, spread, gain, discretes, steepest } = this.model.inputs;
    const place = discretes.indexOf(j), from = start[place], to = start[place + 1] ?? gain.length;
    const found = this.model.ofLabels.apply(hidden, member, from, to);
    return logSoftmax([0, ...found.map((value, i) => Math.min(value / spread[from + i] + gain[from + i], steepest))]);
  }

  /* What the density of a real column is made of. */
  parts(x, j, member) {
    const { hidden, prediction } = this.pass(x, member), place = this.model.inputs.reals.indexOf(j);
    const { size } = this.model.numbers;
    const found = this.model.ofNumbers.apply(hidden, member, place * size, (place + 1) * size);
    return this.model.numbers.parts(found, prediction.mean[place], prediction.spread[place]);
  }

  /* The last layer of one member for what x shows. */
  pass(x, member) {
    const key = x.join();
    let seen = this.passes.get(key);
    if (!seen) this.passes.set(key, (seen = { ...this.model.inputs.see(x), hidden: [] }));
    seen.hidden[member] ??= this.hidden(seen.inputs, member);
    return { hidden: seen.hidden[member], prediction: seen.prediction };
  }

  hidden(inputs, member) {
    let h = this.model.first.apply(inputs, member);
    for (const { inner, outer } of this.model.blocks) {
      const change = outer.apply(inner.apply(norm(h), member).map(silu), member);
      h = h.map((value, i) => value + change[i]);
    }
    return norm(h);
  }
}

/* ---- summaries of one column's conditional, in the units of the table ---- */

/* The distribution of a number from `conditional`: masses of nodes as a distribution function, and atoms. */
class NumberSummary {
  constructor(column, { nodes, continuous, atoms }, far) {
    Object.assign(this, { column, nodes, continuous, atoms, far });
    this.atomPlaces = column.atoms.map((X) => column.map.withLogSlope(X)[0]);
    const last = nodes.length - 1;
    this.height = nodes.map((p, i) => (i === 0 || i === last ? 2 * p : p));
    this.below = [0];
    for (let i = 0; i < last; i++) this.below.push(this.below[i] + (this.height[i] + this.height[i + 1]) / 2);
  }

  /* The share of the continuous part below encoded x. */
  cdf(x) {
    const last = this.nodes.length - 1, place = clamp(((x + this.far) / (2 * this.far)) * last, 0, last);
    const i = Math.min(Math.floor(place), last - 1), part = place - i;
    return this.below[i] + part * this.height[i] + (part ** 2 / 2) * (this.height[i + 1] - this.height[i]);
  }

  /* The least X that at least this share is not above. */
  quantile(share) {
    let low = -this.far, high = this.far;
    for (let step = 0; step < 45; step++) {
      const x = (low + high) / 2;
      const atoms = sum(this.atoms.map((p, i) => (this.atomPlaces[i] <= x ? p : 0)));
      if (this.continuous * this.cdf(x) + atoms < share) low = x;
      else high = x;
    }
    const atom = this.atomPlaces.findIndex((x) => Math.abs(x - high) < 1e-9);
    return atom >= 0 ? this.column.atoms[atom] : this.column.restored(high);
  }

  /* How likely it is to be as unusual as X, or more: the mass where the encoded density is no higher. */
  unusual(X) {
    const atom = this.column.atoms.indexOf(X);
    if (atom >= 0) return sum([this.continuous, ...this.atoms].filter((p) => p <= this.atoms[atom]));
    const x = this.column.map.withLogSlope(X)[0], last = this.nodes.length - 1;
    if (this.column.beyond(X) || Math.abs(x) > this.far) return 0;
    const own = this.height[Math.round(((x + this.far) / (2 * this.far)) * last)];
    return this.continuous * sum(this.nodes.filter((p, i) => this.height[i] <= own));
  }

  words() {
    const [low, middle, high] = [0.05, 0.5, 0.95].map((share) => this.column.text(this.quantile(share)));
    const likely = this.atoms.flatMap((p, i) => (p >= 0.05 ? [`${this.column.text(this.column.atoms[i])} in ${percent(p)}`] : []));
    return [`median ${middle}`, low === high ? "" : `90% from ${low} to ${high}`, ...likely].filter(Boolean).join("; ");
  }
}

class LabelSummary {
  constructor(column, { values }) {
    Object.assign(this, { column, values });
  }

  unusual(cell) {
    return typeof cell === "string" ? this.column.reserve : sum(this.values.filter((p) => p <= this.values[cell]));
  }

  words() {
    const best = this.values.indexOf(Math.max(...this.values));
    return `most likely ${this.column.values[best]}, ${percent(this.values[best])}`;
  }
}

const percent = (p) => (p >= 0.0995 ? `${Math.round(100 * p)}%` : p >= 0.0005 ? `${(100 * p).toFixed(1)}%` : "<0.1%");
const signed = (value) => value.toFixed(2).replace("-", "−");

/* 1, 2 or 5 times a power of ten, at least so large. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= least * (1 - 1e-9));
}

/* ---- the page ---- */

const MOST_BARS = 12, POINTS = 72, STEPS = 200, DRAWN = 6, STRANGE = 0.01;

/* An element with attributes (a function listens) and children; text is text, whatever it says. */
function element(name, attributes = {}, ...children) {
  const svg = ["svg", "path"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/* One column: what it is set to, its conditional given the others, and in grey the one that knows nothing. */
class Card {
  constructor(explorer, j) {
    [this.explorer, this.j, this.column] = [explorer, j, explorer.model.columns[j]];
    this.title = element("h3", { id: `ask-${j}` }, element("bdi", {}, this.column.name));
    this.forget = element("button", { type: "button", class: "forget", "aria-label": `${this.column.name}: unknown`, click: () => this.set(null) }, "unknown");
    this.words = element("p", { class: "said", id: `ask-${j}-said` });
    this.picture = element("div", { class: "picture", "aria-hidden": "true" });
    this.node = element("div", { class: "card", role: "group", "aria-labelledby": `ask-${j}`, "aria-describedby": `ask-${j}-said` });
    this.node.append(element("div", { class: "head" }, this.title, this.forget), ...this.controls(), this.words);
  }

  set(cell) {
    this.explorer.set(this.j, cell);
  }

  get cell() {
    return this.explorer.cells[this.j];
  }

  /* Shows the summary of the conditional. */
  show(summary) {
    const known = this.cell !== null, unusual = known ? summary.unusual(this.cell) : 1;
    this.node.classList.toggle("known", known);
    this.node.classList.toggle("strange", unusual < STRANGE);
    this.forget.disabled = !known;
    const strange = unusual < STRANGE ? `Strange: ${percent(unusual)} would be as unusual. Expected: ` : "Given the others: ";
    this.words.textContent = known ? strange + summary.words() : capital(summary.words());
    this.synchronise();
    this.draw(summary);
  }
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/* A menu, and a bar for each value. */
class LabelCard extends Card {
  controls() {
    const options = this.column.values.map((text, place) => element("option", { value: place }, text));
    this.menu = element("select", { "aria-label": this.column.name, change: () => this.choose() }, element("option", { value: "" }, "unknown"), ...options);
    return [this.menu, this.picture];
  }

  choose() {
    this.set(this.menu.value === "" ? null : Number(this.menu.value));
  }

  synchronise() {
    this.menu.querySelector(".new")?.remove();
    if (typeof this.cell === "string") this.menu.append(element("option", { value: "new", class: "new", disabled: true }, `${this.cell} (never seen)`));
    this.menu.value = this.cell === null ? "" : typeof this.cell === "string" ? "new" : this.cell;
  }

  draw({ values }) {
    const before = this.explorer.before[this.j].values, shown = this.listed(values, before);
    const top = Math.max(...shown.map((i) => Math.max(values[i], before[i])));
    const bars = shown.map((i) => this.bar(this.column.values[i], values[i], before[i], top, i));
    const rest = values.length - shown.length, left = (all) => 1 - sum(shown.map((i) => all[i]));
    if (rest) bars.push(this.bar(`${rest} others`, left(values), left(before), top, null));
    this.picture.replaceChildren(element("div", { class: "bars" }, ...bars));
  }

  /* The values with a bar: all of few, the likeliest of many; those of a category by how common they are. */
  listed(values, before) {
    const every = values.map((_, i) => i);
    if (every.length > MOST_BARS) return every.sort((a, b) => values[b] - values[a]).slice(0, MOST_BARS - 1);
    return this.column.ordered ? every : every.sort((a, b) => before[b] - before[a]);
  }

  bar(text, p, before, top, place) {
    const width = (share) => `width:${clamp((100 * share) / top, 0, 100).toFixed(1)}%`;
    const track = element("span", { class: "track" }, element("i"), element("b"));
    track.children[0].style = width(before);
    track.children[1].style = width(p);
    const pick = place === null ? null : () => this.set(this.cell === place ? null : place);
    const own = this.cell === place && place !== null ? " own" : "";
    return element("div", { class: `bar${pick ? " pick" : ""}${own}`, ...(pick && { click: pick }) }, element("bdi", { title: text }, text), track, element("span", {}, percent(p)));
  }
}

/* Many ordered values: a slider, and steps instead of bars. */
class OrderedCard extends LabelCard {
  controls() {
    const last = this.column.values.length - 1;
    this.slider = element("input", { type: "range", min: 0, max: last, step: 1, "aria-label": this.column.name, input: () => this.set(Number(this.slider.value)) });
    const ends = [0, last].map((place) => element("span", {}, this.column.values[place]));
    return [...super.controls(), this.slider, element("div", { class: "ends", "aria-hidden": "true" }, ...ends)];
  }

  synchronise() {
    super.synchronise();
    const known = typeof this.cell === "number", { values } = this.explorer.before[this.j];
    this.slider.value = known ? this.cell : values.indexOf(Math.max(...values));
    this.slider.setAttribute("aria-valuetext", known ? this.column.text(this.cell) : "unknown");
  }

  draw({ values }) {
    const before = this.explorer.before[this.j].values, top = Math.max(...values, ...before), n = values.length;
    const here = typeof this.cell === "number" ? (100 * (this.cell + 0.5)) / n : null;
    this.picture.replaceChildren(picture([before, values].map((heights) => steps(heights, top)), [], here));
  }
}

/* Grey for what nothing says, a line for what is set; thick lines for single values [x, p], a dashed one at the cell. */
function picture([before, after], atoms, here) {
  const svg = element("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none" });
  svg.append(element("path", { class: "before", d: before }), element("path", { class: "after", d: after }));
  for (const [x, p] of atoms) svg.append(element("path", { class: "atom", d: `M${x} 100V${100 - 96 * p}` }));
  if (here !== null) svg.append(element("path", { class: "here", d: `M${here} 100V0` }));
  return svg;
}

function steps(heights, top) {
  const parts = heights.map((height, i) => `V${(100 - (96 * height) / top).toFixed(2)}H${((100 * (i + 1)) / heights.length).toFixed(2)}`);
  return `M0 100${parts.join("")}V100`;
}

function curve(heights, top) {
  const y = (height) => (100 - (96 * height) / top).toFixed(2), n = heights.length;
  const middle = heights.map((height, i) => `L${((100 * (i + 0.5)) / n).toFixed(2)} ${y(height)}`);
  return `M0 100L0 ${y(heights[0])}${middle.join("")}L100 ${y(heights[n - 1])}L100 100`;
}

/* A box, a slider, and a curve (steps for rounded numbers) above it. */
class NumberCard extends Card {
  controls() {
    const { type, offset, step, per } = this.column.lattice, { edges } = this.column;
    [this.low, this.high] = [edges[0], edges.at(-1)];
    const half = step ? step / per / 2 : 0;
    this.delta = niceStep((this.high - this.low) / STEPS);
    if (step) this.delta = Math.max(1, Math.round(this.delta / (2 * half))) * 2 * half;
    this.first = step ? this.column.snap(this.low + half) : Math.ceil(this.low / this.delta) * this.delta;
    const count = Math.max(1, Math.floor((this.high - half - this.first) / this.delta + 1e-9));
    const names = { "aria-label": this.column.name };
    this.slider = element("input", { type: "range", min: 0, max: count, step: 1, ...names, input: () => this.slide() });
    this.timed = type === "moment";
    const kind = this.timed ? ((step / per) % 1 === 0 ? "date" : "datetime-local") : "number";
    this.box = element("input", { type: kind, step: "any", placeholder: "unknown", ...names, change: () => this.type() });
    this.offset = offset;
    this.places = this.encodedEdges(step ? edges : evenly(this.low, this.high, POINTS));
    const ends = element("div", { class: "ends", "aria-hidden": "true" }, ...[this.first, this.first + count * this.delta].map((X) => element("span", {}, this.column.text(X))));
    return [this.box, this.picture, this.slider, ends];
  }

  encodedEdges(edges) {
    this.stepped = edges === this.column.edges;
    return edges.map((X) => this.column.map.withLogSlope(X)[0]);
  }

  slide() {
    const X = this.first + Number(this.slider.value) * this.delta;
    this.set(this.column.snap(Number(X.toPrecision(12))));
  }

  type() {
    const value = this.timed ? this.box.valueAsNumber / 86400000 : this.box.valueAsNumber;
    this.set(Number.isFinite(value) ? value - this.offset : null);
  }

  synchronise() {
    const known = this.cell !== null, X = known ? this.cell : this.explorer.before[this.j].quantile(0.5);
    this.slider.value = Math.round((X - this.first) / this.delta);
    this.slider.setAttribute("aria-valuetext", known ? this.column.text(X) : "unknown");
    if (!known) this.box.value = "";
    else if (this.timed) this.box.valueAsNumber = Math.round((X + this.offset) * 86400000);
    else this.box.value = Number((X + this.offset).toPrecision(10));
  }

  draw(summary) {
    const heights = [this.explorer.before[this.j], summary].map((one) => this.heights(one));
    const top = Math.max(...heights.flat(), 1e-9), outline = this.stepped ? steps : curve;
    const atoms = summary.atoms.map((p, i) => [this.across(this.column.atoms[i]), p]);
    const here = this.cell === null ? null : this.across(this.cell);
    this.picture.replaceChildren(picture(heights.map((one) => outline(one, top)), atoms, here));
  }

  across(X) {
    return clamp((100 * (X - this.low)) / (this.high - this.low), 0, 100).toFixed(2);
  }

  /* The mass between neighbouring edges. */
  heights(summary) {
    const below = this.places.map((x) => summary.continuous * summary.cdf(x));
    return below.slice(1).map((share, i) => share - below[i]);
  }
}

function cardOf({ listed, ordered, values }) {
  if (!listed) return NumberCard;
  return ordered && values.length > MOST_BARS ? OrderedCard : LabelCard;
}

const evenly = (low, high, count) => Array.from({ length: count + 1 }, (_, i) => low + ((high - low) * i) / count);

/* The section: what is set, its log-density, a card for each column, drawn rows. */
class Explorer {
  constructor(data, root) {
    this.model = new Model(data);
    this.cells = this.model.columns.map(() => null);
    this.shown = this.cells.flatMap((_, j) => (this.model.columns[j].owner.length ? [j] : []));
    this.seed = 0;
    this.before = this.summaries(this.model.question(this.cells), this.shown);
    this.cards = this.shown.map((j) => new (cardOf(this.model.columns[j]))(this, j));
    this.build(root);
    this.answer();
  }

  build(root) {
    this.value = element("b");
    this.about = element("span");
    this.news = element("p", { class: "news", role: "status", tabindex: "-1" });
    this.clear = element("button", { type: "button", click: () => this.load(this.cells.map(() => null), "Every column is unknown.") }, "Forget all");
    const again = element("button", { type: "button", click: () => this.drawAgain() }, "Draw again");
    this.rows = element("ol", { class: "rows" });
    const tile = element("div", { class: "tile main", "aria-live": "polite", "aria-atomic": "true" }, this.value, this.about);
    root.append(
      element("div", { class: "standing" }, tile, this.clear),
      this.news,
      element("div", { class: "cards" }, ...this.cards.map((card) => card.node)),
      element("div", { class: "head rows-head" }, element("h3", {}, "Rows drawn given what is set"), again),
      this.rows,
    );
  }

  set(j, cell) {
    this.cells = this.cells.map((old, i) => (i === j ? cell : old));
    this.news.textContent = "";
    this.answer();
  }

  load(cells, words) {
    this.cells = cells;
    this.news.textContent = words;
    this.answer();
  }

  summaries(question, columns) {
    return Object.fromEntries(columns.map((j) => [j, this.summary(question, j)]));
  }

  summary(question, j) {
    const column = this.model.columns[j], found = question.conditional(j);
    return column.listed ? new LabelSummary(column, found) : new NumberSummary(column, found, this.model.numbers.far);
  }

  /* What is unknown is answered at once; what is expected of the cells that are set, and draws, follow one by one. */
  answer() {
    const question = (this.asked = this.model.question(this.cells));
    const count = this.shown.filter((j) => this.cells[j] !== null).length;
    this.value.textContent = count ? `${signed(question.logDensity())} nats` : "0 nats";
    this.about.textContent = count ? `log-density of the ${count} of ${this.shown.length} columns that are set` : "Nothing is set yet: each picture shows a column by itself.";
    this.clear.disabled = !count;
    const later = [];
    for (const card of this.cards) {
      const show = () => card.show(this.summary(question, card.j));
      if (card.cell === null) show();
      else {
        card.synchronise();
        later.push(show);
      }
    }
    this.follow(question, [...later, () => this.drawRows(question)]);
  }

  follow(question, tasks) {
    if (!tasks.length || this.asked !== question) return;
    setTimeout(() => {
      if (this.asked !== question) return;
      tasks[0]();
      this.follow(question, tasks.slice(1));
    });
  }

  drawAgain() {
    this.seed += 1;
    this.drawRows(this.asked);
  }

  drawRows(question) {
    const random = generator(this.seed);
    this.rows.replaceChildren(...Array.from({ length: DRAWN }, () => this.row(question.draw(random))));
  }

  row(cells) {
    const parts = this.shown.map((j) => {
      const column = this.model.columns[j], kind = this.cells[j] === null ? "" : "given";
      return element("span", { class: kind }, element("bdi", { class: "muted" }, column.name), " ", element("bdi", {}, column.text(cells[j])));
    });
    const use = element("button", { type: "button", click: () => this.load(cells, "A drawn row is set.") }, "set");
    return element("li", {}, element("div", { class: "pairs-of" }, ...parts), use);
  }

  /* A row of the report, and what is strange about it. */
  visit({ row, cells, blamed }) {
    const question = this.model.question(cells), causes = blamed.filter((j) => cells[j] !== null).map((j) => {
      const column = this.model.columns[j];
      const expected = column.owner.length ? this.summary(question, j).words() : "always the same";
      return `“${column.name}” is ${column.text(cells[j])} (expected: ${expected})`;
    });
    const strange = causes.length ? ` Strange about it: ${causes.join("; ")}.` : "";
    this.load(cells, `Row ${row.toLocaleString("en")} is set.${strange}`);
    document.getElementById("ask").scrollIntoView();
    this.news.focus({ preventScroll: true });
  }
}

/* Every outlier of the report can be asked about. */
function offer(explorer, outliers) {
  document.querySelectorAll("#outliers .outliers > li").forEach((item, i) => {
    const button = element("button", { type: "button", class: "load", click: () => explorer.visit(outliers[i]) }, "Ask about this row");
    if (outliers[i]) item.firstElementChild.append(button);
  });
}

function start() {
  const data = JSON.parse(document.getElementById("ask-data").textContent);
  offer(new Explorer(data, document.getElementById("explorer")), data.outliers);
}

if (typeof document !== "undefined") document.addEventListener("DOMContentLoaded", start);
