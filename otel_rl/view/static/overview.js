"use strict";
{
  const { html, Badge, Select, Toggle, Trace, useAnswer, useEffect, useParam, useRef, useState, useStore } = otelRl;
  const { Legend, Plot } = otelRl.charts;
  const MOST_OPEN = 12; // charts of a section that is open from the start
  const MOST_LINES = 60; // of workers in one chart
  const NO_LINES = [];
  const GOES_ON = ["running", "stalled"];
  const DIAGNOSED_AFTER_MS = 400; // where no chart is seen until then

  otelRl.forPaper = otelRl.store(false); // every chart is drawn, also below the window and in closed sections

  otelRl.pages.overview = function Overview({ run, tick, overview, onready }) {
    // The server answers one question at a time: the first charts do not wait behind the diagnosis, which takes longer.
    const [isDrawn, setDrawn] = useState(false);
    useEffect(() => { const timer = setTimeout(setDrawn, DIAGNOSED_AFTER_MS, true); return () => clearTimeout(timer); }, []);
    const diagnosis = useAnswer(isDrawn ? `runs/${run}/diagnosis` : null, {}, tick).found;
    const [x, setX] = useParam("x", "step");
    const [detail, setDetail] = useParam("detail", "basic");
    const [search, setSearch] = useParam("find");
    const [smooth, setSmooth] = useParam("smooth", "0");
    const [log, setLog] = useParam("log");
    const [robust, setRobust] = useParam("robust");
    const [zoom, setZoom] = useParam("zoom");
    const [diff, setDiff] = useParam("diff");
    const [base, setBase] = useParam("base");
    const chosenBase = useStore(otelRl.baseline);
    // A link to this page without a baseline, as that of its tab, has the one that this browser remembers.
    useEffect(() => { if (!base && chosenBase && chosenBase.id !== run && !otelRl.report) setBase(chosenBase.id); }, [chosenBase?.id, base, run]);
    const isGoing = useRef(true); // of the baseline
    const { found: ofBase, error: noBase } = useAnswer(base && base !== run && !otelRl.report ? `runs/${base}/overview` : null, {}, isGoing.current ? tick : 0);
    isGoing.current = !ofBase || GOES_ON.includes(ofBase.state);
    useEffect(() => { // its run is gone
      if (noBase?.status !== 404) return;
      if (chosenBase?.id === base) otelRl.setBaseline(null);
      setBase("");
    }, [noBase]);
    const baseline = ofBase && x !== "time" ? { id: base, name: `${ofBase.experiment}/${ofBase.trial}`, newest: `${ofBase.state} ${ofBase.step}` } : null;
    const [full, setFull] = useState(null);
    const [picked, setPicked] = useState(null);
    const [stars, setStars] = useState(() => otelRl.kept(`stars.${overview.experiment}`, {}));
    const [opened, setOpened] = useState(() => otelRl.kept(`sections.${overview.experiment}`, {}));
    const forPaper = useStore(otelRl.forPaper);
    useEffect(() => { onready("overview"); }, []);
    useEffect(() => otelRl.onKey("Escape", () => { setFull(null); setPicked(null); }), []);

    const panels = new Map(overview.sections.flatMap((section) => section.panels.map((panel) => [panel.id, panel])));
    const isFirst = (id) => stars[id] ?? overview.first.includes(id);
    const wanted = search && otelRl.matcher(search);
    const matches = (panel) => !wanted || wanted.test(panel.title) || panel.keys.some((key) => wanted.test(key));
    const first = [...new Set([...overview.first, ...Object.keys(stars)])].filter((id) => panels.has(id) && isFirst(id)).map((id) => panels.get(id)).filter(matches);
    const sections = overview.sections.map(({ title, panels: of }) => [title, of.filter((panel) => !isFirst(panel.id) && matches(panel))]).filter(([, of]) => of.length);
    const left = sections.reduce((sum, [, of]) => sum + of.length, 0);
    const isOpen = (title, of) => forPaper || Boolean(wanted) || (opened[title] ?? (!otelRl.report && of.length <= MOST_OPEN && left <= 5 * MOST_OPEN)); // who is sent a report reads what comes first
    const open = (title, is) => setOpened((before) => { const next = { ...before, [title]: is }; otelRl.keep(`sections.${overview.experiment}`, next); return next; });
    const star = (id) => {
      const next = { ...stars, [id]: !isFirst(id) };
      if (next[id] === overview.first.includes(id)) delete next[id];
      setStars(next);
      otelRl.keep(`stars.${overview.experiment}`, next);
    };
    const happened = otelRl.happened(overview.events, diagnosis?.causes ?? []);
    const common = {
      run, tick, detail: detail === "full" ? "full" : null, x: otelRl.report ? "step" : x, axis: overview.amounts?.[x] ? x : "", marks: marksOf(happened, x), full, setFull, star, isFirst, forPaper, onread: setDrawn, baseline, isDifference: Boolean(diff),
      tools: { smooth: Number(smooth), log: Boolean(log), robust: Boolean(robust) }, zoom: zoom && !otelRl.report ? zoom.split("~").map(Number) : null,
      setZoom: (range) => setZoom(range && range.map((at) => (x === "time" ? Date.parse(at) : at)).join("~")), pick: otelRl.report || x !== "step" ? null : setPicked,
    };
    const cards = (of) => html`<div class="charts">${of.map((panel) => html`<${Card} key=${panel.id} panel=${panel} ...${common} />`)}</div>`;
    const axes = [["step", "step"], ["time", "time"], ...Object.entries(overview.amounts ?? {}).map(([key, word]) => [key, `${word} (${key})`])];
    return html`
      <${Verdict} run=${run} tick=${tick} diagnosis=${diagnosis} overview=${overview} />
      <${Goodput} found=${overview.goodput} />
      ${otelRl.report ? html`<${Provenance} run=${run} />` : null}
      <${otelRl.Events} run=${run} found=${overview.events} listed=${happened} x=${common.x} range=${common.zoom} />
      <div class="row controls tools"><span class="grow"></span>
        ${baseline ? html`<button type="button" id="diff" aria-pressed=${String(Boolean(diff))} title="What is more than in the baseline" onClick=${() => setDiff(diff ? "" : "1")}>difference</button>
          <button type="button" id="base" aria-label=${`beside ${baseline.name} ×, remove the baseline`} onClick=${() => { otelRl.setBaseline(null); setBase(""); setDiff(""); }}>beside ${baseline.name} ×</button>` : null}
        ${otelRl.report ? null : html`<${Select} label="x" options=${axes} chosen=${x} onchoose=${(next) => { setZoom(""); setX(next); }} />`}
        <label class="row quiet">smooth<input type="range" id="smooth" min="0" max="0.99" step="0.01" value=${smooth} onInput=${(event) => setSmooth(event.target.value)} /></label>
        <button type="button" id="log" aria-pressed=${String(Boolean(log))} onClick=${() => setLog(log ? "" : "1")}>log</button>
        <button type="button" id="robust" aria-pressed=${String(Boolean(robust))} title="Leave out the most extreme values of y" onClick=${() => setRobust(robust ? "" : "1")}>no outliers</button>
        ${zoom && !otelRl.report ? html`<button type="button" id="all" onClick=${() => setZoom("")}>all of x</button>` : null}
        ${otelRl.report ? null : html`<${Toggle} label="detail" options=${[["basic", "basic detail"], ["full", "full detail"]]} chosen=${detail} onchoose=${setDetail} />`}
        <${otelRl.AsText} text=${search} /><input type="search" id="search" placeholder="Find charts" aria-label="Find charts" title="Text or a regular expression" value=${search} onInput=${(event) => setSearch(event.target.value)} />
      </div>
      ${first.length ? html`<section id="first"><h2>First</h2>${cards(first)}</section>` : null}
      ${sections.map(([title, of]) => html`<section key=${title}>
        <h2><button type="button" class="fold" aria-expanded=${String(isOpen(title, of))} onClick=${() => open(title, !isOpen(title, of))}><bdi>${title}</bdi> <span class="quiet">${of.length}</span></button></h2>
        ${isOpen(title, of) ? cards(of) : null}</section>`)}
      ${first.length || sections.length ? null : html`<p class="empty">${search ? "No chart has this text." : "Nothing was reported yet."}</p>`}
      <div id="picked" role="status">${picked === null ? null : html`<${Picked} run=${run} step=${picked} onclose=${() => setPicked(null)} />`}</div>`;
  };

  // Where workers failed and causes began.
  function marksOf(happened, x) {
    const at = { step: (one) => one.step, time: (one) => one.time_ms && new Date(one.time_ms) }[x];
    const kinds = { failure: "bad", cause: "cause" };
    return at ? happened.filter((one) => kinds[one.kind] && at(one) !== null).map((one) => ({ x: at(one), kind: kinds[one.kind] })) : [];
  }

  function Card({ run, tick, panel, detail, x, axis, marks, full, setFull, star, isFirst, forPaper, tools, zoom, setZoom, pick, onread, baseline, isDifference }) {
    const plot = useRef(null);
    const card = useRef(null);
    const [failure, setFailure] = useState(null);
    const isSeen = otelRl.charts.useSeen(card) || forPaper;
    const query = otelRl.report ? { id: panel.id } : { id: panel.id, x: x === "step" ? null : x, detail, first: zoom?.[0], last: zoom?.[1] };
    const { found, error, isNew } = useAnswer(isSeen ? `runs/${run}/panel` : null, query, tick);
    const readFor = useRef(null); // the x of what was found
    useEffect(() => { if (found) onread(true); }, [Boolean(found)]);
    if (isNew) readFor.current = x;
    const isFull = full === panel.id;
    // Anew when the baseline has a further step, and not with everything that is new: the server answers one question at a time.
    const beside = useAnswer(isSeen && baseline ? `runs/${baseline.id}/panel` : null, query, baseline?.newest);
    const of = baseline && beside.isNew && beside.found ? beside.found.lines : NO_LINES;
    const isMinus = Boolean(baseline && isDifference && !panel.stacked);
    const lines = !found ? [] : isMinus ? otelRl.charts.minus(found.lines, of) : found.lines;
    const others = baseline && !isMinus ? of.map((one) => ({ ...one, name: `${baseline.name}${of.length > 1 ? `: ${one.name}` : ""}` })) : [];
    const more = baseline && found?.lines.length === 1 ? otelRl.charts.minus(found.lines, of)[0]?.ys.at(-1) : undefined;
    const names = lines.map((line, place) => [line.name, otelRl.charts.shadeOf(panel, lines, place)]);
    const wanted = [found, of, isMinus, x, axis, JSON.stringify([marks, tools, zoom]), isFull, Boolean(pick)];
    // Of three hundred charts those below the window are drawn when they come into it.
    const draw = (element) => {
      plot.current = element;
      if (!found || readFor.current !== x || !isSeen || element.wanted?.every((one, place) => one === wanted[place])) return;
      element.seen = true;
      element.wanted = wanted;
      otelRl.charts.lines(element, panel, lines, { x, axis, marks, tools, range: zoom, base: others, onzoom: setZoom, onstep: pick });
    };
    // The card is made anew where it goes to: who pressed its star goes on at the one beside it.
    const move = (event) => {
      const all = [...document.querySelectorAll(".star")], at = all.indexOf(event.currentTarget), isMouse = event.detail > 0;
      star(panel.id);
      requestAnimationFrame(() => { if (document.activeElement === document.body) (all[at + 1] ?? all[at - 1])?.focus({ preventScroll: isMouse }); });
    };
    const problem = failure ?? (isSeen ? error?.message : null);
    return html`<article class=${`card chart ${isFull ? "full" : ""}`} ref=${card}>
      <div class="title"><h3 title=${[panel.title, panel.about, ...panel.keys.slice(0, 3)].filter(Boolean).join("\n")}><bdi>${panel.title}</bdi>${more === undefined ? null : html` <span class="quiet more-than" title=${`At the last step of both, compared with ${baseline.name}`}>${more < 0 ? "−" : "+"}${otelRl.number(Math.abs(more))}</span>`}</h3>
        <${otelRl.Toolbar} label=${`Tools: ${panel.title}`}><button type="button" class="star" aria-pressed=${String(isFirst(panel.id))} aria-label=${`Show first: ${panel.title}`} title="Show first" onClick=${move}>${isFirst(panel.id) ? "★" : "☆"}</button>
          <button type="button" class="large" aria-pressed=${String(isFull)} aria-label=${`Fill the window: ${panel.title}`} title="Fill the window (Esc)" onClick=${() => setFull(isFull ? null : panel.id)}>⤢</button>
        <${otelRl.saving.Buttons} run=${run} panel=${panel} plot=${plot} query=${query} axis=${axis || x} isDrawn=${Boolean(otelRl.report || isMinus || others.length)} what=${isMinus ? `difference to ${baseline.name}` : "value"} onfail=${setFailure} /><//></div>
      ${problem ? html`<p class="failure" role="status">${problem}</p>` : null}
      <div class="drawn"><${Plot} class="plot" data-panel=${panel.id} draw=${draw} deps=${[...wanted, isSeen]} /><i class="cursor"></i></div>
      ${names.length > 12 ? html`<p class="quiet">${names.length} lines, from ${names[0][0]} (blue) to ${names.at(-1)[0]} (red)</p>` : names.length > 1 || (names.length && panel.stacked) ? html`<${Legend} names=${names} />` : null}
      ${panel.healthy ? html`<p class="quiet healthy">Healthy: ${panel.healthy}</p>` : null}
    </article>`;
  }

  // A step that stands out in a chart leads to its spans and its samples.
  function Picked({ run, step, onclose }) {
    const link = useRef(null);
    otelRl.useFocus(link, `step ${step}`);
    return html`<div class="card row"><b>Step ${step}</b><a ref=${link} href=${`#/run/${run}/timeline/${step}`}>spans</a><a href=${`#/run/${run}/rollouts/${step}`}>samples</a>
      <button type="button" aria-label="Close" onClick=${onclose}>×</button></div>`;
  }

  // One bar for the run and one for each role: shares of worker time.
  function Goodput({ found }) {
    if (!found) return html`<div class="card quiet" id="goodput" hidden></div>`;
    const kinds = ["productive", "overhead", "idle", "wasted"];
    const { words, spent } = found;
    const all = (of) => kinds.reduce((sum, kind) => sum + of[`${kind}_s`], 0);
    const percent = (of, kind) => (100 * of[`${kind}_s`]) / all(of);
    const { duration } = otelRl;
    return html`<div class="card quiet" id="goodput" role="img" aria-label=${words}>
      <div class="row"><b>${words.split(":")[0]}</b><span class="grow"></span>${kinds.map((kind) => html`<span key=${kind} class="part"><i class=${kind}></i>${kind} ${duration(spent[""][`${kind}_s`])}</span>`)}</div>
      ${Object.entries(spent).filter(([, of]) => all(of) > 0).map(([role, of]) => [html`<span><bdi class="cut">${role || "run"}</bdi></span>`, html`<span class="bars">${kinds.map((kind) =>
        html`<i class=${kind} style=${`width:${percent(of, kind)}%`} title=${`${role || "run"}: ${kind} ${duration(of[`${kind}_s`])}, ${Math.round(percent(of, kind))} %`}></i>`)}</span>`])}</div>`;
  }

  // Of a run that is sent to others: what was run, with which settings. The page has it on Health.
  function Provenance({ run }) {
    const { found } = useAnswer(`runs/${run}/environment`, {}, 0);
    const known = Object.values(found ?? {}).filter(Boolean).length;
    if (!known) return null;
    const { before } = otelRl.report;
    return html`${before ? html`<${otelRl.Differences} names=${["this run", before.name]} found=${[found, before.environment]} />` : null}<details class="card" id="provenance" open=${known <= 12}><summary>What was run</summary><${otelRl.Facts} found=${found} /></details>`;
  }

  // The verdict of the bridge, which is there at once, and then the diagnosis. Until the evidence of a cause is there its
  // room is kept, so that nothing that one reads below is pushed away.
  function Verdict({ run, tick, diagnosis, overview }) {
    const [isWhole, setWhole] = useState(false);
    if (!diagnosis) {
      return html`<div class=${`card verdict reading ${otelRl.kindOf(overview.verdict)}`} id="verdict"><div class="row">${overview.verdict ? html`<${Badge} word=${overview.verdict} />` : null}${overview.cause ? html`<b>${overview.cause}</b>` : null}
        <span class="quiet">${overview.cause ? "Reading the evidence …" : "Looking for faults …"}</span></div></div>`;
    }
    const { verdict, words, causes, observations, symptoms, bound, failures, seen } = diagnosis;
    const kind = `${otelRl.kindOf(verdict)}${causes.length && !isWhole ? " reading" : ""}`;
    const headline = causes.length ? [causes[0].kind, causes[0].worker || causes[0].role].filter(Boolean).join(" ") : words;
    return html`<div class=${`card verdict ${kind}`} id="verdict"><h2 class="unseen">Diagnosis</h2>
      <div class="row"><${Badge} word=${verdict} /><b>${headline}</b>${bound ? html`<span class="quiet">most of a step: ${bound.role}/${bound.phase}, ${Math.round(100 * bound.share)} %</span>` : null}</div>
      ${causes.length ? html`<ol>${causes.map((cause, place) => html`<${Cause} key=${`${cause.kind} ${cause.worker || cause.role}`} run=${run} tick=${tick} cause=${cause} place=${place} traceUrl=${overview.trace_url} onwhole=${setWhole} />`)}</ol>` : null}
      ${(observations ?? []).map((one) => html`<${Observation} key=${`${one.kind} ${one.role} ${one.phase}`} one=${one} />`)}
      ${[...(symptoms || []), ...(failures || []), ...(seen && !causes.length ? [`seen: ${seen}`] : [])].map((one) => html`<div class="evidence" key=${one}>${one}</div>`)}</div>`;
  }

  // What the run shows by itself: numbers beside their reference, and what speaks against them.
  function Observation({ one }) {
    return html`<details open=${one.is_beyond}><summary>${one.is_beyond ? html`<b>beyond its reference: </b>` : null}${one.words}</summary>
      <div class="evidence">reference: ${one.reference}</div><div class="evidence">doubt: ${one.doubt}</div>
      ${one.tries.map((words) => html`<div class="next" key=${words}><span class="quiet">try </span>${words}</div>`)}</details>`;
  }

  function Cause({ run, tick, cause, place, traceUrl, onwhole }) {
    const [isShown, setShown] = useState(place === 0);
    const traces = [...new Set(cause.evidence.flatMap((one) => one.traces))].slice(0, 4);
    const where = [cause.host && `host ${cause.host}`, cause.pid && `process ${cause.pid}`].filter(Boolean).join(", ");
    return html`<li><b>${cause.kind}</b>${` ${cause.words} `}
      ${cause.phase && !otelRl.report ? html`<a href=${`#/run/${run}/workers/${encodeURIComponent(`${cause.role}/${cause.phase}`)}`}>by worker</a>` : null}
      ${cause.worker && (!otelRl.report || otelRl.report.pages.includes("log")) ? html` <a href=${otelRl.logOf(run, cause.worker)}>log</a>` : null}
      ${cause.evidence.slice(0, 3).map((one, number) => html`<div class="evidence" key=${number}>${[one.what, one.worker ? ` of ${one.worker}` : "", one.before !== null && one.after !== null ? `: ${otelRl.number(one.before)} → ${otelRl.number(one.after)} ${one.unit}` : ""].join("")}</div>`)}
      ${cause.next ? html`<div class="next"><span class="quiet">next </span>${cause.next}</div>` : null}
      ${(cause.tries ?? []).map((words) => html`<div class="next" key=${words}><span class="quiet">try </span>${words}</div>`)}
      ${where ? html`<div class="evidence">${where}</div>` : null}
      ${traces.length ? html`<div class="evidence traces">traces ${traces.map((trace) => html`<${Trace} key=${trace} id=${trace} url=${traceUrl} /> `)}</div>` : null}
      ${cause.stack?.length ? html`<details><summary>Where it stands</summary><pre class="stack">${cause.stack.join("\n")}</pre></details>` : null}
      <details open=${isShown} onToggle=${(event) => setShown(event.target.open)}><summary>Charts of the evidence</summary>${isShown ? html`<${Evidence} run=${run} tick=${tick} cause=${cause} onwhole=${onwhole} />` : null}</details></li>`;
  }

  // What was measured, and since when: the accused worker among its peers, and the keys that show it.
  function Evidence({ run, tick, cause, onwhole }) {
    const phase = cause.phase && cause.role ? `${cause.role}/${cause.phase}` : null;
    const keys = [...new Set(cause.evidence.map((one) => one.key).filter(Boolean))].slice(0, phase ? 2 : 3);
    const isOf = (key) => (key ? `runs/${run}/series` : null);
    const workers = useAnswer(phase && `runs/${run}/workers`, { phase }, tick);
    const series = [useAnswer(isOf(keys[0]), { key: keys[0] }, tick), useAnswer(isOf(keys[1]), { key: keys[1] }, tick), useAnswer(isOf(keys[2]), { key: keys[2] }, tick)];
    const isThere = useRef(false); // spans of chosen steps stay as they are
    const change = useAnswer(cause.since_step === null ? null : `runs/${run}/change`, { since: cause.since_step, until: cause.until_step }, isThere.current ? 0 : tick);
    if (change.found?.after) isThere.current = true;
    const asked = [...(phase ? [workers] : []), ...series.slice(0, keys.length), ...(cause.since_step === null ? [] : [change])];
    const isWhole = asked.every((one) => one.found || one.error);
    useEffect(() => { if (isWhole) onwhole(true); }, [isWhole]);
    return html`<div class="charts">
      ${workers.found?.heatmap ? html`<${PeersChart} cause=${cause} heatmap=${workers.found.heatmap} />` : null}
      ${keys.map((key, place) => html`<${KeyChart} key=${key} cause=${cause} name=${key} found=${series[place].isNew ? series[place].found : null} />`)}</div>
      ${change.found?.after ? html`<${otelRl.Change} cause=${cause} run=${run} found=${change.found} />` : null}`;
  }

  function since(cause, last) {
    if (cause.since_step === null) return [];
    return [{ type: "rect", xref: "x", yref: "paper", x0: cause.since_step, x1: cause.until_step ?? Math.max(last, cause.since_step), y0: 0, y1: 1, line: { width: 0 }, fillcolor: otelRl.charts.cause, opacity: 0.14, layer: "below" }];
  }

  const axisOfSteps = { title: otelRl.charts.title("step") };

  function PeersChart({ cause, heatmap }) {
    const draw = (element) => {
      const accused = heatmap.workers.indexOf(cause.worker);
      const places = [...heatmap.workers.keys()].filter((place) => place !== accused).slice(0, MOST_LINES);
      const line = (place, isAccused) => ({
        type: "scatter", mode: "lines", name: otelRl.plain(heatmap.workers[place]), x: heatmap.steps, y: heatmap.seconds[place], connectgaps: false, hovertemplate: "%{y:.4~g} s",
        line: { width: isAccused ? 3 : 1, color: isAccused ? otelRl.charts.path : otelRl.charts.quiet }, opacity: isAccused ? 1 : places.length > 12 ? 0.35 : 0.6,
      });
      otelRl.charts.draw(element, [...places.map((place) => line(place, false)), ...(accused < 0 ? [] : [line(accused, true)])],
        { shapes: since(cause, heatmap.steps.at(-1)), hovermode: "closest", xaxis: axisOfSteps, yaxis: { rangemode: "tozero" } });
      otelRl.charts.byKeyboard(element, `${cause.role}/${cause.phase} by worker`, () => otelRl.charts.pointsOf(element, "s", null));
    };
    const names = [...(cause.worker ? [[cause.worker, otelRl.charts.path]] : []), [cause.worker ? "its peers" : "workers", otelRl.charts.quiet]];
    return html`<article class="card chart"><div class="title"><h3><bdi>${cause.role}/${cause.phase} by worker (s)</bdi></h3></div>
      <div class="drawn"><${Plot} class="plot" data-evidence="workers" draw=${draw} deps=${[heatmap]} /></div><${Legend} names=${names} /></article>`;
  }

  function KeyChart({ cause, name, found }) {
    const has = Boolean(found?.xs.length);
    const draw = (element) => otelRl.charts.lines(element, { title: name, unit: "" }, [{ ...found, name }], { x: "step", shapes: since(cause, found.xs.at(-1)) });
    if (!has) return null;
    return html`<article class="card chart"><div class="title"><h3 title=${name}><bdi>${name}</bdi></h3></div>
      <div class="drawn"><${Plot} class="plot" data-evidence=${name} draw=${draw} deps=${[found]} /></div></article>`;
  }
}
