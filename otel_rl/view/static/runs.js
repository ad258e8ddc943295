"use strict";
otelRl.pages.runs = class {
  constructor(root) {
    this.root = root;
    this.chosen = null; // of the comparison: null for the first three
  }

  async refresh() {
    this.found = await otelRl.get("runs");
    this.draw();
  }

  draw() {
    const { h } = otelRl;
    const { runs, faults, left_out: leftOut } = this.found;
    if (!this.made) {
      this.made = true;
      this.table = h("div", { class: "card scroll" });
      this.plot = h("div", { class: "plot", id: "compare" });
      this.compare = h("section", {}, h("h2", {}, "Compare"), h("div", { class: "card" }, this.plot));
      this.notes = h("div");
      otelRl.fill(this.root, h("h1", {}, "Runs"), h("p", {}), this.notes, this.table, this.compare);
    }
    otelRl.fill(this.notes, ...faults.map((fault) => h("p", { class: "notice" }, fault)));
    if (!runs.length) {
      otelRl.fill(this.table, h("p", { class: "empty" }, "There is no run here yet. Start one with ",
        h("code", {}, "otel-rl demo"), " or ", h("code", {}, "otel-rl run -- python train.py"), "."));
      this.compare.hidden = true;
      return;
    }
    const comparable = runs.filter((run) => run.shown);
    const chosen = this.chosen || new Set(comparable.slice(0, 3).map((run) => run.id));
    otelRl.fill(this.table, h("table", {}, h("thead", {}, h("tr", {},
      ["", "Run", "State", "Step", "Reward", "", "Verdict", "Workers", "Age", "Active"].map((text, place) =>
        h("th", { scope: "col", class: [7, 8].includes(place) ? "wide-only" : null }, text)))),
    h("tbody", {}, runs.map((run) => this.line(run, chosen)))));
    if (leftOut) this.table.append(h("p", { class: "quiet" }, `and ${leftOut} older runs`));
    this.compare.hidden = comparable.length === 0;
    const { palette } = otelRl.charts;
    const lines = comparable.filter((run) => chosen.has(run.id));
    otelRl.charts.draw(this.plot, lines.map((run, place) => ({
      type: "scatter", mode: "lines", x: run.shown.xs, y: run.shown.ys,
      name: otelRl.plain(`${run.experiment}/${run.trial}`), line: { width: 2, color: palette[place % palette.length] },
      hovertemplate: "%{y:.4~g}",
    })), { showlegend: true, margin: { l: 44, r: 10, t: 6, b: 50 }, yaxis: { title: { text: otelRl.plain(comparable[0] ? comparable[0].shown.key : ""), font: { size: 11 } } }, xaxis: { title: { text: "step", standoff: 4, font: { size: 11 } } } });
  }

  line(run, chosen) {
    const { h } = otelRl;
    const workers = Object.values(run.roles);
    const alive = workers.reduce((sum, of) => sum + of.alive, 0);
    const expected = workers.reduce((sum, of) => sum + of.expected, 0);
    return h("tr", { "data-run": run.id },
      h("td", {}, run.shown ? h("input", {
        type: "checkbox", "aria-label": `compare ${run.experiment}/${run.trial}`, checked: chosen.has(run.id),
        onchange: (event) => { if (event.target.checked) chosen.add(run.id); else chosen.delete(run.id); this.chosen = chosen; this.draw(); },
      }) : null),
      h("td", {}, h("a", { href: `#/run/${run.id}/overview`, class: "cut" }, h("bdi", {}, run.experiment)),
        h("span", { class: "quiet cut trial" }, h("bdi", {}, run.trial)), run.crash ? h("div", { class: "quiet" }, run.crash) : null),
      h("td", {}, otelRl.badge(run.state)), h("td", {}, run.step ?? "–"),
      h("td", {}, run.shown ? otelRl.spark(run.shown.ys) : null),
      h("td", { title: run.shown ? run.shown.key : null }, run.shown ? otelRl.number(run.shown.last) : "–"),
      h("td", {}, run.verdict ? otelRl.badge(run.verdict) : "–"),
      h("td", { class: "wide-only" }, expected ? `${alive} of ${expected}` : "–"),
      h("td", { class: "wide-only" }, otelRl.duration(run.age_s)), h("td", {}, `${otelRl.duration(run.idle_s)} ago`));
  }
};
