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
    this.kept = new Map();
    this.alone = { mean: data.reals.map(() => 0), spread: data.reals.map(() => 1) };
  }

  /* The inputs of x and the prediction { mean, spread } of every real column. */
  see(x) {
    const { scores, frequencies, clock, height } = this, first = x.length + clock.length, n = scores.length;
    const waves = first + height.length + n, residuals = waves + 2 * n * frequencies.length;
    const out = new Float64Array(residuals + (this.correlation ? 2 * n + 1 : 0)), seen = new Array(n), value = new Float64Array(n);
    for (let j = 0; j < x.length; j++) out[j] = Number.isNaN(x[j]) ? 0 : 1;
    out.set(clock, x.length);
    this.indicators(x, out, first);
    for (let i = 0; i < n; i++) {
      seen[i] = out[scores[i]] === 1;
      if (seen[i]) value[i] = Math.fround((x[scores[i]] - this.centre[i]) / this.scale[i]);
      if (seen[i]) this.waves(value[i], out, waves + 2 * i * frequencies.length);
    }
    out.set(value, first + height.length);
    const prediction = this.correlation ? this.linear(value, seen, out, residuals) : this.alone;
    return { inputs: out, prediction };
  }

  indicators(x, out, first) {
    this.discretes.forEach((j, place) => {
      if (!out[j]) return;
      const start = this.start[place], end = this.start[place + 1] ?? this.height.length;
      for (let i = start; i < end; i++) out[first + i] = -this.mean[i];
      if (x[j] > 0) out[first + start + x[j] - 1] += this.height[start + x[j] - 1];
    });
  }

  waves(value, out, start) {
    const { frequencies } = this, count = frequencies.length;
    for (let i = 0; i < count; i++) {
      const weight = frequencies[0] / frequencies[i];
      out[start + i] = weight * Math.sin(value * frequencies[i]);
      out[start + count + i] = weight * Math.cos(value * frequencies[i]);
    }
  }

  /* Residuals among the visible scores, written into the inputs, and predictions of the real columns. */
  linear(value, seen, out, start) {
    const { ahead, tame } = this, n = value.length, { at, inverse, logDet, pulls, spread } = this.geometry(seen);
    const visible = at.map((i) => value[i]), pulled = inverse.map((row) => dot(row, visible));
    let excess = -logDet;
    at.forEach((i, k) => {
      const r = pulled[k] / Math.sqrt(inverse[k][k]);
      out[start + i] = Math.asinh(r);
      out[start + n + i] = r ** 2 / (1 + (r / tame) ** 2);
      excess += (value[i] - pulled[k]) * value[i];
    });
    out[start + 2 * n] = Math.asinh(excess / 2);
    return { mean: pulls.map((pull) => ahead * dot(pull, pulled)), spread };
  }

  /* What depends on which scores are seen, and not on their values; kept, since many rows show the same ones. */
  geometry(seen) {
    const key = seen.map(Number).join("");
    if (!this.kept.has(key)) this.kept.set(key, this.measured(seen));
    return this.kept.get(key);
  }

  measured(seen) {
    const { correlation: C, ahead, least } = this, f = Math.fround;
    const clear = seen.map((one, i) => (one ? (this.noisy[i] ? ahead : 1) : 0)), at = seen.flatMap((one, i) => (one ? [i] : []));
    const [inverse, logDet] = inverted(
      at.map((i) => at.map((j) => f(f(clear[i] * C[i][j]) * clear[j]) + (i === j ? f(1 - clear[i] ** 2) : 0))),
    );
    const pulls = this.places.map((i) => at.map((j) => clear[j] * C[i][j]));
    const explained = pulls.map((pull) => dot(pull, inverse.map((row) => dot(row, pull))));
    return { at, inverse, logDet, pulls, spread: explained.map((share) => Math.sqrt(Math.max(1 - ahead ** 2 * share, least))) };
  }
}

/* The places and values of the entries of a layer that are not 0; one memory for all, since they are used at once. */
let places = new Int32Array(512), entries = new Float64Array(512);

/* out += h · weight, of which row i starts at start + i · stride; eight rows at a time, entries that are 0 left out. */
function addProduct(out, h, weight, start, stride) {
  const width = out.length;
  if (h.length > places.length) [places, entries] = [new Int32Array(2 * h.length), new Float64Array(2 * h.length)];
  let count = 0;
  for (let i = 0; i < h.length; i++) {
    if (h[i] === 0) continue;
    places[count] = start + i * stride;
    entries[count++] = h[i];
  }
  let i = 0;
  for (; i + 7 < count; i += 8) {
    const a = places[i], b = places[i + 1], c = places[i + 2], d = places[i + 3];
    const e = places[i + 4], f = places[i + 5], g = places[i + 6], k = places[i + 7];
    const p = entries[i], q = entries[i + 1], r = entries[i + 2], s = entries[i + 3];
    const t = entries[i + 4], u = entries[i + 5], v = entries[i + 6], w = entries[i + 7];
    for (let o = 0; o < width; o++) {
      const left = p * weight[a + o] + q * weight[b + o] + (r * weight[c + o] + s * weight[d + o]);
      out[o] += left + (t * weight[e + o] + u * weight[f + o] + (v * weight[g + o] + w * weight[k + o]));
    }
  }
  for (; i < count; i++) for (let o = 0; o < width; o++) out[o] += entries[i] * weight[places[i] + o];
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
    const out = this.bias.slice(start + from, start + to);
    return addProduct(out, h, this.weight, member * this.inputs * this.outputs + from, this.outputs);
  }
}

function norm(h) {
  const n = h.length, out = new Float64Array(n);
  let total = 0, squares = 0;
  for (let i = 0; i < n; i++) total += h[i];
  const mean = total / n;
  for (let i = 0; i < n; i++) squares += (h[i] - mean) ** 2;
  const scale = 1 / Math.sqrt(squares / n + 1e-5); // what torch's layer_norm adds
  for (let i = 0; i < n; i++) out[i] = (h[i] - mean) * scale;
  return out;
}

const silu = (value) => value / (1 + Math.exp(-value));
const studentCdf = (u) => 0.5 + (0.5 * u) / Math.sqrt(2 + u * u);
const studentQuantile = (y) => (2 * y - 1) / Math.sqrt(Math.max(2 * y * (1 - y), 1e-7));

/* Exponentials of logarithms, within ± steepest, divided by their sum with shares as weights (1 if there are none). */
function positive(logs, steepest, shares) {
  const top = Math.min(Math.max(...logs), steepest), out = new Float64Array(logs.length);
  let total = 0;
  for (let i = 0; i < logs.length; i++) {
    out[i] = Math.exp(clamp(logs[i], -steepest, steepest) - top);
    total += out[i] * (shares ? shares[i] : 1);
  }
  for (let i = 0; i < logs.length; i++) out[i] /= total;
  return out;
}

/* Where a density on [0, 1] that is linear from left to right reaches a share of its mass; stable if they are equal. */
function slanted(left, right, share) {
  const root = Math.sqrt(Math.max(left ** 2 + share * (right ** 2 - left ** 2), 0));
  return clamp((share * (left + right)) / (left + root), 0, 1);
}

const GRID = 257; // encoded values at which the distribution functions of draws are averaged
const AWAY = 1e9; // encoded values beyond which nothing lies
const SLIGHT = 1e-6; // weight of a part below which it is left out of such an average

/* Φ and its density in a table, of which Φ follows to 10⁻⁸ in between: enough for an average over draws. */
const PER = 64, ENDS = 7, TABLE = Float64Array.from({ length: 2 * ENDS * PER + 1 }, (_, i) => normalCdf(i / PER - ENDS));
const SLOPES = TABLE.map((_, i) => Math.exp(-0.5 * (i / PER - ENDS) ** 2) * PEAK);

function fastNormalCdf(t) {
  if (t <= -ENDS) return 0;
  if (t >= ENDS) return 1;
  const place = Math.round((t + ENDS) * PER), from = place / PER - ENDS, step = t - from;
  return TABLE[place] + SLOPES[place] * step * (1 - (step * from) / 2 + (step * step * (from * from - 1)) / 6);
}

const DOUBT = 4; // power of the mass beyond an end by which it is believed there: densities/anyorder/tails.py

/* The margin beyond one end of what rows reach, as a part of a density: densities/anyorder/tails.py. */
class TailPart {
  constructor(share, reach, sign) {
    Object.assign(this, { share, reach, sign, whole: normalCdf(-reach) });
  }

  density(t) {
    return this.sign * t > this.reach ? (Math.exp(-0.5 * t * t) * PEAK) / this.whole : 0;
  }

  /* Where [a, b] lies in it. */
  ends(a, b) {
    return this.sign > 0 ? [Math.max(a, this.reach), b] : [a, Math.min(b, -this.reach)];
  }

  mass(a, b) {
    const [low, high] = this.ends(a, b);
    return low < high ? normalBetween(low, high) / this.whole : 0;
  }

  within(a, b, share) {
    return normalWithin(...this.ends(a, b), share);
  }

  /* In an average of distribution functions the tails keep the shape of the other parts, which have their mass. */
  addCdf() {}

  softened() {
    return [this];
  }
}

/* Densities of numbers: densities/anyorder/numbers.py. */
class NumberHead {
  constructor(data) {
    Object.assign(this, data);
    this.size = sum(data.lengths);
    this.cuts = data.lengths.map((_, i) => sum(data.lengths.slice(0, i)));
    this.nodes = Float64Array.from({ length: data.nodes }, (_, i) => Math.fround(-data.far + (2 * data.far * i) / (data.nodes - 1)));
    this.below = this.nodes.map(normalCdf); // Φ of the nodes, which every real column shares
    this.grid = Float64Array.from({ length: GRID }, (_, i) => -data.far + (2 * data.far * i) / (GRID - 1));
    this.belowGrid = this.grid.map(normalCdf);
  }

  /* What a density is made of, from its coefficients, a prediction, and what formulas add, if they do. */
  parts(outputs, mean, spread, tied) {
    const at = outputs.map((value, i) => value / this.scale[i] + this.start[i]), { far, narrowest, widest } = this, rest = tied?.rest ?? 1;
    const [weight, shift, stretch, a, b] = this.cuts.map((from, i) => at.subarray(from, from + this.lengths[i]));
    const parts = {
      weight: positive(weight, Infinity, null).map((share) => share * rest),
      mean: shift.map((value) => clamp(mean + spread * value, -far, far)),
      spread: stretch.map((value) => clamp(spread * Math.exp(3 * Math.tanh(value / 3)), narrowest, widest)),
      fixed: positive(a, this.steepest, this.polygons[0].share),
      moving: positive(b, this.steepest, this.polygons[1].share),
      tied: tied?.parts ?? [],
    };
    return this.reach < this.never ? this.tailed(parts, rest) : parts;
  }

  /* With the shape of the margin beyond what rows reach, so far as the mass there is small: densities/anyorder/tails.py. */
  tailed(parts, whole) {
    const { reach } = this, masses = [[-AWAY, -reach], [reach, AWAY]].map(([a, b]) => sum(this.ownMasses(parts, a, b)) / whole);
    const believed = masses.map((m) => m ** DOUBT);
    const tails = masses.map((m, side) => new TailPart(whole * m * (1 - believed[side]), reach, side ? 1 : -1));
    return { ...parts, believed, tied: [...parts.tied, ...tails] };
  }

  /* The pieces of [a, b] within and beyond what rows reach, and how much of the network's density each has. */
  pieces({ believed }, a, b) {
    const { reach } = this;
    if (!believed || (a >= -reach && b <= reach)) return [[a, b, 1]];
    const cut = [[a, Math.min(b, -reach), believed[0]], [Math.max(a, -reach), Math.min(b, reach), 1], [Math.max(a, reach), b, believed[1]]];
    return cut.filter(([from, to]) => from <= to);
  }

  /* A share of a density; the rest is the margin of every real column: densities/anyorder/worth.py. */
  mixed(parts, share) {
    if (share === 1) return parts;
    for (const part of parts.tied) part.share *= share;
    return { ...parts, weight: parts.weight.map((part) => part * share), tied: [...parts.tied, new NearPart(1 - share, 0, 0, 0, 1)] };
  }

  /* ρ(t), with below = Φ(t). */
  density(t, below, { weight, mean, spread, fixed, moving, tied, limits, believed }) {
    let total = weight[0] * Math.exp(-0.5 * t * t) * PEAK * this.height(0, below, fixed);
    const u = (t - mean[0]) / spread[0], tail = 2 + u * u;
    total += (weight[1] * this.height(1, studentCdf(u), moving)) / (spread[0] * tail * Math.sqrt(tail));
    for (let i = 1; i < mean.length; i++) {
      const away = (t - mean[i]) / spread[i];
      if (away < FAR && away > -FAR) total += (weight[i + 1] * Math.exp(-0.5 * away * away) * PEAK) / spread[i];
    }
    if (believed && Math.abs(t) > this.reach) total *= believed[Number(t > 0)];
    for (const part of tied) total += part.share * part.density(t);
    return limits ? limits.density(t, total) : total;
  }

  /* A polygon at y. */
  height(which, y, heights) {
    const { knots } = this.polygons[which], cell = clamp(search(knots, y, true) - 1, 0, knots.length - 2);
    const share = clamp((y - knots[cell]) / (knots[cell + 1] - knots[cell]), 1e-6, 1 - 1e-6);
    return (1 - share) * heights[cell] + share * heights[cell + 1];
  }

  /* The same for a table without the cells of formulas. */
  softened(parts) {
    return { ...parts, tied: parts.tied.flatMap((part) => part.softened(this.nodes[1] - this.nodes[0])) };
  }

  draw(parts, random) {
    const { weight, tied, believed } = parts, part = drawPlace([...weight, ...tied.map(({ share }) => share)], random), { far, reach } = this;
    if (part >= weight.length) return clamp(tied[part - weight.length].within(-AWAY, AWAY, random()), -far, far);
    const t = this.drawOwn(parts, part, random);
    const kept = !believed || Math.abs(t) <= reach || random() < believed[Number(t > 0)];
    return kept ? clamp(t, -far, far) : this.draw(parts, random);
  }

  drawOwn({ mean, spread, fixed, moving }, part, random) {
    if (part === 0) return normalQuantile(this.polygonQuantile(0, fixed, random()));
    const u = part === 1 ? studentQuantile(this.polygonQuantile(1, moving, random())) : randomNormal(random);
    return mean[part - 1] + spread[part - 1] * u;
  }

  /* The mass of every part between a and b. */
  masses(parts, a, b) {
    const each = this.pieces(parts, a, b).map(([from, to, share]) => this.ownMasses(parts, from, to).map((mass) => share * mass));
    return [...each[0].map((_, i) => sum(each.map((masses) => masses[i]))), ...parts.tied.map((part) => Math.max(part.share * part.mass(a, b), 0))];
  }

  /* The same of the network's parts alone, without a look at tails. */
  ownMasses({ weight, mean, spread, fixed, moving }, a, b) {
    const u = [a, b].map((t) => studentCdf((t - mean[0]) / spread[0]));
    const between = (which, heights, [y, z]) => this.polygonCdf(which, heights, z) - this.polygonCdf(which, heights, y);
    const modes = Array.from(weight.subarray(2), (share, i) => share * normalBetween((a - mean[i + 1]) / spread[i + 1], (b - mean[i + 1]) / spread[i + 1]));
    return [weight[0] * between(0, fixed, [a, b].map(normalCdf)), weight[1] * between(1, moving, u), ...modes].map((mass) => Math.max(mass, 0));
  }

  /* The number of [a, b] that a share in [0, 1) stands for: uniform shares give draws of the density within. */
  within(parts, masses, a, b, share) {
    const [part, rest] = placeAt(masses, share), { weight, tied } = parts;
    if (part >= weight.length) return tied[part - weight.length].within(a, b, rest);
    const pieces = this.pieces(parts, a, b), mass = ([from, to, believed]) => believed * this.ownMasses(parts, from, to)[part];
    const [piece, left] = pieces.length > 1 ? placeAt(pieces.map(mass), rest) : [0, rest];
    return this.ownWithin(parts, part, ...pieces[piece], left);
  }

  ownWithin({ mean, spread, fixed, moving }, part, a, b, _, share) {
    if (part > 1) {
      const [m, s] = [mean[part - 1], spread[part - 1]];
      return clamp(m + s * normalWithin((a - m) / s, (b - m) / s, share), a, b);
    }
    const heights = part ? moving : fixed, cdf = part ? (t) => studentCdf((t - mean[0]) / spread[0]) : normalCdf;
    const [low, high] = [a, b].map((t) => this.polygonCdf(part, heights, cdf(t)));
    const y = this.polygonQuantile(part, heights, low + share * (high - low));
    return clamp(part ? mean[0] + spread[0] * studentQuantile(y) : normalQuantile(y), a, b);
  }

  /* The integral of a polygon up to y. */
  polygonCdf(which, heights, y) {
    const { knots } = this.polygons[which], last = knots.length - 1;
    let total = heights[0] * Math.min(y, knots[0]);
    for (let i = 0; i < last && y > knots[i]; i++) {
      const width = knots[i + 1] - knots[i], part = Math.min((y - knots[i]) / width, 1);
      total += width * part * (heights[i] + (part / 2) * (heights[i + 1] - heights[i]));
    }
    return total + heights[last] * Math.max(y - knots[last], 0);
  }

  /* Where the integral of a polygon reaches a mass. */
  polygonQuantile(which, heights, mass) {
    const ends = [0, ...this.polygons[which].knots, 1], padded = [heights[0], ...heights, heights.at(-1)];
    const cells = padded.slice(1).map((height, i) => ((height + padded[i]) / 2) * (ends[i + 1] - ends[i]));
    const [cell, u] = placeAt(cells, clamp(mass / sum(cells), 0, 1 - 1e-16));
    return ends[cell] + slanted(padded[cell], padded[cell + 1], u) * (ends[cell + 1] - ends[cell]);
  }

  /* Sums of distribution functions: of A as a sum of heights, which they are linear in, and of the rest on a grid. */
  noSum() {
    return { fixed: new Float64Array(this.lengths[3]), rest: new Float64Array(this.grid.length) };
  }

  /* Adds a density's distribution function, times a factor, to a sum. */
  addCdf(total, { weight, mean, spread, fixed, moving, tied }, factor) {
    for (let k = 0; k < fixed.length; k++) total.fixed[k] += factor * weight[0] * fixed[k];
    if (weight[1] > SLIGHT) this.addMoving(total.rest, moving, mean[0], spread[0], factor * weight[1]);
    for (let i = 1; i < mean.length; i++) if (weight[i + 1] > SLIGHT) this.addMode(total.rest, mean[i], spread[i], factor * weight[i + 1]);
    for (const part of tied) if (part.share > SLIGHT) part.addCdf(total.rest, this, factor * part.share);
  }

  addMoving(rest, heights, mean, spread, factor) {
    const { knots } = this.polygons[1], last = knots.length - 1, { grid } = this;
    let cell = -1, below = 0; // the mass up to the lower knot of the cell
    for (let g = 0; g < grid.length; g++) {
      const y = studentCdf((grid[g] - mean) / spread);
      while (cell < last && y >= knots[cell + 1]) {
        cell += 1;
        below += cell ? ((heights[cell - 1] + heights[cell]) / 2) * (knots[cell] - knots[cell - 1]) : heights[0] * knots[0];
      }
      const inside = cell < 0 ? y * heights[0] : (y - knots[cell]) * (heights[cell] + (cell < last ? ((y - knots[cell]) / (knots[cell + 1] - knots[cell]) / 2) * (heights[cell + 1] - heights[cell]) : 0));
      rest[g] += factor * (below + inside);
    }
  }

  addMode(rest, mean, spread, factor) {
    const { grid } = this, step = grid[1] - grid[0], near = (t) => clamp(Math.ceil((t - grid[0]) / step), 0, grid.length);
    const first = near(mean - ENDS * spread), last = near(mean + ENDS * spread);
    for (let g = first; g < last; g++) rest[g] += factor * fastNormalCdf((grid[g] - mean) / spread);
    for (let g = last; g < grid.length; g++) rest[g] += factor;
  }

  /* The summed distribution function on the grid. */
  cdfOf({ fixed, rest }) {
    return rest.map((value, g) => value + this.polygonCdf(0, fixed, this.belowGrid[g]));
  }
}
