"use strict";
// Plotly, in colours that are seen on both grounds: what is drawn stays when the theme changes, and page.css has the
// colours of texts, grids and hovers.
otelRl.charts = {
  palette: ["#4878d0", "#db6d18", "#249e66", "#c9506c", "#8a6fd1", "#1f93ab", "#96802a", "#7a8794", "#c75fa2", "#5f8f35", "#3f5f9a", "#b3674a"],
  path: "#e0304f",
  bad: "#e0304f",
  cause: "#b3741a",
  good: "#249e66",
  quiet: "#7a8794",
  grid: "rgba(128,140,155,0.25)",
  plotly: otelRl.store(""), // "coming", "there" or "missing": it is large, and comes after what one reads first

  load() {
    const { plotly } = otelRl.charts;
    if (["coming", "there"].includes(plotly.value)) return;
    plotly.set("coming");
    const over = () => plotly.set(globalThis.Plotly ? "there" : "missing");
    document.head.append(Object.assign(document.createElement("script"), { src: "/static/plotly.js", onload: over, onerror: over }));
  },

  // Each phase of the registry has one colour on every page: work is warm or bright, synchronisation violet, waits
  // grey, input and output brown or green. Chosen by the distances that people with protanopia and deuteranopia see.
  phases: {
    train: "#db6d18", generate: "#9218ff", reward: "#249eaa", reference: "#ff0092", env_step: "#aa8649", env_step_total: "#6d61aa", mlp_infer: "#db000c",
    action_select: "#db6d61", weight_sync: "#6161c2", weight_push: "#8686ce", weight_pull: "#aa79f3", param_sync: "#9e61ff", rank_barrier: "#6d6d49",
    collector_wait: "#556d6d", replay_batch_wait: "#616d55", sync_coordination: "#6d9292", idle: "#616d86", unaccounted: "#92796d", batch_create: "#926118",
    replay: "#9e926d", checkpoint: "#6d6d31", h2d_copy: "#24aa24", tokenize: "#618631", model_load: "#927949",
  },

  // Of other words by their letters, so that it stays the same in every run.
  colorOf(word) {
    const { phases, palette } = otelRl.charts;
    const known = phases[word] ?? phases[word.split("/").at(-1)];
    if (known) return known;
    let sum = 0;
    for (const letter of word) sum = (31 * sum + letter.codePointAt(0)) % 9973;
    return palette[sum % palette.length];
  },

  // Of a line among others of one chart: of many, which differ by a number, from blue to red.
  shadeOf(panel, lines, place) {
    const { palette, colorOf } = otelRl.charts;
    if (panel.stacked) return colorOf(lines[place].name);
    return lines.length <= palette.length ? palette[place] : `hsl(${Math.round(230 - (230 * place) / (lines.length - 1))} 62% 48%)`;
  },

  layout(more = {}) {
    const { grid, quiet } = otelRl.charts;
    const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, ticks: "", tickfont: { size: 11 }, automargin: true, fixedrange: false };
    const { xaxis = {}, yaxis = {}, ...rest } = more;
    return {
      margin: { l: 44, r: 10, t: 6, b: 30 }, showlegend: false, dragmode: "zoom", hovermode: "x unified",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: 12, color: quiet },
      hoverlabel: { bgcolor: "#ffffff", bordercolor: quiet, font: { size: 12 }, namelength: 40 },
      legend: { orientation: "h", y: -0.18, x: 0, font: { size: 11 } },
      xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true }, ...rest, // the second y has crosses alone
    };
  },

  title: (text) => ({ text, standoff: 4, font: { size: 11 } }), // of an axis

  draw(element, traces, layout) {
    Plotly.react(element, traces, otelRl.charts.layout(layout), { displayModeBar: false, responsive: true, showTips: false, plotGlPixelRatio: 1 });
    // What was drawn before keeps its size, also where there are more rows now, or a chart fills the window.
    const { width, height } = element._fullLayout;
    if (Math.abs(width - element.clientWidth) + Math.abs(height - element.clientHeight) > 1) Plotly.Plots.resize(element);
  },

  // Lines of one panel, with marks where workers failed and where a cause began. `tools` are
  // {smooth, log, robust}, `range` what is seen of x, or null for all; `base` lines of another run, which are dashed.
  lines(element, panel, lines, { x, axis = "", marks = [], shapes = [], tools = {}, range = null, base = [], onzoom = null, onstep = null }) {
    const { plain } = otelRl;
    const { smoothed, shadeOf } = otelRl.charts;
    const at = x === "time" ? (ms) => new Date(ms) : (step) => step;
    const measured = []; // what is drawn, without smoothing
    const traces = lines.flatMap((line, place) => {
      const shade = shadeOf(panel, lines, place);
      const isBound = lines.length > 1 && /(^|\/)(p9\d|min|max|rank_min|rank_max|std)$/.test(line.name);
      const drawn = otelRl.charts.withTrend(line, at, {
        type: "scatter", mode: line.xs.length < 3 ? "markers" : "lines", name: plain(line.name), connectgaps: false,
        line: { width: isBound ? 1 : 1.8, color: shade, dash: isBound ? "dot" : "solid", shape: "linear" },
        marker: { color: shade, size: 6 },
        hovertemplate: `%{y:.4~g} ${plain(panel.unit)}`,
        ...(panel.stacked ? { stackgroup: "all", line: { width: 0.5, color: shade }, fillcolor: shade } : {}),
      });
      measured.push(...drawn);
      if (!(tools.smooth > 0) || panel.stacked) return drawn;
      const both = smoothed(drawn, tools.smooth);
      return lines.length > 8 ? [both.at(-1)] : both; // of many lines the pale ones hide the others
    });
    const lost = otelRl.charts.notFinite(traces);
    if (lost) traces.push(lost);
    if (!panel.stacked) {
      for (const line of base) {
        const points = otelRl.charts.pointsIn(line);
        const beside = { type: "scatter", mode: "lines", name: plain(line.name), x: points.map(([one]) => at(one)), y: points.map(([, y]) => y), line: { width: 1.2, color: otelRl.charts.quiet, dash: "dash" }, hovertemplate: "%{y:.4~g}" };
        traces.push(beside);
        measured.push(beside);
      }
    }
    const markShapes = marks.map((mark) => ({
      type: "line", xref: "x", yref: "paper", x0: mark.x, x1: mark.x, y0: 0, y1: 1, line: { width: 1.2, dash: "dot", color: otelRl.charts[mark.kind] },
    }));
    const layout = {
      shapes: [...shapes, ...markShapes],
      xaxis: { ...(x === "time" ? { type: "date" } : { title: otelRl.charts.title(plain(axis || "step")) }), ...(range ? { range: range.map(at), autorange: false } : { autorange: true }) },
      yaxis: { rangemode: panel.stacked ? "tozero" : "normal", ...otelRl.charts.heightOf(traces, panel, tools) },
      uirevision: `${x} ${axis} ${range} ${tools.log} ${tools.robust}`,
    };
    const isNew = !element.data;
    otelRl.charts.draw(element, traces, layout);
    Object.assign(element, { onzoom, onstep, measured });
    if (isNew) {
      element.on("plotly_relayout", (change) => {
        if ("xaxis.range[0]" in change) element.onzoom?.([change["xaxis.range[0]"], change["xaxis.range[1]"]]);
        else if (change["xaxis.autorange"]) element.onzoom?.(null);
      });
      element.on("plotly_click", (event) => element.onstep?.(event.points[0].x));
      otelRl.charts.shareCursor(element);
    }
    otelRl.charts.byKeyboard(element, panel.title, () => otelRl.charts.pointsOf(element, panel.unit, onstep));
  },

  // The range of y: logarithmic, without the most extreme values, or of a constant not magnified until it fills the chart.
  heightOf(traces, panel, { log, robust }) {
    const ys = traces.filter((one) => one.yaxis !== "y2").flatMap((one) => one.y.filter((y) => y !== null)).sort((a, b) => a - b);
    if (!ys.length) return {};
    if (log && ys.at(-1) > 0) return { type: "log", autorange: true };
    const size = Math.max(Math.abs(ys[0]), Math.abs(ys.at(-1)));
    if (size === 0) return { range: [0, 1], autorange: false };
    if (!panel.stacked && ys.at(-1) - ys[0] < 1e-4 * size) return { range: [ys[0] - 0.05 * size, ys.at(-1) + 0.05 * size], autorange: false };
    if (!robust || panel.stacked || ys.length < 20) return { autorange: true };
    const [low, high] = [0.02, 0.98].map((share) => ys[Math.round(share * (ys.length - 1))]);
    const edge = 0.15 * (high - low || size);
    return { range: [low - edge, high + edge], autorange: false };
  },

  // Each line becomes pale, with its moving average before it.
  smoothed(traces, weight) {
    const mean = traces.find((one) => one.meta === "mean") ?? traces[0];
    let sum = 0, seen = 0;
    const ys = mean.y.map((y) => {
      if (y === null) return null;
      sum = weight * sum + (1 - weight) * y;
      seen = weight * seen + (1 - weight);
      return sum / seen;
    });
    const pale = traces.map((one) => ({ ...one, opacity: one === mean ? 0.3 : 0.12, showlegend: false, meta: one.meta ?? "pale", line: { ...one.line, width: 1 } }));
    return [...pale, { ...mean, y: ys, meta: "smooth", name: mean.name }];
  },

  // The others show where the pointer is in one of them.
  shareCursor(element) {
    const { moveCursors } = otelRl.charts;
    element.on("plotly_hover", (event) => moveCursors(element, event.points[0].x));
    element.on("plotly_unhover", () => moveCursors(element, null));
  },

  moveCursors(element, x) {
    for (const other of document.querySelectorAll(".plot.js-plotly-plot")) {
      const cursor = other.parentElement.querySelector(".cursor");
      if (!cursor) continue;
      const axis = other === element || x === null || !other.seen ? null : other._fullLayout.xaxis;
      const pixel = axis && axis.type === element._fullLayout.xaxis.type ? axis.d2p(x) : -1;
      const isIn = axis && pixel >= 0 && pixel <= axis._length;
      cursor.style.display = isIn ? "block" : "none";
      if (isIn) cursor.style.left = `${axis._offset + pixel}px`;
    }
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
      if (x !== undefined) otelRl.charts.moveCursors(element, x);
      document.getElementById("told").textContent = text;
    });
    element.addEventListener("blur", () => { if (element.data) { Plotly.Fx.unhover(element); otelRl.charts.moveCursors(element, null); } });
  },

  // Shows half or twice as much around a point, or all, but nothing beyond the data.
  zoom(element, key, x) {
    if (key === "0") { Plotly.relayout(element, { "xaxis.autorange": true }); return; }
    const axis = element._fullLayout.xaxis;
    const [first, last] = axis.range.map((one) => axis.r2l(one));
    const half = (last - first) * (key === "-" ? 1 : 0.25);
    const known = element.data.filter((one) => one.type === "scatter").flatMap((one) => one.x.filter((at) => at !== null).map((at) => axis.d2l(at)));
    const low = known.reduce((least, at) => Math.min(least, at), known[0] ?? first), high = known.reduce((most, at) => Math.max(most, at), known[0] ?? last);
    const limits = [Math.max(low, axis.d2l(x) - half), Math.min(high, axis.d2l(x) + half)];
    Plotly.relayout(element, { "xaxis.range[0]": axis.l2r(limits[0]), "xaxis.range[1]": axis.l2r(limits[1]) });
  },

  // The points of lines, one for each x.
  pointsOf(element, unit, onstep) {
    const byX = new Map();
    (element.data ?? []).forEach((trace, curveNumber) => {
      if (trace.opacity < 1) return; // the band of a line that is there itself
      trace.x.forEach((x, pointNumber) => {
        const known = byX.get(+x) ?? { x, points: [], words: [] };
        byX.set(+x, known);
        known.points.push({ curveNumber, pointNumber });
        const value = trace.y[pointNumber];
        if (trace.yaxis === "y2") known.words.push(otelRl.asNamed(trace.name));
        else if (value !== null) known.words.push(`${element.data.length > 1 ? `${otelRl.asNamed(trace.name)} ` : ""}${otelRl.number(value)}${unit ? ` ${unit}` : ""}`);
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

  // A line as [x, number], each x once and in order; of a long one the means of its parts. Of a run that went back to
  // an earlier step, the last value of each step.
  pointsIn({ xs, ys, trend }) {
    const [at, of] = trend[0].length ? trend : [xs, ys];
    return [...new Map(at.map((x, place) => [x, of[place]]))].filter(([, y]) => y !== null).sort(([a], [b]) => a - b);
  },

  // The value at an x, straight between two points; null where there are none.
  valueAt(points, x) {
    let low = 0, high = points.length - 1;
    if (high < 0 || x < points[0][0] || x > points[high][0]) return null;
    while (low < high) { const middle = (low + high + 1) >> 1; if (points[middle][0] <= x) low = middle; else high = middle - 1; }
    const [before, after] = [points[low], points[low + 1]];
    return after ? before[1] + ((after[1] - before[1]) * (x - before[0])) / (after[0] - before[0]) : before[1];
  },

  // What is more in each line than in that of the same key in another run, at its own places.
  minus(lines, others) {
    const { pointsIn, valueAt } = otelRl.charts;
    const known = new Map(others.map((one) => [one.key, pointsIn(one)]));
    return lines.filter((line) => known.has(line.key)).map((line) => {
      const points = pointsIn(line).map(([x, y]) => [x, y, valueAt(known.get(line.key), x)]).filter(([, , of]) => of !== null);
      return { ...line, xs: points.map(([x]) => x), ys: points.map(([, y, of]) => y - of), trend: [[], []] };
    });
  },

  // A cross at the bottom for each NaN or infinity, where a line has a gap.
  notFinite(traces) {
    const measured = traces.filter((one) => !["mean", "smooth"].includes(one.meta));
    const xs = [...new Set(measured.flatMap((one) => one.x.filter((_, place) => one.y[place] === null)))];
    if (!xs.length) return null;
    return {
      type: "scatter", mode: "markers", name: "NaN or infinite", showlegend: false, x: xs, y: xs.map(() => 0.03), yaxis: "y2", cliponaxis: false,
      marker: { symbol: "x", size: 6, color: otelRl.charts.bad }, hovertemplate: "NaN or infinite<extra></extra>",
    };
  },

  // An element that Plotly draws into. Components around it change; what is drawn stays.
  Plot({ draw, deps = [], ...properties }) {
    const { useLayoutEffect, useRef } = otelRl;
    const element = useRef(null);
    const isReady = otelRl.useStore(otelRl.charts.plotly) === "there";
    useLayoutEffect(() => { if (isReady) draw?.(element.current); }, [...deps, isReady]);
    useLayoutEffect(() => () => globalThis.Plotly?.purge(element.current), []);
    return otelRl.html`<div ref=${element} ...${properties}></div>`;
  },

  // Whether an element is, or was, on the screen: only that is fetched and drawn.
  useSeen(element) {
    const [isSeen, setSeen] = otelRl.useState(false);
    otelRl.useEffect(() => {
      const observer = new IntersectionObserver((seen) => {
        const is = seen.at(-1).isIntersecting;
        for (const plot of element.current.querySelectorAll(".plot")) plot.seen = is;
        setSeen(is);
      }, { rootMargin: "400px" });
      observer.observe(element.current);
      return () => observer.disconnect();
    }, []);
    return isSeen;
  },

  // Names and colours of lines, beside a chart instead of in it.
  Legend({ names }) {
    const { html } = otelRl;
    return html`<ul class="legend">${names.map(([name, shade, kind]) => html`<li key=${name}><i class=${kind} style=${`--shade: ${shade}`}></i><bdi>${name}</bdi></li>`)}</ul>`;
  },
};
