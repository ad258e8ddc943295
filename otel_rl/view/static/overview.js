"use strict";
otelRl.pages.overview = class {
  constructor(root, run) {
    this.root = root;
    this.run = run;
    this.x = "step";
    this.detail = "basic";
    this.search = "";
    this.cards = new Map(); // by the panel's id
  }

  close() { for (const card of this.cards.values()) card.observer.disconnect(); }

  async refresh() {
    this.found = await otelRl.get(`runs/${this.run}/overview`, { detail: this.detail === "full" ? "full" : null });
    this.draw();
    for (const card of this.cards.values()) if (card.plot.seen) this.show(card);
    this.diagnose();
  }

  diagnose() {
    otelRl.get(`runs/${this.run}/diagnosis`).then((found) => {
      this.diagnosis = found;
      this.verdict();
      if (found.read < 1) setTimeout(() => this.diagnose(), 500);
    }, () => {});
  }

  draw() {
    const { h } = otelRl;
    if (!this.made) {
      this.made = true;
      this.top = h("div", { class: "card verdict", id: "verdict" }, h("span", { class: "quiet" }, "Looking for faults …"));
      this.goodput = h("div", { class: "card quiet", id: "goodput", role: "img" });
      this.controls = h("div", { class: "row controls" });
      this.body = h("div");
      this.picked = h("div", { id: "picked", role: "status" });
      otelRl.fill(this.root, this.top, this.goodput, this.controls, this.body, this.picked);
      this.fillControls();
    }
    this.goodput.hidden = !this.found.goodput;
    if (this.found.goodput) this.drawGoodput(this.found.goodput);
    const wanted = this.search.toLowerCase();
    const sections = [];
    const known = new Set();
    for (const section of this.found.sections) {
      const panels = section.panels.filter((panel) => !wanted || `${panel.title} ${panel.keys.join(" ")}`.toLowerCase().includes(wanted));
      panels.forEach((panel) => known.add(panel.id));
      if (panels.length) sections.push([section.title, panels]);
    }
    const shape = JSON.stringify(sections.map(([title, panels]) => [title, panels.map((panel) => panel.id)]));
    if (shape === this.shape) return;
    this.shape = shape;
    otelRl.fill(this.body, ...sections.map(([title, panels]) => h("section", {}, h("h2", {}, title),
      h("div", { class: "charts" }, panels.map((panel) => this.card(panel).element)))));
    if (!sections.length) {
      otelRl.fill(this.body, h("p", { class: "empty" }, wanted ? "No chart has this in its name." : "There are no values yet."));
    }
  }

  // One bar for the run and one for each role: shares of worker time.
  drawGoodput({ words, spent }) {
    const { h, duration } = otelRl;
    const names = ["productive", "overhead", "idle", "wasted"];
    this.goodput.setAttribute("aria-label", words);
    otelRl.fill(this.goodput,
      h("div", { class: "row" }, h("b", {}, words.split(":")[0]), h("span", { class: "grow" }),
        names.map((name) => h("span", { class: "part" }, h("i", { class: name }), `${name} ${duration(spent[""][`${name}_s`])}`))),
      Object.entries(spent).map(([role, of]) => {
        const all = names.reduce((sum, name) => sum + of[`${name}_s`], 0);
        return all > 0 ? [h("span", {}, h("bdi", { class: "cut" }, role || "run")), h("span", { class: "bars" }, names.map((name) =>
          h("i", { class: name, style: `width:${(100 * of[`${name}_s`]) / all}%`, title: `${role || "run"}: ${name} ${duration(of[`${name}_s`])}, ${Math.round((100 * of[`${name}_s`]) / all)} %` })))] : null;
      }));
  }

  fillControls() {
    const { h } = otelRl;
    const again = (change) => { change(); this.fillControls(); this.cards.forEach((card) => { card.range = null; card.version = null; }); this.refresh(); };
    otelRl.fill(this.controls, h("span", { class: "grow" }), ...(otelRl.report ? [] : [
      otelRl.toggle([["step", "by step"], ["time", "by time"]], this.x, (x) => again(() => { this.x = x; }), "x axis"),
      otelRl.toggle([["basic", "basic detail"], ["full", "full detail"]], this.detail, (detail) => again(() => { this.detail = detail; }), "detail")]),
    h("input", { type: "search", id: "search", placeholder: "Find a chart", "aria-label": "Find a chart", value: this.search,
      oninput: (event) => { this.search = event.target.value; this.draw(); } }));
  }

  card(panel) {
    const { h } = otelRl;
    let card = this.cards.get(panel.id);
    if (!card) {
      const plot = h("div", { class: "plot", "data-panel": panel.id });
      card = { panel, plot, detail: this.detail === "full" ? "full" : null };
      card.element = h("article", { class: "card chart" },
        h("div", { class: "title" }, h("h3", { title: `${panel.title}\n${panel.keys.join("\n")}` }, h("bdi", {}, panel.title)), otelRl.saving.buttons(card, this.run)), plot);
      card.observer = otelRl.charts.whenSeen(plot, () => this.show(card));
      this.cards.set(panel.id, card);
    }
    return card;
  }

  async show(card) {
    if (card.busy) return;
    card.busy = true;
    try {
      const [first, last] = card.range || [null, null];
      const time = this.x === "time";
      const found = await otelRl.get(`runs/${this.run}/panel`, {
        id: card.panel.id, x: time ? "time" : null, detail: this.detail === "full" ? "full" : null,
        first: first === null ? null : time ? Date.parse(first) : first, last: last === null ? null : time ? Date.parse(last) : last,
      });
      card.lines = found.lines;
      this.plot(card);
    } catch (error) {
      otelRl.fill(card.plot, otelRl.h("p", { class: "empty" }, error.message));
    } finally {
      card.busy = false;
    }
  }

  plot(card) {
    const isTime = this.x === "time";
    const marks = this.found.failures.filter((one) => isTime || one.step !== null)
      .map((one) => ({ x: isTime ? new Date(one.time_ms) : one.step, kind: "failure" }));
    if (!isTime && this.diagnosis) {
      for (const cause of this.diagnosis.causes) if (cause.since_step !== null) marks.push({ x: cause.since_step, kind: "cause" });
    }
    otelRl.charts.lines(card.plot, card.panel, card.lines, {
      x: this.x, marks, onzoom: otelRl.report ? null : (first, last) => { card.range = first === null ? null : [first, last]; this.show(card); },
      onstep: otelRl.report ? null : (at) => this.pick(at),
    });
  }

  // A step that stands out in a chart leads to its spans and its samples.
  pick(step) {
    const { h } = otelRl;
    const close = () => this.picked.replaceChildren();
    if (this.x !== "step") return;
    otelRl.fill(this.picked, h("div", { class: "card row" }, h("b", {}, `Step ${step}`), h("a", { href: `#/run/${this.run}/timeline/${step}` }, "spans"), h("a", { href: `#/run/${this.run}/rollouts/${step}` }, "samples"),
      h("button", { type: "button", "aria-label": "Close", onclick: close }, "×")));
  }

  keys(key) { if (key === "Escape") this.picked?.replaceChildren(); }

  verdict() {
    const { h } = otelRl;
    const headline = ({ kind, worker, role }) => [kind, worker || role].filter(Boolean).join(" ");
    const { verdict, words, causes, symptoms, bound, failures, seen } = this.diagnosis;
    const kind = { "no clear cause": "unclear" }[verdict] || verdict;
    this.top.className = `card verdict ${kind}`;
    otelRl.fill(this.top,
      h("div", { class: "row" }, otelRl.badge(verdict), h("b", {}, causes.length > 0 ? headline(causes[0]) : words),
        bound ? h("span", { class: "quiet" }, `most of a step: ${bound.role}/${bound.phase}, ${Math.round(100 * bound.share)} %`) : null),
      causes.length > 0 ? h("ol", {}, causes.map((cause) => h("li", {}, h("b", {}, cause.kind), ` ${cause.words} `,
        cause.phase && !otelRl.report ? h("a", { href: `#/run/${this.run}/workers/${encodeURIComponent(`${cause.role}/${cause.phase}`)}` }, "by worker") : null,
        cause.evidence.slice(0, 3).map((one) => h("div", { class: "evidence" },
          [one.what, one.worker ? ` of ${one.worker}` : "", one.before !== null && one.after !== null ? `: ${otelRl.number(one.before)} → ${otelRl.number(one.after)} ${one.unit}` : ""].join("")))))) : null,
      [...(symptoms || []), ...(failures || []), ...(seen && !causes.length ? [`seen: ${seen}`] : [])].map((one) => h("div", { class: "evidence" }, one)));
    if (causes.length) this.redraw();
  }

  // Draws what was not on the screen yet.
  async complete() { for (const card of this.cards.values()) if (!card.lines) await this.show(card); }

  redraw() { for (const card of this.cards.values()) if (card.lines) this.plot(card); }
};
