"use strict";
// Charts for papers and notebooks: a picture in colours of print, and values.
otelRl.saving = {
  Buttons({ run, panel, plot, query, axis, isDrawn, what, onfail }) {
    const { html, saving } = otelRl;
    const button = (kind, title, save) => html`<button type="button" title=${title} aria-label=${`${kind}, ${title}: ${panel.title}`} onClick=${async () => {
      try {
        saving.download(`${panel.title}.${kind}`, await save());
        onfail(null);
      } catch (error) {
        onfail(error.message);
      }
    }}>${kind}</button>`;
    return html`<span class="saving">${button("svg", "Save as a picture", () => saving.picture(plot.current, panel.title))}
      ${button("csv", "Save the values", () => (isDrawn ? saving.shown(plot.current, axis, what) : saving.values(run, query, axis)))}</span>`;
  },

  // On white, and with what the card's title tells at the axis.
  async picture(plot, title) {
    if (!plot?.data) throw new Error("The chart is not drawn yet.");
    const ink = { color: "#222222" };
    const axis = (of) => ({ ...of, gridcolor: "#e6e6e6", linecolor: "#888888", zerolinecolor: "#e6e6e6", tickfont: { ...of.tickfont, ...ink } });
    const { xaxis, yaxis, ...rest } = plot.layout;
    const layout = {
      ...rest, showlegend: plot.data.filter((one) => one.showlegend !== false).length > 1, paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff", font: { ...rest.font, ...ink }, margin: { l: 70, r: 20, t: 20, b: 80 },
      xaxis: axis(xaxis), yaxis: { ...axis(yaxis), title: { text: otelRl.plain(title), font: { size: 12 } } },
    };
    return Plotly.toImage({ data: plot.data, layout }, { format: "svg", width: 640, height: 400 });
  },

  // Every value in the part of x that the chart shows. One a line, because a run that went back has a step twice.
  async values(run, query, axis) {
    const { lines } = await otelRl.get(`runs/${run}/panel`, { ...query, every: 1 });
    const at = query.x === "time" ? (ms) => new Date(ms) : (x) => x;
    return otelRl.saving.csv(axis, "key", lines.map(({ key, xs, ys }) => [key, xs.map(at), ys]));
  },

  // The points that are drawn, but for smoothing: of several runs, or in a file without a server. `what` they are.
  shown(plot, axis, what = "value") {
    return otelRl.saving.csv(axis, "line", (plot?.measured ?? []).map(({ name, x, y }) => [otelRl.asNamed(name), x, y]), what);
  },

  csv(axis, names, lines, what = "value") {
    // No name that a sender chose is a formula of a spreadsheet.
    const text = (one) => { const safe = one.replace(/^[=+\-@\t\r]/, "'$&"); return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe; };
    const rows = lines.flatMap(([name, xs, ys]) => xs.map((x, place) => `${x instanceof Date ? x.toISOString() : x},${text(name)},${ys[place] ?? ""}`));
    return `data:text/csv;charset=utf-8,${encodeURIComponent([`${text(axis)},${names},${text(what)}`, ...rows].join("\n") + "\n")}`;
  },

  download(name, url) {
    const link = Object.assign(document.createElement("a"), { href: url, download: name.replace(/[^\w.-]+/g, "_") });
    document.body.append(link);
    link.click();
    link.remove();
  },
};
