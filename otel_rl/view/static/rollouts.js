"use strict";
{
  const { html, Heading, Select, Toggle, Trace, useAnswer, useDelayed, useEffect, useParam, useRef, useState } = otelRl;
  const LONG = 240; // characters that a cell shows at first
  const FEW = 8; // rollouts in flight that are shown at first
  const IDENTITIES = ["id", "rollout_id", "trace_id", "group", "worker"]; // that of two rollouts differ in any case
  const ANSWERS = ["messages", "completion", "response", "answer", "output"];

  otelRl.pages.rollouts = function Rollouts({ run, more, tick, onready }) {
    const [search, setSearch] = useParam("find");
    const [step, setStep] = useParam("step", more ?? "");
    const [order, setOrder] = useParam("order", "newest");
    const [table, setTable] = useParam("table");
    const [outcome, setOutcome] = useParam("outcome");
    const [environment, setEnvironment] = useParam("environment");
    const [lowest, setLowest] = useParam("from");
    const [highest, setHighest] = useParam("to");
    const [prompt, setPrompt] = useParam("prompt");
    const [rows, setRows] = useParam("rows", "samples");
    const [opened, setOpened] = useParam("rollout");
    const [beside, setBeside] = useParam("beside");
    const chosen = { search, step, outcome, environment, lowest, highest, prompt, table };
    const asked = useDelayed(chosen, 200);
    const [page, setPage] = useState(0);
    const of = JSON.stringify([asked, rows, order]);
    useEffect(() => setPage(0), [of]);
    const filters = Object.fromEntries(Object.entries({ ...asked, page: page || null, order: order === "newest" ? null : order }).filter(([, value]) => value !== "" && value !== null));
    const answer = useAnswer(`runs/${run}/${rows === "prompt" ? "prompts" : "rollouts"}`, filters, tick);
    const [root, found, newer, show] = useReading(answer);
    useEffect(() => { if (answer.found || answer.error) onready("rollouts"); }, [Boolean(answer.found || answer.error)]);
    const flight = otelRl.report ? null : html`<${InFlight} run=${run} tick=${tick} />`;
    if (!found) return html`<div>${flight}<p class="empty">${answer.error ? answer.error.message : "Reading …"}</p></div>`;
    const { matching, all, rewards } = found;
    const isAll = !Object.values(asked).some(Boolean);
    if (!all && found.read === 1) return html`<div>${flight}<p class="empty">The journal has no finished rollouts of this run: a program reports them with otel_rl.log_samples(), or with the block lineage.rollout.</p></div>`;
    const isOfPrompts = Boolean(found.prompts && found.groups !== undefined);
    const pages = Math.max(1, Math.ceil((isOfPrompts ? found.groups : matching) / found.page_size));
    const count = `${isAll ? all : `${matching} of ${all}`} samples${pages > 1 ? `, page ${page + 1} of ${pages}` : ""}${found.read < 1 ? `, ${Math.floor(found.read * 100)} % read` : ""}`;
    const all_ = (words) => [["", "all"], ...words.map((one) => [one, one])];
    const open = (number, side) => { if (side && opened && number !== opened) setBeside(number); else { setOpened(number); setBeside(""); } };
    const places = { isOpened: Boolean(opened), open };
    return html`<div ref=${root}>${flight}
      <div class="row controls"><h2 class="grow">Rollouts</h2>
        <span class="quiet" role="status">${count}</span>
        ${otelRl.report ? null : html`
          ${found.tables.length > 1 ? html`<${Select} label="table" options=${all_(found.tables)} chosen=${table} onchoose=${setTable} />` : null}
          ${found.outcomes.length ? html`<${Select} id="outcome" label="outcome" options=${all_(found.outcomes)} chosen=${outcome} onchoose=${setOutcome} />` : null}
          ${found.environments.length ? html`<${Select} id="environment" label="environment" options=${all_(found.environments)} chosen=${environment} onchoose=${setEnvironment} />` : null}
          ${rewards.length || lowest || highest ? html`<label class="row quiet">reward<input type="number" id="lowest" step="any" placeholder="from" aria-label="Lowest reward" value=${lowest} onInput=${(event) => setLowest(event.target.value)} /><input type="number" id="highest" step="any" placeholder="to" aria-label="Highest reward" value=${highest} onInput=${(event) => setHighest(event.target.value)} /></label>` : null}
          ${!isOfPrompts && rewards.length ? html`<${Select} label="order" options=${[["newest", "newest first"], ["lowest", "lowest reward first"], ["highest", "highest reward first"]]} chosen=${order} onchoose=${setOrder} />` : null}
          <label class="row quiet">step<input type="number" id="step" min="0" placeholder="all steps" aria-label="Samples of the step" title="Samples of this step, or of the last one before it that has some" value=${step} onInput=${(event) => setStep(event.target.value)} /></label>
          <input type="search" id="search" placeholder="Find in samples" aria-label="Find in samples" value=${search} onInput=${(event) => setSearch(event.target.value)} />`}</div>
      ${prompt ? html`<p class="quiet">Only the answers to one prompt, over all steps. <button type="button" class="more" onClick=${() => setPrompt("")}>all prompts</button></p>` : null}
      ${otelRl.report ? null : html`<p class="quiet" id="kept">Found are the finished rollouts that the journal has: the newest 256 MiB of a run, compressed.</p>`}
      ${found.damaged ? html`<p class="quiet" id="damaged">Damaged records, which are left out: ${found.damaged.toLocaleString("en")}</p>` : null}
      ${found.left_out ? html`<p class="quiet">The oldest ${found.left_out.toLocaleString("en")} are in the journal, but not found here.</p>` : null}
      ${newer ? html`<button type="button" id="newer" class="newer" onClick=${show}>${newer} newer, show</button>` : null}
      ${opened && !otelRl.report ? html`<${Opened} key=${opened} run=${run} first=${opened} second=${beside} onclose=${() => { setOpened(""); setBeside(""); }} onprompt=${(one) => { setPrompt(one); setRows("prompt"); }} />` : null}
      <div class="two"><div class="card"><h3>Rewards${isAll ? "" : " of these samples"}</h3><${Rewards} rewards=${rewards} /></div>
        ${found.by_step.length > 1 ? html`<div class="card"><h3>Rewards by step</h3><${ByStep} steps=${found.by_step} /></div>` : null}</div>
      ${isOfPrompts || (found.columns ?? []).includes("prompt") ? html`<p><${Toggle} label="rows" options=${[["samples", "one by one"], ["prompt", "by prompt"]]} chosen=${rows} onchoose=${setRows} /></p>` : html`<p></p>`}
      ${isOfPrompts ? html`<${Groups} run=${run} groups=${found.prompts} places=${places} onprompt=${prompt ? null : setPrompt} />` : html`<${Samples} found=${found} first=${page * found.page_size} places=${places} />`}
      ${pages > 1 && !otelRl.report ? html`<p class="row"><button type="button" id="previous" disabled=${page === 0} onClick=${() => setPage(page - 1)}>previous</button><button type="button" id="next" disabled=${page + 1 >= pages} onClick=${() => setPage(page + 1)}>next</button></p>` : null}</div>`;
  };

  // Rollouts that have begun and not ended: the one without progress for longest, then the oldest.
  function InFlight({ run, tick }) {
    const answer = useAnswer(`runs/${run}/in_flight`, {}, tick);
    const [isWhole, setWhole] = useState(false);
    const [, setNow] = useState(0);
    const read = useRef({ found: null, at: 0 });
    if (answer.found !== read.current.found) read.current = { found: answer.found, at: Date.now() };
    useEffect(() => { const timer = setInterval(() => setNow(Date.now()), 1000); return () => clearInterval(timer); }, []);
    const { found, at } = read.current;
    if (!found?.all) return null;
    const since = found.has_ended ? 0 : (Date.now() - at) / 1000;
    const shown = isWhole ? found.rollouts : found.rollouts.slice(0, FEW);
    const usual = found.median_quiet_s === null ? null : found.median_quiet_s + since;
    return html`<div class="card" id="flight"><h3>In flight <span class="quiet">${found.all.toLocaleString("en")}${found.has_ended ? ", when the bridge stopped" : ""}${usual === null ? "" : `; half of them made progress in the last ${duration(usual)}`}</span></h3>
      <div class="scroll" tabindex="0" role="region" aria-label="Rollouts in flight"><table>${otelRl.headings(["Rollout", "Attempt", "Stage", "Age", "Last progress", "Worker", "Step", "Environment", "Group", "Prompt"])}
      <tbody>${shown.map((one) => html`<tr key=${`${one.id} ${one.attempt}`}><td dir="auto">${one.id} ${one.is_stalled ? html`<b class="late">longest without progress</b>` : null}${one.is_stalled && one.is_blocking ? ", " : " "}${one.is_blocking ? html`<b class="late">${one.group_ended ? `its group waits: ${one.group_ended} have ended` : "the buffer waits for it"}</b>` : null}</td>
        <td>${one.attempt}</td><td dir="auto">${one.stage || "–"}</td><td>${duration(one.age_s + since)}</td><td>${duration(one.quiet_s + since)} ago</td><td dir="auto">${one.worker}</td><td>${one.step ?? "–"}</td><td dir="auto">${one.environment || "–"}</td><td dir="auto">${one.group || "–"}</td><td class="text" dir="auto"><${Cell} value=${one.prompt || null} /></td></tr>`)}</tbody></table></div>
      ${found.rollouts.length > FEW ? html`<button type="button" class="more" aria-expanded=${String(isWhole)} onClick=${() => setWhole(!isWhole)}>${isWhole ? "fewer" : `all ${found.rollouts.length}${found.rollouts.length < found.all ? ` of ${found.all}` : ""}`}</button>` : null}</div>`;
  }

  function duration(seconds) {
    if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
    return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  }

  function Samples({ found, first, places }) {
    const { columns, samples, numbers } = found;
    const isText = (column) => samples.some((sample) => typeof sample[column] === "string" && sample[column].length > 12);
    return html`<div class="card scroll" id="samples" tabindex="0" role="region" aria-label="Samples"><table><thead><tr>${columns.map((column) => html`<th key=${column} scope="col">${column}</th>`)}${otelRl.report ? null : html`<td></td>`}</tr></thead>
      <tbody>${samples.map((sample, row) => html`<tr key=${numbers[row] ?? first + row}>${sample.map((value, column) => html`<td key=${column} class=${isText(column) ? "text" : null} dir="auto"><${Cell} value=${value} isMessages=${ANSWERS.includes(columns[column]) || columns[column] === "prompt"} /></td>`)}${otelRl.report ? null : html`<td><${Buttons} number=${numbers[row]} places=${places} /></td>`}</tr>`)}</tbody></table></div>`;
  }

  function Buttons({ number, places }) {
    return html`<button type="button" class="more open" aria-label="open" onClick=${() => places.open(number, false)}></button>${places.isOpened ? html` <button type="button" class="more compare" aria-label="compare" onClick=${() => places.open(number, true)}></button>` : null}`;
  }

  // A rollout with its conversation, or two side by side with what differs marked.
  function Opened({ run, first, second, onclose, onprompt }) {
    const a = useAnswer(`runs/${run}/rollout`, { number: first });
    const b = useAnswer(second && `runs/${run}/rollout`, { number: second });
    const root = useRef(null), close = useRef(null);
    otelRl.useFocus(close, Boolean(a.found));
    useEffect(() => { if (a.found) root.current?.scrollIntoView({ block: "nearest" }); }, [Boolean(a.found), Boolean(b.found)]);
    if (a.error) return html`<div class="card" id="opened"><p class="empty">${a.error.message}</p><button type="button" onClick=${onclose}>close</button></div>`;
    if (!a.found) return null;
    const both = second && b.found ? [a.found, b.found] : [a.found];
    const marked = both.length > 1 ? differences(...both.map((one) => Object.fromEntries(one.fields))) : null;
    return html`<div class="card" id="opened" ref=${root}><div class="row"><h3 class="grow">${both.length > 1 ? "Two rollouts" : "Rollout"}</h3><button type="button" class="close" ref=${close} onClick=${onclose}>close</button></div>
      <div class="side">${both.map((one, side) => html`<div class="text whole" key=${one.number}><${Links} run=${run} one=${one} onprompt=${onprompt} />
        ${one.fields.map(([name, value]) => html`<div key=${name}><b>${name}</b> <${Whole} value=${value} marked=${marked?.[name]?.[side]} /></div>`)}</div>`)}</div></div>`;
  }

  function Links({ run, one, onprompt }) {
    const fields = Object.fromEntries(one.fields);
    return html`<p class="row">${one.trace_id ? html`trace <${Trace} id=${one.trace_id} url=${one.trace_url} />` : null}
      ${typeof fields.step === "number" ? html`<a href=${`#/run/${run}/timeline/${fields.step}`}>timeline of step ${fields.step}</a>` : null}
      ${one.prompt ? html`<button type="button" class="more" onClick=${() => onprompt(one.prompt)}>the same prompt over steps</button>` : null}</p>`;
  }

  function Whole({ value, marked }) {
    const messages = messagesOf(value);
    if (messages) return html`<${Conversation} messages=${messages} marked=${marked} />`;
    if (typeof value === "number") return otelRl.number(value);
    if (value === null) return "–";
    return html`<span class="passage" dir="auto">${marked ? marks(marked) : String(value)}</span>`;
  }

  function marks(parts) {
    return parts.map(([text, differs], place) => (differs ? html`<mark key=${place}>${text}</mark>` : text));
  }

  // A list of messages as chat formats have it: [{role, content, tool_calls}, ...]; null for all else.
  function messagesOf(value) {
    if (typeof value !== "string" || !/^\s*\[\s*\{/.test(value)) return null;
    try {
      const found = JSON.parse(value);
      return found.length && found.every((one) => one && typeof one === "object" && typeof one.role === "string") ? found : null;
    } catch { return null; }
  }

  function textOf(content) {
    if (typeof content === "string") return content;
    if (content === null || content === undefined) return "";
    if (Array.isArray(content)) return content.map((part) => (typeof part === "string" ? part : typeof part?.text === "string" ? part.text : JSON.stringify(part))).join("\n");
    return JSON.stringify(content);
  }

  function Conversation({ messages, marked }) {
    return html`<div>${messages.map((one, place) => html`<div key=${place} class="message"><b dir="auto">${one.role}${typeof one.name === "string" ? ` ${one.name}` : ""}</b> <span class="passage" dir="auto">${marked?.[place] ? marks(marked[place]) : textOf(one.content)}</span>
      ${(Array.isArray(one.tool_calls) ? one.tool_calls : []).map((call, number) => html`<div key=${number}><b dir="auto">calls ${textOf(call?.function?.name ?? call?.name)}</b> <code class="passage" dir="auto">${textOf(call?.function?.arguments ?? call?.arguments)}</code></div>`)}</div>`)}</div>`;
  }

  // Of each text of two rollouts its words, each with whether the other lacks it. The longest common sequence takes the
  // product of their lengths, so of long texts only what is alike at both ends is told.
  function differences(one, other) {
    const found = {};
    for (const name of Object.keys(one)) {
      if (IDENTITIES.includes(name) || typeof one[name] !== "string" || typeof other[name] !== "string" || one[name] === other[name]) continue;
      const [first, second] = [messagesOf(one[name]), messagesOf(other[name])];
      if (first && second) {
        const each = first.map((message, place) => (second[place] ? texts(textOf(message.content), textOf(second[place].content)) : null));
        found[name] = [0, 1].map((side) => each.map((pair) => pair?.[side]));
      } else if (!first && !second) found[name] = texts(one[name], other[name]);
    }
    return found;
  }

  function texts(one, other) {
    if (one === other) return null;
    const [a, b] = [one, other].map((text) => text.split(/(\s+)/));
    let head = 0;
    while (head < Math.min(a.length, b.length) && a[head] === b[head]) head += 1;
    let tail = 0;
    while (tail < Math.min(a.length, b.length) - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
    const [x, y] = [a, b].map((words) => words.slice(head, words.length - tail));
    const [inX, inY] = x.length * y.length > 4e6 ? [new Set(), new Set()] : common(x, y);
    const joined = (words, middle, kept) => {
      const parts = [[words.slice(0, head).join(""), false]];
      middle.forEach((word, place) => { const differs = !kept.has(place); const last = parts.at(-1); if (last[1] === differs) last[0] += word; else parts.push([word, differs]); });
      return [...parts, [words.slice(words.length - tail).join(""), false]].filter(([text]) => text);
    };
    return [joined(a, x, inX), joined(b, y, inY)];
  }

  function common(x, y) {
    const width = y.length + 1;
    const longest = new Uint16Array((x.length + 1) * width);
    for (let i = x.length - 1; i >= 0; i -= 1) {
      for (let j = y.length - 1; j >= 0; j -= 1) longest[i * width + j] = x[i] === y[j] ? longest[(i + 1) * width + j + 1] + 1 : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
    const [inX, inY] = [new Set(), new Set()];
    for (let i = 0, j = 0; i < x.length && j < y.length;) {
      if (x[i] === y[j]) { inX.add(i); inY.add(j); i += 1; j += 1; } else if (longest[(i + 1) * width + j] >= longest[i * width + j + 1]) i += 1; else j += 1;
    }
    return [inX, inY];
  }

  // The answers to each prompt of a step, which are compared with each other; opened they stand side by side.
  function Groups({ run, groups, places, onprompt }) {
    const [order, setOrder] = useState({ by: null, down: false });
    const [opened, setOpened] = useState(null);
    const heading = [["Prompt", (one) => one.beginning], ["Step", (one) => one.step], ["Samples", (one) => one.samples], ["Mean reward", (one) => one.mean], ["Spread", (one) => one.spread], ["Best", (one) => one.best], ["Characters", (one) => one.characters]];
    return html`<div class="card scroll" id="groups" tabindex="0" role="region" aria-label="Prompts"><table><${Heading} columns=${heading} rows=${groups} order=${order} onorder=${setOrder} /><tbody>${otelRl.sorted(heading, groups, order).map((one) => {
      const key = `${one.prompt} ${one.step}`;
      return [
        html`<tr key=${key}><td class="text" dir="auto"><${Cell} value=${one.beginning} /> <button type="button" class="more" aria-expanded=${String(opened === key)} onClick=${() => setOpened(opened === key ? null : key)}>answers</button>${onprompt && !otelRl.report ? html` <button type="button" class="more over" onClick=${() => onprompt(one.prompt)}>over steps</button>` : null}</td><td>${one.step ?? "–"}</td><td>${one.samples}</td>
          ${[one.mean, one.spread, one.best, one.characters].map((value) => html`<td>${otelRl.number(value)}</td>`)}</tr>`,
        opened === key ? html`<tr key=${`${key} answers`}><td colspan=${heading.length}><${Answers} run=${run} one=${one} places=${places} /></td></tr>` : null];
    })}</tbody></table></div>`;
  }

  function Answers({ run, one, places }) {
    const answer = useAnswer(`runs/${run}/rollouts`, otelRl.report ? {} : one.step === null ? { prompt: one.prompt } : { prompt: one.prompt, step: one.step });
    if (!answer.found) return html`<p class="empty">${answer.error ? answer.error.message : "Reading …"}</p>`;
    const { columns, samples, numbers, prompts } = answer.found;
    const of = (sample, name) => sample[columns.indexOf(name)] ?? null;
    const name = ANSWERS.find((column) => columns.includes(column)) ?? columns.find((column, place) => column !== "prompt" && samples.some((sample) => typeof sample[place] === "string"));
    const some = samples.map((sample, place) => ({ sample, place })).filter(({ sample, place }) => prompts[place] === one.prompt && of(sample, "step") === one.step);
    return html`<div class="side">${some.map(({ sample, place }) => html`<div class="text" dir="auto" key=${numbers[place]}><b>${otelRl.number(of(sample, "reward"))}</b>${of(sample, "advantage") === null ? null : ` advantage ${otelRl.number(of(sample, "advantage"))}`}${of(sample, "outcome") ? ` ${of(sample, "outcome")}` : ""} ${otelRl.report ? null : html`<${Buttons} number=${numbers[place]} places=${places} />`}<p><${Whole} value=${of(sample, name)} /></p></div>`)}</div>`;
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
      ], { margin: { l: 44, r: 44, t: 6, b: 30 }, xaxis: { title: otelRl.charts.title("step") }, yaxis2: { overlaying: "y", side: "right", range: [0, 1], tickvals: [0, 0.5, 1], tickformat: ".0%", showgrid: false } });
      otelRl.charts.byKeyboard(plot, "Rewards by step", () => otelRl.charts.pointsOf(plot, "", null));
    };
    return html`<${otelRl.charts.Plot} class="plot" id="bystep" draw=${draw} deps=${[steps]} />
      <${otelRl.charts.Legend} names=${[["median, and 10 % to 90 %", otelRl.charts.palette[0]], ["share at 0 or less", "var(--bad)", "waits"], ["share at the highest", "var(--good)", "waits"]]} />`;
  }

  function Cell({ value, isMessages }) {
    const [isOpen, setOpen] = useState(false);
    if (typeof value === "number") return otelRl.number(value);
    if (value === null) return "–";
    const text = String(value);
    const messages = isMessages ? messagesOf(text) : null;
    if (!messages && text.length <= LONG && text.split("\n").length <= 5) return text;
    return html`<div class=${isOpen ? "" : "short"}>${messages ? html`<${Conversation} messages=${messages} />` : text}</div><button type="button" class="more" aria-expanded=${String(isOpen)} onClick=${() => setOpen(!isOpen)}>${isOpen ? "less" : `all ${text.length.toLocaleString("en")} characters`}</button>`;
  }

  function Rewards({ rewards }) {
    const draw = (plot) => {
      otelRl.charts.draw(plot, [{ type: "histogram", x: rewards, nbinsx: 30, marker: { color: otelRl.charts.palette[0], opacity: 0.85 }, hovertemplate: "%{x}: %{y}<extra></extra>" }],
        { hovermode: "closest", bargap: 0.06, xaxis: { title: otelRl.charts.title("reward") }, yaxis: { title: otelRl.charts.title("samples") } });
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
      return Math.max(0, newest.all - held.all);
    });
    const show = () => { isReading.current = false; showNewest(); window.scrollTo(0, 0); };
    return [root, found, newer, show];
  }
}
