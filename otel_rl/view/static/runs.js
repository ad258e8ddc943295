"use strict";
otelRl.pages.runs = class {
  constructor(root) {
    this.root = root;
    this.chosen = null; // of the comparison: null for the first three
    this.key = null; // null for reward or loss
    this.x = "step";
    this.search = "";
    this.older = []; // of the runs that are left out, those that were searched for
    this.results = new Map(); // of the runs far down the list, by id
    this.order = { by: null, down: false };
    this.listed = new Map(); // by the run's id, with the step at which they were asked for
    this.units = new Map(); // by key
    this.colors = new Map(); // places in the palette by the run's id
  }

  async refresh() {
    this.found = await otelRl.get("runs");
    if (this.found.left_out) await this.findOlder();
    await this.draw();
    if (this.found.runs.some((run) => run.shown === undefined)) this.readResults().catch(() => { /* asked again with the page */ });
  }

  // Rewards and verdicts of the runs far down the list take some time.
  async readResults() {
    if (this.isReading) return;
    this.isReading = true;
    try {
      for (let unread = 1; unread && !this.isClosed;) {
        const found = await otelRl.get("results");
        unread = found.unread;
        for (const [id, result] of Object.entries(found.runs)) this.results.set(id, result);
        if (!this.isClosed) this.drawTable();
      }
    } finally {
      this.isReading = false;
    }
  }

  async findOlder() {
    const { search } = this;
    const { runs } = search ? await otelRl.get("runs", { search }) : { runs: [] };
    if (search !== this.search) return; // more was typed
    const kept = this.older.filter((run) => this.chosen?.has(run.id));
    const known = new Set([...this.found.runs, ...kept].map((run) => run.id));
    this.older = [...kept, ...runs.filter((run) => !known.has(run.id))];
  }

  async draw() {
    const { h } = otelRl;
    const { faults } = this.found;
    const runs = this.all();
    if (!this.made) {
      this.made = true;
      this.table = h("div", { class: "card scroll list" });
      this.find = h("input", { type: "search", id: "search", placeholder: "Find a run", "aria-label": "Find a run",
        oninput: (event) => { this.search = event.target.value; this.hide(); clearTimeout(this.timer); if (this.found.left_out) this.timer = setTimeout(() => this.refresh(), 300); } });
      this.plot = h("div", { class: "plot", id: "compare" });
      this.controls = h("div", { class: "row controls" });
      this.note = h("p", { class: "quiet" });
      this.differences = h("div", { class: "card scroll", id: "differences" });
      this.compare = h("section", {}, this.controls, h("div", { class: "card" }, this.plot), this.note, this.differences);
      this.notes = h("div");
      this.ordering = h("span", { class: "narrow-only" });
      otelRl.fill(this.root, h("div", { class: "row controls" }, h("h1", { class: "grow" }, "Runs"), this.ordering, this.find), this.notes, this.table, this.compare);
    }
    otelRl.fill(this.notes, ...faults.map((fault) => h("p", { class: "notice" }, fault)));
    if (!runs.length) {
      otelRl.fill(this.table, h("p", { class: "empty" }, "There is no run here yet. Start one with ",
        h("code", {}, "otel-rl demo"), " or ", h("code", {}, "otel-rl run -- python train.py"), "."));
      this.compare.hidden = true;
      return;
    }
    this.drawTable();
    const comparable = runs.filter((run) => run.step !== null);
    const chosen = this.chosenOf(comparable);
    this.compare.hidden = comparable.length === 0;
    for (const run of comparable) if (!this.colors.has(run.id)) this.colors.set(run.id, this.colors.size);
    return this.showCompared(comparable.filter((run) => chosen.has(run.id)));
  }

  all() { return [...this.found.runs, ...this.older].map((run) => ({ ...this.results.get(run.id), ...run })); }

  chosenOf(comparable) { return this.chosen || new Set(comparable.slice(0, 3).map((run) => run.id)); }

  drawTable() {
    const { h } = otelRl;
    const runs = this.all();
    const chosen = this.chosenOf(runs.filter((run) => run.step !== null));
    const last = (run) => { const value = run.shown?.last; return typeof value === "string" ? -Infinity : value; };
    const columns = [["Compare", null], ["Run", (run) => `${run.experiment}/${run.trial}`], ["State", (run) => run.state], ["Step", (run) => run.step], ["Trend", null],
      ["Reward", last], ["Verdict", (run) => run.verdict], ["Workers", (run) => this.workers(run).alive, "wide-only"], ["Duration", (run) => run.lasted_s, "wide-only"], ["Last data", (run) => run.idle_s]];
    const [head, sorted] = otelRl.sortable(columns, runs, this.order, () => this.drawTable());
    otelRl.keepFocus(this.table, () => {
      otelRl.fill(this.table, h("table", {}, head, h("tbody", {}, sorted.map((run) => this.line(run, chosen)))));
      const leftOut = this.found.left_out - this.older.length;
      if (leftOut > 0) this.table.append(h("p", { class: "quiet" }, `and ${leftOut} older runs: search finds them by name`));
    });
    const orders = [["", "as listed"], ...columns.filter(([, value]) => value).map(([name]) => [name, name.toLowerCase()])];
    const reorder = (by) => {
      this.order = { by: by || null, down: !["Run", "State", "Verdict", "Last data"].includes(by) };
      this.drawTable();
    };
    otelRl.keepFocus(this.ordering, () => otelRl.fill(this.ordering, otelRl.select("order", orders, this.order.by ?? "", reorder)));
    this.hide();
  }

  workers(run) {
    const roles = Object.values(run.roles);
    return { alive: roles.reduce((sum, of) => sum + of.alive, 0), expected: roles.reduce((sum, of) => sum + of.expected, 0) };
  }

  // Shows the runs whose line has the searched text; the comparison stays as it was chosen.
  hide() {
    const wanted = this.search.toLowerCase();
    for (const line of this.table.querySelectorAll("[data-run]")) line.hidden = !line.textContent.toLowerCase().includes(wanted);
  }

  // Draws one key of the chosen runs; each run keeps its colour.
  async showCompared(runs) {
    const asked = this.asked = {};
    const drawn = await Promise.all(runs.map(async (run) => [run, await this.keysOf(run)]));
    const sections = new Map();
    for (const [, of] of drawn) {
      for (const { title, keys, units } of of) {
        sections.set(title, new Set([...(sections.get(title) || []), ...keys]));
        keys.forEach((key, place) => { if (units[place]) this.units.set(key, units[place]); });
      }
    }
    const known = [...sections.values()].flatMap((keys) => [...keys]);
    const usual = runs.map((run) => run.shown && run.shown.key).find((key) => known.includes(key));
    const key = known.includes(this.key) ? this.key : usual || known[0] || "";
    const time = this.x === "time" ? "time" : null;
    const lines = !key ? [] : await Promise.all(runs.map((run) => otelRl.get(`runs/${run.id}/series`, { key, x: time })));
    if (this.asked !== asked) return; // another choice was made meanwhile
    this.fillControls(sections, key);
    const without = runs.filter((_, place) => lines[place] && !lines[place].xs.length).map((run) => `${run.experiment}/${run.trial}`);
    this.note.textContent = key && without.length ? `Without this key: ${without.join(", ")}` : "";
    this.plotCompared(runs, lines, key);
    this.differences.hidden = runs.length < 2;
    if (runs.length > 1) this.showDifferences(runs, asked).catch((error) => otelRl.fill(this.differences, h("p", { class: "empty" }, error.message)));
    if (lines.some((one) => one.read < 1)) setTimeout(() => { if (this.asked === asked) this.draw(); }, 500);
  }

  // Settings, command and code in which the chosen runs differ.
  async showDifferences(runs, asked) {
    const { h } = otelRl;
    const found = await Promise.all(runs.map((run) => otelRl.get(`runs/${run.id}/environment`)));
    if (this.asked !== asked) return;
    const names = [...new Set(found.flatMap((one) => Object.keys(one)))].filter((name) => new Set(found.map((one) => one[name] ?? "")).size > 1);
    const rows = names.sort((a, b) => b.startsWith("config ") - a.startsWith("config "));
    otelRl.fill(this.differences, h("h3", {}, "Differences of config and code"), rows.length ? h("table", {},
      h("thead", {}, h("tr", {}, ["key", ...runs.map((run) => `${run.experiment}/${run.trial}`)].map((text) => h("th", { scope: "col" }, h("bdi", {}, text))))),
      h("tbody", {}, rows.map((name) => h("tr", {}, h("th", { scope: "row" }, h("bdi", {}, name.replace(/^config /, ""))), found.map((one) => h("td", { class: "text" }, one[name] ?? "–")))))) : h("p", { class: "quiet" }, "None was reported."));
  }

  close() { this.asked = null; this.isClosed = true; }

  async keysOf(run) {
    const known = this.listed.get(run.id);
    if (known && known.step === run.step) return known.sections;
    const { sections, read } = await otelRl.get(`runs/${run.id}/series`);
    if (read === 1) this.listed.set(run.id, { step: run.step, sections });
    return sections;
  }

  fillControls(sections, chosen) {
    const { h } = otelRl;
    const again = (change) => { change(); this.draw(); };
    otelRl.fill(this.controls, h("h2", { class: "grow" }, "Compare"),
      otelRl.toggle([["step", "by step"], ["time", "by hours"]], this.x, (x) => again(() => { this.x = x; }), "x axis"),
      h("select", { id: "key", "aria-label": "key", onchange: (event) => again(() => { this.key = event.target.value; }) },
        [...sections].map(([title, keys]) => h("optgroup", { label: title }, [...keys].map((key) => h("option", { value: key, selected: key === chosen }, otelRl.withUnit(key, this.units.get(key))))))));
  }

  plotCompared(runs, lines, key) {
    const { palette, notFinite, withTrend } = otelRl.charts;
    const font = { size: 11 };
    const traces = lines.flatMap((line, place) => {
      const run = runs[place];
      const color = palette[this.colors.get(run.id) % palette.length];
      const drawn = withTrend(line, (x) => x, {
        type: "scatter", mode: line.xs.length < 3 ? "markers" : "lines", connectgaps: false,
        name: otelRl.plain(`${run.experiment}/${run.trial}`), line: { width: 2, color }, marker: { color }, hovertemplate: `%{y:.4~g} ${otelRl.plain(this.units.get(key) ?? "")}`,
      });
      const crosses = notFinite(drawn);
      if (!crosses) return drawn;
      // Each run has a line of crosses of its own, in its colour.
      const name = `${drawn[0].name}: ${crosses.name}`;
      return [...drawn, { ...crosses, name, y: crosses.x.map(() => 0.03 * (1 + place)), marker: { ...crosses.marker, color }, hovertemplate: "NaN or infinite" }];
    }).filter((one) => one.x.length);
    const lost = traces.some((one) => one.yaxis === "y2");
    otelRl.charts.draw(this.plot, traces, {
      showlegend: true, margin: { l: 44, r: 10, t: 6, b: 50 }, uirevision: `${key} ${this.x}`,
      yaxis: { title: { text: otelRl.plain(otelRl.withUnit(key, this.units.get(key))), font } }, xaxis: { title: { text: this.x === "time" ? "hours" : "step", standoff: 4, font } },
      ...(lost ? { yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true } } : {}),
    });
    otelRl.charts.byKeyboard(this.plot, "Compared runs", () => otelRl.charts.pointsOf(this.plot, this.units.get(key), null));
  }

  line(run, chosen) {
    const { h } = otelRl;
    const { alive, expected } = this.workers(run);
    return h("tr", { "data-run": run.id },
      h("td", {}, run.step !== null ? h("input", {
        type: "checkbox", "data-focus": `compare ${run.id}`, "aria-label": `compare ${run.experiment}/${run.trial}`, checked: chosen.has(run.id),
        onchange: (event) => { if (event.target.checked) chosen.add(run.id); else chosen.delete(run.id); this.chosen = chosen; this.draw(); },
      }) : null),
      h("td", {}, h("a", { href: `#/run/${run.id}/overview`, class: "cut", "data-focus": `open ${run.id}` }, h("bdi", {}, run.experiment)),
        h("span", { class: "quiet cut trial" }, h("bdi", {}, run.trial)), run.crash ? h("div", { class: "quiet" }, run.crash) : null),
      h("td", {}, otelRl.badge(run.state)), h("td", { "data-label": "step" }, run.step ?? "–"),
      h("td", {}, run.shown && run.shown.ys.length ? otelRl.spark(run.shown.ys) : null),
      h("td", { title: run.shown ? run.shown.key : null, "data-label": run.shown?.name === "reward" ? "reward" : null }, run.shown ? otelRl.number(run.shown.last) : "–",
        h("div", { class: "quiet" }, otelRl.withLoss(run.shown && run.shown.name !== "reward" ? run.shown.name : "", run.shown))),
      h("td", {}, run.verdict ? otelRl.badge(run.verdict) : "–", run.cause ? h("div", { class: "quiet" }, h("bdi", { class: "cut" }, run.cause)) : null),
      h("td", { class: "wide-only" }, expected ? `${run.state === "interrupted" ? "?" : alive} of ${expected}` : "–"),
      h("td", { class: "wide-only" }, otelRl.duration(run.lasted_s)), h("td", {}, `${otelRl.duration(run.idle_s)} ago`));
  }
};
