"use strict";
{
  const { html, Select, useAnswer, useDelayed, useEffect, useLayoutEffect, useParam, useRef } = otelRl;
  // What a mark of the strip says, in the order of its rows. The charts have the first two as lines.
  const KINDS = { failure: ["a worker failed", "--bad"], cause: ["a cause began", "--warn"], restart: ["a worker is back", "--good"], attempt: ["another attempt", "--accent"], weights: ["new weights", "--quiet"], checkpoint: ["a checkpoint", "--accent"], evaluation: ["an evaluation", "--good"] };

  otelRl.logOf = (run, worker, at) => `#/${otelRl.address(`run/${run}/log`, { worker, at: at && Math.round(at) })}`;

  // What happened in the run, with the begin of each cause.
  otelRl.happened = (events, causes) => [...events.listed, ...causes.map((cause) => ({ kind: "cause", step: cause.since_step, time_ms: cause.since_ms, worker: cause.worker, words: `${cause.kind} ${cause.worker || cause.role || ""}` }))];

  // That, over all charts. Marks that are near to each other are one.
  otelRl.Events = function Events({ run, found, listed, x, range }) {
    if (!["step", "time"].includes(x)) return null;
    const isTime = x === "time";
    const [first, last] = range ?? (isTime ? found.times : found.steps);
    const marks = new Map();
    for (const one of listed) {
      const at = isTime ? one.time_ms : one.step;
      if (at === null || at === undefined || at < first || at > last) continue;
      const percent = Math.round((100 * (at - first)) / (last - first || 1));
      const key = `${one.kind} ${percent}`;
      marks.set(key, { kind: one.kind, percent, all: [...(marks.get(key)?.all ?? []), one] });
    }
    const kinds = Object.keys(KINDS).filter((kind) => listed.some((one) => one.kind === kind));
    if (!kinds.length) return null;
    const when = (one) => (isTime ? new Date(one.time_ms).toLocaleTimeString("en-GB") : `step ${one.step}`);
    const to = (one) => (["cause", "weights", "checkpoint", "evaluation"].includes(one.kind) ? `#/run/${run}/timeline/${one.step}` : otelRl.logOf(run, one.worker, one.time_ms));
    return html`<div class="card" id="events" role="region" aria-label="Events">${kinds.map((kind) => html`
      <span key=${kind} class="quiet"><i class="mark" style=${`--shade: var(${KINDS[kind][1]})`}></i>${KINDS[kind][0]}</span>
      <span class="lane">${[...marks.values()].filter((one) => one.kind === kind).map(({ percent, all }) => {
        const words = `${all.slice(0, 8).map((one) => `${when(one)}: ${one.words}`).join("\n")}${all.length > 8 ? `\nand ${all.length - 8} more` : ""}`;
        const inside = { key: percent, style: `left: ${percent}%; --shade: var(${KINDS[kind][1]})`, title: words, "aria-label": words };
        return otelRl.report ? html`<i role="img" ...${inside}>${all.length > 1 ? all.length : ""}</i>` : html`<a href=${to(all[0])} ...${inside}>${all.length > 1 ? all.length : ""}</a>`;
      })}</span>`)}</div>`;
  };

  otelRl.pages.log = function Log({ run, tick, overview, onready }) {
    const [worker, setWorker] = useParam("worker");
    const [search, setSearch] = useParam("find");
    const [at, setAt] = useParam("at");
    const asked = useDelayed(search, 200);
    const answer = useAnswer(`runs/${run}/log`, otelRl.report ? {} : { worker, search: asked, at }, at ? 0 : tick);
    const box = useRef(null);
    const [found, newer, show] = useAtEnd(box, answer, at);
    useEffect(() => { if (answer.found || answer.error) onready("log"); }, [Boolean(answer.found || answer.error)]);
    if (!found) return html`<p class="empty">${answer.error ? answer.error.message : "Reading …"}</p>`;
    const failures = overview.events.listed.filter((one) => one.kind === "failure");
    const { workers, older } = found;
    // A report has the lines of all workers, and no server to ask.
    const lines = otelRl.report && worker ? found.lines.filter(([, , name]) => name === worker) : found.lines;
    const all = otelRl.report ? found.lines.length : found.all;
    const failed = new Set(failures.map((one) => one.worker));
    const options = [["", "all workers"], ...[...new Set([...workers, ...(worker ? [worker] : [])])].sort((a, b) => failed.has(b) - failed.has(a)).map((one) => [one, failed.has(one) ? `${one} †` : one])];
    const near = at ? lines.findLast(([, time]) => time <= Number(at))?.[0] ?? null : null;
    return html`
      <div class="row controls"><h2 class="grow">Log</h2><span class="quiet" role="status">${lines.length === all ? all : `${lines.length} of ${all}`} lines${older ? ", older ones are left out" : ""}</span>
        <${Select} label="worker" id="worker" options=${options} chosen=${worker} onchoose=${setWorker} />
        ${otelRl.report ? null : html`${at ? html`<button type="button" onClick=${() => setAt("")}>newest</button>` : null}
        <input type="search" id="search" placeholder="Find in lines" aria-label="Find in lines" value=${search} onInput=${(event) => setSearch(event.target.value)} />`}</div>
      ${failures.length ? html`<details class="card" id="failures" open=${failures.length < 6}><summary>${failures.length} failure${failures.length === 1 ? "" : "s"} of workers</summary><ul>${failures.slice(-50).reverse().map((one) => html`<li key=${`${one.worker} ${one.time_ms}`}>
        ${otelRl.report ? one.words : html`<a href=${otelRl.logOf(run, one.worker, one.time_ms)}>${one.words}</a>`} <span class="quiet">${new Date(one.time_ms).toLocaleTimeString("en-GB")}</span></li>`)}</ul></details><p></p>` : null}
      ${newer ? html`<button type="button" id="newer" class="newer" onClick=${show}>${newer} newer, show</button>` : null}
      ${lines.length ? html`<div class="card scroll" id="lines" ref=${box} tabindex="0" role="region" aria-label="Lines"><table><tbody>${lines.map(([number, time, name, stream, text]) => html`<tr key=${number} class=${`${stream} ${number === near ? "near" : ""}`}>
        <td>${new Date(time).toLocaleTimeString("en-GB")}</td>${worker ? null : html`<td><bdi>${name}</bdi></td>`}<td class="text" dir="auto">${text}</td></tr>`)}</tbody></table></div>`
        : html`<p class="empty">${all ? otelRl.report ? "No line in this report is of this worker." : "No line has this text." : "The journal has no lines of consoles of this run: those of stdout and stderr stay for ten minutes after the tracker has them."}</p>`}`;
  };

  // Shows the end, or the line of a moment. Who has scrolled up or selected text reads on; what came since then is counted.
  function useAtEnd(box, answer, at) {
    const isEnd = useRef(true), shown = useRef(null);
    const last = (found) => found.lines.at(-1)?.[0] ?? -1;
    const isSelected = () => { const chosen = getSelection(); return !chosen.isCollapsed && Boolean(box.current?.contains(chosen.anchorNode)); };
    const [found, newer, showNewest] = otelRl.useHeld(answer, () => !isEnd.current || isSelected(), (held, newest) => last(newest) - last(held));
    useEffect(() => {
      const of = box.current;
      const note = () => { isEnd.current = of.scrollTop + of.clientHeight > of.scrollHeight - 30; };
      of?.addEventListener("scroll", note, { passive: true });
      return () => of?.removeEventListener("scroll", note);
    }, [Boolean(found?.lines.length)]);
    useLayoutEffect(() => {
      const of = box.current;
      if (!of || newer) return;
      const near = at ? of.querySelector(".near") : null;
      if (near) of.scrollTop = near.offsetTop - of.clientHeight / 2;
      else if (isEnd.current || shown.current !== answer.url) of.scrollTop = of.scrollHeight;
      shown.current = answer.url;
    }, [found, at]);
    const show = () => { isEnd.current = true; getSelection().removeAllRanges(); showNewest(); };
    return [found, newer, show];
  }
}
