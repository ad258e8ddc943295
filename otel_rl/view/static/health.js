"use strict";
otelRl.pages.health = class {
  constructor(root, run) {
    this.root = root;
    this.run = run;
  }

  async refresh() {
    const { h, bytes, duration } = otelRl;
    const found = await otelRl.get(`runs/${this.run}/health`);
    const isSize = (one) => one.name.includes("journal");
    const facts = [
      ["tracker", found.tracker || "–"], ["delivery", found.state || "–"], ["rows", found.rows.toLocaleString("en")],
      ["rows not confirmed yet", found.unconfirmed.toLocaleString("en")], ["requests not read yet", bytes(found.waiting_bytes)],
    ];
    const link = /^https?:\/\//.test(found.location) ? h("a", { href: found.location, rel: "noreferrer", target: "_blank" }, found.location) : h("code", {}, found.location || "not opened yet");
    otelRl.fill(this.root, h("h2", { class: "unseen" }, "Health"),
      found.error ? h("p", { class: "notice" }, `${found.error} (for ${duration(found.error_s)})`) : "",
      h("div", { class: "facts" }, facts.map(([name, value]) => h("div", { class: "card fact" }, h("b", { title: value }, value), h("span", {}, name)))),
      h("p", { class: "quiet" }, "Run in the tracker: ", link),
      h("div", { class: "two" },
        h("div", { class: "card" }, h("h3", {}, "Bounds"), h("p", {}), found.bounds.map((one) => {
          const share = one.used / one.bound;
          const text = (value) => (isSize(one) ? bytes(value) : value.toLocaleString("en"));
          return [h("div", { class: "row" }, h("span", { class: "grow" }, one.name), h("span", { class: "quiet" }, `${text(one.used)} of ${text(one.bound)}`)),
            h("div", { class: `meter ${share > 0.8 ? "near" : ""}`, role: "meter", "aria-valuenow": Math.round(100 * share), "aria-label": one.name }, h("i", { style: `width:${Math.min(100, 100 * share)}%` }))];
        })),
        h("div", { class: "card" }, h("h3", {}, "Failures of workers"), found.failures.length ? h("ul", {}, found.failures.map((one) => h("li", {}, one))) : h("p", { class: "quiet" }, "None.")),
        h("div", { class: "card wide scroll", tabindex: "0", role: "region", "aria-label": "Counters" }, h("h3", {}, "Counters of this run"), found.counts.length ? h("table", {}, h("tbody", {}, found.counts.map((one) => h("tr", {}, h("td", {}, one.key), h("td", {}, `${otelRl.number(one.value)} ${one.unit}`))))) : h("p", { class: "quiet" }, "None yet.")),
        h("div", { class: "card wide scroll", id: "environment" }, h("h3", {}, "Environment"), Object.values(found.environment).some(Boolean) ? null : h("p", { class: "quiet" }, "Not reported."), h("table", {}, h("tbody", {}, Object.entries(found.environment).filter(([, value]) => value).map(([key, value]) => h("tr", {}, h("td", {}, key), h("td", { class: "text" }, value))))))));
  }
};
