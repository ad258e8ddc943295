"use strict";
{
  const { html, useAnswer, useEffect } = otelRl;
  const percent = (part) => (part === null ? "–" : `${part > 0 ? "+" : ""}${(100 * part).toFixed(1)} %`);
  const COLORS = ["var(--quiet)", "var(--accent)"]; // of A and B

  // What differs between two sides of runs, with intervals: what `otel-rl compare` says of them.
  otelRl.Verdicts = function Verdicts({ a, b, by, tick }) {
    const { found, error } = useAnswer("compare", otelRl.report ? {} : { a, b, by: by === "step" ? null : by }, tick);
    if (error && !found) return html`<p class="notice">${error.message}</p>`;
    if (!found?.measures) return html`<p class="quiet">Reading${found ? ` the histories, ${Math.round(100 * found.read)} %` : ""} …</p>`;
    const widest = Math.max(0.05, ...found.measures.flatMap((one) => [one.low, one.high].map((end) => Math.min(1, Math.abs(end ?? 0)))));
    return html`<div id="verdicts">
      <p><${Dot} side=${0} /> A: <bdi>${found.a.join(", ")}</bdi>, ${steps(found.steps[0])} · <${Dot} side=${1} /> B: <bdi>${found.b.join(", ")}</bdi>, ${steps(found.steps[1])}</p>
      ${found.broken.map((limit) => html`<p class="notice" key=${limit}>fails: ${limit}</p>`)}
      <div class="card scroll">${found.measures.length ? html`<table>
        ${otelRl.headings(["measure", "A", "B", "change", "99 of 100", "interval", "verdict"])}
        <tbody>${found.measures.map((one) => html`<tr key=${one.name} data-measure=${one.name}><th scope="row"><bdi>${one.name}</bdi></th>
          <td>${value(one, one.before)}</td><td>${value(one, one.after)}</td><td>${percent(one.change)}</td>
          <td class="text">${one.why_not || `${percent(one.low)} to ${percent(one.high)}`}</td><td>${one.why_not ? null : html`<${Interval} one=${one} widest=${widest} />`}</td>
          <td class="text">${word(one)}</td></tr>`)}</tbody></table>` : html`<p class="quiet">There is nothing that both sides have measured.</p>`}</div>
      ${found.curves ? html`<h2>Curves by ${{ step: "step", time: "hours" }[found.by] ?? found.by}</h2><div class="charts">${Object.entries(found.curves).map(([name, sides]) => html`<${Curves} key=${name} name=${name} sides=${sides} by=${found.by} />`)}</div>` : null}
      <h2>What else differs</h2>
      <div class="card scroll" id="differs">${found.differences.length ? html`<table>${otelRl.headings(["what", "A", "B"])}
        <tbody>${found.differences.map((one) => html`<tr key=${one.name}><th scope="row"><bdi>${one.name}</bdi></th><td class="text"><bdi>${one.a || "–"}</bdi></td><td class="text"><bdi>${one.b || "–"}</bdi></td></tr>`)}</tbody></table>` : html`<p class="quiet">Nothing was reported.</p>`}</div></div>`;
  };

  const Dot = ({ side }) => html`<i class="dot" style=${`display: inline-block; --shade: ${COLORS[side]}`}></i>`;
  const steps = (of) => `${of.length > 1 ? `${of.length} runs, ` : ""}${Math.max(0, ...of)} steps`;
  const value = (one, of) => `${otelRl.number(of)}${one.about === "time" ? " s" : ""}`;

  function word(one) {
    if (!one.is_sure) return one.why_not ? "" : "not sure";
    const [more, less] = one.about === "time" ? ["longer", "shorter"] : ["more", "less"];
    return one.change > 0 ? more : less;
  }

  // The change and its interval, beside no change.
  function Interval({ one, widest }) {
    const x = (part) => (60 + (55 * Math.max(-widest, Math.min(widest, part))) / widest).toFixed(1);
    return html`<svg class="spark" viewBox="0 0 120 20" aria-hidden="true"><path d="M60 2V18" stroke="var(--quiet)" />
      <path d=${`M${x(one.low)} 10H${x(one.high)}`} stroke=${one.is_sure ? "var(--accent)" : "var(--quiet)"} stroke-width="3" /><circle cx=${x(one.change)} cy="10" r="3.5" fill=${one.is_sure ? "var(--accent)" : "var(--quiet)"} /></svg>`;
  }

  // A line for each run of both sides, without a script of charts.
  function Curves({ name, sides, by }) {
    const all = sides.flat(2);
    if (all.length < 2) return null;
    const end = (of, at) => of(...all.map((point) => point[at]));
    const [left, right, low, high] = [end(Math.min, 0), end(Math.max, 0), end(Math.min, 1), end(Math.max, 1)];
    const line = (points) => points.map(([x, y]) => `${(2 + (296 * (x - left)) / (right - left || 1)).toFixed(1)},${(97 - (94 * (y - low)) / (high - low || 1)).toFixed(1)}`).join(" ");
    const scale = by === "time" ? (x) => otelRl.number((x - left) / 3600) : otelRl.number;
    return html`<article class="card"><h3><bdi>${name}</bdi></h3><p class="quiet">${otelRl.number(low)} to ${otelRl.number(high)}</p>
      <svg viewBox="0 0 300 100" width="100%" role="img" aria-label=${`${name} of both sides`}>${sides.map((runs, side) => runs.map((points, place) => html`<polyline key=${`${side} ${place}`} points=${line(points)} fill="none" stroke=${COLORS[side]} stroke-width="1.4" />`))}</svg>
      <p class="row quiet"><span class="grow">${scale(left)}</span><span>${scale(right)}</span></p></article>`;
  }

  // The page of a file that `otel-rl compare --html` has written.
  otelRl.pages.compare = function Compare({ onready }) {
    const { a, b } = otelRl.report.compare;
    useEffect(() => { document.title = `${a.join(", ")} and ${b.join(", ")} – otel_rl`; onready("compare"); }, []);
    return html`<h1>Two sides compared</h1><${otelRl.Verdicts} />`;
  };
}
