"use strict";
otelRl.pages.rollouts = class {
  constructor(root, run) {
    this.root = root;
    this.run = run;
    this.search = "";
    this.table = null;
  }

  async refresh() {
    const wanted = this.search;
    const found = await otelRl.get(`runs/${this.run}/rollouts`, { search: wanted, table: this.table });
    if (wanted === this.search) { this.found = found; this.draw(); }
  }

  draw() {
    const { h } = otelRl;
    const { tables, table, columns, samples, matching, all, rewards } = this.found;
    if (!all && !this.search) {
      this.made = false;
      otelRl.fill(this.root, h("p", { class: "empty" }, "The journal has no rollouts of this run: a program reports them with otel_rl.log_samples(), and they stay for ten minutes after the tracker has them."));
      return;
    }
    if (!this.made) {
      this.made = true;
      this.choice = h("span");
      this.input = h("input", { type: "search", id: "search", placeholder: "Find in prompts and completions", "aria-label": "Find in prompts and completions", value: this.search,
        oninput: (event) => { this.search = event.target.value; clearTimeout(this.timer); this.timer = setTimeout(() => this.refresh(), 200); } });
      this.count = h("span", { class: "quiet", role: "status" });
      this.plot = h("div", { class: "plot", id: "rewards" });
      this.lines = h("div", { class: "card scroll", id: "samples" });
      otelRl.fill(this.root, h("div", { class: "row controls" }, h("h2", { class: "grow" }, "Rollouts"), this.choice, this.count, ...(otelRl.report ? [] : [this.input])),
        h("div", { class: "card" }, h("h3", {}, "Rewards"), this.plot), h("p", {}), this.lines);
    }
    otelRl.fill(this.choice, tables.length > 1 ? otelRl.select("table", tables.map((one) => [one, one]), table, (chosen) => { this.table = chosen; this.refresh(); }) : "");
    this.count.textContent = this.search ? `${matching} of ${all}` : `${all}`;
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
  }
};
