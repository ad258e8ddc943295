"use strict";
// Charts for papers and notebooks: a picture in colours of print, and every value.
otelRl.saving = {
  Buttons({ run, panel, plot, detail, onfail }) {
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
      ${otelRl.report ? null : button("csv", "Save the values", () => saving.values(run, panel, detail))}</span>`;
  },

  // On white, and with what the card's title tells at the axis.
  async picture(plot, title) {
    const ink = { color: "#222222" };
    const axis = (of) => ({ ...of, gridcolor: "#e6e6e6", linecolor: "#888888", zerolinecolor: "#e6e6e6", tickfont: { ...of.tickfont, ...ink } });
    const { xaxis, yaxis, ...rest } = plot.layout;
    const layout = {
      ...rest, showlegend: plot.data.filter((one) => one.showlegend !== false).length > 1, paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff", font: { ...rest.font, ...ink }, margin: { l: 70, r: 20, t: 20, b: 80 },
      xaxis: axis(xaxis), yaxis: { ...axis(yaxis), title: { text: otelRl.plain(title), font: { size: 12 } } },
    };
    return Plotly.toImage({ data: plot.data, layout }, { format: "svg", width: 640, height: 400 });
  },

  // One value a line, because a run that went back has a step twice.
  async values(run, panel, detail) {
    const text = (one) => (/[",\n]/.test(one) ? `"${one.replaceAll('"', '""')}"` : one);
    const { lines } = await otelRl.get(`runs/${run}/panel`, { id: panel.id, detail, every: 1 });
    const rows = lines.flatMap((line) => line.xs.map((x, place) => `${x},${text(line.key)},${line.ys[place] ?? ""}`));
    return `data:text/csv;charset=utf-8,${encodeURIComponent(["step,key,value", ...rows].join("\n") + "\n")}`;
  },

  download(name, url) {
    const link = Object.assign(document.createElement("a"), { href: url, download: name.replace(/[^\w.-]+/g, "_") });
    document.body.append(link);
    link.click();
    link.remove();
  },
};
