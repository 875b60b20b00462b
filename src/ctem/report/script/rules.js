/* ---- rules and orders among columns: densities/anyorder/{rules,limits}.py and tables/relations/{rule_keeper,functions,quantities}.py ---- */

const SAME = 0.25, KEY = 1e-6, PRIOR = 2; // of a cell; of a key; rows
const LIGHT = 1e-12, THIN = 1e-9, SLACK = 1e-6, FINE = 1e-4; // masses, a step of float32, and a cell that is not far wider
const BEYOND = 100; // stands for infinity

/* Curves of a number. */
const CURVES = { log: Math.log, log1p: Math.log1p, square: (value) => value * value, "square root": Math.sqrt, exponential: Math.exp };

/* A part of moments, in days since 1970, or of whole numbers, or a curve. */
function partOf(value, part) {
  if (!part || Number.isNaN(value)) return value;
  if (part in CURVES) {
    const curved = CURVES[part](value);
    return Number.isFinite(curved) ? curved : NaN;
  }
  if (part === "hundreds") return Math.floor(value / 100);
  if (part === "rest of 100") return value - 100 * Math.floor(value / 100);
  const seconds = Math.floor(value * 86400 + 1e-3), days = Math.floor(seconds / 86400), date = new Date(seconds * 1000);
  if (part === "weekday") return (((days + 3) % 7) + 7) % 7;
  return { year: date.getUTCFullYear(), month: date.getUTCMonth() + 1, day: date.getUTCDate(), hour: date.getUTCHours(), minute: date.getUTCMinutes() }[part];
}

/* Functions of numbers that name a value: NaN for none. */
const FUNCTIONS = {
  sum: ({ factors, constant }) => (numbers) => [sum(numbers.map((value, i) => factors[i] * value)) + constant],
  product: ({ powers, factor }) => (numbers) => {
    const value = numbers.reduce((total, number, i) => total * number ** powers[i], factor);
    return [Number.isFinite(value) ? value : NaN];
  },
  lookup: (data) => {
    const { keys, values, hits, rows, share, banded } = data, name = (numbers) => numbers.map((value) => Math.round(value / (2 * KEY))).join();
    const places = new Map(values.map((_, i) => [name(keys.map((own) => own[i])), i]));
    const order = banded ? values.map((_, i) => i).sort((a, b) => keys[0][a] - keys[0][b]) : [], sorted = order.map((i) => keys[0][i]);
    const between = (value) => {
      const above = search(sorted, value, false), inside = above > 0 && above < order.length;
      return inside && values[order[above - 1]] === values[order[above]] ? order[above - 1] : undefined;
    };
    return (numbers) => {
      const i = numbers.some(Number.isNaN) ? undefined : places.get(name(numbers)) ?? (banded ? between(numbers[0]) : undefined);
      return i === undefined ? [NaN] : [values[i], (hits[i] + PRIOR * share) / (rows[i] + PRIOR)];
    };
  },
};

/* The mass of what rules and orders leave, from a share and the mass that it had: densities/anyorder/{rules,limits}.py. */
const byRules = (share, mass) => Math.max(share, mass), byOrders = (share, mass) => 1 - (1 - mass) * (1 - share);

/* s ρ(· | chosen) + (1 − s) ρ(· | others), s from a share and the mass of what is chosen. */
function weighed(p, chosen, odds, by = (share) => share) {
  const size = chosen.filter(Boolean).length;
  if (!size || size === p.length) return p;
  const masses = [true, false].map((side) => sum(p.map((value, i) => (chosen[i] === side ? value : 0)))), share = by(odds, masses[0] / (masses[0] + masses[1]));
  const within = (value, mass, count) => (mass > LIGHT ? value / mass : 1 / count);
  return p.map((value, i) => (chosen[i] ? share * within(value, masses[0], size) : (1 - share) * within(value, masses[1], p.length - size)));
}

/* What orders make of a density: a factor within bounds, and one elsewhere. */
class Limits {
  constructor(low, high, share, inside, far) {
    const none = low >= high || low >= far || high <= -far || (low === -Infinity && high === Infinity);
    const mass = none ? 1 : clamp(inside, 0, 1);
    Object.assign(this, { low: none ? -Infinity : low, high: none ? Infinity : high, share: byOrders(share, mass) });
    const [first, last] = [this.low, this.high].map((end) => clamp(end, -far, far));
    Object.assign(this, { first, last: Math.max(last, first + 1e-6), thin: mass <= THIN });
    this.inside = this.thin ? 0 : this.share / mass;
    this.outside = 1 - share;
  }

  contains(t) {
    return t >= this.low && t <= this.high;
  }

  /* A density with these limits, from that without. */
  density(t, plain) {
    if (!this.contains(t)) return plain * this.outside;
    return this.thin ? (t >= this.first && t <= this.last ? this.share / (this.last - this.first) : 0) : plain * this.inside;
  }

  /* The pieces of an interval, and the factor in each. */
  pieces(a, b) {
    const cuts = [[a, Math.min(b, this.low), this.outside], [Math.max(a, this.low), Math.min(b, this.high), this.inside], [Math.max(a, this.high), b, this.outside]];
    return cuts.filter(([from, to, factor]) => from < to && factor > 0);
  }
}

/* The rules and orders of a table: what they imply for encoded rows. */
class Rules {
  constructor({ quantities, rules, orders, off, closest, far }, columns) {
    Object.assign(this, { quantities, orders, columns, off, closest, far });
    this.rules = rules.map((rule) => ({ ...rule, apply: FUNCTIONS[rule.function.form](rule.function) }));
    this.owners = new Map(columns.flatMap((column, i) => (quantities[i] ? column.owner.map((j) => [j, i]) : [])));
  }

  about(j) {
    const i = this.owners.get(j), listed = i !== undefined && this.quantities[i].listed;
    const ordered = (own) => this.orders.some(({ low, high }) => low === own || high === own);
    const rules = this.rules.some(({ target, terms, function: { form } }) => target === i || ((listed || (form === "sum" && ordered(target))) && terms.some(([own]) => own === i)));
    return i !== undefined && (rules || ordered(i));
  }

  /* The number that table column i of a row stands for; NaN if it is hidden. */
  number(x, i) {
    const column = this.columns[i], { listed } = this.quantities[i];
    return listed ? (Number.isNaN(x[column.owner[0]]) ? NaN : listed[x[column.owner[0]]] ?? NaN) : valueOf(x, column);
  }

  /* What a rule names for a row, and how surely; another number may stand for one of its columns. */
  implied(rule, x, own = -1, number = NaN) {
    const [value, share = rule.share] = rule.apply(rule.terms.map(([i, part]) => partOf(i === own ? number : this.number(x, i), part)));
    return [this.rounded(value, rule.target), share];
  }

  /* The number of a column that is next to a value; NaN where none is within half a cell. */
  rounded(value, i) {
    const { listed, width } = this.quantities[i], column = this.columns[i];
    if (!listed) return column.snap(value - column.lattice.offset) + column.lattice.offset;
    const near = this.nearest(listed, value);
    return near >= 0 && Math.abs(listed[near] - value) <= width / 2 ? listed[near] : NaN;
  }

  nearest(listed, value) {
    return listed.reduce((best, number, i) => (number !== null && (best < 0 || Math.abs(number - value) < Math.abs(listed[best] - value)) ? i : best), -1);
  }

  /* The value that rules name for table column i, and how likely it is in its encoded column j; null for none. */
  named(x, i, j) {
    const column = this.columns[i];
    for (const rule of this.rules.filter(({ target }) => target === i)) {
      const [value, share] = this.implied(rule, x);
      if (Number.isNaN(value)) continue;
      const odds = column.owner.length === 1 ? share : j === column.owner[0] ? rule.agree : Math.min(share / rule.agree, rule.agree);
      return { value, share: odds };
    }
    return null;
  }

  /* The code of a value in the first encoded column of table column i; −1 for none. */
  code(value, i) {
    const { listed, width } = this.quantities[i], column = this.columns[i];
    const known = listed ?? column.atoms.map((atom) => atom + column.lattice.offset), near = this.nearest(known, value);
    const fits = near >= 0 && Math.abs(known[near] - value) <= SAME * width;
    return listed ? (fits ? near : -1) : fits ? near + 1 : 0;
  }

  /* Probabilities of the codes of discrete column j by what rules imply, and orders after these. */
  labels(p, x, j) {
    const i = this.owners.get(j);
    if (i === undefined) return p;
    const named = this.named(x, i, j), code = named ? this.code(named.value, i) : -1;
    return this.between(code >= 0 ? weighed(p, p.map((_, own) => own === code), named.share) : this.leading(p, x, i), x, i);
  }

  /* By the rules that take column i: what is left for it are the values that would name what others hold, or what orders leave for these. */
  leading(p, x, i) {
    const { listed } = this.quantities[i];
    for (const rule of listed ? this.rules.filter(({ terms }) => terms.some(([own]) => own === i)) : []) {
      const held = this.number(x, rule.target), hidden = Number.isNaN(held);
      const span = hidden ? this.ownSpan(x, rule.target) : { low: held, high: held, share: 1 };
      if (!span || rule.terms.some(([own]) => own !== i && Number.isNaN(this.number(x, own)))) continue;
      const values = listed.map((number) => this.implied(rule, x, i, number ?? NaN)[0]), slack = SAME * this.quantities[rule.target].width;
      const right = values.map((value) => value >= span.low - slack && value <= span.high + slack);
      if (right.some(Boolean)) p = weighed(p, values.map((value, k) => right[k] || Number.isNaN(value)), rule.share * span.share, byRules);
    }
    return p;
  }

  between(p, x, i) {
    const span = this.span(x, i), column = this.columns[i];
    if (!span) return p;
    const numbers = this.quantities[i].listed ?? [null, ...column.atoms.map((atom) => atom + column.lattice.offset)], slack = SAME * this.quantities[i].width;
    return weighed(p, p.map((_, k) => (numbers[k] ?? null) === null || (numbers[k] >= span.low - slack && numbers[k] <= span.high + slack)), span.share, byOrders);
  }

  /* Between which numbers orders leave table column i, its own and those of sums that take it; null where they imply nothing. */
  span(x, i) {
    const sums = this.rules.filter(({ terms, function: { form } }) => form === "sum" && terms.filter(([own]) => own === i).length === 1 && terms.some(([own, part]) => own === i && !part));
    const spans = [this.ownSpan(x, i), ...sums.map((rule) => this.spanOfTerm(rule, x, i))].filter(Boolean);
    if (!spans.length) return null;
    const ends = ["low", "high", "share"].map((end) => spans.map((span) => span[end]));
    return { low: Math.max(...ends[0]), high: Math.min(...ends[1]), share: Math.min(...ends[2]) };
  }

  /* By its own orders. */
  ownSpan(x, i) {
    const lower = this.orders.filter(({ high }) => high === i).map((order) => [order, this.endOf(x, order.low, i, 0)]);
    const upper = this.orders.filter(({ low }) => low === i).map((order) => [order, this.endOf(x, order.high, i, 1)]);
    const [from, to] = [lower, upper].map((some) => some.filter(([, number]) => !Number.isNaN(number)));
    if (!from.length && !to.length) return null;
    const share = Math.min(...[...from, ...to].map(([order]) => order.share));
    return { low: Math.max(-Infinity, ...from.map(([, number]) => number)), high: Math.min(Infinity, ...to.map(([, number]) => number)), share };
  }

  /* Where column `other` bounds column i from below (0) or above (1): at its number, or at the end that it has. */
  endOf(x, other, i, above) {
    const number = this.shownOrNamed(x, other), { ends, width } = this.quantities[other];
    const coarse = SAME * Math.max(this.quantities[i].width - width, 0);
    return (Number.isNaN(number) ? ends[above] ?? NaN : number) + (above ? -coarse : coarse);
  }

  /* The number of table column i, or where it is hidden what rules name for it. */
  shownOrNamed(x, i) {
    const shown = this.number(x, i);
    return Number.isNaN(shown) ? this.named(x, i, -1)?.value ?? NaN : shown;
  }

  /* What the orders of a sum leave for one of its terms, given the others. */
  spanOfTerm(rule, x, i) {
    const span = this.ownSpan(x, rule.target), numbers = rule.terms.map(([own, part]) => (own === i ? 0 : partOf(this.number(x, own), part)));
    if (!span || numbers.some(Number.isNaN)) return null;
    const [rest] = rule.apply(numbers), factor = rule.function.factors[rule.terms.findIndex(([own]) => own === i)];
    const [low, high] = [span.low, span.high].map((end) => (end - rest) / factor);
    return { low: Math.min(low, high), high: Math.max(low, high), share: span.share };
  }

  /* The same for the real encoded column j, encoded. */
  bounds(x, j) {
    const i = this.owners.get(j), span = i === undefined ? null : this.span(x, i);
    return span && [this.limit(span.low, 1, i), this.limit(span.high, -1, i), span.share];
  }

  limit(value, sign, i) {
    if (!Number.isFinite(value)) return value;
    const { map, lattice } = this.columns[i], { width } = this.quantities[i], [low, high] = map.edges ?? [-Infinity, Infinity];
    let point = this.rounded(value, i);
    if (sign * (value - point) > SAME * width) point += sign * width;
    const edge = point - lattice.offset - (sign * width) / 2;
    if (edge <= low) return -Infinity;
    if (edge >= high) return Infinity;
    const [t, logSlope] = map.withLogSlope(edge), cell = Math.exp(logSlope) * width;
    return Math.fround(cell < FINE ? t - sign * Math.min(SLACK, cell / 4) : t);
  }

  /* The cell of the value that rules name for real column j, [low, high, X], and how likely it is; null for none. */
  cell(x, j) {
    const named = this.owners.has(j) ? this.named(x, this.owners.get(j), j) : null;
    const cell = named && cellOf(named.value, this.columns[this.owners.get(j)], this.quantities[this.owners.get(j)].width, this);
    return cell && { cell, share: named.share };
  }
}
