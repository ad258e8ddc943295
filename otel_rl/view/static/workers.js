"use strict";
const MOST_NAMES = 60; // of rows that all have room
otelRl.pages.workers = class {
  constructor(root, run, phase) {
    this.root = root;
    this.run = run;
    this.order = null; // of the rows; null for the slowest first where names have no room
    this.sorting = { by: null, down: false }; // of the processes
    this.phase = phase ? decodeURIComponent(phase) : null;
  }

  async refresh() {
    this.found = await otelRl.get(`runs/${this.run}/workers`, { phase: this.phase });
    const { phases, measurements } = this.found;
    if (this.phase && ![...phases, ...measurements].some((one) => one.id === this.phase)) {
      this.phase = null; // of a cause that names work which no worker has reported apart
      this.found = await otelRl.get(`runs/${this.run}/workers`);
    }
    this.draw();
  }

  draw() {
    const { h } = otelRl;
    const { phases, measurements, chosen } = this.found;
    const heatmap = this.ordered(this.found.heatmap), deviations = this.ordered(this.found.deviations);
    const shown = heatmap || deviations;
    if (!this.made) {
      this.made = true;
      this.controls = h("div", { class: "row controls" });
      this.plot = h("div", { id: "heatmap" });
      this.note = h("p", { class: "quiet" });
      this.table = h("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": "Processes" });
      otelRl.fill(this.root, this.controls, this.note, h("div", { class: "card" }, this.plot), h("h2", {}, "Processes"), this.table);
    }
    const choices = [...phases.map((one) => [one.id, `${one.role}/${one.phase}${one.waits ? " (waits)" : ""}`]), ...measurements.map((one) => [one.id, otelRl.withUnit(one.key, one.unit)])];
    otelRl.fill(this.controls, h("h2", { class: "grow" }, deviations ? "A measurement by worker and step" : "Time of a phase by worker and step"),
      otelRl.select(measurements.length ? "phase or key" : "phase", otelRl.report ? choices.filter(([id]) => id === chosen) : choices, chosen, (phase) => { this.phase = phase; this.refresh(); }),
      shown && shown.workers.length > 1 ? otelRl.select("rows", [["name", "by name"], ["first", heatmap ? "slowest first" : "farthest first"]], this.orderOf(shown), (order) => { this.order = order; this.draw(); }) : null);
    if (shown) this.plotCells(shown); else otelRl.fill(this.plot, h("p", { class: "empty" }, "No phase was reported yet (otel-rl help phases), and no key by more than one worker."));
    this.note.textContent = !shown ? "" : [
      deviations ? "Colours show the distance from the median of the workers at the step: red is more, blue less." : "A slow worker is a row, a slow step a column.",
      heatmap ? this.longest(heatmap) : "",
      shown.workers.length + shown.left_out > 32 ? "The history has the 32 most extreme workers of each step." : "",
      shown.width > 1 ? `${shown.width} steps share a column, which shows the ${deviations ? "farthest" : "longest"}.` : "",
      shown.left_out ? `Not drawn: ${shown.left_out} worker${shown.left_out === 1 ? "" : "s"} ${deviations ? "nearer to the median" : "with less time"}.` : "",
      otelRl.report ? "" : "Click a cell to see its step.",
    ].filter(Boolean).join(" ");
    this.drawProcesses();
  }

  orderOf(shown) { return this.order ?? (shown.workers.length > MOST_NAMES ? "first" : "name"); }

  // Rows by their mean: those that take longest, or are farthest from the median, come first.
  ordered(shown) {
    if (!shown || this.orderOf(shown) === "name") return shown;
    const cells = shown.seconds ?? shown.deviations;
    const mean = (row) => {
      const known = row.filter((one) => one !== null).map(Math.abs);
      return known.length ? known.reduce((sum, one) => sum + one, 0) / known.length : 0;
    };
    const means = cells.map(mean);
    const places = means.map((_, place) => place).sort((a, b) => means[b] - means[a]);
    const by = (list) => list && places.map((place) => list[place]);
    return { ...shown, workers: by(shown.workers), seconds: by(shown.seconds), values: by(shown.values), deviations: by(shown.deviations) };
  }

  drawProcesses() {
    const { h, duration } = otelRl;
    const ago = (seconds) => (seconds === null ? "–" : `${duration(seconds)} ago`);
    const [head, sorted] = otelRl.sortable([["Worker", (one) => one.worker], ["State", (one) => one.standing], ["Step", (one) => one.step], ["Phase", (one) => one.phase],
      ["Phase ended", (one) => one.phase_s], ["Last export", (one) => one.heard_s]], this.found.workers, this.sorting, () => this.drawProcesses());
    otelRl.keepFocus(this.table, () => otelRl.fill(this.table, h("table", {}, head, h("tbody", {}, sorted.map((one) => h("tr", {},
      h("td", {}, h("bdi", { class: "cut" }, one.worker)), h("td", {}, otelRl.badge(one.standing)), h("td", {}, one.step ?? "–"), h("td", {}, h("bdi", { class: "cut" }, one.phase || "–")),
      h("td", {}, one.in_phase ? `in it for ${duration(one.phase_s)}` : ago(one.phase_s)), h("td", {}, ago(one.heard_s))))))));
  }

  // Among many rows a slow worker is below the window.
  longest(heatmap) {
    const middle = (cells) => {
      const sorted = cells.filter((one) => one !== null).sort((a, b) => a - b);
      return sorted[Math.floor((sorted.length - 1) / 2)] ?? 0;
    };
    const usual = heatmap.seconds.map(middle);
    const most = Math.max(...usual);
    if (usual.length < 2 || most < 1.2 * middle(usual)) return "";
    return `Slowest: ${heatmap.workers[usual.indexOf(most)]}, median ${otelRl.duration(most)}; median of all workers: ${otelRl.duration(middle(usual))}.`;
  }

  plotCells(heatmap) {
    const { plain } = otelRl;
    const isDark = otelRl.isDark();
    const isTime = Boolean(heatmap.seconds);
    const at = (cells, share) => {
      const sorted = cells.flat().filter((one) => one !== null).map(Math.abs).sort((a, b) => a - b);
      return sorted[Math.floor(share * (sorted.length - 1))];
    };
    // The usual is pale: of times it is blue, and red is slow; of measurements 10 % is no colour yet.
    const most = (isTime ? Math.max(at(heatmap.seconds, 0.995), 2.5 * at(heatmap.seconds, 0.5)) : Math.max(at(heatmap.deviations, 0.995), 0.3 * at(heatmap.values, 0.5))) || 1;
    const scale = !isTime ? [[0, "#2f5fa8"], [0.5, isDark ? "#1d2733" : "#f2f3f5"], [1, isDark ? "#ff5470" : "#c92a4b"]] : isDark ? [[0, "#1d2733"], [0.35, "#2f5fa8"], [0.65, "#d08a35"], [1, "#ff5470"]] : [[0, "#edf2fb"], [0.35, "#9dbcf0"], [0.65, "#f2b05e"], [1, "#c92a4b"]];
    const rows = heatmap.workers.length;
    this.plot.style.height = `${Math.min(1600, Math.max(220, 110 + (rows > MOST_NAMES ? 9 : 24) * rows))}px`;
    const drawn = otelRl.charts.draw(this.plot, [{
      type: "heatmap", z: isTime ? heatmap.seconds : heatmap.deviations, customdata: heatmap.values, x: heatmap.steps, y: heatmap.workers.map((_, place) => place),
      zmin: isTime ? 0 : -most, zmax: most, colorscale: scale, xgap: this.plot.clientWidth / heatmap.steps.length < 9 ? 0 : 1, ygap: rows > MOST_NAMES ? 0 : 1, hoverongaps: false,
      colorbar: { thickness: 10, outlinewidth: 0, title: { text: isTime ? "s" : this.unit() ? `± ${plain(this.unit())}` : "±", font: { size: 11 } }, tickfont: { size: 11 } },
      text: heatmap.workers.map((worker) => heatmap.steps.map(() => plain(worker))),
      hovertemplate: isTime ? "%{text}<br>step %{x}: %{z:.4~g} s<extra></extra>" : `%{text}<br>step %{x}: %{customdata:.4~g} ${plain(this.unit())}, %{z:+.3~g} from the median<extra></extra>`,
    }], {
      hovermode: "closest", margin: { l: 130, r: 10, t: 8, b: 36 }, xaxis: { title: { text: "step", font: { size: 11 }, standoff: 4 }, showgrid: false },
      yaxis: { autorange: "reversed", tickvals: heatmap.workers.map((_, place) => place).filter((place) => rows <= MOST_NAMES || place % Math.ceil(rows / 40) === 0), ticktext: heatmap.workers.filter((_, place) => rows <= MOST_NAMES || place % Math.ceil(rows / 40) === 0).map((name) => plain(name.length > 24 ? `${name.slice(0, 23)}…` : name)), showgrid: false, zeroline: false },
      uirevision: heatmap.phase ?? heatmap.key,
    });
    const name = isTime ? "s" : this.unit();
    otelRl.charts.byKeyboard(this.plot, "A phase or measurement by worker and step", () => heatmap.workers.map((worker, row) => heatmap.steps.map((step, column) => {
      const value = (isTime ? heatmap.seconds : heatmap.values)[row][column];
      return {
        points: [{ curveNumber: 0, pointNumber: [row, column] }], pick: otelRl.report ? null : () => { location.hash = `#/run/${this.run}/timeline/${step}`; },
        text: `${worker}, step ${step}: ${value === null ? "no value" : `${otelRl.number(value)} ${name}`}`,
      };
    })));
    if (!this.listens && !otelRl.report) {
      this.listens = true;
      this.plot.on("plotly_click", (event) => { location.hash = `#/run/${this.run}/timeline/${event.points[0].x}`; });
    }
    return drawn;
  }

  unit() { return this.found.measurements.find((one) => one.id === this.found.chosen)?.unit ?? ""; }

  redraw() {
    const shown = this.found && (this.found.heatmap || this.found.deviations);
    if (shown) this.plotCells(this.ordered(shown));
  }
};
