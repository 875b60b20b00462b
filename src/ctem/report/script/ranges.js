/* ---- ranges and sets: densities/anyorder/events.py ---- */

const ISLANDS = 16, SIZE = 13; // draws: the islands' spread is the standard error
const UNEVEN = 0.5; // effective share of an island's draws below which they are drawn again by their weights
const SEED = 1;

/* A question with ranges or sets: importance-weighted draws of those columns, each within what is allowed.

   The columns with a condition are drawn one after the other, in one of the orders of the density, each from its
   conditional given what is set and what was drawn before. Every weight is the share of these conditionals that is
   allowed, and the mean weight is the probability of the conditions. A conditional is the mean of the members', so that
   the conditional of a random member will do; where draws share what they show, all members are asked. Columns without
   a condition are averaged over the draws. Islands of draws are independent of each other. */
class RangeQuestion extends Question {
  constructor(model, cells) {
    super(model, cells);
    const conditions = model.columns.flatMap((column, j) => (isRange(cells[j]) && column.owner.length ? [[column, cells[j]]] : []));
    const limits = conditions.map(([column, cell]) => column.allowed(cell));
    this.possible = limits.every((limit) => limit !== null);
    [this.allowed, this.kept] = [new Map(), new Map()];
    conditions.forEach(([{ owner }], i) => this.possible && owner.forEach((j, k) => this.allowed.set(j, limits[i][k])));
    this.random = generator(SEED);
    if (this.possible) this.run();
  }

  /* The columns of the conditions, in the order of each draw. */
  run() {
    const { orders } = this.model, shares = this.orderShares();
    this.columns = orders.map((order) => order.filter((j) => this.allowed.has(j)));
    this.order = islands(() => shuffled(this.random)).flat().map((i) => placeAt(shares, stratum(i, this.random))[0]);
    this.rows = this.order.map(() => this.x.slice());
    this.logWeight = new Float64Array(this.rows.length);
    for (let step = 0; step < this.columns[0].length; step++) {
      if (step) this.resample();
      this.constrain(step);
    }
    this.possible = this.logWeight.some((value) => value > -Infinity);
    const top = Math.max(...this.logWeight);
    this.weight = this.logWeight.map((value) => (this.possible ? Math.exp(value - top) : 0));
    this.shown = this.asked(this.rows);
  }

  /* Which members answer for each draw: all where many draws show the same, else a random one. */
  asked(rows) {
    const keys = rows.map((x) => x.join()), count = new Map(), { members } = this.model, every = this.members();
    this.keys = new Map(rows.map((x, i) => [x, keys[i]]));
    for (const key of keys) count.set(key, (count.get(key) ?? 0) + 1);
    return keys.map((key) => (count.get(key) >= members ? every : [Math.floor(this.random() * members)]));
  }

  key(x) {
    return this.keys?.get(x) ?? x.join();
  }

  /* Draws the next column with a condition. */
  constrain(step) {
    const { parents, sizes } = this.model, who = this.asked(this.rows);
    this.rows.forEach((x, i) => {
      const j = this.columns[this.order[i]][step], share = step ? this.random() : stratum(i, this.random);
      if (this.logWeight[i] === -Infinity || (j in parents && x[parents[j]] > 0)) return;
      const [value, mass] = sizes[j] ? this.label(x, j, who[i], share) : this.number(x, j, who[i], share);
      x[j] = value;
      this.logWeight[i] += Math.log(mass);
    });
  }

  /* A code within what is allowed, and its weight. */
  label(x, j, members, share) {
    const allowed = this.allowed.get(j), p = this.labels(x, j, members).map((value, code) => value * (allowed[code] ?? 0));
    return [placeAt(p, share)[0], sum(p)];
  }

  /* A number within the interval, and its weight. */
  number(x, j, members, share) {
    const [a, b] = this.allowed.get(j), { each, masses, totals } = this.within(x, j, members);
    const [k, rest] = placeAt(totals, share);
    if (k < 0) return [NaN, 0];
    return [Math.fround(this.model.numbers.within(each[k], masses[k], a, b, rest)), sum(totals) / members.length];
  }

  /* The densities of column j and their masses within its interval; kept where draws share them. */
  within(x, j, members) {
    const key = `${j} ${this.key(x)}`, [a, b] = this.allowed.get(j);
    if (this.kept.has(key)) return this.kept.get(key);
    const each = members.map((k) => this.parts(x, j, k)), masses = each.map((parts) => this.model.numbers.masses(parts, a, b));
    const found = { each, masses, totals: masses.map(sum) };
    if (members.length > 1) this.kept.set(key, found);
    return found;
  }

  /* In islands of uneven weights, draws by their weights, and even weights that keep the island's mean. */
  resample() {
    for (let start = 0; start < this.rows.length; start += SIZE) {
      const logWeight = this.logWeight.subarray(start, start + SIZE), top = Math.max(...logWeight);
      if (top === -Infinity) continue;
      const weight = Array.from(logWeight, (value) => Math.exp(value - top)), total = sum(weight);
      if (total ** 2 / dot(weight, weight) >= UNEVEN * SIZE) continue;
      const first = this.random(), chosen = weight.map((_, i) => start + placeAt(weight, (i + first) / SIZE)[0]);
      const rows = chosen.map((i) => this.rows[i].slice()), order = chosen.map((i) => this.order[i]);
      rows.forEach((x, i) => ([this.rows[start + i], this.order[start + i]] = [x, order[i]]));
      logWeight.fill(top + Math.log(total / SIZE));
    }
  }

  /* How likely the conditions are given the values that are set, its standard error, and how many draws it rests on. */
  probability() {
    if (!this.possible) return { value: 0, error: 0, effective: 0 };
    const each = islands((b) => Math.exp(logSumExp(Array.from(this.logWeight.subarray(b * SIZE, (b + 1) * SIZE)))) / SIZE);
    const value = sum(each) / ISLANDS, spread = sum(each.map((one) => (one - value) ** 2)) / (ISLANDS - 1);
    return { value, error: Math.sqrt(spread / ISLANDS), effective: sum(this.weight) ** 2 / dot(this.weight, this.weight) };
  }

  /* As of a question without ranges; a number as its distribution function on a grid, all with standard errors. */
  conditional(j) {
    if (this.cells[j] !== null) return this.model.question(this.cells.map((cell, i) => (i === j ? null : cell))).conditional(j);
    if (!this.possible) return null;
    const column = this.model.columns[j], [first, second] = column.owner;
    if (column.listed) return this.averaged((x, i) => column.byValue(this.labels(x, first, this.shown[i])));
    if (!column.atomic) return { continuous: 1, atoms: [], ...this.grid(first, this.weight) };
    const { values: [continuous, ...atoms], errors } = this.averaged((x, i) => this.labels(x, first, this.shown[i]));
    const weight = this.weight.map((w, i) => w * this.labels(this.rows[i], first, this.shown[i])[0]);
    return { continuous, atoms, ...this.grid(second, weight, first), atomErrors: errors.slice(1) };
  }

  /* Weighted means over the draws, and their standard errors from the islands. */
  averaged(of) {
    const totals = islands(() => null), weights = islands(() => 0);
    this.rows.forEach((x, i) => {
      if (!this.weight[i]) return;
      const found = of(x, i), b = Math.floor(i / SIZE);
      totals[b] ??= new Array(found.length).fill(0);
      found.forEach((value, v) => (totals[b][v] += this.weight[i] * value));
      weights[b] += this.weight[i];
    });
    const { means, errors } = ratios(totals, weights);
    return { values: means, errors };
  }

  /* The distribution function of real column j on the grid, averaged by weights; it exists where its parent is 0. */
  grid(j, weights, parent) {
    const { numbers } = this.model, totals = islands(() => numbers.noSum()), whole = islands(() => 0);
    const rows = parent === undefined ? this.rows : this.rows.map((x) => x.with(parent, 0));
    const who = rows === this.rows ? this.shown : this.asked(rows);
    rows.forEach((x, i) => {
      if (!weights[i]) return;
      const b = Math.floor(i / SIZE);
      for (const k of who[i]) numbers.addCdf(totals[b], this.parts(x, j, k), weights[i] / who[i].length);
      whole[b] += weights[i];
    });
    const { means, errors } = ratios(totals.map((total) => numbers.cdfOf(total)), whole);
    return { below: means, belowErrors: errors };
  }

  /* A row that meets the conditions. */
  draw(random) {
    const i = drawPlace(this.weight, random);
    return this.completed(this.rows[i], this.model.orders[this.order[i]], random);
  }
}

const islands = (of) => Array.from({ length: ISLANDS }, (_, b) => of(b));
const stratum = (i, random) => ((i % SIZE) + random()) / SIZE;

/* 0 … SIZE − 1 in random order. */
function shuffled(random) {
  const places = Array.from({ length: SIZE }, (_, i) => [random(), i]);
  return places.sort((a, b) => a[0] - b[0]).map(([, i]) => i);
}

/* Ratios of sums over all islands, and the standard errors that the islands' residuals show. */
function ratios(totals, weights) {
  const whole = sum(weights), kept = totals.flatMap((total, b) => (total ? [b] : []));
  const means = Array.from(totals[kept[0]], (_, v) => sum(kept.map((b) => totals[b][v])) / whole);
  const residual = (mean, v) => sum(kept.map((b) => (totals[b][v] - mean * weights[b]) ** 2));
  return { means, errors: means.map((mean, v) => Math.sqrt((residual(mean, v) * ISLANDS) / (ISLANDS - 1)) / whole) };
}
