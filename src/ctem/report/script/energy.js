/* ---- an energy on top of the networks: densities/tilted/{trees,energy,density}.py ---- */

const FEWEST = 4, MOST = 16; // draws of unknown cells from which one is taken

/* The numbers of a base64 text, little-endian. */
const unpacked = (text, Kind) => new Kind(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);

/* A sum of trees. A row's leaf of a tree is the lowest bit that all splits leave over; splits are sorted by column. */
class Trees {
  constructor({ cuts, splits, question, right, tree, leaves, first, value, bias }) {
    Object.assign(this, { splits, bias, cuts: cuts.map((ends) => ends && unpacked(ends, Float64Array)) });
    [this.right, this.value] = [unpacked(right, Uint8Array), unpacked(value, Float32Array)];
    [this.question, this.tree, this.leaves, this.first] = [question, tree, leaves, first].map((text) => unpacked(text, Int32Array));
  }

  /* g(x), NaN for missing cells. */
  at(x) {
    return this.total(this.reached(x));
  }

  /* g with column j at each of some values, the other cells as in x. */
  atValues(x, j, values) {
    const others = this.reached(x, j), totals = new Map();
    return Array.from(values, (value) => {
      const bin = this.bin(value, j);
      if (!totals.has(bin)) totals.set(bin, this.total(this.narrow(others.slice(), j, bin)));
      return totals.get(bin);
    });
  }

  /* The bin of a value of column j; the last one is for what is missing. */
  bin(value, j) {
    const cuts = this.cuts[j];
    if (!cuts) return value >= 0 && value < 255 ? value : 255;
    return Number.isNaN(value) ? cuts.length + 1 : search(cuts, value, false);
  }

  /* The leaves of every tree that a row can reach, as bits; by all columns but one. */
  reached(x, except = -1) {
    const left = new Int32Array(this.first.length).fill(-1);
    x.forEach((value, j) => j !== except && this.narrow(left, j, this.bin(value, j)));
    return left;
  }

  /* Takes away the leaves on the other side of every split by column j. */
  narrow(left, j, bin) {
    const { question, right, tree, leaves } = this, byte = bin >> 3, bit = 128 >> (bin & 7);
    for (let s = this.splits[j]; s < this.splits[j + 1]; s++) left[tree[s]] &= ~leaves[2 * s + (right[32 * question[s] + byte] & bit ? 0 : 1)];
    return left;
  }

  total(left) {
    const { first, value } = this;
    let total = 0;
    for (let t = 0; t < first.length; t++) total += value[first[t] + 31 - Math.clz32(left[t] & -left[t])];
    return total + this.bias;
  }
}

/* log ρ/b: g(x) − log Z of whole rows, and its partial sum of trees where cells are hidden. */
class Energy {
  constructor({ rounds, margins, partial, logZ, ceiling, atoms }, { parents, columns }) {
    Object.assign(this, { logZ, ceiling, atoms, parents, columns, rounds: rounds.map((round) => new Trees(round)), partial: new Trees(partial) });
    this.margins = margins && new Trees(margins);
    this.times = clamp(Math.ceil(2 * Math.exp(ceiling)), FEWEST, MOST);
  }

  /* Of a row that need not lie on the lattices of its columns. */
  logTilt(x) {
    return this.at(this.snapped(x));
  }

  at(x) {
    const seen = this.seen(x), whole = this.isWhole(x);
    if (!whole) return this.partial.at(seen);
    return this.cut(sum(this.rounds.map((trees) => trees.at(seen))), this.margins?.at(seen) ?? 0);
  }

  /* g − log Z, at most the ceiling, with its margins and without. */
  cut(g, margins) {
    return Math.min(Math.min(g - this.logZ, this.ceiling) + margins, this.ceiling);
  }

  /* With a column of the table at each of some codes or numbers. */
  atValues(x, owner, values) {
    const other = x.slice();
    for (const i of owner) other[i] = 0;
    const j = owner.at(-1), seen = this.seen(other);
    if (!this.isWhole(other)) return this.partial.atValues(seen, j, values);
    const each = this.rounds.map((trees) => trees.atValues(seen, j, values)), margins = this.margins?.atValues(seen, j, values);
    return Array.from(values, (_, i) => this.cut(sum(each.map((part) => part[i])), margins?.[i] ?? 0));
  }

  /* Probabilities of the codes of a column by b, weighed. */
  codes(x, owner, p) {
    const tilt = this.atValues(x, owner, p.map((_, code) => code));
    return logSoftmax(p.map((share, code) => Math.log(share) + tilt[code])).map(Math.exp);
  }

  /* The conditional of a number by b, weighed: tables/answers/distributions.py. */
  number(x, { owner, map }, { continuous, atoms, nodes, points }, numbers) {
    const places = [...numbers, ...points.map(([X]) => map.withLogSlope(X)[0])], tilt = this.atValues(x, owner, places);
    const rest = Math.max(1 - sum(points.map(([, p]) => p)), 0), smooth = nodes.map((p, i) => Math.log(p) + tilt[i]);
    const exact = points.map(([, p], i) => Math.log(continuous * p) + tilt[nodes.length + i]);
    const codes = atoms.map((p, i) => Math.log(p) + this.at(owner.reduce((row, j, k) => row.with(j, k ? NaN : i + 1), x)));
    const [all, ...others] = logSoftmax([Math.log(continuous * rest) + logSumExp(smooth), ...exact, ...codes]).map(Math.exp);
    const whole = all + sum(others.slice(0, points.length)), weighed = points.map(([X], i) => [X, others[i] / whole]);
    return { continuous: whole, atoms: others.slice(points.length), nodes: logSoftmax(smooth).map(Math.exp), points: weighed };
  }

  isWhole(x) {
    return x.every((value, j) => !Number.isNaN(value) || (j in this.parents && x[this.parents[j]] > 0));
  }

  /* A number that is written as a code is a number, too. */
  seen(x) {
    const out = x.slice();
    for (const [child, numbers] of Object.entries(this.atoms)) {
      const code = x[this.parents[child]];
      if (code > 0) out[child] = numbers[code] ?? NaN;
    }
    return out;
  }

  /* A row as it would come back: numbers on their lattice, and at an atom where they meet one. */
  snapped(x) {
    const out = x.slice();
    for (const column of this.columns) {
      if (!column.map || !(column.lattice.step || column.atomic)) continue;
      const codes = column.owner.map((i) => x[i]), hidden = Number.isNaN(codes[0]) || (codes[0] === 0 && Number.isNaN(codes.at(-1)));
      if (hidden) continue;
      const X = column.decode(codes), atom = column.atoms.find((each) => Math.abs(each - X) < 1e-6 * column.lattice.width);
      column.encode(atom ?? X)[0].forEach((value, k) => (out[column.owner[k]] = value));
    }
    return out;
  }
}
