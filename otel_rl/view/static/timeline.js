"use strict";
// Lanes of workers, the critical path as a red line from lane to lane. A span's uses are drawn on click.
otelRl.pages.timeline = class {
  constructor(root, run, step) {
    this.root = root;
    this.run = run;
    this.last = step === undefined ? null : Number(step);
    this.count = 2;
  }

  async refresh() {
    if (this.found && this.last !== null) return; // steps of the past do not change
    await this.load();
  }

  async load() {
    const query = this.last === null ? {} : { last: this.last };
    if (this.count !== 2 || this.last !== null) query.first = this.last === null ? null : this.last - this.count + 1;
    this.found = await otelRl.get(`runs/${this.run}/timeline`, query);
    this.draw();
    if (this.found.read < 1) setTimeout(() => this.load(), 500);
  }

  only(step) {
    this.last = step;
    this.count = 1;
    this.load();
  }

  move(by) {
    if (!this.found || !this.found.steps.length) return;
    const shown = this.found.steps;
    const [lowest, highest] = this.found.known;
    this.last = Math.max(lowest, Math.min(highest, shown[shown.length - 1].step + by));
    this.load();
  }

  keys(key) {
    if (key === "[") this.move(-this.count);
    if (key === "]") this.move(this.count);
  }

  draw() {
    const { h } = otelRl;
    if (!this.found.steps.length) {
      otelRl.fill(this.root, h("div", { class: "empty" }, h("p", {}, "No spans were reported. To see where the time of a step goes, mark steps and phases (otel-rl help phases):"),
        h("pre", { class: "card" }, "with otel_rl.step(n):\n    with otel_rl.phase(\"generate\"):\n        ...\n    with otel_rl.phase(\"train\"):\n        ..."),
        h("p", {}, "or use the OpenTelemetry tracing API, with the attribute rl.loop.iteration.")));
      return;
    }
    if (!this.made) {
      this.made = true;
      this.controls = h("div", { class: "row controls" });
      this.gone = h("div", { role: "status" });
      this.plot = h("div", { id: "timeline" });
      this.legend = h("p", { class: "quiet" });
      this.details = h("div", { class: "card", id: "span", "aria-live": "polite" }, h("span", { class: "quiet" }, "Click a span, or press Enter on one, to see what it used and what used it. Drag to zoom, double-click to see all."));
      otelRl.fill(this.root, this.controls, this.gone, h("div", { class: "card" }, this.plot), this.legend, this.details);
    }
    const { steps, known, left_out: leftOut } = this.found;
    const first = steps[0].step, last = steps[steps.length - 1].step;
    const count = (value) => { this.count = Number(value); this.last ??= last; this.load(); };
    otelRl.fill(this.controls,
      h("h2", { class: "grow" }, first === last ? `Step ${first}` : `Steps ${first} to ${last}`),
      h("button", { type: "button", onclick: () => this.only(this.found.slowest) }, `slowest: ${this.found.slowest}`),
      h("button", { type: "button", onclick: () => this.only(this.found.median) }, `median: ${this.found.median}`),
      h("button", { type: "button", "aria-pressed": String(this.last === null), onclick: () => { this.last = null; this.count = 2; this.load(); } }, "newest"),
      ...(otelRl.report ? [] : [
        h("label", { class: "row quiet" }, "step", h("input", { type: "number", id: "step", min: 0, placeholder: "any", onchange: (event) => { if (event.target.value) this.only(Number(event.target.value)); } })),
        h("button", { type: "button", onclick: () => this.move(-this.count), title: "earlier ([)", disabled: first <= known[0] }, "← earlier"),
        h("button", { type: "button", onclick: () => this.move(this.count), title: "later (])", disabled: last >= known[1] }, "later →"),
        otelRl.select("steps", [1, 2, 4, 8].map((n) => [String(n), String(n)]), String(this.count), count)]));
    this.drawGone(known);
    this.legend.textContent = `The journal has spans of steps ${known[0]} to ${known[1]}. Red: the critical path, which determines how long the step takes. From a wait it goes on to the awaited work where links, phases or simultaneous ends show it; else it stays on the waiting worker.`
      + (leftOut ? ` ${leftOut} short spans are not drawn.` : "");
    this.plotSpans();
  }

  // Spans of old steps are in the tracing backend alone.
  drawGone(known) {
    const { h } = otelRl;
    const { gone } = this.found;
    otelRl.fill(this.gone, gone ? h("p", { class: "notice" }, `The journal has no spans of step ${gone.step}, but of steps ${known[0]} to ${known[1]}.`,
      gone.trace ? [` It took ${otelRl.duration(gone.seconds)}, most of it ${gone.longest} of ${gone.worker}. Its trace: `, this.trace(gone.trace)] : null) : null);
  }

  trace(id) {
    const traceUrl = this.found.trace_url;
    const url = /^https?:\/\//.test(traceUrl || "") ? traceUrl.replace("{trace_id}", id) : null;
    return url ? otelRl.h("a", { href: url, rel: "noreferrer", target: "_blank" }, id) : id;
  }

  plotSpans() {
    const { plain } = otelRl;
    const { color, colorOf, palette, path: pathColor } = otelRl.charts;
    const { lanes, spans, path, steps, seconds } = this.found;
    let height = 0;
    const tops = lanes.map((lane) => { const top = height; height += lane.rows + 0.9; return top; });
    this.y = (span) => tops[span.lane] + span.row + 0.5;
    const phases = new Map();
    spans.forEach((span, place) => {
      const name = span.phase || span.name;
      if (!phases.has(name)) phases.set(name, []);
      phases.get(name).push(place);
    });
    // Of many names, only phases have a colour: others are libraries' details.
    const isPale = (name, places) => !spans[places[0]].phase && (name === "rl.loop" || phases.size > palette.length);
    const traces = [...phases].map(([name, places]) => {
      const waits = spans[places[0]].waits;
      const isStep = isPale(name, places);
      const shade = isStep ? color("--quiet") : colorOf(name);
      return {
        type: "bar", orientation: "h", name: plain(name), customdata: places,
        base: places.map((place) => spans[place].start), x: places.map((place) => spans[place].seconds),
        y: places.map((place) => this.y(spans[place])), width: 0.86,
        marker: { color: shade, opacity: waits ? 0.28 : isStep ? 0.22 : 0.9, line: { width: places.some((place) => spans[place].failed) ? 1.5 : 0.4, color: places.map((place) => (spans[place].failed ? color("--bad") : color("--card"))) } },
        text: places.map((place) => `${plain(spans[place].name)}${spans[place].phase && spans[place].phase !== spans[place].name ? ` (${plain(spans[place].phase)})` : ""}<br>${plain(lanes[spans[place].lane].name)}, ${otelRl.duration(spans[place].seconds)}${spans[place].step === null ? "" : `, step ${spans[place].step}`}`),
        textposition: "none", hovertemplate: "%{text}<extra></extra>",
      };
    });
    const line = { x: [], y: [] };
    for (const part of path) {
      const at = tops[part.lane] - 0.12;
      line.x.push(part.start, part.start + part.seconds);
      line.y.push(at, at);
    }
    traces.push({ type: "scatter", mode: "lines", name: "critical path", x: line.x, y: line.y, line: { color: pathColor, width: 2.6 }, hoverinfo: "skip" });
    traces.push({ type: "scatter", mode: "lines", name: "uses", x: [], y: [], line: { color: color("--text"), width: 1.2, dash: "dot" }, hoverinfo: "skip", showlegend: false });
    const shapes = steps.map((step) => ({ type: "line", xref: "x", yref: "paper", x0: step.start, x1: step.start, y0: 0, y1: 1, line: { width: 1, dash: "dot", color: color("--quiet") } }));
    for (const [place, lane] of lanes.entries()) {
      if (place) shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: tops[place] - 0.45, y1: tops[place] - 0.45, line: { width: 1, color: color("--grid") } });
      if (lane.lost) shapes.push({ type: "line", x0: lane.end, x1: lane.end, y0: tops[place], y1: tops[place] + lane.rows, line: { width: 3, color: color("--bad") } });
    }
    this.plot.style.height = `${Math.min(2400, Math.max(300, 120 + 17 * height))}px`;
    const drawn = otelRl.charts.draw(this.plot, traces, {
      barmode: "overlay", hovermode: "closest", showlegend: true, shapes,
      margin: { l: 120, r: 10, t: 24, b: 70 }, legend: { orientation: "h", y: -0.12, x: 0, font: { size: 11 } },
      xaxis: { range: [-0.01 * seconds, 1.01 * seconds], title: { text: `seconds since step ${steps[0].step} began`, font: { size: 11 } } },
      yaxis: { range: [height, -0.6], tickvals: lanes.map((lane, place) => tops[place] + lane.rows / 2), ticktext: lanes.map((lane) => plain(lane.name) + (lane.lost ? " †" : "")), showgrid: false, zeroline: false },
      annotations: steps.map((step) => ({ x: step.start, y: 1, yref: "paper", yanchor: "bottom", xanchor: "left", showarrow: false, text: `step ${step.step}, ${otelRl.duration(step.seconds)}`, font: { size: 11 } })),
      uirevision: `${steps[0].step}-${steps[steps.length - 1].step}`,
    }, { scrollZoom: false });
    const curves = new Map([...phases.values()].flatMap((places, curveNumber) => places.map((place, pointNumber) => [place, { curveNumber, pointNumber }])));
    otelRl.charts.byKeyboard(this.plot, "Spans by worker and time, with the critical path", () => lanes.map((_, lane) =>
      [...spans.keys()].filter((place) => spans[place].lane === lane).sort((a, b) => spans[a].start - spans[b].start).map((place) => ({
        points: [curves.get(place)], pick: () => this.pick(place), x: spans[place].start,
        text: `${lanes[lane].name}: ${spans[place].name}, ${otelRl.duration(spans[place].seconds)}${spans[place].step === null ? "" : `, step ${spans[place].step}`}`,
      }))));
    if (!this.listens) {
      this.listens = true;
      this.plot.on("plotly_click", (event) => { const place = event.points[0].customdata; if (place !== undefined) this.pick(place); });
    }
    return drawn;
  }

  pick(place) {
    const { h } = otelRl;
    const { spans, lanes, links } = this.found;
    const span = spans[place];
    const uses = links.filter(([from]) => from === place).map(([, to]) => spans[to]);
    const usedBy = links.filter(([, to]) => to === place).map(([from]) => spans[from]);
    const xs = [], ys = [];
    for (const other of uses) { xs.push(other.start + other.seconds, span.start, null); ys.push(this.y(other), this.y(span), null); }
    for (const other of usedBy) { xs.push(span.start + span.seconds, other.start, null); ys.push(this.y(span), this.y(other), null); }
    Plotly.restyle(this.plot, { x: [xs], y: [ys] }, [this.plot.data.length - 1]);
    const names = (some) => [...new Set(some.map((one) => `${one.name} of ${lanes[one.lane].name}`))].slice(0, 12).join(", ");
    otelRl.fill(this.details,
      h("div", { class: "row" }, h("b", {}, span.name), span.phase ? h("span", { class: "badge" }, span.phase) : null, h("span", { class: "quiet" }, `${lanes[span.lane].name}, ${otelRl.duration(span.seconds)}${span.step === null ? "" : `, step ${span.step}`}`), span.failed ? otelRl.badge("failed") : null),
      h("div", { class: "evidence" }, "trace ", this.trace(span.trace)),
      uses.length ? h("div", {}, `uses ${uses.length}: `, h("span", { class: "quiet" }, names(uses))) : null,
      usedBy.length ? h("div", {}, `used by ${usedBy.length}: `, h("span", { class: "quiet" }, names(usedBy))) : null);
  }

  redraw() { if (this.found && this.found.steps.length) this.plotSpans(); }
};
