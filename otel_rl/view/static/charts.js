"use strict";
// Plotly in the colours of the page. `draw` is called again with new data, and after a change of theme.
otelRl.charts = {
  palette: ["#4878d0", "#e8853a", "#35a56f", "#c9506c", "#8a6fd1", "#1fa3bd", "#b4962d", "#8d99a6", "#d66fb0", "#6a9a3b", "#3f5f9a", "#b3674a"],
  path: "#e0304f",

  color(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); },

  // The same word has the same colour on every page.
  words: new Map([["train", 0], ["generate", 1], ["reward", 2], ["weight_sync", 4], ["reference", 5], ["replay", 7], ["rank_barrier", 7], ["param_sync", 10], ["collector_wait", 6]]),
  colorOf(word) {
    const { words, palette } = otelRl.charts;
    if (!words.has(word)) words.set(word, words.size + 2);
    return palette[words.get(word) % palette.length];
  },

  layout(more = {}) {
    const { color } = otelRl.charts;
    const axis = { gridcolor: color("--grid"), zerolinecolor: color("--grid"), linecolor: color("--edge"), tickfont: { size: 11 }, automargin: true, fixedrange: false };
    const { xaxis = {}, yaxis = {}, ...rest } = more;
    return {
      margin: { l: 44, r: 10, t: 6, b: 30 }, showlegend: false, dragmode: "zoom", hovermode: "x unified",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: 12, color: color("--quiet") },
      hoverlabel: { bgcolor: color("--card"), bordercolor: color("--edge"), font: { color: color("--text"), size: 12 }, namelength: 40 },
      legend: { orientation: "h", y: -0.18, x: 0, font: { size: 11 } },
      xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
    };
  },

  config(more = {}) {
    return { displayModeBar: false, responsive: true, showTips: false, plotGlPixelRatio: 1, ...more };
  },

  draw(element, traces, layout, config) {
    return Plotly.react(element, traces, otelRl.charts.layout(layout), otelRl.charts.config(config));
  },

  // Lines of one panel, with marks where workers failed and where a cause began.
  lines(element, panel, lines, { x, marks = [], onzoom = null, onstep = null }) {
    const { plain } = otelRl;
    const { palette, color } = otelRl.charts;
    const traces = lines.flatMap((line, place) => {
      const shade = panel.stacked ? otelRl.charts.colorOf(line.name) : palette[place % palette.length];
      const isBound = lines.length > 1 && /(^|\/)(p9\d|min|max|rank_min|rank_max|std)$/.test(line.name);
      return otelRl.charts.withTrend(line, x === "time" ? (ms) => new Date(ms) : (step) => step, {
        type: "scatter", mode: line.xs.length < 3 ? "markers" : "lines", name: plain(line.name), connectgaps: false,
        line: { width: isBound ? 1 : 1.8, color: shade, dash: isBound ? "dot" : "solid", shape: "linear" },
        marker: { color: shade, size: 6 },
        hovertemplate: `%{y:.4~g} ${plain(panel.unit)}`,
        ...(panel.stacked ? { stackgroup: "all", line: { width: 0.5, color: shade }, fillcolor: `${shade}bb` } : {}),
      });
    });
    const lost = otelRl.charts.notFinite(traces);
    if (lost) traces.push(lost);
    const shapes = marks.map((mark) => {
      const shade = color(mark.kind === "cause" ? "--warn" : "--bad");
      const text = marks.length > 3 ? "" : mark.kind === "cause" ? "cause" : "worker failed";
      return {
        type: "line", xref: "x", yref: "paper", x0: mark.x, x1: mark.x, y0: 0, y1: 1, line: { width: 1.2, dash: "dot", color: shade },
        label: { text, textposition: "end", textangle: 0, font: { size: 9, color: shade } },
      };
    });
    const layout = {
      shapes, showlegend: lines.length > 1 && lines.length <= 8,
      xaxis: x === "time" ? { type: "date" } : { title: { text: "step", standoff: 4, font: { size: 11 } } },
      yaxis: { rangemode: panel.stacked ? "tozero" : "normal" },
      ...(lost ? { yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true } } : {}),
      uirevision: `${x}`,
    };
    layout.margin = { l: 44, r: 10, t: marks.length ? 16 : 6, b: layout.showlegend ? 54 : 30 };
    const isNew = !element.data;
    const drawn = otelRl.charts.draw(element, traces, layout);
    if (isNew && onzoom) {
      element.on("plotly_relayout", (change) => {
        if ("xaxis.range[0]" in change) onzoom(change["xaxis.range[0]"], change["xaxis.range[1]"]);
        else if (change["xaxis.autorange"]) onzoom(null, null);
      });
    }
    otelRl.charts.byKeyboard(element, panel.title, () => otelRl.charts.pointsOf(element, panel.unit, onstep));
    if (isNew && onstep) element.on("plotly_click", (event) => onstep(event.points[0].x));
    return drawn;
  },

  // Arrow keys go through the points of a chart: left and right within a row, up and down to another.
  // `rows` returns lists of {points, text, pick}: what Plotly hovers, its words, what Enter does.
  byKeyboard(element, label, rows) {
    if (element.rows) { element.rows = rows; return; }
    element.rows = rows;
    element.tabIndex = 0;
    element.setAttribute("role", "application");
    element.setAttribute("aria-roledescription", "chart");
    element.setAttribute("aria-label", `${label}. Arrow keys read it.`);
    const at = { row: 0, column: null };
    element.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (/^[-+=0]$/.test(event.key) && at.x !== undefined) { event.preventDefault(); otelRl.charts.zoom(element, event.key, at.x); return; }
      const isKnown = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "Enter"].includes(event.key);
      const known = isKnown ? element.rows().filter((row) => row.length) : [];
      if (!known.length) return;
      event.preventDefault();
      event.stopPropagation();
      if (event.key === "ArrowUp") at.row -= 1;
      if (event.key === "ArrowDown") at.row += 1;
      at.row = Math.max(0, Math.min(known.length - 1, at.row));
      const row = known[at.row];
      const begin = event.key === "ArrowRight" ? -1 : row.length; // the newest point is first, but for who goes right
      if (event.key !== "Enter") at.column ??= begin;
      if (at.column === null) return;
      if (event.key === "ArrowLeft") at.column -= 1;
      if (event.key === "ArrowRight") at.column += 1;
      if (event.key === "Home") at.column = 0;
      if (event.key === "End") at.column = row.length - 1;
      at.column = Math.max(0, Math.min(row.length - 1, at.column));
      const { points, text, pick, x } = row[at.column];
      at.x = x;
      if (event.key === "Enter") { pick?.(); return; }
      Plotly.Fx.hover(element, points);
      document.getElementById("told").textContent = text;
    });
    element.addEventListener("blur", () => { if (element.data) Plotly.Fx.unhover(element); });
  },

  // Shows half or twice as much around a point, or all.
  zoom(element, key, x) {
    if (key === "0") { Plotly.relayout(element, { "xaxis.autorange": true }); return; }
    const axis = element._fullLayout.xaxis;
    const [first, last] = axis.range.map((one) => axis.r2l(one));
    const half = (last - first) * (key === "-" ? 1 : 0.25);
    Plotly.relayout(element, { "xaxis.range[0]": axis.l2r(axis.d2l(x) - half), "xaxis.range[1]": axis.l2r(axis.d2l(x) + half) });
  },

  // The points of lines, one for each x.
  pointsOf(element, unit, onstep) {
    const byX = new Map();
    (element.data ?? []).forEach((trace, curveNumber) => {
      if (trace.opacity === 0.3) return; // the band of a line that is there itself
      trace.x.forEach((x, pointNumber) => {
        const known = byX.get(+x) ?? { x, points: [], words: [] };
        byX.set(+x, known);
        known.points.push({ curveNumber, pointNumber });
        const value = trace.y[pointNumber];
        if (trace.yaxis === "y2") known.words.push(trace.name);
        else if (value !== null) known.words.push(`${element.data.length > 1 ? `${trace.name} ` : ""}${otelRl.number(value)}${unit ? ` ${unit}` : ""}`);
      });
    });
    return [[...byX.values()].sort((a, b) => a.x - b.x).map(({ x, points, words }) => ({
      x, points, pick: onstep && (() => onstep(x)), text: `${x instanceof Date ? x.toLocaleTimeString("en-GB") : `step ${otelRl.number(x)}`}: ${words.join(", ")}`,
    }))];
  },

  // Of a long line only the extremes are points: they make a pale band, and the means of its parts
  // a line. Areas that add up are of means alone.
  withTrend(line, at, trace) {
    const points = { ...trace, x: line.xs.map(at), y: line.ys };
    const [xs, means] = line.trend;
    if (!xs.length) return [points];
    const trend = { ...trace, x: xs.map(at), y: means };
    if (trace.stackgroup) return [trend];
    const band = { ...points, name: `${trace.name}: lowest, highest`, opacity: 0.3, showlegend: false, line: { ...trace.line, width: 1, dash: "solid" } };
    return [band, { ...trend, name: `${trace.name}: mean`, meta: "mean" }];
  },

  // A cross at the bottom for each NaN or infinity, where a line has a gap.
  notFinite(traces) {
    const measured = traces.filter((one) => one.meta !== "mean");
    const xs = [...new Set(measured.flatMap((one) => one.x.filter((_, place) => one.y[place] === null)))];
    if (!xs.length) return null;
    return {
      type: "scatter", mode: "markers", name: "NaN or infinite", showlegend: false, x: xs, y: xs.map(() => 0.03), yaxis: "y2", cliponaxis: false,
      marker: { symbol: "x", size: 6, color: otelRl.charts.color("--bad") }, hovertemplate: "NaN or infinite<extra></extra>",
    };
  },

  // Only what is on the screen is fetched and drawn.
  whenSeen(element, show) {
    const observer = new IntersectionObserver((seen) => {
      element.seen = seen.some((one) => one.isIntersecting);
      if (element.seen) show();
    }, { rootMargin: "200px" });
    observer.observe(element);
    return observer;
  },
};
