"use strict";
// Charts for papers and notebooks: a picture in colours of print, and every value.
otelRl.saving = {
  buttons(card, run) {
    const { h, saving } = otelRl;
    const button = (kind, title, save) => h("button", { type: "button", title, "aria-label": `${kind}, ${title}: ${card.panel.title}`, onclick: async () => {
      try {
        saving.download(`${card.panel.title}.${kind}`, await save());
      } catch (error) {
        card.plot.append(h("p", { class: "notice" }, error.message));
      }
    } }, kind);
    return h("span", { class: "saving" },
      button("svg", "Save as a picture", () => saving.picture(card.plot, card.panel.title)),
      otelRl.report ? null : button("csv", "Save the values", () => saving.values(run, card)));
  },

  // On white, and with what the card's title tells at the axis.
  async picture(plot, title) {
    const ink = { color: "#222222" };
    const axis = (of) => ({ ...of, gridcolor: "#e6e6e6", linecolor: "#888888", zerolinecolor: "#e6e6e6", tickfont: { ...of.tickfont, ...ink } });
    const { xaxis, yaxis, ...rest } = plot.layout;
    const layout = {
      ...rest, paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff", font: { ...rest.font, ...ink }, margin: { l: 70, r: 20, t: 20, b: 80 },
      xaxis: axis(xaxis), yaxis: { ...axis(yaxis), title: { text: otelRl.plain(title), font: { size: 12 } } },
    };
    return Plotly.toImage({ data: plot.data, layout }, { format: "svg", width: 640, height: 400 });
  },

  // One value a line, because a run that went back has a step twice.
  async values(run, card) {
    const text = (one) => (/[",\n]/.test(one) ? `"${one.replaceAll('"', '""')}"` : one);
    const { lines } = await otelRl.get(`runs/${run}/panel`, { id: card.panel.id, detail: card.detail, every: 1 });
    const rows = lines.flatMap((line) => line.xs.map((x, place) => `${x},${text(line.key)},${line.ys[place] ?? ""}`));
    return `data:text/csv;charset=utf-8,${encodeURIComponent(["step,key,value", ...rows].join("\n") + "\n")}`;
  },

  download(name, url) {
    const link = otelRl.h("a", { href: url, download: name.replace(/[^\w.-]+/g, "_") });
    document.body.append(link);
    link.click();
    link.remove();
  },
};
