/* ---- ranges and sets: densities/anyorder/events.py ---- */

const ISLANDS = 16; // of a batch of draws: their spread is the standard error
const LARGEST = 10, SMALLEST = 2, WORK = 6e6; // draws of an island: so that its products of weights are about so many
const BATCHES = 6; // of draws in all, the first at once and the others afterwards
const UNEVEN = 0.5; // effective share of an island's draws below which they are drawn again by their weights
const OFTEN = 0.01; // probability of a value of a formula from which it stands apart
const SEED = 1;
const BLUR = 0.5, LEAST = 1e-3; // of a drawn number, times its standard deviation and n^(−1/5); at least

/* A question with ranges or sets: importance-weighted draws of whole rows.

   Each draw fills its columns in one of the orders of the density, as a sample of the model does: a column without a
   condition from its conditional given what is set and what was drawn before, a column with one from the part of it
   that is allowed. The weight of a draw is the product of these parts, and the mean weight is the probability of the
   conditions: that of model.probability, and the share of the model's samples that meet them. A conditional is the mean
   of the members', so that the conditional of a random member will do; where draws share what they show, all members
   are asked. Islands of draws are independent of each other. With an energy a whole row weighs e^g / Z more, and a column
   is what was drawn of it: its conditional by the networks does not know the columns that were drawn later. */
class RangeQuestion extends Question {
  constructor(model, cells) {
    super(model, cells);
    const conditions = model.columns.flatMap((column, j) => (isRange(cells[j]) && column.owner.length ? [[column, cells[j]]] : []));
    const limits = conditions.map(([column, cell]) => column.allowed(cell));
    this.possible = limits.every((limit) => limit !== null);
    this.allowed = new Map();
    conditions.forEach(([{ owner }], i) => this.possible && owner.forEach((j, k) => this.allowed.set(j, limits[i][k])));
    this.random = generator(SEED);
    this.size = clamp(Math.round(WORK / model.work()), SMALLEST, LARGEST);
    [this.rows, this.begun, this.order, this.sources, this.logWeight] = [[], [], [], [], []];
    if (this.possible) this.more();
    const weighs = model.energy && conditions.length && this.x.some((value) => !Number.isNaN(value));
    this.whole = weighs ? new RangeQuestion(model, cells.map((cell) => (isRange(cell) ? null : cell))) : null;
  }

  /* Another batch of draws. */
  more() {
    this.whole?.more();
    const batch = new Batch(this, this.orderShares());
    this.rows.push(...batch.rows);
    this.begun.push(...batch.begun);
    this.order.push(...batch.order);
    this.sources.push(...batch.sources);
    this.logWeight.push(...batch.logWeight);
    this.possible = this.logWeight.some((value) => value > -Infinity);
    const top = Math.max(...this.logWeight);
    this.weight = this.logWeight.map((value) => (this.possible ? Math.exp(value - top) : 0));
  }

  islands(of) {
    return Array.from({ length: this.rows.length / this.size }, (_, b) => of(b));
  }

  /* How likely the conditions are given the values that are set, its standard error, and how many draws it rests on.

     With an energy rows with these values do not weigh 1 in all, so that it is a ratio: tables/answers/events.py. */
  probability() {
    if (!this.possible) return { value: 0, error: 0, effective: 0 };
    const part = this.meanWeight();
    if (!this.whole) return part;
    const whole = this.whole.meanWeight(), value = Math.min(part.value / whole.value, 1);
    return { value, error: value * Math.hypot(part.error / part.value, whole.error / whole.value), effective: Math.min(part.effective, whole.effective) };
  }

  meanWeight() {
    const each = this.islands((b) => Math.exp(logSumExp(this.logWeight.slice(b * this.size, (b + 1) * this.size))) / this.size);
    const n = each.length, value = sum(each) / n, spread = sum(each.map((one) => (one - value) ** 2)) / (n - 1);
    return { value, error: Math.sqrt(spread / n), effective: sum(this.weight) ** 2 / dot(this.weight, this.weight) };
  }

  /* As of a question without ranges; a number as its distribution function on a grid, all with standard errors. */
  conditional(j) {
    if (this.cells[j] !== null) return this.model.question(this.cells.map((cell, i) => (i === j ? null : cell))).conditional(j);
    if (!this.possible) return null;
    const column = this.model.columns[j], [first, second] = column.owner;
    if (column.listed) return this.averaged((i) => column.byValue(this.codes(i, first)));
    if (!column.atomic) return { continuous: 1, atoms: [], ...this.grid(first, this.weight) };
    const { values: [continuous, ...atoms], errors } = this.averaged((i) => this.codes(i, first));
    return { continuous, atoms, ...this.grid(second, this.existing(first, second)), atomErrors: errors.slice(1) };
  }

  /* Probabilities of the codes of column j in draw i: what it was drawn from, or where conditions came later, the draw. */
  codes(i, j) {
    return this.sources[i].get(j) ?? Array.from({ length: this.model.sizes[j] }, (_, code) => Number(this.rows[i][j] === code));
  }

  /* The weights of the draws in which the continuous part j of a column exists; if in none, the heaviest, as if it did. */
  existing(parent, j) {
    const weights = this.weight.map((w, i) => (this.rows[i][parent] === 0 ? w : 0));
    if (sum(weights)) return weights;
    const i = this.weight.indexOf(Math.max(...this.weight)), x = this.rows[i].with(parent, 0);
    this.sources[i].set(j, this.members().map((k) => this.parts(x, j, k)));
    return weights.map((_, other) => Number(other === i));
  }

  /* Weighted means over the draws, and their standard errors from the islands. */
  averaged(of) {
    const totals = this.islands(() => null), weights = this.islands(() => 0);
    this.rows.forEach((_, i) => {
      if (!this.weight[i]) return;
      const values = of(i), b = Math.floor(i / this.size);
      totals[b] ??= new Array(values.length).fill(0);
      values.forEach((value, v) => (totals[b][v] += this.weight[i] * value));
      weights[b] += this.weight[i];
    });
    const { means, errors } = ratios(totals, weights);
    return { values: means, errors };
  }

  /* The distribution function of real column j on the grid, averaged by weights; apart from it, values of formulas.

     Where conditions came later it is that of the draws, each blurred by a share of their spread. */
  grid(j, weights) {
    const { numbers } = this.model, totals = this.islands(() => numbers.noSum()), whole = this.islands(() => 0);
    const width = this.blur(j, weights), points = this.likelyPoints(j, weights);
    const left = (parts) => ({ ...parts, tied: parts.tied.filter(({ X }) => !points.has(X)) });
    const apart = (i) => this.formulaValues(i, j).some(([X]) => points.has(X));
    this.rows.forEach((x, i) => {
      if (!weights[i]) return;
      const b = Math.floor(i / this.size), from = this.sources[i].get(j);
      if (from) for (const parts of from) numbers.addCdf(totals[b], left(parts), weights[i] / from.length);
      else if (!apart(i)) numbers.addMode(totals[b].rest, x[j], width, weights[i]);
      whole[b] += weights[i];
    });
    const { means, errors } = ratios(totals.map((total) => numbers.cdfOf(total)), whole);
    const likely = ratios(this.islands((b) => Array.from(points.values(), (each) => each[b])), whole);
    return { below: means, belowErrors: errors, points: Array.from(points.keys(), (X, i) => [X, likely.means[i]]), pointErrors: likely.errors };
  }

  /* The values that formulas give for real column j in many of the draws, and their weight in each island. */
  likelyPoints(j, weights) {
    const weightOf = new Map(), whole = sum(weights);
    this.rows.forEach((_, i) => {
      for (const [X, share] of weights[i] ? this.formulaValues(i, j) : []) {
        if (!weightOf.has(X)) weightOf.set(X, this.islands(() => 0));
        weightOf.get(X)[Math.floor(i / this.size)] += weights[i] * share;
      }
    });
    return new Map([...weightOf].filter(([, each]) => sum(each) >= OFTEN * whole));
  }

  /* The values [X, p] that formulas and rules give for real column j in draw i; where conditions came later, what was drawn of them. */
  formulaValues(i, j) {
    const from = this.sources[i].get(j), x = this.rows[i];
    if (from) return from.flatMap(cellsOf).map(({ X, share }) => [X, share / from.length]);
    const [low, high, X] = this.model.rules?.cell(x, j)?.cell ?? [];
    return x[j] >= low && x[j] <= high ? [[X, 1]] : this.model.ties?.held(x, j) ?? [];
  }

  /* How wide a draw of column j is taken: a share of their standard deviation that shrinks with their number. */
  blur(j, weights) {
    const mean = (of) => sum(this.rows.map((x, i) => (weights[i] ? weights[i] * of(x[j]) : 0))) / sum(weights), centre = mean((x) => x);
    const effective = sum(weights) ** 2 / dot(weights, weights);
    return Math.max(BLUR * Math.sqrt(mean((x) => (x - centre) ** 2)) * effective ** -0.2, LEAST);
  }

  /* A row that meets the conditions. */
  draw(random) {
    const i = drawPlace(this.weight, random), { energy, orders } = this.model;
    return this.decoded(energy ? this.rows[i] : this.filled(this.begun[i], orders[this.order[i]], random), random);
  }
}

/* Draws that are made together: ISLANDS islands of the same size. */
class Batch extends Question {
  constructor({ model, cells, allowed, random, size }, shares) {
    super(model, cells);
    Object.assign(this, { allowed, random, size, shared: new Map() });
    const chosen = Array.from({ length: ISLANDS }, () => shuffled(size, random)).flat();
    this.order = chosen.map((i) => placeAt(shares, this.stratum(i))[0]);
    this.rows = this.order.map(() => this.x.slice());
    [this.place, this.sources] = [this.order.map(() => 0), this.order.map(() => new Map())];
    this.logWeight = new Float64Array(this.rows.length);
    this.run();
  }

  /* Up to the last column with a condition, in the order of each draw; then the others. */
  run() {
    const { orders, energy } = this.model, has = (j) => this.allowed.has(j);
    const ends = orders.map((order) => order.flatMap((j, place) => (has(j) ? [place + 1] : [])));
    for (let step = 0; step < ends[0].length; step++) {
      if (step) this.resample();
      this.walk((i) => ends[this.order[i]][step]);
    }
    this.begun = this.rows.map((x) => x.slice());
    this.walk((i) => orders[this.order[i]].length, energy ? undefined : this.sources);
    if (energy) this.rows.forEach((x, i) => this.logWeight[i] > -Infinity && (this.logWeight[i] += energy.logTilt(x)));
  }

  /* A random number of the i-th of as many equal parts as an island has draws. */
  stratum(i) {
    return ((i % this.size) + this.random()) / this.size;
  }

  /* Every draw goes on to a place in its order; what the columns on the way were drawn from can be kept. */
  walk(end, sources) {
    const { orders, parents } = this.model, moves = (i) => this.logWeight[i] > -Infinity && this.place[i] < end(i);
    for (let moving = this.rows.flatMap((_, i) => (moves(i) ? [i] : [])); moving.length; moving = moving.filter(moves)) {
      const who = this.asked(moving.map((i) => this.rows[i]));
      moving.forEach((i, m) => {
        const x = this.rows[i], first = !this.place[i], j = orders[this.order[i]][this.place[i]++];
        if (!Number.isNaN(x[j]) || (j in parents && x[parents[j]] > 0)) return;
        this.fill(i, j, who[m], first ? this.stratum(i) : this.random(), sources);
      });
    }
  }

  /* Draws column j of draw i. */
  fill(i, j, members, share, sources) {
    const x = this.rows[i], { sizes } = this.model;
    if (this.allowed.has(j)) {
      const [value, mass] = sizes[j] ? this.label(x, j, members, share) : this.number(x, j, members, share);
      this.logWeight[i] += Math.log(mass);
      x[j] = value;
      return;
    }
    if (!sizes[j] && this.limited(x, j)) {
      x[j] = Math.fround(this.drawLimited(x, j, this.random));
      return;
    }
    const from = sizes[j] ? this.labels(x, j, members) : members.map((k) => this.parts(x, j, k));
    x[j] = sizes[j] ? placeAt(from, share)[0] : Math.fround(this.model.numbers.draw(from[Math.floor(share * from.length)], this.random));
    if (sources) sources[i].set(j, from);
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

  /* A code within what is allowed, and its weight. */
  label(x, j, members, share) {
    const allowed = this.allowed.get(j), p = this.labels(x, j, members).map((value, code) => value * (allowed[code] ?? 0));
    return [placeAt(p, share)[0], sum(p)];
  }

  /* A number within the interval, and its weight. */
  number(x, j, members, share) {
    const { each, masses, totals } = this.within(x, j, this.limited(x, j) ? this.members() : members);
    const [k, rest] = placeAt(totals, share);
    if (k < 0) return [NaN, 0];
    const [parts, a, b] = each[k];
    return [Math.fround(this.model.numbers.within(parts, masses[k], a, b, rest)), sum(totals)];
  }

  /* The densities of column j and their masses within its interval; kept where draws share them. */
  within(x, j, members) {
    const key = `${j} ${this.key(x)}`, [a, b] = this.allowed.get(j);
    if (this.shared.has(key)) return this.shared.get(key);
    const limits = this.limited(x, j), pieces = limits ? limits.pieces(a, b) : [[a, b, 1]];
    const each = members.flatMap((k) => pieces.map((piece) => [this.parts(x, j, k), ...piece]));
    const masses = each.map(([parts, from, to]) => this.model.numbers.masses(parts, from, to));
    const shared = { each, masses, totals: masses.map((mass, i) => (sum(mass) * each[i][3]) / members.length) };
    if (members.length > 1) this.shared.set(key, shared);
    return shared;
  }

  /* In islands of uneven weights, draws by their weights, and even weights that keep the island's mean. */
  resample() {
    for (let start = 0; start < this.rows.length; start += this.size) {
      const logWeight = this.logWeight.subarray(start, start + this.size), top = Math.max(...logWeight);
      if (top === -Infinity) continue;
      const weight = Array.from(logWeight, (value) => Math.exp(value - top)), total = sum(weight);
      if (total ** 2 / dot(weight, weight) >= UNEVEN * this.size) continue;
      const first = this.random(), chosen = weight.map((_, i) => start + placeAt(weight, (i + first) / this.size)[0]);
      const states = chosen.map((i) => [this.rows[i].slice(), this.order[i], this.place[i]]);
      states.forEach((state, i) => ([this.rows[start + i], this.order[start + i], this.place[start + i]] = state));
      logWeight.fill(top + Math.log(total / this.size));
    }
  }
}

/* 0 … size − 1 in random order. */
function shuffled(size, random) {
  const places = Array.from({ length: size }, (_, i) => [random(), i]);
  return places.sort((a, b) => a[0] - b[0]).map(([, i]) => i);
}

/* Ratios of sums over all islands, and the standard errors that the islands' residuals show. */
function ratios(totals, weights) {
  const whole = sum(weights), count = weights.length, kept = totals.flatMap((total, b) => (total ? [b] : []));
  const means = Array.from(totals[kept[0]], (_, v) => sum(kept.map((b) => totals[b][v])) / whole);
  const residual = (mean, v) => sum(kept.map((b) => (totals[b][v] - mean * weights[b]) ** 2));
  return { means, errors: means.map((mean, v) => Math.sqrt((residual(mean, v) * count) / (count - 1)) / whole) };
}
