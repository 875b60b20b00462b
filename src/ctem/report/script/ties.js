/* ---- formulas among columns: densities/anyorder/ties.py and tables/relations/formulas.py ---- */

/* A part of a density that is even in the cell of a formula, which stands for the number X. */
class CellPart {
  constructor(share, low, high, X) {
    Object.assign(this, { share, low, high, X, width: Math.max(high - low, 1e-12) });
  }

  density(t) {
    return t >= this.low && t <= this.high ? 1 / this.width : 0;
  }

  mass(a, b) {
    return Math.max(Math.min(b, this.high) - Math.max(a, this.low), 0) / this.width;
  }

  /* The number of [a, b] that a share in [0, 1) stands for. */
  within(a, b, share) {
    const low = Math.max(a, this.low);
    return low + share * (Math.min(b, this.high) - low);
  }

  /* Adds its distribution function, times a factor, to a sum on a grid. */
  addCdf(total, { grid }, factor) {
    for (let g = 0; g < grid.length; g++) total[g] += factor * clamp((grid[g] - this.low) / this.width, 0, 1);
  }

  /* Nothing of it is smooth. */
  softened() {
    return [];
  }
}

/* A normal part of a density, a shift away from the middle of the cell [low, high] of a formula. */
class NearPart {
  constructor(share, low, high, shift, spread) {
    const middle = Math.fround(Math.fround(low + high) / 2);
    Object.assign(this, { share, low, high, shift, spread, middle, mean: middle + spread * shift });
  }

  scaled(t) {
    return (t - this.mean) / this.spread;
  }

  density(t) {
    return (Math.exp(-0.5 * this.scaled(t) ** 2) * PEAK) / this.spread;
  }

  mass(a, b) {
    return normalBetween(this.scaled(a), this.scaled(b));
  }

  /* The number of [a, b] that a share in [0, 1) stands for. */
  within(a, b, share) {
    return clamp(this.mean + this.spread * normalWithin(this.scaled(a), this.scaled(b), share), a, b);
  }

  addCdf(total, head, factor) {
    head.addMode(total, this.mean, this.spread, factor);
  }

  /* In its place, and so wide that its values at nodes k · width sum to its mass. */
  softened(width) {
    const spread = Math.max(this.spread, width);
    return [new NearPart(this.share, this.low, this.high, (this.mean - this.middle) / spread, spread)];
  }
}

const cellsOf = ({ tied }) => tied.filter((part) => part instanceof CellPart);

/* Two arrays, one after the other. */
function joined(first, second) {
  const out = new Float64Array(first.length + second.length);
  out.set(first);
  out.set(second, first.length);
  return out;
}

/* The value of a column of numbers, be it in its continuous part or one of its atoms; NaN if it is hidden. */
function valueOf(x, column) {
  const code = column.atomic ? x[column.owner[0]] : 0, t = x[column.owner.at(-1)];
  if (code > 0) return column.atoms[code - 1] + column.lattice.offset;
  return Number.isNaN(t) ? NaN : column.snap(column.map.inverse(t)) + column.lattice.offset;
}

/* The ends of the cell of a value in an encoded column, and its X; null where it has none. */
function cellOf(value, column, width, { off, closest, far }) {
  const { map, atoms, lattice } = column, X = value - lattice.offset, point = column.snap(X), [low, high] = map.edges ?? [-Infinity, Infinity], slack = off * width;
  const fits = point > low && point < high && Math.abs(point - X) < slack && atoms.every((atom) => Math.abs(point - atom) > slack);
  if (!fits) return null;
  const ends = [point - width / 2, point + width / 2].map((end) => map.withLogSlope(clamp(end, low, high))[0]);
  const [a, b] = cellInside(map, point, width, ends, far), middle = (a + b) / 2, half = Math.max(b - middle, closest);
  return Math.abs(middle) < far ? [Math.fround(middle - half), Math.fround(middle + half), point] : null;
}

/* A cell that reaches an end of its column, and so infinitely far, cut where it has the right width. */
function cellInside(map, point, width, [a, b], limit) {
  const [far, further] = [a, b].map((end) => !(Math.abs(end) <= limit));
  if (far === further) return [a, b];
  const [middle, logSlope] = map.withLogSlope(point), wide = Math.exp(logSlope) * width;
  return far ? [Math.min(b - wide, 2 * middle - b), b] : [a, Math.max(a + wide, 2 * middle - a)];
}

/* The formulas of a table: what they give for a row, and their parts of the conditionals. */
class Ties {
  constructor(data, columns, layer) {
    Object.assign(this, data, { layer });
    const used = new Set(data.targets.flatMap(({ column, formulas }) => [column, ...formulas.flatMap(({ terms }) => terms.map(([j]) => j))]));
    this.columns = new Map([...used].map((j) => [j, columns.find(({ owner }) => owner.at(-1) === j)]));
  }

  /* What each formula of each target gives for a row: its value, NaN if a column is hidden, and whether the target has it. */
  formulaValues(x) {
    const values = new Map([...this.columns].map(([j, column]) => [j, valueOf(x, column)]));
    return this.targets.map(({ column: j, formulas }) =>
      formulas.map(({ terms, finest }) => {
        const value = sum(terms.map(([i, sign]) => sign * values.get(i)));
        return { value, holds: !Number.isNaN(x[j]) && Math.abs(values.get(j) - value) <= finest / 2 };
      }),
    );
  }

  /* The value [X, 1] that a formula gives for real column j of a row, if one holds. */
  held(x, j) {
    const g = this.targets.findIndex(({ column }) => column === j), one = this.formulaValues(x)[g]?.find(({ holds }) => holds);
    const cell = one ? this.cell(one.value, this.targets[g]) : null;
    return cell ? [[cell[2], 1]] : [];
  }

  /* What networks see of the formulas: which ones hold. */
  flags(values) {
    const out = new Float64Array(this.targets.length * this.slots);
    values.forEach((formulas, g) => formulas.forEach(({ holds }, slot) => (out[g * this.slots + slot] = Number(holds))));
    return out;
  }

  /* The parts of real column j by one member's last layer, and the share that they leave; null if it has none. */
  parts(values, j, hidden, member) {
    const g = this.targets.findIndex(({ column }) => column === j);
    if (g < 0) return null;
    const size = 1 + 3 * this.nearly, first = g * this.slots * size;
    const outputs = this.layer.apply(hidden, member, first, first + this.slots * size);
    const logs = [0], made = [];
    values[g].forEach(({ value }, slot) => {
      const cell = this.cell(value, this.targets[g]), { start } = this.targets[g].formulas[slot];
      if (cell) this.add(logs, made, cell, start.map((from, i) => from + this.gain * outputs[slot * size + i]));
    });
    const [rest, ...shares] = logSoftmax(logs).map(Math.exp);
    return { rest, parts: made.map((make, i) => make(shares[i])) };
  }

  /* The log-weights of a formula's parts, and how each is made of its share. */
  add(logs, made, [low, high, X], at) {
    const { nearly } = this, spread = (i) => clamp(Math.exp(at[1 + 2 * nearly + i]), this.narrowest, this.widest);
    logs.push(...at.slice(0, 1 + nearly));
    made.push((share) => new CellPart(share, low, high, X));
    for (let i = 0; i < nearly; i++) {
      const shift = clamp(at[1 + nearly + i], -this.farthest, this.farthest);
      made.push((share) => new NearPart(share, low, high, shift, spread(i)));
    }
  }

  /* The ends of the cell of a value in the encoded column of a target, and its X; null where it has none. */
  cell(value, { column: j, width }) {
    return cellOf(value, this.columns.get(j), width, this);
  }
}
