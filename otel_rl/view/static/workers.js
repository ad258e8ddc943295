"use strict";
otelRl.pages.workers = class {
  constructor(root, run) {
    this.root = root;
    this.run = run;
    this.phase = null;
  }

  async refresh() {
    this.found = await otelRl.get(`runs/${this.run}/workers`, { phase: this.phase });
    this.draw();
  }

  draw() {
    const { h } = otelRl;
    const { phases, chosen, heatmap, workers } = this.found;
    if (!this.made) {
      this.made = true;
      this.controls = h("div", { class: "row controls" });
      this.plot = h("div", { id: "heatmap", role: "img", "aria-label": "Seconds of a phase by worker and step" });
      this.note = h("p", { class: "quiet" });
      this.table = h("div", { class: "card scroll" });
      otelRl.fill(this.root, this.controls, h("div", { class: "card" }, this.plot), this.note, h("h2", {}, "Processes"), this.table);
    }
    otelRl.fill(this.controls, h("h2", { class: "grow" }, "Time of a phase by worker and step"),
      otelRl.select("phase", (otelRl.report ? phases.filter((one) => one.id === chosen) : phases).map((one) => [one.id, `${one.role}/${one.phase}${one.waits ? " (waits)" : ""}`]), chosen, (phase) => { this.phase = phase; this.refresh(); }));
    if (heatmap) this.plotCells(heatmap); else otelRl.fill(this.plot, h("p", { class: "empty" }, "No phase was reported yet."));
    this.note.textContent = !heatmap ? "" : [
      "A slow worker is a row, a slow step a column. Of each step the 32 outstanding workers of a phase are kept.",
      heatmap.width > 1 ? `${heatmap.width} steps share a column, which shows the longest.` : "",
      heatmap.left_out ? `${heatmap.left_out} workers with less time are not drawn.` : "",
      otelRl.report ? "" : "Click a cell to see its step.",
    ].filter(Boolean).join(" ");
    otelRl.fill(this.table, h("table", {}, h("thead", {}, h("tr", {}, ["Worker", "State", "Step", "Last phase", "Phase ended", "Last export"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, workers.map((one) => h("tr", {}, h("td", {}, h("bdi", { class: "cut" }, one.worker)), h("td", {}, otelRl.badge(one.standing)), h("td", {}, one.step ?? "–"),
        h("td", {}, h("bdi", { class: "cut" }, one.phase || "–")), h("td", {}, one.phase_s === null ? "–" : `${otelRl.duration(one.phase_s)} ago`), h("td", {}, one.heard_s === null ? "–" : `${otelRl.duration(one.heard_s)} ago`))))));
  }

  plotCells(heatmap) {
    const { plain } = otelRl;
    const isDark = otelRl.isDark();
    const values = heatmap.seconds.flat().filter((one) => one !== null).sort((a, b) => a - b);
    const at = (share) => values[Math.floor(share * (values.length - 1))];
    const most = Math.max(at(0.995), 2.5 * at(0.5)) || 1; // so that the usual is blue, and red is slow
    const scale = isDark ? [[0, "#1d2733"], [0.35, "#2f5fa8"], [0.65, "#d08a35"], [1, "#ff5470"]] : [[0, "#edf2fb"], [0.35, "#9dbcf0"], [0.65, "#f2b05e"], [1, "#c92a4b"]];
    const rows = heatmap.workers.length;
    this.plot.style.height = `${Math.min(1600, Math.max(220, 110 + (rows > 60 ? 9 : 24) * rows))}px`;
    const drawn = otelRl.charts.draw(this.plot, [{
      type: "heatmap", z: heatmap.seconds, x: heatmap.steps, y: heatmap.workers.map((_, place) => place),
      zmin: 0, zmax: most, colorscale: scale, xgap: heatmap.steps.length > 120 ? 0 : 1, ygap: rows > 60 ? 0 : 1, hoverongaps: false,
      colorbar: { thickness: 10, outlinewidth: 0, title: { text: "s", font: { size: 11 } }, tickfont: { size: 11 } },
      text: heatmap.workers.map((worker) => heatmap.steps.map(() => plain(worker))),
      hovertemplate: "%{text}<br>step %{x}: %{z:.4~g} s<extra></extra>",
    }], {
      hovermode: "closest", margin: { l: 130, r: 10, t: 8, b: 36 }, xaxis: { title: { text: "step", font: { size: 11 }, standoff: 4 }, showgrid: false },
      yaxis: { autorange: "reversed", tickvals: heatmap.workers.map((_, place) => place).filter((place) => rows <= 60 || place % Math.ceil(rows / 40) === 0), ticktext: heatmap.workers.filter((_, place) => rows <= 60 || place % Math.ceil(rows / 40) === 0).map((name) => plain(name.length > 24 ? `${name.slice(0, 23)}…` : name)), showgrid: false, zeroline: false },
      uirevision: heatmap.phase,
    });
    if (!this.listens && !otelRl.report) {
      this.listens = true;
      this.plot.on("plotly_click", (event) => { location.hash = `#/run/${this.run}/timeline/${event.points[0].x}`; });
    }
    return drawn;
  }

  redraw() { if (this.found && this.found.heatmap) this.plotCells(this.found.heatmap); }
};
