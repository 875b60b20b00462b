/* ---- summaries of one column's conditional, in the units of the table ---- */

const ALIKE = 1e-6; // encoded distance within which a value is the one that a formula gives

/* The distribution of a number from `conditional`: its distribution function on even nodes of encoded x, and atoms.

   A value that a formula gives is one of the atoms. */
class NumberSummary {
  constructor(column, conditional, far) {
    const { continuous, points = [], atomErrors = [], pointErrors = [], belowErrors = [] } = conditional, exact = sum(points.map(([, p]) => p));
    Object.assign(this, { column, belowErrors, far, continuous: continuous * (1 - exact) });
    this.atomErrors = [...atomErrors, ...pointErrors];
    this.atoms = [...conditional.atoms, ...points.map(([, p]) => continuous * p)];
    this.values = [...column.atoms, ...points.map(([X]) => X)];
    this.atomPlaces = this.values.map((X) => column.map.withLogSlope(X)[0]);
    this.places = this.values.map((X, i) => ({ X, p: this.atoms[i], place: this.atomPlaces[i] })).sort((a, b) => a.X - b.X);
    if (conditional.nodes) this.fromNodes(conditional.nodes);
    else this.fromBelow(conditional.below);
  }

  /* From masses at the nodes: densities, linear in between. */
  fromNodes(nodes) {
    const last = nodes.length - 1;
    this.height = nodes.map((p, i) => (i === 0 || i === last ? 2 * p : p));
    this.below = [0];
    for (let i = 0; i < last; i++) this.below.push(this.below[i] + (this.height[i] + this.height[i + 1]) / 2);
  }

  /* From a distribution function at the nodes, linear in between; what lies beyond the last is left out. */
  fromBelow(below) {
    const whole = below.at(-1) - below[0];
    this.below = below.map((share) => (share - below[0]) / whole);
    this.mass = this.below.slice(1).map((share, i) => share - this.below[i]);
  }

  /* The share of the continuous part below encoded x. */
  cdf(x) {
    const last = this.below.length - 1, place = clamp(((x + this.far) / (2 * this.far)) * last, 0, last);
    const i = Math.min(Math.floor(place), last - 1), part = place - i;
    if (this.mass) return this.below[i] + part * this.mass[i];
    return this.below[i] + part * this.height[i] + (part ** 2 / 2) * (this.height[i + 1] - this.height[i]);
  }

  /* The standard error of `cdf`; 0 where nothing was drawn. */
  cdfError(x) {
    const last = this.belowErrors.length - 1, i = Math.round(((x + this.far) / (2 * this.far)) * last);
    return this.belowErrors[clamp(i, 0, last)] ?? 0;
  }

  /* The probability of a range, and its standard error, at most. */
  within(range) {
    const allowed = this.column.allowed(range);
    if (!allowed) return [0, 0];
    const [[share], interval] = this.column.atomic ? allowed : [[1], allowed[0]], [from, to] = ends(range);
    const [low, high] = interval.map((x) => this.cdf(x)), inside = share * this.continuous * (high - low);
    const chosen = this.values.map((X) => Number(X >= from && X <= to));
    const errors = [...interval.map((x) => share * this.cdfError(x)), ...this.atomErrors.map((error, i) => chosen[i] * error)];
    return [inside + dot(this.atoms, chosen), Math.hypot(...errors)];
  }

  /* The least X that at least this share is not above. */
  quantile(share) {
    const x = this.encodedQuantile(share), here = this.places.filter(({ place }) => Math.abs(place - x) < 1e-9);
    let below = this.continuous * this.cdf(x) + sum(this.places.map(({ place, p }) => (place < x - 1e-9 ? p : 0)));
    for (const { X, p } of here) if ((below += p) >= share - 1e-12) return X;
    return here.length ? here.at(-1).X : this.column.restored(x);
  }

  /* Atoms may lie beyond all encoded numbers, as a −999 does that stands for a gap. */
  encodedQuantile(share) {
    let low = Math.min(-this.far, ...this.atomPlaces) - 1e-6, high = Math.max(this.far, ...this.atomPlaces);
    for (let step = 0; step < 50; step++) {
      const x = (low + high) / 2;
      const atoms = sum(this.atoms.map((p, i) => (this.atomPlaces[i] <= x ? p : 0)));
      if (this.continuous * this.cdf(x) + atoms < share) low = x;
      else high = x;
    }
    return high;
  }

  /* How likely it is to be as unusual as X, or more: the mass where the encoded density is no higher, or the share of
     the rows at times of the day or week that are no busier, whichever is less. */
  unusual(X) {
    const x = this.column.map.withLogSlope(X)[0], same = (i) => i >= this.column.atoms.length && Math.abs(this.atomPlaces[i] - x) < ALIKE;
    const atom = this.values.findIndex((value, i) => value === X || same(i));
    if (atom >= 0) return sum([this.continuous, ...this.atoms].filter((p) => p <= this.atoms[atom]));
    if (this.column.beyond(X) || Math.abs(x) > this.far) return 0;
    const mass = this.mass ?? this.below.slice(1).map((share, i) => share - this.below[i]);
    const here = mass[Math.min(Math.floor(((x + this.far) / (2 * this.far)) * mass.length), mass.length - 1)];
    const { map } = this.column, quiet = (map.smooth ?? map).asQuiet?.(X) ?? 1;
    return this.continuous * Math.min(sum(mass.filter((p) => p <= here)), quiet);
  }

  words() {
    const [low, middle, high] = [0.05, 0.5, 0.95].map((share) => this.column.text(this.quantile(share)));
    const likely = this.atoms.flatMap((p, i) => (p >= 0.05 ? [`${this.column.text(this.values[i])} in ${percent(p)}`] : []));
    return [`median ${middle}${this.medianError()}`, low === high ? "" : `90% from ${low} to ${high}`, ...likely].filter(Boolean).join("; ");
  }

  /* Half the distance between the numbers that one standard error of the distribution function allows. */
  medianError() {
    const error = this.cdfError(this.encodedQuantile(0.5));
    if (!error) return "";
    const half = (this.quantile(Math.min(0.5 + error, 1)) - this.quantile(Math.max(0.5 - error, 0))) / 2;
    if (!half) return ""; // less than the numbers are rounded to
    return ` ± ${this.column.notation.spread(half)}`;
  }
}

class LabelSummary {
  constructor(column, { values, errors }) {
    Object.assign(this, { column, values, errors: errors ?? values.map(() => 0) });
  }

  /* The probability of several values, and its standard error, at most. */
  within({ places }) {
    const error = (inside) => Math.hypot(...this.errors.filter((_, place) => places.includes(place) === inside));
    return [sum(places.map((place) => this.values[place])), Math.min(error(true), error(false))];
  }

  unusual(cell) {
    return typeof cell === "string" ? this.column.reserve : sum(this.values.filter((p) => p <= this.values[cell]));
  }

  words() {
    const best = this.values.indexOf(Math.max(...this.values));
    return `most likely ${this.column.values[best]}, ${percent(this.values[best])}${plusMinus(this.errors[best])}`;
  }
}

const percent = (p) => (p >= 0.0995 ? `${Math.round(100 * p)}%` : p >= 0.0005 ? `${(100 * p).toFixed(1)}%` : "<0.1%");
const plusMinus = (error) => (error > 0.0005 ? ` ± ${(100 * error).toFixed(error < 0.0095 ? 1 : 0)}%` : "");
const signed = (value) => value.toFixed(2).replace("-", "−");

/* 1, 2 or 5 times a power of ten, at least so large. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= least * (1 - 1e-9));
}
