"use strict";
otelRl.pages.rollouts = class {
  constructor(root, run, step) {
    this.root = root;
    this.run = run;
    this.search = "";
    this.step = step ?? "";
    this.order = "newest";
    this.table = null;
  }

  async refresh() {
    const wanted = { search: this.search, step: this.step, table: this.table, order: this.order === "newest" ? null : this.order };
    const found = await otelRl.get(`runs/${this.run}/rollouts`, wanted);
    if (wanted.search === this.search && wanted.step === this.step) { this.found = found; this.draw(); }
  }

  draw() {
    const { h } = otelRl;
    const { tables, table, columns, samples, matching, all, rewards } = this.found;
    const isAll = !this.search && !this.step;
    if (!all && isAll) {
      this.made = false;
      otelRl.fill(this.root, h("p", { class: "empty" }, "The journal has no rollouts of this run: a program reports them with otel_rl.log_samples(), and they stay for ten minutes after the tracker has them."));
      return;
    }
    if (!this.made) {
      this.made = true;
      this.choice = h("span");
      const typed = (change) => (event) => { change(event.target.value); clearTimeout(this.timer); this.timer = setTimeout(() => this.refresh(), 200); };
      this.ofStep = h("input", { type: "number", id: "step", min: 0, placeholder: "all steps", "aria-label": "Samples of the step", title: "Samples of this step, or of the last one before it that has some", value: this.step,
        oninput: typed((text) => { this.step = text; }) });
      this.input = h("input", { type: "search", id: "search", placeholder: "Find in samples", "aria-label": "Find in samples", value: this.search,
        oninput: typed((text) => { this.search = text; }) });
      this.sorting = h("span");
      this.count = h("span", { class: "quiet", role: "status" });
      this.plot = h("div", { class: "plot", id: "rewards" });
      this.lines = h("div", { class: "card scroll", id: "samples", tabindex: "0", role: "region", "aria-label": "Samples" });
      otelRl.fill(this.root, h("div", { class: "row controls" }, h("h2", { class: "grow" }, "Rollouts"), this.choice, this.count, ...(otelRl.report ? [] : [this.sorting, h("label", { class: "row quiet" }, "step", this.ofStep), this.input])),
        h("div", { class: "card" }, h("h3", {}, "Rewards"), this.plot), h("p", {}), this.lines);
    }
    otelRl.fill(this.choice, tables.length > 1 ? otelRl.select("table", tables.map((one) => [one, one]), table, (chosen) => { this.table = chosen; this.refresh(); }) : "");
    otelRl.fill(this.sorting, rewards.length ? otelRl.select("order", [["newest", "newest first"], ["lowest", "lowest reward first"], ["highest", "highest reward first"]], this.order, (order) => { this.order = order; this.refresh(); }) : "");
    this.count.textContent = `${isAll ? all : `${matching} of ${all}`} samples${matching > samples.length ? `, ${samples.length} shown` : ""}`;
    this.rewards = rewards;
    this.redraw();
    const isText = (column) => samples.some((sample) => typeof sample[column] === "string" && sample[column].length > 12);
    otelRl.fill(this.lines, h("table", {}, h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col" }, column)))),
      h("tbody", {}, samples.map((sample) => h("tr", {}, sample.map((value, column) =>
        h("td", { class: isText(column) ? "text" : null, dir: "auto" }, typeof value === "number" ? otelRl.number(value) : value === null ? "–" : String(value))))))));
  }

  redraw() {
    if (!this.rewards) return;
    otelRl.charts.draw(this.plot, [{ type: "histogram", x: this.rewards, nbinsx: 30, marker: { color: otelRl.charts.palette[0], opacity: 0.85 }, hovertemplate: "%{x}: %{y}<extra></extra>" }],
      { hovermode: "closest", bargap: 0.06, xaxis: { title: { text: "reward", standoff: 4, font: { size: 11 } } }, yaxis: { title: { text: "samples", font: { size: 11 } } } });
    otelRl.charts.byKeyboard(this.plot, "Rewards", () => [(this.plot.calcdata?.[0] ?? []).map(({ p, s }, pointNumber) =>
      ({ points: [{ curveNumber: 0, pointNumber }], text: `reward ${otelRl.number(p)}: ${s} sample${s === 1 ? "" : "s"}` }))]);
  }
};
