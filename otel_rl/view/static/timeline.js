"use strict";
// Lanes of workers, the critical path as a red line along them. A span's uses are drawn on click.
{
  const { html, Badge, Select, Trace, useAnswer, useEffect, useParam, useRef, useState } = otelRl;
  const { Legend, Plot } = otelRl.charts;
  const MOST_LANES = 20; // that are shown without folding
  const MOST_COMPARED = 6; // lanes of a step before a fault and one after it

  otelRl.pages.timeline = function Timeline({ run, more, tick, onready }) {
    const [step, setStep] = useParam("step", more ?? "newest");
    const [counted, setCount] = useParam("count", "2");
    const [wanted, setWanted] = useParam("lanes");
    const last = step === "newest" ? null : Number(step);
    const count = Number(counted);
    const query = last !== null ? { last, first: last - count + 1 } : {};
    const answer = useAnswer(`runs/${run}/timeline`, query, last === null ? tick : 0);
    const diagnosis = useAnswer(`runs/${run}/diagnosis`, {}, 0).found;
    // The newest steps stay as they are once somebody has touched them.
    const isReading = useRef(false);
    const touch = () => { isReading.current = true; };
    const [found, newer, showNewest] = otelRl.useHeld(answer, () => last === null && isReading.current, (held, newest) => (newest.steps.at(-1)?.step ?? 0) - (held.steps.at(-1)?.step ?? 0));
    const show = () => { isReading.current = false; showNewest(); };
    const [picked, setPicked] = useState(null);
    useEffect(() => { setPicked(null); }, [found && `${found.start_ms} ${found.spans?.length}`]);
    useEffect(() => { if (answer.found || answer.error) onready("timeline"); }, [Boolean(answer.found || answer.error)]);
    const move = (by) => {
      if (!found?.steps.length) return;
      const to = found.steps.at(-1).step + by;
      // Between the steps that have spans, the next one in this direction.
      const near = by > 0 ? found.known.find(([, last]) => last >= to) ?? found.known.at(-1) : found.known.findLast(([first]) => first <= to) ?? found.known[0];
      setCountAnd(counted, String(Math.max(near[0], Math.min(near[1], to))));
    };
    const setCountAnd = (number, next) => { setCount(number); setStep(next); };
    const moving = useRef(move);
    moving.current = move;
    useEffect(() => otelRl.onKey("[", () => moving.current(-count)), [count]);
    useEffect(() => otelRl.onKey("]", () => moving.current(count)), [count]);
    if (!found) return html`<p class="empty">${answer.error ? answer.error.message : "Reading …"}</p>`;
    if (!found.steps.length) {
      return html`<div class="empty"><p>No spans were reported. To see where the time of a step goes, mark steps and phases (otel-rl help phases):</p>
        <pre class="card">${'with otel_rl.step(n):\n    with otel_rl.phase("generate"):\n        ...\n    with otel_rl.phase("train"):\n        ...'}</pre>
        <p>or use the OpenTelemetry tracing API, with the attribute rl.loop.iteration.</p></div>`;
    }
    const { steps, known, left_out: leftOut, gone } = found;
    const first = steps[0].step, end = steps.at(-1).step;
    const only = (one) => setCountAnd("1", String(one));
    const accused = new Set((diagnosis?.causes ?? []).map((cause) => cause.worker).filter(Boolean));
    const shown = wanted === "all" || (found.lanes.length <= MOST_LANES && !wanted) ? found : ofLanes(found, chosenLanes(found, accused, wanted));
    const folded = found.lanes.length - shown.lanes.length;
    const phases = totals(shown);
    return html`<div onPointerDown=${touch} onKeyDown=${touch}>
      <div class="row controls"><h2 class="grow">${first === end ? `Step ${first}` : `Steps ${first} to ${end}`}</h2>
        <button type="button" onClick=${() => only(found.slowest)}>slowest: ${found.slowest}</button>
        <button type="button" onClick=${() => only(found.median)}>median: ${found.median}</button>
        <button type="button" aria-pressed=${String(last === null)} onClick=${() => { show(); setCountAnd("2", "newest"); }}>newest</button>
        ${otelRl.report ? null : html`
          <label class="row quiet">step<input type="number" id="step" min="0" placeholder="any" onChange=${(event) => { if (event.target.value) only(Number(event.target.value)); }} /></label>
          <button type="button" title="earlier ([)" disabled=${first <= known[0][0]} onClick=${() => move(-count)}>← earlier</button>
          <button type="button" title="later (])" disabled=${end >= known.at(-1)[1]} onClick=${() => move(count)}>later →</button>
          <${Select} label="steps" options=${[1, 2, 4, 8].map((n) => [String(n), String(n)])} chosen=${counted} onchoose=${(number) => setCountAnd(number, String(end))} />`}</div>
      ${newer ? html`<button type="button" id="newer" class="newer" onClick=${show}>${newer} newer, show</button>` : null}
      <div role="status">${gone ? html`<p class="notice"><${Gone} gone=${gone} known=${known} url=${found.trace_url} /></p>` : null}</div>
      ${found.lanes.length > MOST_LANES ? html`<p class="row quiet" id="folded">${folded ? `${shown.lanes.length} of ${found.lanes.length} workers: of each role the slowest, the middle and the fastest, those of the path, and those that a cause names.` : `${found.lanes.length} workers.`}
        <button type="button" aria-pressed=${String(wanted === "all")} onClick=${() => setWanted(wanted === "all" ? "" : "all")}>${wanted === "all" ? "fold" : `${folded} more`}</button>
        <input type="search" placeholder="Find workers" aria-label="Find workers" value=${wanted === "all" ? "" : wanted} onInput=${(event) => setWanted(event.target.value)} /><${otelRl.AsText} text=${wanted} /></p>` : null}
      <${Legend} names=${legendOf(phases)} />
      <div class="card"><${Spans} id="timeline" shown=${shown} picked=${picked} onpick=${(place) => { touch(); setPicked(place); }} /></div>
      <${Path} found=${found} />
      <p class="quiet">The journal has spans of steps ${inWords(known)}.${found.is_full ? " The room for spans of steps that stay (16 MiB of a run) is used up: those of further steps are forgotten after a minute or more." : ""} Red: the critical path, which determines how long the step takes. From a wait it goes on to the awaited work where links, phases or simultaneous ends show it; else it stays on the waiting worker.${leftOut ? ` ${leftOut} short spans are not drawn.` : ""}${(found.clocks ?? []).map(({ host, seconds }) => ` The clock of ${host} was ${otelRl.duration(Math.abs(seconds))} ${seconds > 0 ? "ahead" : "behind"}, which is corrected.`).join("")}</p>
      <div class="card" id="span" aria-live="polite">${picked === null || !shown.spans[picked] ? html`<span class="quiet">Click a span, or press Enter on one, to see what it used and what used it. Drag to zoom, double-click to see all.</span>` : html`<${Details} shown=${shown} place=${picked} url=${found.trace_url} />`}</div></div>`;
  };

  const inWords = (known) => known.map(([first, last]) => (first === last ? first : `${first} to ${last}`)).join(", ");

  // Places of the lanes of a name; or of each role the slowest, the median and the fastest, those of the path, and those that are accused.
  function chosenLanes(found, accused, wanted) {
    const { lanes, spans } = found;
    const busy = lanes.map(() => 0), onPath = lanes.map(() => 0);
    const nested = parentsOf(found);
    spans.forEach((span, place) => { if (!span.waits && span.phase && nested[place].every((one) => !spans[one].phase)) busy[span.lane] += span.seconds; });
    for (const part of found.path) onPath[part.lane] += part.seconds;
    const kept = new Set();
    if (wanted) {
      const matches = otelRl.matcher(wanted);
      lanes.forEach((lane, place) => { if (matches.test(lane.name)) kept.add(place); });
    } else {
      const roles = new Map();
      lanes.forEach((lane, place) => { const role = lane.name.replace(/\/[^/]*$/, ""); roles.set(role, [...(roles.get(role) ?? []), place]); });
      for (const places of roles.values()) {
        places.sort((a, b) => busy[b] - busy[a]);
        for (const place of [places[0], places[places.length >> 1], places.at(-1)]) kept.add(place);
      }
      const lost = lanes.filter((lane) => lane.lost).slice(0, 5);
      lanes.forEach((lane, place) => { if (accused.has(lane.name) || lost.includes(lane) || onPath[place] > 0.05 * found.seconds) kept.add(place); });
    }
    return [...kept].sort((a, b) => accused.has(lanes[b].name) - accused.has(lanes[a].name) || a - b);
  }

  // The same picture with these lanes alone, in this order.
  function ofLanes(found, order) {
    const { lanes, spans } = found;
    const laneAt = new Map(order.map((place, at) => [place, at]));
    const spanAt = new Map();
    const some = spans.filter((span, place) => laneAt.has(span.lane) && (spanAt.set(place, spanAt.size), true));
    const moved = (one) => ({ ...one, lane: laneAt.get(one.lane) });
    return {
      ...found, lanes: order.map((place) => lanes[place]), spans: some.map(moved), path: found.path.filter((part) => laneAt.has(part.lane)).map(moved),
      links: found.links.filter((pair) => pair.every((place) => spanAt.has(place))).map((pair) => pair.map((place) => spanAt.get(place))),
    };
  }

  const CHANGE = { before: "A usual step before", after: "The first step since that has spans", slowest: "The slowest step since that has spans" };

  // A usual step of before a fault, the first one since and the slowest, on one scale, with the same workers; the accused one in full colour.
  otelRl.Change = function Change({ run, cause, found }) {
    const isOfRole = (name) => name.startsWith(`${cause.role}/`);
    const chosen = chosenLanes(found.after, new Set([cause.worker]), "").map((place) => found.after.lanes[place].name);
    const names = chosen.sort((a, b) => (b === cause.worker) - (a === cause.worker) || isOfRole(b) - isOfRole(a)).slice(0, MOST_COMPARED);
    const kinds = Object.keys(CHANGE).filter((kind) => found[kind]);
    const seconds = Math.max(...kinds.map((kind) => found[kind].seconds));
    const pictures = kinds.map((kind) => [kind, found[kind]]).map(([kind, of]) => [kind, ofLanes(of, names.map((name) => of.lanes.findIndex((lane) => lane.name === name)).filter((place) => place >= 0))]);
    const phases = new Map(pictures.flatMap(([, shown]) => totals(shown)));
    return html`<section class="card change" aria-label="Steps before and after">${pictures.map(([kind, shown]) => html`<div key=${kind}>
        <h3>${CHANGE[kind]}: ${otelRl.report ? `step ${shown.steps[0].step}` : html`<a href=${`#/run/${run}/timeline/${shown.steps[0].step}`}>step ${shown.steps[0].step}</a>`}, ${otelRl.duration(shown.steps[0].seconds)}</h3>
        <${Spans} kind=${kind} shown=${shown} seconds=${seconds} accused=${cause.worker} /></div>`)}
      <${Legend} names=${legendOf([...phases])} /></section>`;
  };

  const legendOf = (phases) => [...phases.map(([name, waits]) => [name, otelRl.charts.colorOf(name), waits ? "waits" : ""]), ["critical path", otelRl.charts.path, "path"]];

  // Of each span the spans of its lane that it lies in.
  function parentsOf({ spans, lanes }) {
    const parents = spans.map(() => []);
    const stacks = lanes.map(() => []);
    const order = [...spans.keys()].sort((a, b) => spans[a].start - spans[b].start || spans[b].seconds - spans[a].seconds);
    for (const place of order) {
      const span = spans[place];
      const stack = stacks[span.lane];
      while (stack.length && spans[stack.at(-1)].start + spans[stack.at(-1)].seconds <= span.start + 1e-9) stack.pop();
      parents[place] = stack.filter((one) => spans[one].start + spans[one].seconds >= span.start + span.seconds - 1e-9);
      stack.push(place);
    }
    return parents;
  }

  // The parts of a span in which none of its children runs.
  function ownParts(span, children) {
    const parts = [];
    let at = span.start;
    for (const child of children) {
      if (child.start > at) parts.push([at, child.start - at]);
      at = Math.max(at, child.start + child.seconds);
    }
    if (span.start + span.seconds > at) parts.push([at, span.start + span.seconds - at]);
    return parts;
  }

  const nameOf = (span) => span.phase || span.name;

  // Phases by their time, the most first; whether they only wait.
  function totals({ spans }) {
    const found = new Map();
    for (const span of spans) if (span.phase) { const of = found.get(span.phase) ?? [0, span.waits]; of[0] += span.seconds; found.set(span.phase, of); }
    return [...found].sort((a, b) => b[1][0] - a[1][0]).slice(0, 24).map(([name, [, waits]]) => [name, waits]);
  }

  // Where the time of the steps went, along the critical path.
  function Path({ found }) {
    const parts = new Map();
    for (const part of found.path) { const name = `${found.lanes[part.lane].name}: ${part.phase || "between phases"}`; parts.set(name, (parts.get(name) ?? 0) + part.seconds); }
    const sorted = [...parts].sort((a, b) => b[1] - a[1]);
    const all = sorted.reduce((sum, [, seconds]) => sum + seconds, 0);
    if (!all) return null;
    return html`<ol id="path" aria-label="Where the time of the critical path went">${sorted.slice(0, 8).map(([name, seconds]) => html`<li key=${name}><bdi>${name}</bdi> <b>${otelRl.duration(seconds)}</b> <span class="quiet">${Math.round((100 * seconds) / all)} %</span></li>`)}</ol>`;
  }

  // Spans of old steps are in the tracing backend alone.
  function Gone({ gone, known, url }) {
    return html`The journal has no spans of step ${gone.step}, but of steps ${inWords(known)}.${gone.trace ? html` It took ${otelRl.duration(gone.seconds)}, most of it ${gone.longest} of ${gone.worker}. Its trace: <${Trace} id=${gone.trace} url=${url} />` : null}`;
  }

  function Details({ shown, place, url }) {
    const { spans, lanes, links } = shown;
    const span = spans[place];
    const uses = links.filter(([from]) => from === place).map(([, to]) => spans[to]);
    const usedBy = links.filter(([, to]) => to === place).map(([from]) => spans[from]);
    const names = (some) => [...new Set(some.map((one) => `${one.name} of ${lanes[one.lane].name}`))].slice(0, 12).join(", ");
    return html`<div class="row"><b>${span.name}</b>${span.phase ? html`<span class="badge">${span.phase}</span>` : null}<span class="quiet">${lanes[span.lane].name}, ${otelRl.duration(span.seconds)}${span.step === null ? "" : `, step ${span.step}`}</span>${span.failed ? html`<${Badge} word="failed" />` : null}</div>
      <div class="evidence">trace <${Trace} id=${span.trace} url=${url} />${otelRl.report ? null : html`, <a href=${`#/run/${otelRl.place.value.parts[1]}/rollouts?find=${span.trace}`}>its rollouts</a>`}</div>
      ${uses.length ? html`<div>uses ${uses.length}: <span class="quiet">${names(uses)}</span></div>` : null}
      ${usedBy.length ? html`<div>used by ${usedBy.length}: <span class="quiet">${names(usedBy)}</span></div>` : null}`;
  }

  function Spans({ id, kind, shown, seconds = shown.seconds, accused, picked = null, onpick }) {
    const pick = useRef(onpick);
    pick.current = onpick;
    const draw = (plot) => {
      const { plain } = otelRl;
      const { colorOf, palette, bad, grid, quiet, path: pathColor } = otelRl.charts;
      const { spans, lanes, path, links, steps } = shown;
      const others = lanes.map((lane) => (accused && lane.name !== accused ? 0.4 : 1)); // of the opacity
      const tops = [];
      let height = 0;
      for (const lane of lanes) { tops.push(height); height += lane.rows + 0.9; }
      const yOf = (span) => tops[span.lane] + span.row + 0.5;
      const children = spans.map(() => []);
      parentsOf(shown).forEach((parents, place) => { if (parents.length) children[parents.at(-1)].push(spans[place]); });
      for (const of of children) of.sort((a, b) => a.start - b.start);
      const phases = new Map();
      spans.forEach((span, place) => phases.set(nameOf(span), [...(phases.get(nameOf(span)) ?? []), place]));
      // The path goes through a span where it has a part in the span's lane at that time.
      const isOnPath = (lane, start, length) => path.some((part) => part.lane === lane && Math.min(part.start + part.seconds, start + length) - Math.max(part.start, start) > 0.5 * Math.min(length, part.seconds));
      const text = (place) => {
        const span = spans[place];
        return `${plain(span.name)}${span.phase && span.phase !== span.name ? ` (${plain(span.phase)})` : ""}<br>${plain(lanes[span.lane].name)}, ${otelRl.duration(span.seconds)}${span.step === null ? "" : `, step ${span.step}`}`;
      };
      const bars = (name, parts, shade, opacity, isWhole) => ({
        type: "bar", orientation: "h", name: plain(name), customdata: parts.map(([place]) => place), base: parts.map(([, start]) => start), x: parts.map(([, , length]) => length), y: parts.map(([place]) => yOf(spans[place])), width: 0.86,
        marker: { color: shade, opacity: parts.map(([place, start, length]) => others[spans[place].lane] * (!isWhole && isOnPath(spans[place].lane, start, length) ? Math.min(1, opacity + 0.2) : opacity)),
          line: { width: parts.map(([place]) => (spans[place].failed ? 1.5 : 0.4)), color: parts.map(([place]) => (spans[place].failed ? bad : quiet)) } },
        text: parts.map(([place]) => text(place)), textposition: "none", hovertemplate: "%{text}<extra></extra>",
      });
      const traces = [...phases].flatMap(([name, places]) => {
        const { phase, waits } = spans[places[0]];
        const isDetail = !phase && (name === "rl.loop" || phases.size > 24); // of thirty names those without a phase are libraries' details
        const shade = isDetail ? quiet : colorOf(name);
        const whole = places.map((place) => [place, spans[place].start, spans[place].seconds]);
        if (waits || isDetail) return [bars(name, whole, shade, waits ? 0.3 : 0.16, true)];
        // Time in which a part of it runs, often a wait, is no work of its own.
        const own = places.flatMap((place) => ownParts(spans[place], children[place]).map(([start, length]) => [place, start, length]));
        const covered = whole.filter(([place]) => children[place].length);
        return [...(covered.length ? [bars(name, covered, shade, 0.12, true)] : []), bars(name, own, shade, 0.8, false)];
      });
      const line = { x: [], y: [] };
      for (const part of path) { const at = tops[part.lane] - 0.12; line.x.push(part.start, part.start + part.seconds, null); line.y.push(at, at, null); }
      traces.push({ type: "scatter", mode: "lines", name: "critical path", x: line.x, y: line.y, line: { color: pathColor, width: 3 }, hoverinfo: "skip" });
      const uses = { x: [], y: [] };
      if (picked !== null && spans[picked]) {
        const span = spans[picked];
        for (const [from, to] of links) {
          if (from === picked) { uses.x.push(spans[to].start + spans[to].seconds, span.start, null); uses.y.push(yOf(spans[to]), yOf(span), null); }
          if (to === picked) { uses.x.push(span.start + span.seconds, spans[from].start, null); uses.y.push(yOf(span), yOf(spans[from]), null); }
        }
      }
      traces.push({ type: "scatter", mode: "lines", name: "uses", ...uses, line: { color: palette[0], width: 1.8, dash: "dot" }, hoverinfo: "skip" });
      const shapes = steps.map((step) => ({ type: "line", xref: "x", yref: "paper", x0: step.start, x1: step.start, y0: 0, y1: 1, line: { width: 1, dash: "dot", color: quiet } }));
      for (const [place, lane] of lanes.entries()) {
        if (place) shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: tops[place] - 0.45, y1: tops[place] - 0.45, line: { width: 1, color: grid } });
        if (lane.lost) shapes.push({ type: "line", x0: lane.end, x1: lane.end, y0: tops[place], y1: tops[place] + lane.rows, line: { width: 3, color: bad } });
      }
      otelRl.charts.draw(plot, traces, {
        barmode: "overlay", hovermode: "closest", shapes, margin: { l: 60, r: 10, t: 24, b: 40 },
        xaxis: { range: [-0.01 * seconds, 1.01 * seconds], title: otelRl.charts.title(`seconds since step ${steps[0].step} began`) },
        yaxis: { range: [height, -0.6], tickvals: lanes.map((lane, place) => tops[place] + lane.rows / 2), ticktext: lanes.map((lane) => plain(lane.name) + (lane.lost ? " †" : "")), showgrid: false, zeroline: false },
        annotations: steps.map((step) => ({ x: step.start, y: 1, yref: "paper", yanchor: "bottom", xanchor: "left", showarrow: false, text: `step ${step.step}, ${otelRl.duration(step.seconds)}`, font: { size: 11 } })),
        uirevision: `${steps[0].step}-${steps.at(-1).step}-${lanes.length}`,
      });
      const curves = new Map(traces.flatMap((trace, curveNumber) => (trace.customdata ?? []).map((place, pointNumber) => [place, { curveNumber, pointNumber }])));
      otelRl.charts.byKeyboard(plot, `Spans by worker and time, with the critical path${kind ? `, ${kind}` : ""}`, () => lanes.map((_, lane) =>
        [...spans.keys()].filter((place) => spans[place].lane === lane && curves.has(place)).sort((a, b) => spans[a].start - spans[b].start).map((place) => ({
          points: [curves.get(place)], pick: onpick && (() => pick.current(place)), x: spans[place].start,
          text: `${lanes[lane].name}: ${spans[place].name}, ${otelRl.duration(spans[place].seconds)}${spans[place].step === null ? "" : `, step ${spans[place].step}`}`,
        }))));
      if (!plot.listens && onpick) {
        plot.listens = true;
        plot.on("plotly_click", (event) => { const place = event.points[0].customdata; if (place !== undefined) pick.current(place); });
      }
    };
    const rows = shown.lanes.reduce((sum, lane) => sum + lane.rows + 0.9, 0);
    const pixels = kind ? Math.min(600, 70 + 11 * rows) : Math.min(2400, Math.max(220, 80 + 17 * rows));
    return html`<${Plot} id=${id} data-change=${kind} style=${`height: ${pixels}px`} draw=${draw} deps=${[shown.start_ms, shown.spans.length, shown.lanes.map((lane) => lane.name).join(), seconds, picked]} />`;
  }
}
