"use strict";
{
  const { html, Heading, Select, Toggle, useAnswer, useDelayed, useEffect, useParam, useRef, useState } = otelRl;
  const LONG = 240; // characters that a cell shows at first

  otelRl.pages.rollouts = function Rollouts({ run, more, tick, onready }) {
    const [search, setSearch] = useParam("find");
    const [step, setStep] = useParam("step", more ?? "");
    const [order, setOrder] = useParam("order", "newest");
    const [table, setTable] = useParam("table");
    const [rows, setRows] = useParam("rows", "samples");
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
      <div class="two"><div class="card"><h3>Rewards${isAll ? "" : " of these samples"}</h3><${Rewards} rewards=${rewards} /></div>
        ${found.by_step.length > 1 ? html`<div class="card"><h3>Rewards by step</h3><${ByStep} steps=${found.by_step} /></div>` : null}</div>
      ${columns.includes("prompt") ? html`<p><${Toggle} label="rows" options=${[["samples", "one by one"], ["prompt", "by prompt"]]} chosen=${rows} onchoose=${setRows} /></p>` : html`<p></p>`}
      ${rows === "prompt" && columns.includes("prompt") ? html`<${Groups} columns=${columns} samples=${samples} />` : html`<div class="card scroll" id="samples" tabindex="0" role="region" aria-label="Samples"><table><thead><tr>${columns.map((column) => html`<th key=${column} scope="col">${column}</th>`)}</tr></thead>
        <tbody>${samples.map((sample, row) => html`<tr key=${all - row}>${sample.map((value, column) => html`<td key=${column} class=${isText(column) ? "text" : null} dir="auto"><${Cell} value=${value} /></td>`)}</tr>`)}</tbody></table></div>`}</div>`;
  };

  // The answers to each prompt of a step, which are compared with each other; opened they stand side by side.
  function Groups({ columns, samples }) {
    const [order, setOrder] = useState({ by: null, down: false });
    const [opened, setOpened] = useState(null);
    const of = (sample, name) => sample[columns.indexOf(name)] ?? null;
    const answer = ["completion", "response", "answer", "output"].find((name) => columns.includes(name)) ?? columns.find((name, column) => name !== "prompt" && samples.some((sample) => typeof sample[column] === "string"));
    const groups = new Map();
    for (const sample of samples) {
      const key = JSON.stringify([of(sample, "step"), of(sample, "prompt")]);
      groups.set(key, [...(groups.get(key) ?? []), sample]);
    }
    const mean = (some) => (some.length ? some.reduce((sum, one) => sum + one, 0) / some.length : null);
    const rows = [...groups].map(([key, some]) => {
      const rewards = some.map((one) => of(one, "reward")).filter((one) => typeof one === "number");
      const best = rewards.length ? Math.max(...rewards) : null;
      return { key, some, prompt: of(some[0], "prompt"), step: of(some[0], "step"), mean: mean(rewards), best, spread: best === null ? null : best - Math.min(...rewards), length: mean(some.map((one) => String(of(one, answer) ?? "").length)) };
    });
    const heading = [["Prompt", (one) => one.prompt], ["Step", (one) => one.step], ["Samples", (one) => one.some.length], ["Mean reward", (one) => one.mean], ["Spread", (one) => one.spread], ["Best", (one) => one.best], ["Characters", (one) => one.length]];
    return html`<div class="card scroll" id="groups" tabindex="0" role="region" aria-label="Prompts"><table><${Heading} columns=${heading} rows=${rows} order=${order} onorder=${setOrder} /><tbody>${otelRl.sorted(heading, rows, order).map((one) => [
      html`<tr key=${one.key}><td class="text" dir="auto"><${Cell} value=${one.prompt} /> <button type="button" class="more" aria-expanded=${String(opened === one.key)} onClick=${() => setOpened(opened === one.key ? null : one.key)}>answers</button></td><td>${one.step ?? "–"}</td><td>${one.some.length}</td>
        ${[one.mean, one.spread, one.best, one.length].map((value) => html`<td>${otelRl.number(value)}</td>`)}</tr>`,
      opened === one.key ? html`<tr key=${`${one.key} answers`}><td colspan=${heading.length}><div class="side">${one.some.map((sample) => html`<div class="text" dir="auto"><b>${otelRl.number(of(sample, "reward"))}</b><p>${of(sample, answer)}</p></div>`)}</div></td></tr>` : null])}</tbody></table></div>`;
  }

  // Where nine of ten rewards of a step are, and how many say nothing, since all are the lowest or the highest.
  function ByStep({ steps }) {
    const draw = (plot) => {
      const [xs, lows, middles, highs, zeros, mosts] = [0, 1, 2, 3, 4, 5].map((place) => steps.map((one) => one[place]));
      const { palette, bad, good } = otelRl.charts;
      const line = (name, y, shade, more = {}) => ({ type: "scatter", mode: "lines", name, x: xs, y, line: { color: shade, width: 1.8 }, hovertemplate: "%{y:.3~g}", ...more });
      const share = { yaxis: "y2", hovertemplate: "%{y:.0%}" };
      otelRl.charts.draw(plot, [
        line("10 %", lows, palette[0], { line: { width: 0 } }), line("90 %", highs, palette[0], { line: { width: 0 }, fill: "tonexty", fillcolor: `${palette[0]}40` }), line("median", middles, palette[0]),
        line("at 0 or less", zeros, bad, { ...share, line: { color: bad, width: 1, dash: "dot" } }), line("at the highest", mosts, good, { ...share, line: { color: good, width: 1, dash: "dot" } }),
      ], { margin: { l: 44, r: 44, t: 6, b: 30 }, xaxis: { title: { text: "step", standoff: 4, font: { size: 11 } } }, yaxis2: { overlaying: "y", side: "right", range: [0, 1], tickvals: [0, 0.5, 1], tickformat: ".0%", showgrid: false } });
      otelRl.charts.byKeyboard(plot, "Rewards by step", () => otelRl.charts.pointsOf(plot, "", null));
    };
    return html`<${otelRl.charts.Plot} class="plot" id="bystep" draw=${draw} deps=${[steps]} />
      <${otelRl.charts.Legend} names=${[["median, and 10 % to 90 %", otelRl.charts.palette[0]], ["share at 0 or less", "var(--bad)", "waits"], ["share at the highest", "var(--good)", "waits"]]} />`;
  }

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
    const [found, newer, showNewest] = otelRl.useHeld(answer, () => isReading.current, (held, newest) => {
      const first = JSON.stringify(held.samples[0]);
      const place = newest.samples.findIndex((sample) => JSON.stringify(sample) === first);
      return Math.max(place < 0 ? newest.samples.length : place, newest.all - held.all);
    });
    const show = () => { isReading.current = false; showNewest(); window.scrollTo(0, 0); };
    return [root, found, newer, show];
  }
}
