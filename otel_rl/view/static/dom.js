"use strict";
// Everything that a sender names reaches the page as text: `h` makes text nodes, `plain` is for
// Plotly, which reads some tags and entities in its texts.
const otelRl = {
  pages: {},

  h(tag, properties = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
    }
    return otelRl.fill(element, ...children);
  },

  // Instead of `replaceChildren`, which makes text of null.
  fill(element, ...children) {
    element.replaceChildren(...children.flat(Infinity).filter((one) => one !== null && one !== undefined));
    return element;
  },

  plain(text) {
    return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  },

  report: null, // answers by path, in a file that was made to be mailed

  async get(path, query = {}) {
    const parameters = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
    const key = new URLSearchParams(parameters.map(([name, value]) => [name, String(value)]));
    key.sort();
    const url = key.size ? `${path}?${key}` : path;
    if (otelRl.report) {
      const known = otelRl.report[url];
      if (known === undefined) throw new Error("This is not in the report: otel-rl view shows it.");
      return known;
    }
    const answer = await fetch(`/api/${url}`, { credentials: "same-origin" });
    if (answer.status === 401) { location.reload(); }
    const found = await answer.json().catch(() => ({}));
    if (!answer.ok) throw Object.assign(new Error(found.error || `The server answers ${answer.status}.`), { status: answer.status });
    return found;
  },

  number(value) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    if (typeof value === "string") return { nan: "NaN", inf: "∞", "-inf": "−∞" }[value] || value;
    const size = Math.abs(value);
    if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(2);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(4)));
  },

  bytes(n) {
    for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
      if (n >= size) return `${(n / size).toFixed(1)} ${unit}`;
    }
    return `${n} B`;
  },

  duration(seconds) {
    if (seconds === null || seconds === undefined) return "–";
    if (seconds >= 172800) return `${Math.round(seconds / 86400)} d`;
    if (seconds >= 7200) return `${Math.round(seconds / 3600)} h`;
    if (seconds >= 120) return `${Math.round(seconds / 60)} min`;
    return seconds >= 10 ? `${Math.round(seconds)} s` : `${seconds.toPrecision(2)} s`;
  },

  badge(word) {
    const kind = { "no clear cause": "unclear", "ended without report": "ended" }[word] || word;
    return otelRl.h("span", { class: `badge ${kind}` }, word);
  },

  // A small line without axes.
  spark(ys) {
    const name = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(name, "svg");
    svg.setAttribute("class", "spark");
    svg.setAttribute("viewBox", "0 0 130 30");
    svg.setAttribute("aria-hidden", "true");
    const finite = ys.filter((y) => y !== null);
    const low = Math.min(...finite), high = Math.max(...finite);
    const line = document.createElementNS(name, "polyline");
    line.setAttribute("points", ys.map((y, place) => (y === null ? null :
      `${(2 + (126 * place) / Math.max(1, ys.length - 1)).toFixed(1)},${(27 - (24 * (y - low)) / (high - low || 1)).toFixed(1)}`
    )).filter(Boolean).join(" "));
    line.setAttribute("fill", "none");
    line.setAttribute("stroke", "var(--accent)");
    line.setAttribute("stroke-width", "1.6");
    svg.append(line);
    return svg;
  },

  // Heading and sorted rows of a table. Columns are [name, value of a row to sort by or null, class];
  // `order` is {by, down}, without `by` the rows stay. Rows without a value come last.
  sortable(columns, rows, order, redraw) {
    const { h } = otelRl;
    const click = (name, isDown) => () => {
      if (order.by !== name) Object.assign(order, { by: name, down: isDown });
      else if (order.down === isDown) order.down = !isDown;
      else order.by = null;
      redraw();
    };
    const isNumber = (value) => rows.some((row) => typeof value(row) === "number");
    const head = h("thead", {}, h("tr", {}, columns.map(([name, value, kind]) =>
      h("th", { scope: "col", class: kind, "aria-sort": order.by === name ? (order.down ? "descending" : "ascending") : null },
        value ? h("button", { type: "button", class: "sort", "data-focus": `sort ${name}`, onclick: click(name, isNumber(value)) }, name) : h("span", { class: "unseen" }, name)))));
    const value = columns.find(([name]) => name === order.by)?.[1];
    if (!value) return [head, rows];
    const isMissing = (one) => one === null || one === undefined || one === "";
    const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
    const sorted = rows.map((row) => [value(row), row]).sort(([a], [b]) => isMissing(a) - isMissing(b) || (order.down ? compare(b, a) : compare(a, b)));
    return [head, sorted.map(([, row]) => row)];
  },

  // Draws a part of the page anew; what had the focus has it again.
  keepFocus(element, draw) {
    const focused = element.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    draw();
    if (focused) [...element.querySelectorAll("[data-focus]")].find((one) => one.dataset.focus === focused)?.focus({ preventScroll: true });
  },

  // Since when a value is NaN or infinite.
  withLoss(text, shown) {
    const isLost = shown?.lost_since !== null && shown?.lost_since !== undefined;
    return isLost ? `${text}${text ? ", " : ""}since step ${shown.lost_since}` : text;
  },

  withUnit(text, unit) { return unit ? `${text} (${unit})` : text; },

  select(label, options, chosen, onchange) {
    const { h } = otelRl;
    return h("label", { class: "row quiet" }, label, h("select", { "data-focus": `select ${label}`, onchange: (event) => onchange(event.target.value) },
      options.map(([value, text]) => h("option", { value, selected: value === chosen }, text))));
  },

  toggle(options, chosen, onchange, label) {
    const { h } = otelRl;
    return h("span", { class: "row", role: "group", "aria-label": label }, options.map(([value, text]) =>
      h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => onchange(value) }, text)));
  },
};
