/* The density of encoded rows and of the table: density.py and tables/answers/. */
class Model {
  constructor(data) {
    Object.assign(this, data.density);
    const bytes = Uint8Array.from(atob(data.weights), (letter) => letter.charCodeAt(0));
    const whole = Float64Array.from(new Float32Array(bytes.buffer)); // sums are in float64: convert once
    const tensor = ({ shape, start }) => ({ shape, data: whole.subarray(start, start + shape.reduce((a, b) => a * b, 1)) });
    const linear = ({ weight, bias }) => new Linear(tensor(weight), tensor(bias));
    const { first, blocks, labels, numbers, ties } = data.network;
    [this.first, this.ofLabels, this.ofNumbers] = [first, labels, numbers].map(linear);
    this.blocks = blocks.map(({ inner, outer }) => ({ inner: linear(inner), outer: linear(outer) }));
    this.inputs = new Inputs(data.inputs);
    this.numbers = new NumberHead(data.numbers);
    this.columns = data.columns.map((column) => new COLUMNS[column.codec](column));
    this.ties = data.ties && new Ties(data.ties, this.columns, linear(ties));
    this.rules = data.rules && new Rules(data.rules, this.columns);
    this.energy = data.energy && new Energy(data.energy, this);
  }

  /* What networks see of a row, and what formulas give for it. */
  see(x) {
    const seen = this.inputs.see(x.map((value, j) => (this.heard[j] ? value : NaN)));
    if (!this.ties) return seen;
    const formulas = this.ties.formulaValues(x);
    return { ...seen, formulas, inputs: joined(seen.inputs, this.ties.flags(formulas)) };
  }

  /* How many products of weights one member takes to fill a row. */
  work() {
    const layers = [this.first, ...this.blocks.flatMap(({ inner, outer }) => [inner, outer])];
    return this.sizes.length * sum(layers.map(({ inputs, outputs }) => inputs * outputs));
  }

  /* Everything that can be asked of a row of cells; rows that a question looks at share their passes. */
  question(cells) {
    return new (cells.some(isRange) ? RangeQuestion : Question)(this, cells);
  }
}

class Question {
  constructor(model, cells) {
    this.model = model;
    this.cells = cells;
    this.passes = new Map();
    const encoded = model.columns.map((column, j) => column.encode(isRange(cells[j]) ? null : cells[j]));
    this.x = encoded.flatMap(([x]) => x);
    this.terms = encoded.map(([, term]) => term);
  }

  /* log ρ of the cells that are set, all others marginalised: CTEM.score_samples. */
  logDensity() {
    const tilt = this.model.energy?.logTilt(this.x) ?? 0;
    return logSumExp(this.byOrder(this.x)) - Math.log(this.model.orders.length) + tilt + sum(this.terms);
  }

  /* Column j given the other cells: probabilities of its values, or of atoms and of the nodes of its real part. */
  conditional(j) {
    const column = this.model.columns[j], { owner } = column, x = this.x.slice(), { energy, numbers } = this.model;
    for (const i of owner) x[i] = NaN;
    const [first, ...others] = column.listed || column.atomic ? this.weighted(x, owner[0]) : [1];
    if (column.listed) return { values: column.byValue(energy ? energy.codes(x, owner, [first, ...others]) : [first, ...others]) };
    if (column.atomic) x[owner[0]] = 0;
    const parts = { continuous: first, atoms: others, ...this.real(x, owner.at(-1)) };
    return energy ? energy.number(x, column, parts, numbers.nodes) : parts;
  }

  /* Real column j: the values [X, p] that formulas give, and the rest at the nodes. */
  real(x, j) {
    return { nodes: this.weighted(x, j), points: this.model.ties || this.model.rules ? this.points(x, j) : [] };
  }

  /* The values that formulas give, and how likely they are: the mean of the members. */
  points(x, j) {
    const values = new Map(), { members } = this.model;
    for (const parts of this.members().map((k) => this.parts(x, j, k))) {
      for (const { X, share, low, high } of cellsOf(parts)) values.set(X, (values.get(X) ?? 0) + (parts.limits?.density((low + high) / 2, share) ?? share) / members);
    }
    return [...values];
  }

  /* A row with the unknown cells drawn given the others; with an energy one of several, by its weight. */
  draw(random) {
    const { orders, energy } = this.model, shares = this.orderShares();
    const drawn = () => this.filled(this.x, orders[drawPlace(shares, random)], random);
    if (!energy) return this.decoded(drawn(), random);
    const rows = Array.from({ length: energy.times }, drawn), weights = logSoftmax(rows.map((x) => energy.logTilt(x))).map(Math.exp);
    return this.decoded(rows[drawPlace(weights, random)], random);
  }

  /* Each order's share of the density of the cells that are set. */
  orderShares() {
    return logSoftmax(this.byOrder(this.x)).map(Math.exp);
  }

  /* A row whose hidden columns are drawn in an order, each by a random member. */
  filled(known, order, random) {
    const x = known.slice(), { parents, numbers, members, sizes } = this.model;
    const fresh = new Question(this.model, this.cells); // its passes are of no use to others
    for (const j of order) {
      if (!Number.isNaN(x[j]) || (j in parents && x[parents[j]] > 0)) continue;
      const member = Math.floor(random() * members);
      if (sizes[j]) x[j] = drawPlace(fresh.labels(x, j, [member]), random);
      else if (fresh.limited(x, j)) x[j] = Math.fround(fresh.drawLimited(x, j, random));
      else x[j] = Math.fround(numbers.draw(fresh.parts(x, j, member), random));
    }
    return x;
  }

  /* Cells of a drawn row. */
  decoded(x, random) {
    const value = (column, cell) => (cell === null || isRange(cell) ? column.decode(column.owner.map((i) => x[i]), random, cell) : cell);
    return this.model.columns.map((column, j) => value(column, this.cells[j]));
  }

  /* Probabilities of the codes of encoded column j, or of the nodes of a real one, given what x shows. */
  weighted(x, j) {
    if (this.model.sizes[j]) return this.labels(x, j);
    const { numbers } = this.model, total = new Float64Array(numbers.nodes.length);
    for (const k of this.members()) {
      const parts = numbers.softened(this.parts(x, j, k));
      numbers.nodes.forEach((t, i) => (total[i] += numbers.density(t, numbers.below[i], parts)));
    }
    for (const end of [0, total.length - 1]) total[end] /= 2;
    const mass = sum(total);
    return Array.from(total, (p) => p / mass);
  }

  /* log ρ of the cells that x shows, in every order. */
  byOrder(x) {
    return this.model.orders.map((order) => {
      const visible = x.map(() => NaN);
      let total = 0;
      for (const j of order) {
        if (Number.isNaN(x[j])) continue;
        total += this.term(visible, j, x[j]);
        visible[j] = x[j];
      }
      return total;
    });
  }

  /* Every conditional is the mean of the members'. */
  term(visible, j, value) {
    if (this.model.sizes[j]) return Math.log(this.labels(visible, j)[value]);
    const below = normalCdf(value), each = this.members().map((k) => this.model.numbers.density(value, below, this.parts(visible, j, k)));
    return Math.log(sum(each) / each.length);
  }

  members() {
    return Array.from({ length: this.model.members }, (_, k) => k);
  }

  /* Probabilities of the codes of a discrete column, mixed with the margin. Rules are about the mean of all members. */
  labels(x, j, members = this.members()) {
    const { rules } = this.model, ruled = rules?.about(j), each = (ruled ? this.members() : members).map((k) => this.labelsBy(x, j, k));
    const mean = Array.from(each[0], (_, v) => sum(each.map((p) => p[v])) / each.length);
    return ruled ? rules.labels(mean, x, j) : mean;
  }

  labelsBy(x, j, member) {
    const { hidden } = this.pass(x, member), { start, spread, gain, discretes, steepest } = this.model.inputs;
    const place = discretes.indexOf(j), from = start[place], to = start[place + 1] ?? gain.length;
    const outputs = this.model.ofLabels.apply(hidden, member, from, to), out = new Float64Array(outputs.length + 1);
    for (let i = 0; i < outputs.length; i++) out[i + 1] = Math.min(outputs[i] / spread[from + i] + gain[from + i], steepest);
    const margin = positive([0, ...gain.slice(from, to)], Infinity, null), share = this.model.shares[j];
    return positive(out, Infinity, null).map((p, v) => share * p + (1 - share) * margin[v]);
  }

  /* What the density of a real column is made of, mixed with the margin. */
  parts(x, j, member) {
    if (!this.model.rules?.about(j)) return this.partsBy(x, j, member);
    const named = this.named(x, j), parts = named ? this.partsBy(x, j, member, named) : this.partsBy(x, j, member);
    return { ...parts, limits: this.limited(x, j) };
  }

  /* The same, with the cell that rules name instead of what formulas give, or without a look at rules. */
  partsBy(x, j, member, named = undefined) {
    const { hidden, prediction, formulas } = this.pass(x, member), place = this.model.inputs.reals.indexOf(j);
    const { size } = this.model.numbers, tied = named === undefined ? this.model.ties?.parts(formulas, j, hidden, member) : named;
    const outputs = this.model.ofNumbers.apply(hidden, member, place * size, (place + 1) * size);
    const parts = this.model.numbers.parts(outputs, prediction.mean[place], prediction.spread[place], tied);
    return this.model.numbers.mixed(parts, this.model.rules?.about(j) ? 1 : this.model.shares[j]);
  }

  /* The part that rules name for real column j, and the share that it leaves: with it the cell has the mass of the rules. */
  named(x, j) {
    return this.kept(x, `named ${j}`, () => {
      const named = this.model.rules.cell(x, j);
      if (!named) return null;
      const [low, high, X] = named.cell, each = this.members().map((k) => sum(this.model.numbers.ownMasses(this.partsBy(x, j, k, null), low, high)));
      const inside = Math.min(sum(each) / each.length, named.share), share = clamp((named.share - inside) / (1 - inside), 0, 1 - LIGHT);
      return { rest: 1 - share, parts: [new CellPart(share, low, high, X)] };
    });
  }

  /* What orders make of the density of real column j, the mean of the members'; null where they do not apply. */
  limited(x, j) {
    if (!this.model.rules?.about(j)) return null;
    return this.kept(x, `limits ${j}`, () => {
      const bounds = this.model.rules.bounds(x, j), { numbers } = this.model;
      if (!bounds) return null;
      const named = this.named(x, j) ?? undefined, each = this.members().map((k) => sum(numbers.masses(this.partsBy(x, j, k, named), ...bounds.slice(0, 2).map((end) => clamp(end, -BEYOND, BEYOND)))));
      return new Limits(...bounds, sum(each) / each.length, numbers.far);
    });
  }

  /* A number of real column j within the bounds of orders, or elsewhere as seldom as they allow. */
  drawLimited(x, j, random) {
    const limits = this.limited(x, j), { numbers } = this.model, { far } = numbers;
    if (limits.thin && random() < limits.share) return limits.first + random() * (limits.last - limits.first);
    const each = this.members().flatMap((k) => limits.pieces(-far, far).map(([a, b, factor]) => [this.parts(x, j, k), a, b, factor]));
    const masses = each.map(([parts, a, b]) => numbers.masses(parts, a, b)), totals = masses.map((part, i) => sum(part) * each[i][3]);
    const [i, rest] = placeAt(totals, random());
    return numbers.within(each[i][0], masses[i], each[i][1], each[i][2], rest);
  }

  /* What was computed for what x shows, kept beside its passes. */
  kept(x, name, make) {
    this.pass(x, 0);
    const { memo } = this.passes.get(this.key(x));
    if (!memo.has(name)) memo.set(name, make());
    return memo.get(name);
  }

  /* The last layer of one member for what x shows. */
  pass(x, member) {
    const key = this.key(x);
    let seen = this.passes.get(key);
    if (!seen) this.passes.set(key, (seen = { ...this.model.see(x), hidden: [], memo: new Map() }));
    seen.hidden[member] ??= this.hidden(seen.inputs, member);
    return { ...seen, hidden: seen.hidden[member] };
  }

  key(x) {
    return x.join();
  }

  hidden(inputs, member) {
    let h = this.model.first.apply(inputs, member);
    for (const { inner, outer } of this.model.blocks) {
      const change = outer.apply(inner.apply(norm(h), member).map(silu), member);
      for (let i = 0; i < h.length; i++) h[i] += change[i];
    }
    return norm(h);
  }
}
