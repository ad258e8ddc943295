"use strict";
{
  const { html, Badge, useAnswer, useEffect, useLayoutEffect, useRef, useState, useStore } = otelRl;
  const content = document.getElementById("content");
  const root = document.documentElement;
  const RESTORED_FOR_MS = 60_000;
  const PREFETCHED_EVERY_MS = 60_000;

  const embedded = document.getElementById("report");
  if (embedded) otelRl.report = JSON.parse(embedded.textContent);
  const names = otelRl.report ? otelRl.report.pages : ["overview", "timeline", "workers", "rollouts", "log", "health"];
  const titleOf = (name) => name[0].toUpperCase() + name.slice(1);

  function setTheme(theme) {
    root.dataset.theme = theme;
    try { localStorage.setItem("otel_rl.theme", theme); } catch { /* storage is off */ }
    document.getElementById("theme").textContent = { auto: "◐", light: "☀", dark: "☾" }[theme];
  }

  function nextTheme() { setTheme({ auto: "light", light: "dark", dark: "auto" }[root.dataset.theme] || "auto"); }

  function route() {
    const [kind, run, name, ...more] = otelRl.place.value.parts;
    if (kind === "run" && run) return { run, name: names.includes(name) ? name : names[0], more: more.length ? more.join("/") : undefined };
    if (otelRl.report) return { run: otelRl.report.runs?.only, name: names[0] };
    return { name: "runs" };
  }

  // Connection: {state: "", "live", "lost", "ended", or "told", since, again: how to see the run again, words: why it is not live}

  const connection = otelRl.store({ state: "" });
  const changes = otelRl.store(0); // counts what the server told to be new

  function follow() {
    let asking = null;
    let last = 0;
    let revision = null;
    const changed = () => {
      clearTimeout(asking);
      asking = setTimeout(() => { last = Date.now(); changes.set(changes.value + 1); }, Math.max(0, 2000 - (Date.now() - last)));
    };
    const isOver = () => connection.value.state === "ended";
    const lost = () => { if (!["lost", "ended"].includes(connection.value.state)) connection.set({ state: "lost", since: new Date() }); };
    otelRl.lost = lost;
    const open = () => {
      const events = new EventSource("/api/events");
      events.onmessage = (event) => {
        const before = connection.value.state;
        if (before !== "live") connection.set({ state: "live" });
        if (before === "lost" && otelRl.charts.plotly.value === "missing") otelRl.charts.load();
        if (before === "lost" || before === "ended" || (revision !== null && event.data !== revision)) changed();
        revision = event.data;
      };
      // The server of a run ends with it.
      events.addEventListener("end", (event) => connection.set({ state: "ended", since: new Date(), again: JSON.parse(event.data).again }));
      events.onerror = async () => {
        if (events.readyState !== EventSource.CLOSED) { if (!isOver()) lost(); return; }
        // The browser does not say whether a server refused, and why.
        const stop = new AbortController();
        const words = await fetch("/api/events", { credentials: "same-origin", signal: stop.signal }).then(async (answer) => (answer.ok ? "" : (await answer.json()).error)).catch(() => null);
        stop.abort();
        if (words) connection.set({ state: "told", words });
        else if (words === null && !isOver()) lost();
        setTimeout(() => { changed(); open(); }, words === "" ? 0 : 10_000);
      };
    };
    open();
  }

  function Live({ overview }) {
    const { state } = useStore(connection);
    useLayoutEffect(() => {
      const live = document.getElementById("live");
      const goesOn = !overview || ["running", "stalled"].includes(overview.state);
      live.classList.toggle("on", state === "live" && goesOn);
      if (otelRl.report) { // what is "ago" in it, is before this time
        const made = otelRl.report.made_ms ?? otelRl.report[`runs/${otelRl.report.runs.only}/overview`].now_ms;
        live.textContent = `report of ${new Date(made).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" })}`;
      } else {
        live.textContent = { live: goesOn ? "live" : "up to date", lost: "not connected", ended: "ended", told: "not live" }[state] ?? "";
      }
    });
    return null;
  }

  function Banner() {
    const { state, since, again, words } = useStore(connection);
    const isWithoutCharts = useStore(otelRl.charts.plotly) === "missing";
    const time = since?.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
    return html`<div role="status">${state === "lost" ? html`<p class="notice" id="connection">No connection since ${time}, trying again. What was read before is shown.</p>`
      : state === "told" ? html`<p class="notice" id="connection">${words}</p>`
      : state === "ended" ? html`<p class="notice" id="connection">The server of this page ended at ${time}, as it does with its run. What was read before is shown.${again ? html` Show the whole run with <code>${again}</code>` : null}</p>` : null}
      ${isWithoutCharts ? html`<p class="notice" id="no-charts">No chart can be drawn, because plotly.js did not load. ${otelRl.report ? "A newer browser may do it." : html`The values of a chart can be saved as csv. <button type="button" onClick=${otelRl.charts.load}>Try again</button>`}</p>` : null}</div>`;
  }

  // Pages

  function App() {
    useStore(otelRl.place);
    const tick = useStore(changes);
    const to = route();
    if (otelRl.report?.compare) return html`<${Live} /><${otelRl.pages.compare} onready=${ready} />`;
    return to.run ? html`<${Run} key=${to.run} tick=${tick} ...${to} />` : html`<${Live} /><${Banner} /><${otelRl.pages.runs} tick=${tick} onready=${ready} />`;
  }

  // Words and numbers are painted before the code of charts is read.
  function ready(name) {
    document.body.dataset.ready = name;
    if (!otelRl.report && !otelRl.charts.plotly.value) requestAnimationFrame(() => setTimeout(otelRl.charts.load));
  }

  function Run({ run, name, more, tick }) {
    const detail = otelRl.useParam("detail")[0];
    const asked = name === "overview" && detail === "full" ? "full" : null;
    const { found, error, isNew } = useAnswer(`runs/${run}/overview`, otelRl.report ? {} : { detail: asked }, tick);
    const [done, setDone] = useState("");
    const isOff = ["lost", "ended"].includes(useStore(connection).state);
    const page = `${name} ${more}`;
    const overview = found;
    useEffect(() => { if (overview && done === page) ready(name); }, [Boolean(overview), done, page]);
    const tabs = useRef(null);
    useEffect(() => { // on a phone there is not room for all of them
      const tab = tabs.current?.querySelector("[aria-current]");
      if (tab) tabs.current.scrollLeft = tab.offsetLeft - (tabs.current.clientWidth - tab.offsetWidth) / 2;
    }, [name, Boolean(overview)]);
    usePrefetch(run, isNew ? overview : null, asked);
    useEffect(() => {
      document.getElementById("crumbs").textContent = overview ? `${overview.experiment} / ${overview.trial}` : "";
      document.title = overview ? `${titleOf(name)} · ${overview.experiment} – otel_rl` : "otel_rl";
      return () => { document.getElementById("crumbs").textContent = ""; document.title = "otel_rl"; };
    }, [name, overview?.experiment, overview?.trial]);
    if (!overview && error?.status === 404) return html`<${Live} /><${Waiting} tick=${tick} />`;
    if (!overview) return html`<${Live} /><${Banner} />${error ? html`<p class="notice" id="notice">${error.message}</p>` : html`<p class="empty">Reading …</p>`}`;
    const Page = otelRl.pages[name];
    return html`<${Live} overview=${overview} /><${Banner} /><${Header} run=${run} overview=${overview} isOverview=${name === "overview"} isOff=${isOff} />
      ${error && error.status && !isOff ? html`<p class="notice" id="notice">${error.message}</p>` : null}
      <nav class="tabs" ref=${tabs} aria-label="Pages">${names.map((one) => html`<a key=${one} href=${`#/run/${run}/${one}`} aria-current=${one === name ? "page" : null}>${titleOf(one)}</a>`)}</nav>
      <div key=${page}><${Page} key=${page} run=${run} more=${more} tick=${tick} overview=${overview} onready=${() => setDone(page)} /></div>`;
  }

  // The link of a run is known before its first report. The program may report to a run of another name.
  function Waiting({ tick }) {
    const { found } = useAnswer("runs", {}, tick);
    useEffect(() => ready("waiting"), []);
    const links = (found?.runs ?? []).slice(0, 3).map((run) => html` <a key=${run.id} href=${`#/run/${run.id}/overview`}><bdi>${run.experiment}/${run.trial}</bdi></a>`);
    return html`<div class="card" id="waiting"><p><b>Nothing was reported to this run yet.</b></p>
      <p class="quiet">This page shows it from its first report on. If none comes, otel-rl help troubleshooting has the causes. <a href="#/">All runs</a></p>
      <p id="others">${links.length ? html`The last active runs:${links}` : null}</p></div>`;
  }

  function Header({ run, overview: found, isOverview, isOff }) {
    const roles = Object.values(found.roles);
    const sum = (name) => roles.reduce((all, of) => all + of[name], 0);
    const alive = sum("alive"), expected = sum("expected");
    const left = found.total - found.step;
    const facts = !isOverview ? [] : [
      ["step", found.total ? `${found.step ?? "–"} of ${found.total}` : found.step ?? "–"], [otelRl.withLoss(found.shown ? found.shown.name : "reward", found.shown), otelRl.number(found.shown ? found.shown.last : null)], ["time per step", otelRl.duration(found.step_s)], ["duration", otelRl.duration(found.lasted_s)], ...(found.state === "running" && left > 0 && found.step_s ? [["left", otelRl.duration(left * found.step_s)]] : []), ["last data", otelRl.ago(found.idle_s, found.now_ms)],
      ["workers alive", expected ? `${found.state === "interrupted" ? "?" : alive} of ${expected}` : ["running", "stalled"].includes(found.state) ? String(alive) : "–"], ["worker failures", sum("failures")],
    ];
    return html`<div class="row"><h1><bdi>${found.experiment}</bdi></h1><${Badge} word=${found.state} /><span class="quiet cut"><bdi>${found.trial}</bdi></span><span class="grow"></span>
        ${otelRl.report || isOff || found.read < 1 ? null : html`<a id="save" href=${`/api/runs/${run}/report`} download=${`${found.experiment}-${found.trial}.html`.replace(/[^\w.-]+/g, "_")} title="The run as one file of 2 MB, to mail or to keep">Save as one file</a>`}</div>
      ${found.crash ? html`<p class="notice">${found.crash}</p>` : null}
      ${found.read < 1 ? html`<p class="notice">Reading the history: ${Math.round(100 * found.read)} %</p>` : null}
      ${facts.length ? html`<div class="facts">${facts.map(([name, value], place) => html`<div class="card fact" key=${place}><b class=${String(value).length > 10 ? "long" : null} title=${value}>${value}</b><span>${name}</span></div>`)}</div>` : html`<p></p>`}`;
  }

  // What a person may still want to see of a run that goes on, when its server has ended with it: charts and pages are
  // read one by one while nothing else is.
  function usePrefetch(run, overview, detail) {
    const newest = useRef(null);
    newest.current = { found: overview, detail };
    useEffect(() => {
      if (otelRl.report) return;
      const read = new Map();
      let timer = null;
      const next = async () => {
        await one().catch(() => { /* it is shown without */ });
        if (timer !== null) timer = setTimeout(next, 400);
      };
      const one = async () => {
        const { found, detail: asked } = newest.current;
        if (connection.value.state !== "live" || !["running", "stalled"].includes(found?.state) || document.hidden) return;
        const panels = found.sections.flatMap((section) => section.panels.map((panel) => ["panel", { id: panel.id, detail: asked }]));
        const due = [["workers", {}], ["timeline", {}], ["rollouts", {}], ["log", {}], ["health", {}], ...panels].find(([part, query]) => !(Date.now() - read.get(part + query.id) < PREFETCHED_EVERY_MS));
        if (!due) return;
        read.set(due[0] + due[1].id, Date.now());
        await otelRl.get(`runs/${run}/${due[0]}`, due[1]);
      };
      timer = setTimeout(next, 400);
      return () => { clearTimeout(timer); timer = null; };
    }, [run]);
  }

  // Paper is white, and has the charts that were not on the screen yet.
  let themeOfScreen = null;
  function forPaper(isOver) {
    if (!isOver) themeOfScreen ??= root.dataset.theme;
    root.dataset.theme = isOver ? themeOfScreen ?? root.dataset.theme : "light";
    if (isOver) { themeOfScreen = null; otelRl.forPaper.set(false); }
  }
  addEventListener("beforeprint", () => forPaper(false));
  addEventListener("afterprint", () => forPaper(true));

  async function print() {
    otelRl.forPaper.set(true);
    const isDrawn = () => { const charts = [...document.querySelectorAll("[data-panel]")]; return charts.length && charts.every((one) => one.data); };
    for (let looks = 0; looks < 300 && (looks < 2 || !isDrawn()); looks += 1) await new Promise((then) => { setTimeout(then, 100); });
    window.print();
  }

  // Keys

  const keys = new Map();
  otelRl.onKey = (key, act) => {
    const acts = keys.get(key) ?? new Set();
    keys.set(key, acts.add(act));
    return () => acts.delete(act);
  };

  document.addEventListener("keydown", (event) => {
    const { run, name } = route();
    if ((event.ctrlKey || event.metaKey) && event.key === "p" && name === "overview") {
      event.preventDefault();
      print();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (event.key === "t") nextTheme();
    else if (event.key === "?") document.getElementById("keys").showModal();
    else if (event.key === "r") location.hash = "#/";
    else if (event.key === "/") { event.preventDefault(); document.getElementById("search")?.focus(); }
    else if (run && event.key >= "1" && event.key <= String(names.length)) location.hash = `#/run/${run}/${names[Number(event.key) - 1]}`;
    else for (const act of keys.get(event.key) ?? []) act();
  });
  document.getElementById("theme").addEventListener("click", nextTheme);
  document.getElementById("help").addEventListener("click", () => document.getElementById("keys").showModal());
  document.addEventListener("securitypolicyviolation", (event) => { (otelRl.violations ??= []).push(`${event.violatedDirective} ${event.blockedURI}`); });
  addEventListener("error", (event) => { (otelRl.errors ??= []).push(event.message); });
  addEventListener("unhandledrejection", (event) => { (otelRl.errors ??= []).push(String(event.reason)); });

  // Back leads to where one was, scrolled as it was.
  history.scrollRestoration = "manual";
  let noting = null;
  let restoring = null;
  let put = null; // {y, height}: where one was led to, and how high the page was then
  addEventListener("scroll", () => {
    // Of a page as high as it was then, somebody has scrolled: a scrollbar tells of nothing else in some browsers.
    if (restoring && root.offsetHeight === put.height && Math.abs(window.scrollY - put.y) > 1) restored();
    if (restoring) return;
    clearTimeout(noting);
    noting = setTimeout(() => { try { history.replaceState({ scroll: window.scrollY }, ""); } catch { /* too many in a few seconds */ } }, 200);
  }, { passive: true });
  const restored = () => { restoring?.disconnect(); restoring = null; };
  for (const kind of ["wheel", "pointerdown", "keydown"]) addEventListener(kind, restored, { passive: true });
  function restore(scroll) {
    restored();
    const lead = () => { window.scrollTo(0, scroll); put = { y: window.scrollY, height: root.offsetHeight }; };
    lead();
    if (!scroll) return;
    // The page grows as its parts arrive, and a slow server takes long over them. Who scrolls is not taken back.
    const stays = restoring = new ResizeObserver(lead);
    stays.observe(document.documentElement);
    setTimeout(() => { if (restoring === stays) restored(); }, RESTORED_FOR_MS);
  }
  addEventListener("hashchange", () => {
    clearTimeout(otelRl.writing);
    clearTimeout(noting);
    const before = route();
    otelRl.place.set(otelRl.readPlace());
    const after = route();
    if (before.run !== after.run || before.name !== after.name || before.more !== after.more) document.body.dataset.ready = "";
    changes.set(changes.value + 1);
    restore(history.state?.scroll ?? 0);
  });

  setTheme(root.dataset.theme);
  // A report has it in its last script.
  if (otelRl.report) addEventListener("DOMContentLoaded", () => otelRl.charts.plotly.set(globalThis.Plotly ? "there" : "missing"));
  preact.render(html`<${App} />`, content);
  if (otelRl.report) connection.set({ state: "report" }); else follow();
}
