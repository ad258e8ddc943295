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

  // What was made `plain`, as it was.
  asNamed(text) {
    return text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
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

  // While somebody reads, an answer stays, and what came since then is counted, by `count` of the answer that is shown and
  // the newest. Returns what is to be shown, how much is newer, and what shows that.
  useHeld(answer, isReading, count) {
    const { useEffect, useState } = preactHooks;
    const [held, setHeld] = useState(null);
    const newest = answer.found;
    const newer = held && newest && held.url === answer.url && isReading() ? Math.max(0, count(held.found, newest)) : 0;
    const found = newer ? held.found : newest;
    useEffect(() => { if (found && held?.found !== found) setHeld({ url: answer.url, found }); }, [found]);
    return [found, newer, () => setHeld({ url: answer.url, found: newest })];
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

  // What opens has the focus, as soon as it is there, which goes on where it was when that closes.
  useFocus(element, isThere) {
    const { useEffect, useRef } = preactHooks;
    const from = useRef(null);
    useEffect(() => {
      if (!isThere) return;
      if (!element.current.parentElement.contains(document.activeElement)) from.current = document.activeElement;
      element.current.focus({ preventScroll: true });
    }, [isThere]);
    useEffect(() => () => from.current?.focus({ preventScroll: true }), []);
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

  // The run beside whose charts those of others are shown: {id, name}, or null. This browser remembers it.
  setBaseline(one) { otelRl.keep("baseline", one); otelRl.baseline.set(one); },

  // Text to look for: a regular expression, or where it is none its characters. A link brings the expression and senders
  // the names, and that of a browser may take years: this one reads each character once, in all states that it may be in.
  matcher(text) {
    if (otelRl.matcher.last?.text === text) return otelRl.matcher.last; // with what it has found
    const found = new Map();
    let machine = null;
    try { new RegExp(text); machine = otelRl.machineOf(text); } catch { /* no expression, or one with parts that need steps back */ }
    const test = machine ? (name) => otelRl.accepts(machine, name.slice(0, 200)) : (name) => name.toLowerCase().includes(text.toLowerCase());
    const known = (name) => { if (!found.has(name)) found.set(name, test(name)); return found.get(name); };
    return otelRl.matcher.last = { text, isText: !machine, test: known };
  },

  // States of an expression: {is: of a character, next}, {holds: at a place, next}, {ways: states}, and the end.
  machineOf(text) {
    const tokens = text.match(/\\[^]|\[\^?(?:\\[^]|[^\]\\])*\]|\{\d+(?:,\d*)?\}|\(\?:|[^]/g) ?? [];
    const isWord = (name, at) => at >= 0 && at < name.length && /\w/.test(name[at]);
    const isEdge = (name, at) => isWord(name, at - 1) !== isWord(name, at);
    const places = { "^": (_, at) => at === 0, $: (name, at) => at === name.length, "\\b": isEdge, "\\B": (name, at) => !isEdge(name, at) };
    const counts = { "*": [0, Infinity], "+": [1, Infinity], "?": [0, 1] };
    let left = 300;
    const state = (of) => { if (!(left -= 1)) throw new Error("too long"); return of; };
    // Each part is a function from the state after it to that before it.
    const either = () => {
      const ways = [all()];
      while (tokens[0] === "|") { tokens.shift(); ways.push(all()); }
      return ways.length === 1 ? ways[0] : (next) => state({ ways: ways.map((way) => way(next)) });
    };
    const all = () => {
      const parts = [];
      while (tokens.length && !"|)".includes(tokens[0])) parts.push(repeated(one()));
      return (next) => parts.reduceRight((after, part) => part(after), next);
    };
    const one = () => {
      const token = tokens.shift();
      if (token === "(" || token === "(?:") {
        if (tokens[0] === "?") throw new Error("looks ahead, or has a name");
        const part = either();
        tokens.shift();
        return part;
      }
      if (places[token]) return (next) => state({ holds: places[token], next });
      if (/^\\[1-9xucpkP]/.test(token)) throw new Error("refers to a group, or is a number");
      const character = new RegExp(/^[{}\]]/.test(token) ? `\\${token[0]}` : token, "i");
      return (next) => state({ is: (letter) => character.test(letter), next });
    };
    const repeated = (part) => {
      const count = counts[tokens[0]] ?? tokens[0]?.match(/^\{(\d+)(,?)(\d*)\}$/)?.slice(1);
      if (!count) return part;
      tokens.shift();
      if (tokens[0] === "?") tokens.shift(); // as few as possible is found where as many are
      const [least, most] = count.length === 2 ? count : [Number(count[0]), count[2] ? Number(count[2]) : count[1] ? Infinity : Number(count[0])];
      return (next) => {
        let before = next;
        if (most === Infinity) { before = state({}); before.ways = [part(before), next]; }
        else for (let more = least; more < most; more += 1) before = state({ ways: [part(before), next] });
        for (let times = 0; times < least; times += 1) before = state({ ways: [part(before)] });
        return before;
      };
    };
    const end = {};
    return { start: either()(end), end };
  },

  accepts({ start, end }, name) {
    let before = new Set();
    for (let at = 0; at <= name.length; at += 1) {
      const states = new Set();
      const reach = (state) => {
        if (states.has(state)) return;
        states.add(state);
        if (state.ways) state.ways.forEach(reach);
        else if (state.holds?.(name, at)) reach(state.next);
      };
      before.forEach(reach);
      reach(start);
      if (states.has(end)) return true;
      before = new Set([...states].filter((state) => state.is?.(name[at])).map((state) => state.next));
    }
    return false;
  },

  // Beside a field whose text is no expression.
  AsText({ text }) {
    return otelRl.html`<span class="quiet" role="status">${text && otelRl.matcher(text).isText ? "looked for as text" : null}</span>`;
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
    if (seconds >= 10) return `${Math.round(seconds)} s`;
    return seconds >= 0.01 || !seconds ? `${seconds.toPrecision(2)} s` : `${Number((1000 * seconds).toPrecision(2))} ms`;
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

  // The class of a state or verdict.
  kindOf: (word) => ({ "no clear cause": "unclear", "beyond a reference": "unclear", "ended without report": "ended" })[word] || word,

  Badge({ word }) { return otelRl.html`<span class=${`badge ${otelRl.kindOf(word)}`}>${word}</span>`; },

  // Values by name, as a run reported them; those without a value are left out.
  Facts({ found }) {
    return otelRl.html`<table><tbody>${Object.entries(found).filter(([, value]) => value).map(([key, value]) => otelRl.html`<tr key=${key}><td>${key}</td><td class="text">${value}</td></tr>`)}</tbody></table>`;
  },

  // The cells of a heading without sorting.
  headings: (names) => otelRl.html`<thead><tr>${names.map((name) => otelRl.html`<th key=${name} scope="col"><bdi>${name}</bdi></th>`)}</tr></thead>`,

  // The id of a trace, which leads to the backend of the traces.
  Trace({ id, url }) {
    const target = url.replaceAll("{trace_id}", encodeURIComponent(id));
    return /^https?:\/\//.test(target) ? otelRl.html`<a class="trace" href=${target} rel="noreferrer" target="_blank">${id}</a>` : otelRl.html`<code>${id}</code>`;
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

  // Buttons that are one stop of the Tab key: arrow keys, Home and End lead from one to another.
  Toolbar({ label, children }) {
    const bar = preactHooks.useRef(null);
    const at = preactHooks.useRef(0);
    const buttons = () => [...bar.current.querySelectorAll("button")];
    const mark = () => buttons().forEach((one, place) => { one.tabIndex = place === at.current ? 0 : -1; });
    const enter = (event) => { at.current = buttons().indexOf(event.target); mark(); };
    const move = (event) => {
      const all = buttons();
      const to = { ArrowLeft: at.current - 1, ArrowRight: at.current + 1, Home: 0, End: all.length - 1 }[event.key];
      if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      all.at(to % all.length).focus();
    };
    preactHooks.useLayoutEffect(mark, []);
    return otelRl.html`<span role="toolbar" class="toolbar" aria-label=${label} ref=${bar} onfocusin=${enter} onKeyDown=${move}>${children}</span>`;
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
otelRl.baseline = otelRl.store(otelRl.kept("baseline", null));
