/* ---- how the numbers of a column are displayed, and typed into a box: tables/io/writings.py and display.py ---- */

const DAY = 86400, MS = 86400000, LAST = 8.64e15; // seconds and milliseconds of a day, and the last moment of a Date

const two = (number) => String(number).padStart(2, "0");
const modulo = (a, b) => ((a % b) + b) % b;

/* A number as it is. */
class PlainNotation {
  constructor({ lattice: { type, decimals, offset, shift } }) {
    Object.assign(this, { whole: type === "int", decimals, offset, shift: BigInt(shift), box: { type: "number", step: "any" } });
  }

  text(X) {
    const value = X + this.offset;
    if (this.whole) return this.exact(X).toLocaleString("en", { useGrouping: Math.abs(value) >= 1e4 }).replace("-", "−");
    return plain(this.decimals >= 0 && Math.abs(value) < 1e9 ? Number(value.toFixed(this.decimals)) : value);
  }

  /* A whole number with all its digits, of which float64 may have too few. */
  exact(X) {
    return this.shift + BigInt(Math.round(X));
  }

  put(box, X) {
    const value = X + this.offset, short = this.decimals >= 0 && Math.abs(value) < 1e15 ? value.toFixed(this.decimals) : value.toPrecision(10);
    box.value = this.whole ? this.exact(X) : Number(short);
  }

  typed(box) {
    if (!this.whole) return box.valueAsNumber - this.offset;
    return /^-?\d+$/.test(box.value) ? Number(BigInt(box.value) - this.shift) : Math.round(box.valueAsNumber - this.offset);
  }

  /* A distance between numbers. */
  spread(size) {
    return plain(Number(size.toPrecision(2)));
  }
}

/* A duration in the unit in which the column has a few digits before the point: report/axes.py. */
class DurationNotation {
  constructor({ lattice: { offset }, edges }) {
    const span = edges.at(-1) - edges[0], units = [[1, "days"], [1 / 24, "h"], [1 / 1440, "min"]];
    const [size, unit] = units.find(([days]) => span > 3 * days) ?? [1 / DAY, "s"];
    Object.assign(this, { size, unit, offset, box: { type: "number", step: "any" } });
  }

  text(X) {
    return `${plain((X + this.offset) / this.size)} ${this.unit}`;
  }

  put(box, X) {
    box.value = Number(((X + this.offset) / this.size).toPrecision(10));
  }

  typed(box) {
    return box.valueAsNumber * this.size - this.offset;
  }

  spread(size) {
    return `${plain(Number((size / this.size).toPrecision(2)))} ${this.unit}`;
  }
}

/* A date, or a time to the minute or finer if the column spans so little, in the zone of the column. */
class MomentNotation {
  constructor(column) {
    const { lattice: { offset, origin, step, per }, edges, zone } = column, span = edges.at(-1) - edges[0];
    Object.assign(this, { offset, ahead: aheadOf(zone), lengths: new DurationNotation(column) });
    const dates = (step / per) % 1 === 0 && this.local(origin / per) % MS === 0;
    this.digits = dates ? 0 : span > 1 / 48 ? 5 : span > 1e-4 ? 8 : 12;
    this.box = { type: dates ? "date" : "datetime-local", step: "any" };
  }

  /* What the clocks of the zone show, in milliseconds. */
  local(X) {
    const ms = Math.round((X + this.offset) * MS);
    return ms + this.ahead(ms);
  }

  text(X) {
    const ms = this.local(X);
    if (!(Math.abs(ms) < LAST)) return `${plain(X + this.offset)} days`;
    const [day, time] = new Date(ms).toISOString().split("T");
    return `${day} ${time.slice(0, this.digits)}`.trim();
  }

  put(box, X) {
    box.valueAsNumber = this.local(X);
  }

  typed(box) {
    const ms = box.valueAsNumber;
    return (ms - this.ahead(ms - this.ahead(ms))) / MS - this.offset;
  }

  spread(size) {
    return this.lengths.spread(size);
  }
}

/* By how many milliseconds the clocks of a zone are ahead of UTC at a moment. */
function aheadOf(zone) {
  const fixed = /^(?:UTC)?([+-])(\d\d):(\d\d)$/.exec(zone);
  if (!zone) return () => 0;
  if (fixed) return () => (fixed[1] === "-" ? -60000 : 60000) * (60 * Number(fixed[2]) + Number(fixed[3]));
  const numeric = Object.fromEntries(["year", "month", "day", "hour", "minute", "second"].map((part) => [part, "numeric"]));
  const format = new Intl.DateTimeFormat("en-US", { timeZone: zone, hourCycle: "h23", ...numeric });
  return (ms) => {
    if (!(Math.abs(ms) < LAST)) return 0;
    const { year, month, day, hour, minute, second } = Object.fromEntries(format.formatToParts(ms).map(({ type, value }) => [type, Number(value)]));
    return Date.UTC(year, month - 1, day, hour, minute, second) - 1000 * Math.floor(ms / 1000);
  };
}

/* A time of day, which is kept as minutes or seconds from where the day is cut open. */
class ClockNotation {
  constructor({ written: { seconds, cut, padded } }) {
    Object.assign(this, { fine: seconds, tick: seconds ? 1 : 60, cut, padded, box: { type: "time", step: seconds ? 1 : 60 } });
  }

  text(X) {
    const text = this.padded24(X);
    return this.padded ? text : text.replace(/^0/, "");
  }

  padded24(X) {
    const seconds = modulo(Math.round(X) * this.tick + this.cut, DAY), minutes = Math.floor(seconds / 60);
    return [Math.floor(minutes / 60), minutes % 60, ...(this.fine ? [seconds % 60] : [])].map(two).join(":");
  }

  put(box, X) {
    box.value = this.padded24(X);
  }

  typed(box) {
    return Math.floor(modulo(box.valueAsNumber / 1000 - this.cut, DAY) / this.tick);
  }

  spread(size) {
    return `${plain(Number(((size * this.tick) / 60).toPrecision(2)))} min`;
  }
}

/* A month of a year, which is kept as months since the year 0. */
class MonthNotation {
  constructor({ written: { formats, padded } }) {
    Object.assign(this, { format: formats[0], padded, box: { type: "month" } });
  }

  text(X) {
    const [year, month] = this.parts(X), name = new Date(Date.UTC(2000, month, 1)).toLocaleString("en", { month: "long", timeZone: "UTC" });
    const parts = { Y: String(year).padStart(4, "0"), m: two(month + 1), B: name, b: name.slice(0, 3) };
    const text = this.format.replace(/%(.)/g, (_, part) => parts[part]);
    return this.padded ? text : text.replace(/(?<!\d)0(?=\d)/g, "");
  }

  parts(X) {
    const months = Math.round(X);
    return [Math.floor(months / 12), modulo(months, 12)];
  }

  put(box, X) {
    const [year, month] = this.parts(X);
    box.value = `${String(year).padStart(4, "0")}-${two(month + 1)}`;
  }

  typed(box) {
    const match = /^(\d{4})-(\d\d)$/.exec(box.value); // some browsers have no box for months and show text
    return match ? 12 * Number(match[1]) + Number(match[2]) - 1 : NaN;
  }

  spread(size) {
    return `${plain(Number(size.toPrecision(2)))} months`;
  }
}

const NOTATIONS = { clock: ClockNotation, month: MonthNotation, moment: MomentNotation, duration: DurationNotation };
const notationOf = (column) => new (NOTATIONS[column.written?.kind ?? column.lattice.type] ?? PlainNotation)(column);
