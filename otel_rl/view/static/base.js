"use strict";
// What all pages share. Everything that a sender names reaches the page as text: components make
// text nodes, `plain` is for Plotly, which reads some tags and entities in its texts.
const otelRl = {
  ...preactHooks,
  html: htm.bind(preact.h),
  pages: {},
  report: null, // answers by path, in a file that was made to be mailed

  plain(text) {
    return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  },

  // A value that components look at: they are rendered anew when it is set.
  store(value) {
    const lookers = new Set();
    return { lookers, get value() { return value; }, set(next) { value = next; for (const look of [...lookers]) look(); } };
  },

  useStore(store) {
    const [, look] = preactHooks.useReducer((times) => times + 1, 0);
    preactHooks.useLayoutEffect(() => { store.lookers.add(look); return () => store.lookers.delete(look); }, [store]);
    return store.value;
  },

  // Answers of the server

  answers: new Map(), // the last one of each address: what was read stays readable without a server
  lost: null, // told when no server answers

  address(path, query = {}) {
    const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
    const parameters = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
    parameters.sort();
    return parameters.size ? `${path}?${parameters}` : path;
  },

  async get(path, query = {}) {
    const { answers } = otelRl;
    const url = otelRl.address(path, query);
    if (otelRl.report) {
      const known = otelRl.report[url];
      if (known === undefined) throw new Error("This is not in the report: otel-rl view shows it.");
      return known;
    }
    let answer;
    try {
      answer = await fetch(`/api/${url}`, { credentials: "same-origin" });
    } catch {
      otelRl.lost?.();
      if (answers.has(url)) return answers.get(url);
      throw new Error("No connection, and this was not read before.");
    }
    if (answer.status === 401) location.reload();
    const found = await answer.json().catch(() => ({}));
    if (!answer.ok) throw Object.assign(new Error(found.error || `The server answers ${answer.status}.`), { status: answer.status });
    answers.delete(url);
    answers.set(url, found);
    if (answers.size > 800) answers.delete(answers.keys().next().value);
    return found;
  },

  // The newest answer of an address, which stays while the next one is read, and when it fails.
  // Without a path nothing is asked. What is half read is asked for again.
  useAnswer(path, query, tick) {
    const { useEffect, useRef, useState } = preactHooks;
    const url = path && otelRl.address(path, query);
    // What was read before is shown at once: who goes back is where they were.
    const [state, setState] = useState(() => { const found = otelRl.answers.get(url) ?? null; return { found, error: null, url: found && url }; });
    const current = useRef({});
    current.current.url = url;
    useEffect(() => () => { current.current.isOver = true; }, []);
    useEffect(() => {
      if (!url) return;
      const of = current.current;
      if (of.asked === url) { of.again = true; return; }
      const ask = async () => {
        of.asked = url;
        of.again = false;
        const next = await otelRl.get(path, query).then((found) => ({ found, error: null, url }), (error) => ({ error }));
        if (of.asked === url) of.asked = null;
        if (of.isOver || of.url !== url) return; // another address was wanted meanwhile
        setState((before) => ({ ...before, ...next }));
        if (of.again || (next.found && next.found.read < 1)) setTimeout(() => { if (!of.isOver && of.url === url && of.asked !== url) ask(); }, of.again ? 0 : 500);
      };
      ask();
    }, [url, tick]);
    return { ...state, isNew: state.url === url };
  },

  // The address of the page: `#/run/<id>/<page>/<more>?name=value`. What is chosen is in it, so that a link
  // shows the same, and Back works.
  place: null,

  readPlace() {
    const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
    return { parts: path.split("/"), params: Object.fromEntries(new URLSearchParams(query)) };
  },

  // A parameter of the address, and what sets it; its default is left out.
  useParam(name, usual = "") {
    const { params } = otelRl.useStore(otelRl.place);
    const set = (value) => {
      const { parts, params: known } = otelRl.place.value;
      const params = { ...known, [name]: value };
      if (value === usual || value === null || value === undefined) delete params[name];
      otelRl.place.set({ parts, params });
      clearTimeout(otelRl.writing); // browsers refuse hundreds of changes in a few seconds
      otelRl.writing = setTimeout(() => {
        const query = new URLSearchParams(params);
        history.replaceState(history.state, "", `#/${parts.join("/")}${query.size ? `?${query}` : ""}`);
      }, 150);
    };
    return [params[name] ?? usual, set];
  },

  // What is typed, once it has been the same for a moment.
  useDelayed(value, ms) {
    const { useEffect, useState } = preactHooks;
    const text = JSON.stringify(value);
    const [settled, setSettled] = useState(text);
    useEffect(() => {
      const timer = setTimeout(() => setSettled(text), ms);
      return () => clearTimeout(timer);
    }, [text]);
    return JSON.parse(settled);
  },

  kept(name, usual) {
    try { return JSON.parse(localStorage.getItem(`otel_rl.${name}`)) ?? usual; } catch { return usual; }
  },

  keep(name, value) {
    try { localStorage.setItem(`otel_rl.${name}`, JSON.stringify(value)); } catch { /* storage is off */ }
  },

  // Text to look for: a regular expression, or where it is none its characters.
  matcher(text) {
    try { return new RegExp(text, "i"); } catch { return new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i"); }
  },

  // Words

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

  // How long ago something was; in a report, which is read next week, when it was.
  ago(seconds, nowMs) {
    if (seconds === null || seconds === undefined) return "–";
    if (!otelRl.report) return `${otelRl.duration(seconds)} ago`;
    const now = nowMs ?? otelRl.report[`runs/${otelRl.report.runs.only}/overview`].now_ms;
    return new Date(now - 1000 * seconds).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
  },

  // Since when a value is NaN or infinite.
  withLoss(text, shown) {
    const isLost = shown?.lost_since !== null && shown?.lost_since !== undefined;
    return isLost ? `${text}${text ? ", " : ""}since step ${shown.lost_since}` : text;
  },

  withUnit(text, unit) { return unit ? `${text} (${unit})` : text; },

  // Parts of pages

  Badge({ word }) {
    const kind = { "no clear cause": "unclear", "ended without report": "ended" }[word] || word;
    return otelRl.html`<span class=${`badge ${kind}`}>${word}</span>`;
  },

  // A small line without axes.
  Spark({ ys }) {
    const finite = ys.filter((y) => y !== null);
    const low = Math.min(...finite), high = Math.max(...finite);
    const points = ys.map((y, place) => (y === null ? null :
      `${(2 + (126 * place) / Math.max(1, ys.length - 1)).toFixed(1)},${(27 - (24 * (y - low)) / (high - low || 1)).toFixed(1)}`)).filter(Boolean).join(" ");
    return otelRl.html`<svg class="spark" viewBox="0 0 130 30" aria-hidden="true"><polyline points=${points} fill="none" stroke="var(--accent)" stroke-width="1.6" /></svg>`;
  },

  Select({ label, options, chosen, onchoose, id }) {
    return otelRl.html`<label class="row quiet">${label}<select id=${id} value=${chosen} onChange=${(event) => onchoose(event.target.value)}>
      ${options.map(([value, text]) => otelRl.html`<option key=${value} value=${value} selected=${value === chosen}>${text}</option>`)}</select></label>`;
  },

  Toggle({ label, options, chosen, onchoose }) {
    return otelRl.html`<span class="row" role="group" aria-label=${label}>${options.map(([value, text]) =>
      otelRl.html`<button key=${value} type="button" aria-pressed=${String(value === chosen)} onClick=${() => onchoose(value)}>${text}</button>`)}</span>`;
  },

  // Rows of a table by a column; those without a value come last. `order` is {by, down}, without `by` the rows stay.
  sorted(columns, rows, order) {
    const value = columns.find(([name]) => name === order.by)?.[1];
    if (!value) return rows;
    const isMissing = (one) => one === null || one === undefined || one === "";
    const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
    return rows.map((row) => [value(row), row]).sort(([a], [b]) => isMissing(a) - isMissing(b) || (order.down ? compare(b, a) : compare(a, b))).map(([, row]) => row);
  },

  // Heading of a table whose columns, [name, value of a row to sort by or null, class], are sorted by a click.
  Heading({ columns, rows, order, onorder }) {
    const isNumber = (value) => rows.some((row) => typeof value(row) === "number");
    const click = (name, isDown) => () => onorder(order.by !== name ? { by: name, down: isDown } : order.down === isDown ? { by: name, down: !isDown } : { by: null, down: false });
    return otelRl.html`<thead><tr>${columns.map(([name, value, kind]) => otelRl.html`
      <th key=${name} scope="col" class=${kind} aria-sort=${order.by === name ? (order.down ? "descending" : "ascending") : null}>
        ${value ? otelRl.html`<button type="button" class="sort" data-focus=${`sort ${name}`} onClick=${click(name, isNumber(value))}>${name}</button>` : otelRl.html`<span class="unseen">${name}</span>`}</th>`)}</tr></thead>`;
  },
};
otelRl.place = otelRl.store(otelRl.readPlace());
