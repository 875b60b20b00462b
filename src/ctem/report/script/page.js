/* The section: what is set, its log-density, a card for each column, drawn rows. */
class Explorer {
  constructor(data, root) {
    this.model = new Model(data);
    this.cells = this.model.columns.map(() => null);
    this.visible = this.cells.flatMap((_, j) => (this.model.columns[j].owner.length ? [j] : []));
    this.seed = 0;
    this.before = this.summaries(this.model.question(this.cells), this.visible);
    this.cards = this.visible.map((j) => new (cardOf(this.model.columns[j]))(this, j));
    this.build(root);
    this.answer();
  }

  build(root) {
    this.value = element("b");
    this.about = element("span");
    this.news = element("p", { class: "news", role: "status", tabindex: "-1" });
    this.clear = element("button", { type: "button", click: () => this.load(this.cells.map(() => null), "Every column is unknown.") }, "Forget all");
    const again = element("button", { type: "button", click: () => this.drawAgain() }, "Draw again");
    this.rows = element("ol", { class: "rows" });
    const tile = element("div", { class: "tile main", "aria-live": "polite", "aria-atomic": "true" }, this.value, this.about);
    root.append(
      element("div", { class: "standing" }, tile, this.clear),
      this.news,
      element("div", { class: "cards" }, ...this.cards.map((card) => card.node)),
      element("div", { class: "head rows-head" }, element("h3", {}, "Rows drawn given what is set"), again),
      this.rows,
    );
  }

  set(j, cell) {
    this.cells = this.cells.map((old, i) => (i === j ? cell : old));
    this.news.textContent = "";
    this.answer();
  }

  load(cells, words) {
    this.cells = cells;
    this.cards.forEach((card) => card.widen(false));
    this.news.textContent = words;
    this.answer();
  }

  summaries(question, columns) {
    return Object.fromEntries(columns.map((j) => [j, this.summary(question, j)]));
  }

  summary(question, j) {
    const column = this.model.columns[j], conditional = question.conditional(j);
    if (conditional === null) return null;
    return column.listed ? new LabelSummary(column, conditional) : new NumberSummary(column, conditional, this.model.numbers.far);
  }

  /* What is unknown is answered at once; what is expected of the cells that are set, and draws, follow one by one. */
  answer() {
    const question = (this.asked = this.model.question(this.cells));
    this.describe(question);
    const later = [];
    for (const card of this.cards) {
      const show = () => card.show(this.summary(question, card.j));
      if (card.cell === null) show();
      else {
        card.synchronise();
        later.push(show);
      }
    }
    this.follow(question, [...later, () => this.drawRows(question), ...this.refinements(question)]);
  }

  /* More draws where an answer rests on some, shown once they are all there. */
  refinements(question) {
    if (!question.more || !question.possible) return [];
    const show = () => {
      this.describe(question);
      this.cards.filter(({ cell }) => cell === null).forEach((card) => card.show(this.summary(question, card.j)));
    };
    return [...Array.from({ length: BATCHES - 1 }, () => () => question.more()), show];
  }

  /* The number at the top: a log-density of values, or the probability of ranges. */
  describe(question) {
    const set = this.visible.filter((j) => this.cells[j] !== null), ranges = set.filter((j) => isRange(this.cells[j])).length;
    const values = set.length - ranges;
    this.clear.disabled = !set.length;
    if (ranges) return this.tellRanges(question, ranges, values);
    this.value.textContent = values ? `${signed(question.logDensity())} nats` : "Set any column";
    this.about.textContent = values ? `log-density of the ${values > 1 ? `${values} columns that are` : "column that is"} set, of ${this.visible.length}` : "Nothing is set yet, so each picture shows a column by itself. Set one, and the others follow.";
  }

  tellRanges(question, ranges, values) {
    const { value, error, effective } = question.probability(), digits = (share, count) => `${plain(Number((100 * share).toPrecision(count)))}%`;
    this.value.textContent = digits(value, 3) + (error > 1e-6 * value ? ` ± ${digits(error, 1)}` : "");
    const given = values ? `, given the ${values} that ${values > 1 ? "are" : "is"} set to a value (${signed(question.logDensity())} nats)` : "";
    const few = effective < FEW ? `: too few for fine numbers` : "";
    this.about.textContent = `probability of the condition${ranges > 1 ? "s" : ""} on ${ranges} column${ranges > 1 ? "s" : ""}${given}. ± is a standard error, from ${question.rows.length.toLocaleString("en")} weighted draws, worth ${Math.round(effective)} equal ones${few}.`;
  }

  follow(question, tasks) {
    if (!tasks.length || this.asked !== question) return;
    setTimeout(() => {
      if (this.asked !== question) return;
      tasks[0]();
      this.follow(question, tasks.slice(1));
    });
  }

  drawAgain() {
    this.seed += 1;
    this.drawRows(this.asked);
  }

  drawRows(question) {
    const random = generator(this.seed);
    if (question.possible === false) return this.rows.replaceChildren();
    this.rows.replaceChildren(...Array.from({ length: DRAWN }, () => this.row(question.draw(random))));
  }

  row(cells) {
    const parts = this.visible.map((j) => {
      const column = this.model.columns[j], kind = this.cells[j] === null || isRange(this.cells[j]) ? "" : "given";
      return element("span", { class: kind }, element("bdi", { class: "muted" }, column.name), " ", element("bdi", {}, column.text(cells[j])));
    });
    const use = element("button", { type: "button", click: () => this.load(cells, "A drawn row is set.") }, "set");
    return element("li", {}, element("div", { class: "pairs-of" }, ...parts), use);
  }

  /* A row of the report, and what is strange about it. */
  visit({ row, cells, blamed }) {
    const question = this.model.question(cells), causes = blamed.filter((j) => cells[j] !== null).map((j) => {
      const column = this.model.columns[j];
      const expected = column.owner.length ? this.expected(question, cells, j) : "expected: always the same";
      return `“${column.name}” is ${column.text(cells[j])} (${expected})`;
    });
    const strange = causes.length ? ` Strange about it: ${causes.join("; ")}.` : "";
    this.load(cells, `Row ${row.toLocaleString("en")} is set.${strange}`);
    document.getElementById("ask").scrollIntoView();
    this.news.focus({ preventScroll: true });
  }

  /* What was expected in a cell given the others; if it follows from them, of any row: tables/answers/outliers.py. */
  expected(question, cells, j) {
    const given = this.summary(question, j), alone = this.before[j];
    const follows = given.unusual(cells[j]) >= LIKELY && alone.unusual(cells[j]) < RARE;
    return follows ? `expected of any row: ${alone.words()}` : `expected: ${given.words()}`;
  }
}

/* Every outlier of the report can be asked about. */
function offer(explorer, outliers) {
  document.querySelectorAll("#outliers .outliers > li").forEach((item, i) => {
    const button = element("button", { type: "button", class: "load", click: () => explorer.visit(outliers[i]) }, "Ask about this row");
    if (outliers[i]) item.firstElementChild.append(button);
  });
}

function start() {
  const data = JSON.parse(document.getElementById("ask-data").textContent);
  offer(new Explorer(data, document.getElementById("explorer")), data.outliers);
}

if (typeof document !== "undefined") document.addEventListener("DOMContentLoaded", start);
