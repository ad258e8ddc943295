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
    if (isNew && onstep) element.on("plotly_click", (event) => onstep(event.points[0].x));
    return drawn;
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
