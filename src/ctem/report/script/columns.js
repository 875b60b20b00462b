/* ---- columns: tables/margins/{monotone,rhythms,preferred}.py and tables/encoding/codecs.py ---- */

const BENT = 1.0;  /* how far in u a tail bends */

function bent(outside, bend) {
  if (!bend) return outside;
  const far = Math.max(outside - BENT, 0);
  return Math.expm1(bend * (outside - far)) / bend + Math.exp(bend * BENT) * far;
}

function unbent(rise, bend) {
  if (!bend) return rise;
  const far = Math.max(rise - Math.expm1(bend * BENT) / bend, 0);
  return Math.log1p(bend * (rise - far)) / bend + Math.exp(-bend * BENT) * far;
}

const FULL = 6.0, SLOWER = 4.0;  /* rise of x from which on it grows like a logarithm, and how slowly */

function slowed(rise) {
  const far = Math.max(rise - FULL, 0);
  return rise - far + SLOWER * Math.log1p(far / SLOWER);
}

function unslowed(rise) {
  const far = Math.max(rise - FULL, 0);
  return rise - far + SLOWER * Math.expm1(far / SLOWER);
}

class MonotoneMap {
  constructor({ location, scale, knots, scores, slopes, bends }) {
    Object.assign(this, { location, scale, knots, scores, slopes, bends });
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
    const [low, high] = this.bends, below = Math.max(this.knots[0] - u, 0), above = Math.max(u - this.knots.at(-1), 0);
    const fall = d0 * bent(below, low), rise = d1 * bent(above, high);
    const steeper = low * Math.min(below, BENT) + high * Math.min(above, BENT);
    const slower = Math.log1p((Math.max(fall - FULL, 0) + Math.max(rise - FULL, 0)) / SLOWER);
    const x = inside + slowed(rise) - slowed(fall);
    return [x, Math.log(slope / r) + steeper - slower - Math.log(this.scale)];
  }

  inverse(x) {
    const { left, width, bottom, height, d0, d1, s } = this.piece(1, x);
    const rise = Math.min(Math.max(x - bottom, 0), height), bend = d0 + d1 - 2 * s;
    const a = height * (s - d0) + rise * bend, b = height * d0 - rise * bend, c = -s * rise;
    const part = (2 * c) / (-b - Math.sqrt(Math.max(b * b - 4 * a * c, 0)));
    const below = unslowed(Math.max(this.scores[0] - x, 0)) / d0;
    const above = unslowed(Math.max(x - this.scores.at(-1), 0)) / d1;
    const [low, high] = this.bends;
    const u = clamp(left + part * width - unbent(below, low) + unbent(above, high), -709, 709);
    return clamp(this.location + this.scale * Math.sinh(u), -Number.MAX_VALUE, Number.MAX_VALUE);
  }

  piece(axis, value) {
    const { knots, scores, slopes } = this, k = search(this.inner[axis], value, false);
    const width = knots[k + 1] - knots[k], height = scores[k + 1] - scores[k];
    return { left: knots[k], width, bottom: scores[k], height, d0: slopes[k], d1: slopes[k + 1], s: height / width };
  }
}

/* A clock that runs fast through the busy hours of a day or a week: rhythms.py. */
class Rhythm {
  constructor({ inner, period, start, edges, below, turns, offsets }) {
    Object.assign(this, { inner: new MonotoneMap(inner), scale: inner.scale, period, start, table: [edges, below] });
    Object.assign(this, { turns, offsets, constants: [0], reached: [] });  /* of the wall clock */
    turns.forEach((turn, i) => {
      const before = this.through(turn + offsets[i], 0)[0], after = this.through(turn + offsets[i + 1], 0)[0];
      this.reached.push(before + this.constants[i]);
      this.constants.push(this.constants[i] + before - after);
    });
  }

  withLogSlope(X) {
    const [Y, logRate] = this.wound(X), [x, logSlope] = this.inner.withLogSlope(Y);
    return [x, logSlope + logRate];
  }

  inverse(x) {
    const Y = this.inner.inverse(x), i = search(this.reached, Y, true);
    return this.through(Y - this.constants[i], 1)[0] - this.offsets[i];
  }

  /* W(X) and log W′(X). */
  wound(X) {
    const i = search(this.turns, X, true), [Y, logRate] = this.through(X + this.offsets[i], 0);
    return [Y + this.constants[i], logRate];
  }

  /* The share of the rows that come at times no busier than that of X. */
  asQuiet(X) {
    const [edges, below] = this.table, [, rate] = this.wound(X);
    const share = below.slice(1).map((height, i) => height - below[i]);
    return sum(share.filter((part, i) => Math.log(part / (edges[i + 1] - edges[i])) <= rate + 1e-9));
  }

  through(X, axis) {
    const along = this.table[axis], across = this.table[1 - axis];
    const periods = (X - this.start) / this.period, whole = Math.floor(periods), p = periods - whole;
    const i = clamp(search(along, p, true), 1, along.length - 1);
    const rate = (across[i] - across[i - 1]) / (along[i] - along[i - 1]);
    return [this.start + this.period * (whole + across[i - 1] + rate * (p - along[i - 1])), Math.log(rate)];
  }
}

class PreferredValues {
  constructor({ inner, knots, heights }) {
    this.smooth = mapOf(inner);
    this.scale = this.smooth.scale;
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

  /* A log-density of values beyond the ends. */
  logBeyond(X) {
    const [low, high] = this.edges, { scale } = this.inner, t = Math.max(low - X, X - high) / scale;
    return -2 * Math.log1p(t) - Math.log(scale * this.edges.filter(Number.isFinite).length);
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

const mapOf = (data) => new (data.margin !== undefined ? Bounded : data.heights ? PreferredValues : data.period ? Rhythm : MonotoneMap)(data);

const REACH = 8; // encoded numbers lie within ±8

/* Whether a cell holds a condition and not one value. */
const isRange = (cell) => typeof cell === "object" && cell !== null;
const ends = ({ low, high }) => [low ?? -Infinity, high ?? Infinity];

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

  /* What a condition allows of the encoded column: for every code the share of its values. */
  allowed({ places }) {
    const size = Math.max(...this.codes) + 1, weights = new Array(size).fill(0), whole = new Array(size).fill(true);
    this.codes.forEach((code, place) => {
      if (places.includes(place)) weights[code] += this.shares[place];
      else whole[code] = false;
    });
    return places.length ? [weights.map((weight, code) => (whole[code] ? 1 : weight))] : null;
  }

  /* A value of a code, of those that share it one that a condition allows. */
  decode([code], random, condition) {
    const may = (place) => !isRange(condition) || condition.places.includes(place);
    const places = this.codes.flatMap((other, place) => (other === code && may(place) ? [place] : []));
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
    this.map = mapOf(data.transform);
    this.notation = notationOf(data);
    this.atomic = this.atoms.length > 0;
  }

  encode(cell) {
    const hidden = this.atomic ? [NaN, NaN] : [NaN];
    if (cell === null) return [hidden, 0];
    if (this.beyond(cell)) return [hidden, Math.log(this.reserve) + this.map.logBeyond(cell)];
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

  /* What a condition allows of the encoded columns: codes of the atoms, if there are some, and an interval; or nothing. */
  allowed(condition) {
    const [low, high] = ends(condition), inside = this.atoms.map((X) => Number(X >= low && X <= high));
    const interval = this.interval(condition);
    if (!this.atomic) return interval && [interval];
    return interval || inside.includes(1) ? [[Number(interval !== null), ...inside], interval ?? [-REACH, REACH]] : null;
  }

  /* The interval of encoded x, half a cell wider on each side where there is a lattice; null if it has no width. */
  interval(condition) {
    const [low, high] = this.onLattice(condition), half = this.lattice.step ? this.lattice.width / 2 : 0;
    if (low > high) return null;
    const [least, most] = [-REACH, REACH].map((x) => this.map.inverse(x));
    const x = [low - half, high + half].map((X) => Math.fround(this.map.withLogSlope(clamp(X, least, most))[0]));
    return x[1] > x[0] ? x : null;
  }

  /* The ends of a condition, moved inward to the lattice if there is one. */
  onLattice(condition) {
    const { step, origin, per } = this.lattice, range = ends(condition);
    if (!step) return range;
    const steps = range.map((X) => (X * per - origin) / step);
    return [Math.ceil(steps[0] - 1e-6), Math.floor(steps[1] + 1e-6)].map((k) => (origin + step * k) / per);
  }

  /* A number; one that rounding took out of its range goes to the nearest end. */
  decode(x, random, condition) {
    if (this.atomic && x[0] > 0) return this.atoms[x[0] - 1];
    const X = this.restored(x.at(-1));
    return isRange(condition) ? clamp(X, ...this.onLattice(condition)) : X;
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

  /* A time that is a point of the lattice but for the rounding of a fraction of a day is that point. */
  exact(X) {
    const { unit, width } = this.lattice, point = this.snap(X);
    return unit && Math.abs(point - X) < 1e-6 * width ? point : X;
  }

  text(X) {
    return this.notation.text(X);
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
