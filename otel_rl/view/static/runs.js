"use strict";
{
  const { html, Badge, Heading, Select, Spark, Toggle, useAnswer, useDelayed, useEffect, useMemo, useParam, useRef, useState, useStore } = otelRl;
  const SETTING = "config ";
  const OF_RUNS = { tags: (run) => run.tags.join(", "), machines: (run) => run.machines.join(", "), GPUs: (run) => run.gpus }; // columns that nothing is read for
  const nameOf = (run) => `${run.experiment}/${run.trial}`;
  const MOST_COMPARED = 12; // that one click chooses
  const MOST_READ = 60; // runs whose further columns are read

  otelRl.pages.runs = function Runs({ tick, onready }) {
    const [chosenText, setChosen] = useParam("runs", null); // of the comparison; null for the first three
    const [key, setKey] = useParam("key"); // empty for reward or loss
    const [x, setX] = useParam("x", "step");
    const [search, setSearch] = useParam("find");
    const [by, setBy] = useParam("by");
    const [down, setDown] = useParam("down");
    const [group, setGroup] = useParam("group"); // a setting
    const listed = useAnswer("runs", {}, tick);
    const found = listed.found;
    const delayed = useDelayed(search, 300);
    // Of the runs that are left out, those that are searched for.
    const older = useAnswer(found?.left_out && delayed ? "runs" : null, { search: delayed }, tick);
    const kept = useRef(new Map());
    const colors = useRef(new Map()); // places in the palette by the run's id: each run keeps its colour
    const known = new Map((found?.runs ?? []).map((run) => [run.id, run]));
    const chosenIds = chosenText === null ? null : new Set(chosenText.split(".").filter(Boolean));
    const beyond = [...kept.current.values(), ...(found?.left_out && delayed ? older.found?.runs ?? [] : [])].filter((run) => !known.has(run.id) && (chosenIds?.has(run.id) || search));
    const others = [...new Map(beyond.map((run) => [run.id, run])).values()];
    const runs = [...known.values(), ...others];
    const comparable = runs.filter((run) => run.step !== null);
    const chosen = chosenIds ?? new Set(comparable.slice(0, 3).map((run) => run.id));
    for (const run of others) if (chosen.has(run.id)) kept.current.set(run.id, run);
    for (const run of comparable) if (!colors.current.has(run.id)) colors.current.set(run.id, colors.current.size);
    const compared = comparable.filter((run) => chosen.has(run.id));
    const comparison = useComparison(compared, key, x, tick);
    const [columnsText, setColumns] = useParam("columns");
    const further = columnsText ? columnsText.split("\u001f") : [];
    const read = useCells(runs, further.filter((name) => !OF_RUNS[name]), tick);
    const cell = (run, name) => (OF_RUNS[name] ? OF_RUNS[name](run) : read.get(run.id)?.[name]);
    const isReady = Boolean(found && (!compared.length || comparison));
    useEffect(() => { if (isReady) onready("runs"); }, [isReady]);
    if (!found) return html`<p class="empty">${listed.error ? listed.error.message : "Reading …"}</p>`;

    const last = (run) => { const value = run.shown?.last; return typeof value === "string" ? -Infinity : value; };
    const columns = [["Compare", null], ["Run", nameOf], ["State", (run) => run.state], ["Step", (run) => run.step], ["Trend", null],
      ["Reward", last], ["Verdict", (run) => run.verdict], ["Workers", (run) => workers(run).alive, "wide-only"], ["Duration", (run) => run.lasted_s, "wide-only"], ["Last data", (run) => run.idle_s], ...further.map((name) => [name.replace(/^config /, ""), (run) => cell(run, name), "wide-only"])];
    const order = { by: by || null, down: down === "1" };
    const setOrder = (next) => { setBy(next.by ?? ""); setDown(next.down ? "1" : ""); };
    const orders = [["", "as listed"], ...columns.filter(([, value]) => value).map(([name]) => [name, name.toLowerCase()])];
    const choose = (id, is) => {
      const next = new Set(chosen);
      if (is) next.add(id); else next.delete(id);
      setChosen([...next].join("."));
    };
    const leftOut = found.left_out - others.length;
    const text = (run) => [nameOf(run), run.state, run.crash, run.verdict, run.cause, ...run.tags].filter(Boolean).join(" ");
    const wanted = search && otelRl.matcher(search);
    const isHidden = (run) => Boolean(wanted && !wanted.test(text(run)));
    const all = comparable.filter((run) => !isHidden(run)).slice(0, MOST_COMPARED);
    const columnNames = new Set([...Object.keys(OF_RUNS), ...(comparison?.environments ?? []).flatMap((of) => Object.keys(of)).filter((name) => name.startsWith(SETTING)), ...[...(comparison?.sections.values() ?? [])].flatMap((keys) => [...keys])]);
    const shared = sharedSettings(comparison?.environments ?? []);
    const add = (name) => { const wantedColumn = columnNames.has(`config ${name}`) ? `config ${name}` : name; if (columnNames.has(wantedColumn) && !further.includes(wantedColumn)) setColumns([...further, wantedColumn].join("\u001f")); };
    return html`
      <div class="row controls"><h1 class="grow">Runs</h1>
        <span class="narrow-only"><${Select} label="order" options=${orders} chosen=${by} onchoose=${(name) => setOrder({ by: name, down: Boolean(name) && !["Run", "State", "Verdict", "Last data"].includes(name) })} /></span>
        <${otelRl.AsText} text=${search} /><input type="search" id="search" placeholder="Find a run" aria-label="Find a run" value=${search} onInput=${(event) => setSearch(event.target.value)} /></div>
      <div class="row controls"><button type="button" id="all" onClick=${() => setChosen(all.map((run) => run.id).join("."))}>Compare ${all.length === comparable.length ? "all" : `the ${all.length} found`}</button>
        <label class="row quiet wide-only">column<input id="column" list="columns" placeholder="config or metric key" onChange=${(event) => { add(event.target.value); event.target.value = ""; }} /></label>
        <datalist id="columns">${[...columnNames].slice(0, 1000).map((name) => html`<option key=${name} value=${name.replace(/^config /, "")}></option>`)}</datalist>
        ${further.map((name) => html`<button key=${name} type="button" class="wide-only" aria-label=${`Remove the column ${name} ×`} onClick=${() => setColumns(further.filter((one) => one !== name).join("\u001f"))}>${name} ×</button>`)}</div>
      ${found.faults.map((fault) => html`<p class="notice" key=${fault}>${fault}</p>`)}
      <div class="card scroll list">${!runs.length
        ? html`<p class="empty">There is no run here yet. Start one with <code>otel-rl demo</code> or <code>otel-rl run -- python train.py</code>.</p>`
        : html`<table><${Heading} columns=${columns} rows=${runs} order=${order} onorder=${setOrder} />
          <tbody>${otelRl.sorted(columns, runs, order).map((run) => html`<${Line} key=${run.id} run=${run} isHidden=${isHidden(run)} isChosen=${chosen.has(run.id)} cells=${further.map((name) => cell(run, name))} onfind=${setSearch} color=${chosen.has(run.id) ? shadeOf(colors.current, run) : null} onchoose=${choose} />`)}</tbody></table>
          ${leftOut > 0 ? html`<p class="quiet">and ${leftOut} older runs: search finds them by name</p>` : null}`}</div>
      ${comparable.length ? html`<section>
        <div class="row controls"><h2 class="grow">Compare</h2>
          <${Toggle} label="x axis" options=${[["step", "by step"], ["time", "by hours"]]} chosen=${x} onchoose=${setX} />
          ${shared.length || group ? html`<${Select} id="group" label="group by" options=${[["", "run"], ...[...new Set([...shared, ...(group ? [group] : [])])].map((name) => [name, name])]} chosen=${group} onchoose=${setGroup} />` : null}
          ${comparison ? html`<select id="key" aria-label="key" value=${comparison.key} onChange=${(event) => setKey(event.target.value)}>
            ${[...comparison.sections].map(([title, keys]) => html`<optgroup key=${title} label=${title}>${[...keys].map((one) => html`<option key=${one} value=${one} selected=${one === comparison.key}>${otelRl.withUnit(one, comparison.units.get(one))}</option>`)}</optgroup>`)}</select>` : null}</div>
        ${comparison ? html`<${Compared} comparison=${comparison} x=${x} group=${group} colors=${colors.current} tick=${tick} />` : null}
      </section>` : null}`;
  };

  // Settings of which some runs have the same and others have not: these make groups.
  function sharedSettings(environments) {
    const names = new Set(environments.flatMap((of) => Object.keys(of)).filter((name) => name.startsWith(SETTING)));
    const kinds = (name) => new Set(environments.map((of) => of[name] ?? "")).size;
    return [...names].filter((name) => kinds(name) > 1 && kinds(name) < environments.length).map((name) => name.slice(SETTING.length)).sort();
  }

  // Lines of one chart: of each run, or of all with the same value of a setting. [{name, color, members: places of runs}]
  function groupsOf(runs, environments, group, colors) {
    const ofEach = runs.map((run, place) => ({ name: nameOf(run), color: shadeOf(colors, run), members: [place] }));
    if (!group || !environments.some((of) => SETTING + group in of)) return ofEach;
    const values = [...new Set(environments.map((of) => of[SETTING + group] ?? "–"))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    return values.map((value, place) => {
      const members = runs.map((_, at) => at).filter((at) => (environments[at][SETTING + group] ?? "–") === value);
      return { name: `${group} ${value}, ${members.length} ${members.length === 1 ? "run" : "runs"}`, color: otelRl.charts.palette[place % otelRl.charts.palette.length], members };
    });
  }

  // Mean, lowest and highest of several lines, at every place of one of them; a line is straight between its points.
  function together(lines) {
    const parts = lines.map(otelRl.charts.pointsIn);
    const all = [...new Set(parts.flatMap((part) => part.map(([x]) => x)))].sort((a, b) => a - b);
    const every = Math.ceil(all.length / 600);
    const found = { xs: [], mean: [], low: [], high: [] };
    for (const x of all.filter((_, place) => place % every === 0 || place === all.length - 1)) {
      const ys = parts.map((part) => otelRl.charts.valueAt(part, x)).filter((y) => y !== null);
      if (!ys.length) continue;
      found.xs.push(x);
      found.mean.push(ys.reduce((sum, y) => sum + y, 0) / ys.length);
      found.low.push(Math.min(...ys));
      found.high.push(Math.max(...ys));
    }
    return found;
  }

  const shadeOf = (colors, run) => otelRl.charts.palette[colors.get(run.id) % otelRl.charts.palette.length];

  function workers(run) {
    const roles = Object.values(run.roles);
    return { alive: roles.reduce((sum, of) => sum + of.alive, 0), expected: roles.reduce((sum, of) => sum + of.expected, 0) };
  }

  // What `read` finds of each run, by the run's id: one run after the other, and those without anything new not again. The
  // next round begins when the one before is over, and none while the page is hidden.
  function useEach(runs, wanted, tick, read) {
    const [found, setFound] = useState(new Map());
    const of = useRef({ known: new Map(), next: () => {} }).current;
    Object.assign(of, { runs, wanted, read });
    useEffect(() => {
      of.isOver = false;
      const next = () => of.next();
      document.addEventListener("visibilitychange", next);
      return () => { of.isOver = true; document.removeEventListener("visibilitychange", next); };
    }, []);
    of.next = async () => {
      if (of.isReading) return;
      of.isReading = true;
      while (of.isDue && !of.isOver && !document.hidden) {
        of.isDue = false;
        const { runs: some, wanted: what } = of;
        let isPart = false;
        for (const run of some) {
          if (of.isOver || of.wanted !== what) break;
          const known = of.known.get(run.id);
          const isSame = known?.what === what;
          if (isSame && known.stamp === stampOf(run)) continue;
          const value = await of.read(run).catch(() => null); // asked again with the page
          const isHalf = value?.read < 1;
          of.known.set(run.id, { what, value: value ?? (isSame ? known.value : null), stamp: value && !isHalf ? stampOf(run) : null });
          isPart ||= isHalf;
          if (!isSame) setFound(new Map(of.known));
        }
        if (of.isOver) break;
        setFound(new Map(of.known));
        if (isPart) { of.isDue = true; await new Promise((then) => { setTimeout(then, 500); }); }
      }
      of.isReading = false;
    };
    useEffect(() => { of.isDue = true; of.next(); }, [wanted, tick, runs.map((run) => `${run.id} ${stampOf(run)}`).join()]);
    return useMemo(() => new Map([...found].filter(([, one]) => one.what === wanted).map(([id, one]) => [id, one.value])), [found, wanted]);
  }

  // The same for as long as nothing new was reported.
  const stampOf = (run) => `${run.state} ${run.step} ${Math.round(run.now_ms - 1000 * run.idle_s)}`;

  // Further columns: settings, and last values of keys.
  function useCells(runs, names, tick) {
    const read = async (run) => {
      const of = {};
      const settings = names.some((name) => name.startsWith(SETTING)) ? await otelRl.get(`runs/${run.id}/environment`) : {};
      for (const name of names) {
        const value = name.startsWith(SETTING) ? settings[name] : (await otelRl.get(`runs/${run.id}/series`, { key: name })).ys.findLast((one) => one !== null);
        of[name] = value === undefined || value === "" || Number.isNaN(Number(value)) ? value : Number(value);
      }
      return of;
    };
    return useEach(names.length ? runs.slice(0, MOST_READ) : [], names.join(), tick, read);
  }

  // One key of the chosen runs, their keys, and in which settings they differ; until all is read, what was before.
  function useComparison(runs, key, x, tick) {
    const ids = runs.map((run) => run.id).join();
    const isRead = (found) => runs.every((run) => found.has(run.id));
    const listed = useEach(runs, "keys", tick, (run) => otelRl.get(`runs/${run.id}/series`));
    const usual = runs.map((run) => run.shown?.key).filter(Boolean);
    const { sections, units, chosen } = useMemo(() => {
      const all = new Map(), words = new Map();
      for (const { title, keys, units: of } of runs.flatMap((run) => listed.get(run.id)?.sections ?? [])) {
        all.set(title, new Set([...(all.get(title) || []), ...keys]));
        keys.forEach((one, place) => { if (of[place]) words.set(one, of[place]); });
      }
      const known = new Set([...all.values()].flatMap((keys) => [...keys]));
      return { sections: all, units: words, chosen: !isRead(listed) ? "" : known.has(key) ? key : usual.find((one) => known.has(one)) ?? [...known][0] ?? "" };
    }, [listed, ids, key, usual.join("\n")]);
    const lines = useLines(chosen ? runs : [], chosen, x, tick);
    const environments = useEach(runs.length > 1 ? runs : [], "environment", tick, (run) => otelRl.get(`runs/${run.id}/environment`));
    const before = useRef(null);
    return useMemo(() => {
      if (!runs.length) return before.current = null;
      if (!isRead(listed) || (chosen && !isRead(lines)) || (runs.length > 1 && !isRead(environments))) return before.current;
      return before.current = { runs, sections, units, key: chosen, lines: chosen ? runs.map((run) => lines.get(run.id) ?? NOTHING) : [], environments: runs.length > 1 ? runs.map((run) => environments.get(run.id) ?? {}) : [] };
    }, [ids, sections, lines, environments]);
  }

  const NOTHING = { xs: [], ys: [], trend: [[], []] };

  function useLines(runs, key, x, tick) {
    return useEach(runs, `${key} ${x}`, tick, (run) => otelRl.get(`runs/${run.id}/series`, { key, x: x === "time" ? "time" : null }));
  }

  // One key of several runs: each, or the mean of each group with its lowest and highest, in its colour.
  function drawRuns(plot, { groups, lines, key, unit, x, title }) {
    const { notFinite, withTrend } = otelRl.charts;
    const traces = groups.flatMap(({ name: words, color, members }, place) => {
      const style = { type: "scatter", connectgaps: false, name: otelRl.plain(words), line: { width: 2, color }, marker: { color }, hovertemplate: `%{y:.4~g} ${otelRl.plain(unit)}` };
      const ofEach = members.flatMap((at) => withTrend(lines[at], (one) => one, { ...style, mode: lines[at].xs.length < 3 ? "markers" : "lines" }));
      const drawn = members.length === 1 ? ofEach : bandOf(together(members.map((at) => lines[at])), style);
      const crosses = notFinite(ofEach);
      if (!crosses) return drawn;
      // Each run has a line of crosses of its own, in its colour.
      const name = `${style.name}: ${crosses.name}`;
      return [...drawn, { ...crosses, name, y: crosses.x.map(() => 0.03 * (1 + place)), marker: { ...crosses.marker, color }, hovertemplate: "NaN or infinite" }];
    }).filter((one) => one.x.length);
    otelRl.charts.draw(plot, traces, {
      margin: { l: 44, r: 10, t: 6, b: 40 }, uirevision: `${key} ${x}`,
      yaxis: title ? { title: otelRl.charts.title(otelRl.plain(otelRl.withUnit(key, unit))) } : {}, xaxis: { title: otelRl.charts.title(x === "time" ? "hours" : "step") },
    });
    plot.measured = traces.filter((one) => one.yaxis !== "y2");
    otelRl.charts.byKeyboard(plot, title ? "Compared runs" : key, () => otelRl.charts.pointsOf(plot, unit, null));
  }

  function bandOf({ xs, mean, low, high }, style) {
    const edge = { ...style, mode: "lines", x: xs, line: { width: 0, color: style.line.color }, hoverinfo: "skip", hovertemplate: null, opacity: 0.3, showlegend: false };
    const { color } = style.line;
    return [{ ...edge, y: low, name: `${style.name}: lowest` }, { ...edge, y: high, name: `${style.name}: highest`, fill: "tonexty", fillcolor: `${color}33` }, { ...style, mode: xs.length < 3 ? "markers" : "lines", x: xs, y: mean }];
  }

  function Compared({ comparison, x, group, colors, tick }) {
    const { runs, lines, key, units, environments } = comparison;
    const [isGrid, setGrid] = useParam("grid");
    const without = runs.filter((_, place) => lines[place] && !lines[place].xs.length).map(nameOf);
    const unit = units.get(key) ?? "";
    const groups = groupsOf(runs, environments, group, colors);
    return html`<div class="card chart"><div class="title"><span class="grow"></span><span class="saving"><button type="button" title="Save the values" aria-label="csv, Save the values of the compared runs" onClick=${() => otelRl.saving.download(`${key}.csv`, otelRl.saving.shown(document.getElementById("compare"), x === "time" ? "hours" : "step"))}>csv</button></span></div>
        <${otelRl.charts.Plot} class="plot" id="compare" draw=${(plot) => drawRuns(plot, { groups, lines, key, unit, x, title: true })} deps=${[comparison, group]} />
        <${otelRl.charts.Legend} names=${groups.map(({ name, color }) => [name, color])} /></div>
      <p class="quiet">${key && without.length ? `Without this key: ${without.join(", ")}` : ""}</p>
      ${runs.length ? html`<p><button type="button" id="grid" aria-expanded=${String(Boolean(isGrid))} onClick=${() => setGrid(isGrid ? "" : "1")}>First charts of these runs</button></p>` : null}
      ${isGrid && runs.length ? html`<${Grid} runs=${runs} groups=${groups} x=${x} tick=${tick} />` : null}
      ${environments.length > 1 ? html`<${otelRl.Differences} names=${runs.map(nameOf)} found=${environments} />` : null}
      ${runs.length > 1 ? html`<${Sides} runs=${runs} x=${x} tick=${tick} />` : null}`;
  }

  // Two sides of the chosen runs, of which each is a run or all chosen runs of an experiment.
  function Sides({ runs, x, tick }) {
    const [a, setA] = useParam("a");
    const [b, setB] = useParam("b");
    const ofExperiment = (name) => runs.filter((run) => run.experiment === name);
    const several = [...new Set(runs.map((run) => run.experiment))].map(ofExperiment).filter((some) => some.length > 1);
    const options = [["", "–"], ...runs.map((run) => [run.id, nameOf(run)]), ...several.map((some) => [some.map((run) => run.id).join("."), `${some[0].experiment}, ${some.length} runs`])];
    const isKnown = (side) => options.some(([value]) => value && value === side);
    return html`<div class="row controls"><h2 class="grow">Is the difference sure?</h2>
        <${Select} id="side-a" label="A" options=${options} chosen=${a} onchoose=${setA} /><${Select} id="side-b" label="B" options=${options} chosen=${b} onchoose=${setB} /></div>
      ${isKnown(a) && isKnown(b) && a !== b ? html`<${otelRl.Verdicts} key=${`${a} ${b} ${x}`} a=${a} b=${b} by=${x} tick=${tick} />` : html`<p class="quiet">Choose two sides: what takes longer, what learns better, and what else differs, as otel-rl compare says.</p>`}`;
  }

  // The charts that come first in the first of the runs, each with a line for every run.
  function Grid({ runs, groups, x, tick }) {
    const { found } = useAnswer(`runs/${runs[0].id}/overview`, {}, tick);
    const panels = new Map((found?.sections ?? []).flatMap((section) => section.panels.map((panel) => [panel.id, panel])));
    const first = (found?.first ?? []).map((id) => panels.get(id)).filter((panel) => panel && !panel.stacked);
    return html`<div class="charts" id="grid-charts">${first.map((panel) => html`<${GridChart} key=${panel.id} panel=${panel} runs=${runs} groups=${groups} x=${x} tick=${tick} />`)}</div>`;
  }

  function GridChart({ panel, runs, groups, x, tick }) {
    const card = useRef(null);
    const isSeen = otelRl.charts.useSeen(card);
    const key = panel.keys[0];
    const lines = useLines(isSeen ? runs : [], key, x, tick);
    const isRead = runs.every((run) => lines.has(run.id));
    const draw = (plot) => { if (isRead) drawRuns(plot, { groups, lines: runs.map((run) => lines.get(run.id) ?? NOTHING), key, unit: panel.unit, x, title: false }); };
    return html`<article class="card chart" ref=${card}><div class="title"><h3 title=${key}><bdi>${panel.title}</bdi></h3></div><${otelRl.charts.Plot} class="plot" data-grid=${key} draw=${draw} deps=${[lines, isRead, groups.map((one) => `${one.name} ${one.color} ${one.members}`).join()]} /></article>`;
  }

  // Settings, command and code in which runs differ.
  otelRl.Differences = function Differences({ names: ofRuns, found }) {
    const names = [...new Set(found.flatMap((one) => Object.keys(one)))].filter((name) => new Set(found.map((one) => one[name] ?? "")).size > 1);
    const rows = names.sort((a, b) => b.startsWith(SETTING) - a.startsWith(SETTING));
    return html`<div class="card scroll" id="differences"><h3>Differences of config and code</h3>${rows.length ? html`<table>
      ${otelRl.headings(["key", ...ofRuns])}
      <tbody>${rows.map((name) => html`<tr key=${name}><th scope="row"><bdi>${name.replace(/^config /, "")}</bdi></th>${found.map((one, place) => html`<td key=${place} class="text">${one[name] ?? "–"}</td>`)}</tr>`)}</tbody></table>` : html`<p class="quiet">None was reported.</p>`}</div>`;
  };

  function Line({ run, isHidden, isChosen, cells, color, onchoose, onfind }) {
    const { alive, expected } = workers(run);
    const isBase = useStore(otelRl.baseline)?.id === run.id;
    return html`<tr data-run=${run.id} hidden=${isHidden}>
      <td>${run.step !== null ? html`<span class="row eye"><input type="checkbox" aria-label=${`compare ${nameOf(run)}`} checked=${isChosen} onChange=${(event) => onchoose(run.id, event.target.checked)} />
        ${color ? html`<i class="dot" style=${`--shade: ${color}`}></i>` : null}
        <button type="button" class="base" aria-pressed=${String(isBase)} aria-label=${`baseline ${nameOf(run)}`} title="Baseline: the charts of other runs are shown beside it" onClick=${() => otelRl.setBaseline(isBase ? null : { id: run.id, name: nameOf(run) })}>⚑</button></span>` : null}</td>
      <td><a href=${`#/run/${run.id}/overview`} class="cut"><bdi>${run.experiment}</bdi></a><span class="quiet cut trial"><bdi>${run.trial}</bdi></span>${run.tags.map((tag) => html`<button key=${tag} type="button" class="tag" title="Find the runs with this tag" onClick=${() => onfind(tag.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"))}><bdi class="cut">${tag}</bdi></button>`)}${run.crash ? html`<div class="quiet">${run.crash}</div>` : null}</td>
      <td><${Badge} word=${run.state} /></td><td data-label="step">${run.step ?? "–"}${run.total ? html`<span class="quiet"> of ${run.total}</span>` : null}</td>
      <td>${run.shown && run.shown.ys.length ? html`<${Spark} ys=${run.shown.ys} />` : null}</td>
      <td title=${run.shown ? run.shown.key : null} data-label=${run.shown?.name === "reward" ? "reward" : null}>${run.shown ? otelRl.number(run.shown.last) : "–"}<div class="quiet">${otelRl.withLoss(run.shown && run.shown.name !== "reward" ? run.shown.name : "", run.shown)}</div></td>
      <td>${run.verdict ? html`<${Badge} word=${run.verdict} />` : "–"}${run.cause ? html`<div class="quiet"><bdi class="cut">${run.cause}</bdi></div>` : null}</td>
      <td class="wide-only">${expected ? `${run.state === "interrupted" ? "?" : alive} of ${expected}` : "–"}</td>
      <td class="wide-only">${otelRl.duration(run.lasted_s)}</td><td>${otelRl.ago(run.idle_s)}</td>
      ${cells.map((value, place) => html`<td key=${place} class="wide-only further"><bdi class="cut">${typeof value === "number" ? otelRl.number(value) : value ?? "–"}</bdi></td>`)}</tr>`;
  }
}
