"use strict";
{
  const { h } = otelRl;
  const content = document.getElementById("content");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  let page = null;
  let header = null;
  let busy = false;
  let again = false;

  const embedded = document.getElementById("report");
  if (embedded) otelRl.report = JSON.parse(embedded.textContent);
  const names = otelRl.report ? otelRl.report.pages : ["overview", "timeline", "workers", "rollouts", "health"];

  otelRl.isDark = () => root.dataset.theme === "dark" || (root.dataset.theme === "auto" && system.matches);

  function setTheme(theme) {
    root.dataset.theme = theme;
    try { localStorage.setItem("otel_rl.theme", theme); } catch { /* storage is off */ }
    document.getElementById("theme").textContent = { auto: "◐", light: "☀", dark: "☾" }[theme];
    page?.redraw?.();
  }

  function nextTheme() { setTheme({ auto: "light", light: "dark", dark: "auto" }[root.dataset.theme] || "auto"); }

  function route() {
    const [kind, run, name, more] = location.hash.replace(/^#\/?/, "").split("/");
    if (kind === "run" && run) return { run, name: names.includes(name) ? name : "overview", more };
    if (otelRl.report) return { run: otelRl.report.runs.only, name: "overview" };
    return { name: "runs" };
  }

  async function open() {
    const to = route();
    page?.close?.();
    document.body.dataset.ready = "";
    header = null;
    const body = h("div", {}, h("p", { class: "empty" }, "Reading …"));
    if (to.run) {
      header = h("div");
      const tabs = h("nav", { class: "tabs", "aria-label": "Pages" }, names.map((name) =>
        h("a", { href: `#/run/${to.run}/${name}`, "aria-current": name === to.name ? "page" : null }, name[0].toUpperCase() + name.slice(1))));
      otelRl.fill(content, header, tabs, body);
    } else {
      otelRl.fill(content, body);
    }
    document.getElementById("crumbs").textContent = "";
    page = new otelRl.pages[to.name](body, to.run, to.more);
    page.name = to.name;
    await refresh();
    window.scrollTo(0, 0);
  }

  async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    const shown = page;
    try {
      await shown.refresh();
      if (header) await fillHeader(route().run);
      document.getElementById("notice")?.remove();
      if (page === shown) document.body.dataset.ready = shown.name;
    } catch (error) {
      document.getElementById("notice")?.remove();
      if (error.status === 404 && page === shown && header) wait();
      else content.prepend(h("p", { class: "notice", id: "notice" }, error.message));
    } finally {
      busy = false;
      if (again || page !== shown) { again = false; refresh(); }
    }
  }

  // The link of a run is known before its first report.
  function wait() {
    document.body.dataset.ready = "waiting";
    otelRl.fill(header, h("div", { class: "card", id: "waiting" },
      h("p", {}, h("b", {}, "Nothing was reported to this run yet.")),
      h("p", { class: "quiet" }, "This page shows it from its first report on. If none comes, otel-rl help quickstart has the causes. ", h("a", { href: "#/" }, "All runs")),
      h("p", { id: "others" })));
    content.lastChild.replaceChildren();
    nameOthers(document.getElementById("others")).catch(() => { /* asked again with the page */ });
  }

  // The program may report to a run of another name.
  async function nameOthers(place) {
    const { runs } = await otelRl.get("runs");
    const links = runs.slice(0, 3).flatMap((run) => [" ", h("a", { href: `#/run/${run.id}/overview` }, h("bdi", {}, `${run.experiment}/${run.trial}`))]);
    if (links.length) otelRl.fill(place, "The last active runs:", ...links);
  }

  async function fillHeader(run) {
    const found = page.name === "overview" ? page.found : await otelRl.get(`runs/${run}/overview`);
    const roles = Object.values(found.roles);
    const alive = roles.reduce((sum, of) => sum + of.alive, 0);
    const expected = roles.reduce((sum, of) => sum + of.expected, 0);
    const failures = roles.reduce((sum, of) => sum + of.failures, 0);
    const facts = page.name !== "overview" ? [] : [
      ["step", found.step ?? "–"], [otelRl.withLoss(found.shown ? found.shown.name : "reward", found.shown), otelRl.number(found.shown ? found.shown.last : null)], ["time per step", otelRl.duration(found.step_s)], ["duration", otelRl.duration(found.lasted_s)], ["last data", `${otelRl.duration(found.idle_s)} ago`],
      ["workers alive", expected ? `${found.state === "interrupted" ? "?" : alive} of ${expected}` : ["running", "stalled"].includes(found.state) ? String(alive) : "–"], ["worker failures", failures],
    ];
    document.getElementById("crumbs").textContent = `${found.experiment} / ${found.trial}`;
    document.title = `${found.experiment} – otel_rl`;
    otelRl.fill(header,
      h("div", { class: "row" }, h("h1", {}, h("bdi", {}, found.experiment)), otelRl.badge(found.state), h("span", { class: "quiet cut" }, h("bdi", {}, found.trial)), h("span", { class: "grow" }),
        otelRl.report || found.read < 1 ? null : h("a", { id: "save", href: `/api/runs/${run}/report`, download: `${found.experiment}-${found.trial}.html`.replace(/[^\w.-]+/g, "_"), title: "The run as one file of 5 MB, to mail or to keep" }, "Save as one file")),
      found.crash ? h("p", { class: "notice" }, found.crash) : "",
      found.read < 1 ? h("p", { class: "notice" }, `Reading the history: ${Math.round(100 * found.read)} %`) : "",
      facts.length ? h("div", { class: "facts" }, facts.map(([name, value]) => h("div", { class: "card fact" }, h("b", {}, value), h("span", {}, name)))) : h("p", {}));
    if (found.read < 1) again = true;
  }

  // Changes are told by the server; where that fails, the page asks now and then.
  function follow() {
    const live = document.getElementById("live");
    if (otelRl.report) { // what is "ago" in it, is before this time
      const { now_ms: made } = otelRl.report[`runs/${otelRl.report.runs.only}/overview`];
      live.textContent = `report of ${new Date(made).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" })}`;
      return;
    }
    let asking = null;
    let last = 0;
    const changed = () => {
      clearTimeout(asking);
      asking = setTimeout(() => { last = Date.now(); refresh(); }, Math.max(0, 2000 - (Date.now() - last)));
    };
    const events = new EventSource("/api/events");
    let revision = null;
    events.onmessage = (event) => {
      live.textContent = "live";
      live.classList.add("on");
      if (revision !== null && event.data !== revision) changed();
      revision = event.data;
    };
    events.onerror = () => { live.textContent = "not connected"; live.classList.remove("on"); };
    setInterval(() => { if (events.readyState === EventSource.CLOSED) changed(); }, 10000);
  }

  // Paper is white, and has the charts that were not on the screen yet.
  let themeOfScreen = null;
  function forPaper(isOver) {
    if (!isOver) themeOfScreen ??= root.dataset.theme;
    root.dataset.theme = isOver ? themeOfScreen ?? root.dataset.theme : "light";
    if (isOver) themeOfScreen = null;
    page?.redraw?.();
  }
  addEventListener("beforeprint", () => forPaper(false));
  addEventListener("afterprint", () => forPaper(true));

  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "p" && page?.complete) {
      event.preventDefault();
      page.complete().then(() => window.print());
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const { run } = route();
    if (event.key === "t") nextTheme();
    else if (event.key === "?") document.getElementById("keys").showModal();
    else if (event.key === "r") location.hash = "#/";
    else if (event.key === "/") { event.preventDefault(); document.getElementById("search")?.focus(); }
    else if (run && event.key >= "1" && event.key <= String(names.length)) location.hash = `#/run/${run}/${names[Number(event.key) - 1]}`;
    else page?.keys?.(event.key);
  });
  document.getElementById("theme").addEventListener("click", nextTheme);
  document.getElementById("help").addEventListener("click", () => document.getElementById("keys").showModal());
  document.addEventListener("securitypolicyviolation", (event) => { (otelRl.violations ??= []).push(`${event.violatedDirective} ${event.blockedURI}`); });
  addEventListener("error", (event) => { (otelRl.errors ??= []).push(event.message); });
  addEventListener("unhandledrejection", (event) => { (otelRl.errors ??= []).push(String(event.reason)); });
  addEventListener("hashchange", open);
  system.addEventListener("change", () => page?.redraw?.());
  setTheme(root.dataset.theme);
  open();
  follow();
}
