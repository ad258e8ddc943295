"use strict";
{
  const { html, Select, useAnswer, useDelayed, useEffect, useParam, useRef, useState } = otelRl;
  const LONG = 240; // characters that a cell shows at first

  otelRl.pages.rollouts = function Rollouts({ run, more, tick, onready }) {
    const [search, setSearch] = useParam("find");
    const [step, setStep] = useParam("step", more ?? "");
    const [order, setOrder] = useParam("order", "newest");
    const [table, setTable] = useParam("table");
    const asked = useDelayed({ search, step }, 200);
    const answer = useAnswer(`runs/${run}/rollouts`, { ...asked, table, order: order === "newest" ? null : order }, tick);
    const [root, found, newer, show] = useReading(answer);
    useEffect(() => { if (answer.found || answer.error) onready("rollouts"); }, [Boolean(answer.found || answer.error)]);
    if (!found) return html`<p class="empty">${answer.error ? answer.error.message : "Reading …"}</p>`;
    const { tables, columns, samples, matching, all, rewards } = found;
    const isAll = !search && !step;
    if (!all) return html`<p class="empty">The journal has no rollouts of this run: a program reports them with otel_rl.log_samples(), and they stay for ten minutes after the tracker has them.</p>`;
    const isText = (column) => samples.some((sample) => typeof sample[column] === "string" && sample[column].length > 12);
    const count = `${isAll ? all : `${matching} of ${all}`} samples${matching > samples.length ? `, ${samples.length} shown` : ""}`;
    return html`<div ref=${root}>
      <div class="row controls"><h2 class="grow">Rollouts</h2>
        ${tables.length > 1 ? html`<${Select} label="table" options=${tables.map((one) => [one, one])} chosen=${found.table} onchoose=${setTable} />` : null}
        <span class="quiet" role="status">${count}</span>
        ${otelRl.report ? null : html`
          ${columns.includes("reward") ? html`<${Select} label="order" options=${[["newest", "newest first"], ["lowest", "lowest reward first"], ["highest", "highest reward first"]]} chosen=${order} onchoose=${setOrder} />` : null}
          <label class="row quiet">step<input type="number" id="step" min="0" placeholder="all steps" aria-label="Samples of the step" title="Samples of this step, or of the last one before it that has some" value=${step} onInput=${(event) => setStep(event.target.value)} /></label>
          <input type="search" id="search" placeholder="Find in samples" aria-label="Find in samples" value=${search} onInput=${(event) => setSearch(event.target.value)} />`}</div>
      ${newer ? html`<button type="button" id="newer" class="newer" onClick=${show}>${newer} newer, show</button>` : null}
      <div class="card"><h3>Rewards${isAll ? "" : " of these samples"}</h3><${Rewards} rewards=${rewards} /></div><p></p>
      <div class="card scroll" id="samples" tabindex="0" role="region" aria-label="Samples"><table><thead><tr>${columns.map((column) => html`<th key=${column} scope="col">${column}</th>`)}</tr></thead>
        <tbody>${samples.map((sample, row) => html`<tr key=${all - row}>${sample.map((value, column) => html`<td key=${column} class=${isText(column) ? "text" : null} dir="auto"><${Cell} value=${value} /></td>`)}</tr>`)}</tbody></table></div></div>`;
  };

  function Cell({ value }) {
    const [isOpen, setOpen] = useState(false);
    if (typeof value === "number") return otelRl.number(value);
    if (value === null) return "–";
    const text = String(value);
    if (text.length <= LONG && text.split("\n").length <= 5) return text;
    return html`<div class=${isOpen ? "" : "short"}>${text}</div><button type="button" class="more" aria-expanded=${String(isOpen)} onClick=${() => setOpen(!isOpen)}>${isOpen ? "less" : `all ${text.length.toLocaleString("en")} characters`}</button>`;
  }

  function Rewards({ rewards }) {
    const draw = (plot) => {
      otelRl.charts.draw(plot, [{ type: "histogram", x: rewards, nbinsx: 30, marker: { color: otelRl.charts.palette[0], opacity: 0.85 }, hovertemplate: "%{x}: %{y}<extra></extra>" }],
        { hovermode: "closest", bargap: 0.06, xaxis: { title: { text: "reward", standoff: 4, font: { size: 11 } } }, yaxis: { title: { text: "samples", font: { size: 11 } } } });
      otelRl.charts.byKeyboard(plot, "Rewards", () => [(plot.calcdata?.[0] ?? []).map(({ p, s }, pointNumber) =>
        ({ points: [{ curveNumber: 0, pointNumber }], text: `reward ${otelRl.number(p)}: ${s} sample${s === 1 ? "" : "s"}` }))]);
    };
    return html`<${otelRl.charts.Plot} class="plot" id="rewards" draw=${draw} deps=${[rewards]} />`;
  }

  // Samples stay as they are while somebody reads them: has scrolled, selected, typed or opened one. What came since
  // then is counted.
  function useReading(answer) {
    const root = useRef(null);
    const [held, setHeld] = useState(null);
    const isReading = useRef(false);
    useEffect(() => {
      const note = (event) => { if (root.current?.contains(event.target) && !event.target.closest?.(".newer")) isReading.current = true; };
      const kinds = ["pointerdown", "keydown", "wheel"];
      const scrolled = () => { if (window.scrollY > 0) isReading.current = true; };
      for (const kind of kinds) document.addEventListener(kind, note, { passive: true });
      document.addEventListener("selectionchange", scrolled.selected = () => { const chosen = getSelection(); if (!chosen.isCollapsed && root.current?.contains(chosen.anchorNode)) isReading.current = true; });
      addEventListener("scroll", scrolled, { passive: true });
      return () => { for (const kind of kinds) document.removeEventListener(kind, note); document.removeEventListener("selectionchange", scrolled.selected); removeEventListener("scroll", scrolled); };
    }, []);
    const newest = answer.found;
    const isSame = held && held.url === answer.url;
    const first = isSame && JSON.stringify(held.found.samples[0]);
    const place = isSame && newest ? newest.samples.findIndex((sample) => JSON.stringify(sample) === first) : 0;
    const count = !isSame || !newest ? 0 : Math.max(place < 0 ? newest.samples.length : place, newest.all - held.found.all);
    const isHeld = isSame && isReading.current && count > 0;
    const found = isHeld ? held.found : newest;
    useEffect(() => { if (found && (!held || held.found !== found)) setHeld({ url: answer.url, found }); }, [found]);
    const show = () => { isReading.current = false; setHeld({ url: answer.url, found: newest }); window.scrollTo(0, 0); };
    return [root, found, isHeld ? count : 0, show];
  }
}
