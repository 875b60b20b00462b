/* ---- the page ---- */

const MOST_BARS = 12, POINTS = 72, STEPS = 200, DRAWN = 6, STRANGE = 0.01, LIKELY = 0.2, RARE = 0.05, FEW = 40;

/* An element with attributes (a function listens) and children; text is text, whatever it holds. */
function element(name, attributes = {}, ...children) {
  const svg = ["svg", "path"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/* One column: what it is set to, its conditional given the others, and in grey the one that knows nothing.

   A card is set to one value or, while its toggle is pressed, to a range or to several values. */
class Card {
  constructor(explorer, j) {
    [this.explorer, this.j, this.column, this.wide] = [explorer, j, explorer.model.columns[j], false];
    const { name } = this.column, small = { type: "button", class: "forget" };
    this.title = element("h3", { id: `ask-${j}` }, element("bdi", {}, name));
    this.forget = element("button", { ...small, "aria-label": `${name}: unknown`, click: () => this.set(null) }, "unknown");
    this.toggle = element("button", { ...small, "aria-label": `${name}: ${this.wideName}`, "aria-pressed": "false", click: () => this.turn() }, this.wideName);
    this.words = element("p", { class: "answer", id: `ask-${j}-answer` });
    this.picture = element("div", { class: "picture", "aria-hidden": "true" });
    this.node = element("div", { class: "card", role: "group", "aria-labelledby": `ask-${j}`, "aria-describedby": `ask-${j}-answer` });
    this.node.append(element("div", { class: "head" }, this.title, element("span", { class: "tools" }, this.forget, this.toggle)), ...this.controls(), this.words);
    this.widen(false);
  }

  /* The toggle: from a value to a range, or back to unknown. */
  turn() {
    this.widen(!this.wide);
    this.set(this.wide ? this.firstRange() : null);
  }

  widen(wide) {
    this.wide = wide;
    this.toggle.setAttribute("aria-pressed", String(wide));
    this.ofValue.forEach((node) => (node.hidden = wide));
    this.ofRange.forEach((node) => (node.hidden = !wide));
  }

  set(cell) {
    this.explorer.set(this.j, cell);
  }

  get cell() {
    return this.explorer.cells[this.j];
  }

  get value() {
    return isRange(this.cell) ? null : this.cell;
  }

  /* Shows the summary of the conditional; null if nothing fits what is set. */
  show(summary) {
    const known = this.cell !== null, [rate, error] = known && summary ? this.rate(summary) : [1, 0];
    this.node.classList.toggle("strange", rate < STRANGE);
    this.words.textContent = summary ? this.answer(summary, rate, error) : "Nothing fits what is set.";
    this.synchronise();
    if (summary) this.draw(summary);
    else this.picture.replaceChildren();
  }

  /* How likely what is set was, given the others: as unusual a value, or the range. */
  rate(summary) {
    return isRange(this.cell) ? summary.within(this.cell) : [summary.unusual(this.cell), 0];
  }

  answer(summary, rate, error) {
    if (this.cell === null) return capital(summary.words());
    if (isRange(this.cell)) return `Given the others: ${percent(rate)}${plusMinus(error)} in ${this.wideName === "range" ? "the range" : "these"}; ${summary.words()}`;
    return (rate < STRANGE ? `Strange: ${percent(rate)} would be as unusual. Expected: ` : "Given the others: ") + summary.words();
  }

  /* What is set, in the controls. */
  synchronise() {
    this.node.classList.toggle("known", this.cell !== null);
    this.forget.disabled = this.cell === null;
    if (this.cell !== null) this.widen(isRange(this.cell));
    this.fill();
  }
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/* A menu, or boxes to tick, and a bar for each value. */
class LabelCard extends Card {
  get wideName() {
    return "several";
  }

  controls() {
    const { name, values } = this.column, options = () => values.map((text, place) => element("option", { value: place }, text));
    this.menu = element("select", { "aria-label": name, change: () => this.choose() }, element("option", { value: "" }, "unknown"), ...options());
    this.ticks = values.map((text) => element("input", { type: "checkbox", "aria-label": `${name}: ${text}`, change: () => this.tick() }));
    const choices = this.ticks.map((tick, place) => element("label", {}, tick, element("bdi", {}, values[place])));
    [this.ofValue, this.ofRange] = [[this.menu], [element("div", { class: "choices" }, ...choices)]];
    return [this.menu, ...this.ofRange, this.picture];
  }

  choose() {
    this.set(this.menu.value === "" ? null : Number(this.menu.value));
  }

  tick() {
    const places = this.ticks.flatMap((tick, place) => (tick.checked ? [place] : []));
    this.set(places.length ? { places } : null);
  }

  firstRange() {
    return typeof this.cell === "number" ? { places: [this.cell] } : null;
  }

  fill() {
    this.menu.querySelector(".new")?.remove();
    if (typeof this.cell === "string") this.menu.append(element("option", { value: "new", class: "new", disabled: true }, `${this.cell} (never seen)`));
    this.menu.value = this.value === null ? "" : typeof this.cell === "string" ? "new" : this.cell;
    this.ticks.forEach((tick, place) => (tick.checked = isRange(this.cell) && this.cell.places.includes(place)));
  }

  draw({ values, errors }) {
    const before = this.explorer.before[this.j].values, kept = this.listed(values, before);
    const top = Math.max(...kept.map((i) => Math.max(values[i], before[i])));
    const bars = kept.map((i) => this.bar(this.column.values[i], values[i], before[i], top, i, errors[i]));
    const rest = values.length - kept.length, left = (all) => 1 - sum(kept.map((i) => all[i]));
    if (rest) bars.push(this.bar(`${rest} others`, left(values), left(before), top, null, 0));
    this.picture.replaceChildren(element("div", { class: "bars" }, ...bars));
  }

  /* The values with a bar: all of few, the likeliest of many; those of a category by how common they are. */
  listed(values, before) {
    const every = values.map((_, i) => i);
    if (every.length > MOST_BARS) return every.sort((a, b) => values[b] - values[a]).slice(0, MOST_BARS - 1);
    return this.column.ordered ? every : every.sort((a, b) => before[b] - before[a]);
  }

  bar(text, p, before, top, place, error) {
    const width = (share) => `width:${clamp((100 * share) / top, 0, 100).toFixed(1)}%`;
    const track = element("span", { class: "track" }, element("i"), element("b"));
    track.children[0].style = width(before);
    track.children[1].style = width(p);
    const set = isRange(this.cell) ? this.cell.places : [this.cell], chosen = place !== null && set.includes(place) ? " own" : "";
    const pick = place === null ? null : () => this.pick(place);
    return element("div", { class: `bar${pick ? " pick" : ""}${chosen}`, ...(pick && { click: pick }) }, element("bdi", { title: text }, text), track, element("span", {}, percent(p), element("small", {}, plusMinus(error).replace("%", ""))));
  }

  /* A bar was clicked: its value is set or added, or taken back. */
  pick(place) {
    if (!this.wide) return this.set(this.cell === place ? null : place);
    this.ticks[place].checked = !this.ticks[place].checked;
    this.tick();
  }
}

/* Two controls for the ends of a range, of which the one that moves pushes the other. */
function pairOf(kind, name, attributes, moved, ...children) {
  return ["from", "to"].map((end, i) => element(kind, { ...attributes, "aria-label": `${name}, ${end}`, [kind === "select" || attributes.type !== "range" ? "change" : "input"]: () => moved(i) }, ...children.map((child) => child.cloneNode(true))));
}

const beside = (...nodes) => element("div", { class: "pair" }, ...nodes);
const slidersOf = ([from, to]) => element("div", { class: "sliders" }, ...[["from", from], ["to", to]].map(([word, node]) => element("label", {}, element("span", {}, word), node)));

/* Many ordered values: a slider, and steps instead of bars; a range has two menus and two sliders. */
class OrderedCard extends LabelCard {
  get wideName() {
    return "range";
  }

  controls() {
    const { name, values } = this.column, last = values.length - 1, scale = { type: "range", min: 0, max: last, step: 1 };
    const first = super.controls(), options = values.map((text, place) => element("option", { value: place }, text));
    this.slider = element("input", { ...scale, "aria-label": name, input: () => this.set(Number(this.slider.value)) });
    this.menus = pairOf("select", name, {}, (i) => this.move(this.menus, i), ...options);
    this.sliders = pairOf("input", name, scale, (i) => this.move(this.sliders, i));
    const ends = element("div", { class: "ends", "aria-hidden": "true" }, ...[0, last].map((place) => element("span", {}, values[place])));
    const pair = beside(...this.menus), sliders = slidersOf(this.sliders);
    [this.ofValue, this.ofRange] = [[this.menu, this.slider], [pair, sliders]];
    return [first[0], pair, this.picture, this.slider, sliders, ends];
  }

  move(nodes, moved) {
    const [from, to] = pushed(nodes.map((node) => Number(node.value)), moved);
    this.set({ places: evenly(from, to, to - from || 1).slice(0, to - from + 1) });
  }

  firstRange() {
    const { values } = this.explorer.before[this.j], [from, to] = [0.25, 0.75].map((share) => placeAt(values, share)[0]);
    return { places: evenly(from, to, to - from || 1).slice(0, to - from + 1) };
  }

  fill() {
    super.fill();
    const known = typeof this.value === "number", { values } = this.explorer.before[this.j];
    this.slider.value = known ? this.cell : values.indexOf(Math.max(...values));
    this.slider.setAttribute("aria-valuetext", known ? this.column.text(this.cell) : "unknown");
    const places = isRange(this.cell) ? this.cell.places : values.map((_, place) => place);
    [places[0], places.at(-1)].forEach((place, i) => {
      [this.menus[i].value, this.sliders[i].value] = [place, place];
      this.sliders[i].setAttribute("aria-valuetext", this.column.text(place));
    });
  }

  draw({ values }) {
    const before = this.explorer.before[this.j].values, top = Math.max(...values, ...before), n = values.length;
    const here = typeof this.value === "number" ? (100 * (this.value + 0.5)) / n : null;
    const band = isRange(this.cell) ? [this.cell.places[0], this.cell.places.at(-1) + 1].map((place) => (100 * place) / n) : null;
    this.picture.replaceChildren(picture([before, values].map((heights) => steps(heights, top)), [], here, band));
  }
}

const pushed = ([from, to], moved) => (from <= to ? [from, to] : moved ? [to, to] : [from, from]);

/* Grey for what nothing determines, a line for what is set; thick lines for single values [x, p], a dashed one at the cell,
   a band for a range. */
function picture([before, after], atoms, here, band) {
  const svg = element("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none" });
  if (band) svg.append(element("path", { class: "band", d: `M${band[0]} 0V100H${band[1]}V0Z` }));
  svg.append(element("path", { class: "before", d: before }), element("path", { class: "after", d: after }));
  for (const [x, p] of atoms) svg.append(element("path", { class: "atom", d: `M${x} 100V${100 - 96 * p}` }));
  if (here !== null) svg.append(element("path", { class: "here", d: `M${here} 100V0` }));
  return svg;
}

function steps(heights, top) {
  const parts = heights.map((height, i) => `V${(100 - (96 * height) / top).toFixed(2)}H${((100 * (i + 1)) / heights.length).toFixed(2)}`);
  return `M0 100${parts.join("")}V100`;
}

function curve(heights, top) {
  const y = (height) => (100 - (96 * height) / top).toFixed(2), n = heights.length;
  const middle = heights.map((height, i) => `L${((100 * (i + 0.5)) / n).toFixed(2)} ${y(height)}`);
  return `M0 100L0 ${y(heights[0])}${middle.join("")}L100 ${y(heights[n - 1])}L100 100`;
}

/* A box, a slider, and a curve (steps for rounded numbers) above it; a range has two boxes and two sliders. */
class NumberCard extends Card {
  get wideName() {
    return "range";
  }

  controls() {
    const { name, lattice: { step, per }, edges, notation: { box } } = this.column;
    this.measure(step / per, edges);
    const scale = { type: "range", min: 0, max: this.count, step: 1 };
    this.slider = element("input", { ...scale, "aria-label": name, input: () => this.slide() });
    this.box = element("input", { ...box, placeholder: "unknown", "aria-label": name, change: () => this.set(this.typed(this.box)) });
    this.boxes = pairOf("input", name, { ...box, placeholder: "any" }, (i) => this.move(this.boxes.map((one) => this.typed(one)), i));
    this.sliders = pairOf("input", name, scale, (i) => this.move(this.slid(), i));
    this.places = this.encodedEdges(step ? edges : evenly(this.low, this.high, POINTS));
    const ends = element("div", { class: "ends", "aria-hidden": "true" }, ...[0, this.count].map((k) => element("span", {}, this.column.text(this.first + k * this.delta))));
    const pair = beside(...this.boxes), sliders = slidersOf(this.sliders);
    [this.ofValue, this.ofRange] = [[this.box, this.slider], [pair, sliders]];
    return [this.box, pair, this.picture, this.slider, sliders, ends];
  }

  /* Where the slider begins, how far it goes, and in which steps. */
  measure(width, edges) {
    [this.low, this.high] = [edges[0], edges.at(-1)];
    const half = width ? width / 2 : 0;
    this.delta = niceStep((this.high - this.low) / STEPS);
    if (width) this.delta = Math.max(1, Math.round(this.delta / width)) * width;
    this.first = width ? this.column.snap(this.low + half) : Math.ceil(this.low / this.delta) * this.delta;
    this.count = Math.max(1, Math.floor((this.high - half - this.first) / this.delta + 1e-9));
  }

  encodedEdges(edges) {
    this.stepped = edges === this.column.edges;
    return edges.map((X) => this.column.map.withLogSlope(X)[0]);
  }

  /* The number at a place of a slider. */
  at(place) {
    return this.column.snap(Number((this.first + Number(place) * this.delta).toPrecision(12)));
  }

  slide() {
    this.set(this.at(this.slider.value));
  }

  /* The range of two sliders; at its outer end one leaves the range open. */
  slid() {
    const [from, to] = this.sliders.map((slider) => Number(slider.value));
    return [from === 0 ? null : this.at(from), to === this.count ? null : this.at(to)];
  }

  /* The number in a box; null if it is empty. */
  typed(box) {
    const X = this.column.notation.typed(box);
    return Number.isFinite(X) ? this.column.exact(X) : null;
  }

  move(ends, moved) {
    const [low, high] = ends.includes(null) ? ends : pushed(ends, moved);
    this.set({ low, high });
  }

  firstRange() {
    const [low, high] = [0.25, 0.75].map((share) => this.explorer.before[this.j].quantile(share));
    return { low: this.tidy(low), high: this.tidy(high) };
  }

  /* The nearest place of the slider. */
  tidy(X) {
    return this.at(clamp(Math.round((X - this.first) / this.delta), 0, this.count));
  }

  fill() {
    const known = this.value !== null, X = known ? this.value : this.explorer.before[this.j].quantile(0.5);
    this.put(this.slider, this.box, X, known ? X : null, "unknown");
    const { low, high } = isRange(this.cell) ? this.cell : { low: null, high: null };
    this.put(this.sliders[0], this.boxes[0], low ?? this.first, low, "any");
    this.put(this.sliders[1], this.boxes[1], high ?? this.first + this.count * this.delta, high, "any");
  }

  /* A slider at X, and a box with a number or none. */
  put(slider, box, X, number, none) {
    slider.value = Math.round((X - this.first) / this.delta);
    slider.setAttribute("aria-valuetext", number === null ? none : this.column.text(number));
    if (number === null) box.value = "";
    else this.column.notation.put(box, number);
  }

  draw(summary) {
    const heights = [this.explorer.before[this.j], summary].map((one) => this.heights(one));
    const top = Math.max(...heights.flat(), 1e-9), outline = this.stepped ? steps : curve;
    const atoms = summary.atoms.map((p, i) => [this.across(summary.values[i]), p]);
    const here = this.value === null ? null : this.across(this.value);
    const band = isRange(this.cell) ? ends(this.cell).map((X) => this.across(X)) : null;
    this.picture.replaceChildren(picture(heights.map((one) => outline(one, top)), atoms, here, band));
  }

  across(X) {
    return clamp((100 * (X - this.low)) / (this.high - this.low), 0, 100).toFixed(2);
  }

  /* The mass between neighbouring edges. */
  heights(summary) {
    const below = this.places.map((x) => summary.continuous * summary.cdf(x));
    return below.slice(1).map((share, i) => share - below[i]);
  }
}

function cardOf({ listed, ordered, values }) {
  if (!listed) return NumberCard;
  return ordered && values.length > MOST_BARS ? OrderedCard : LabelCard;
}

const evenly = (low, high, count) => Array.from({ length: count + 1 }, (_, i) => low + ((high - low) * i) / count);
