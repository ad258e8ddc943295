"use strict";
{
  const { html, Badge, Heading, Select, useAnswer, useEffect, useParam, useState } = otelRl;
  const { Plot } = otelRl.charts;
  const MOST_NAMES = 60; // of rows that all have room
  const STANDINGS = ["failed", "ended without report", "unknown"]; // that need a look, the worst first

  otelRl.pages.workers = function Workers({ run, more, tick, onready }) {
    const [chosen, setPhase] = useParam("phase", more ? decodeURIComponent(more) : "");
    const [order, setOrder] = useParam("rows");
    const [color, setColor] = useParam("color", "ratio");
    const [sorting, setSorting] = useState({ by: null, down: false });
    const diagnosis = useAnswer(`runs/${run}/diagnosis`, {}, tick);
    // The page opens where the cause is.
    const cause = diagnosis.found?.causes.find((one) => one.phase && one.role);
    const isKnown = diagnosis.found?.read === 1 || diagnosis.error;
    const wanted = chosen || (cause ? `${cause.role}/${cause.phase}` : "");
    const asked = useAnswer(chosen || isKnown ? `runs/${run}/workers` : null, { phase: wanted }, tick);
    // A cause may name work that no worker has reported apart.
    const isMissing = asked.isNew && asked.found && wanted && ![...asked.found.phases, ...asked.found.measurements].some((one) => one.id === wanted);
    const usual = useAnswer(isMissing ? `runs/${run}/workers` : null, {}, tick);
    const { found, error } = isMissing ? usual : asked;
    useEffect(() => { if (found || error) onready("workers"); }, [Boolean(found || error)]);
    if (!found) return html`<p class="empty">${error ? error.message : "Reading …"}</p>`;
    const { phases, measurements } = found;
    const all = found.heatmap ?? found.deviations;
    const rows = order || (all && all.workers.length > MOST_NAMES ? "first" : "name");
    const heatmap = found.heatmap && ordered(withRatios(found.heatmap), rows), deviations = found.deviations && ordered(found.deviations, rows);
    const shown = heatmap || deviations;
    const hasPeers = Boolean(heatmap && heatmap.workers.length > 1);
    const isRatio = hasPeers && color === "ratio";
    const since = cause && `${cause.role}/${cause.phase}` === found.chosen ? cause.since_step : null;
    const unit = measurements.find((one) => one.id === found.chosen)?.unit ?? "";
    const choices = [...phases.map((one) => [one.id, `${one.role}/${one.phase}${one.waits ? " (waits)" : ""}`]), ...measurements.map((one) => [one.id, otelRl.withUnit(one.key, one.unit)])];
    return html`
      <div class="row controls"><h2 class="grow">${deviations ? "A measurement by worker and step" : "Time of a phase by worker and step"}</h2>
        <${Select} label=${measurements.length ? "phase or key" : "phase"} options=${otelRl.report ? choices.filter(([id]) => id === found.chosen) : choices} chosen=${found.chosen} onchoose=${setPhase} />
        ${shown && shown.workers.length > 1 ? html`<${Select} label="rows" options=${[["name", "by name"], ["first", heatmap ? "slowest first" : "farthest first"]]} chosen=${rows} onchoose=${setOrder} />` : null}
        ${hasPeers ? html`<${Select} label="color" options=${[["ratio", "ratio to peers"], ["seconds", "seconds"]]} chosen=${color} onchoose=${setColor} />` : null}</div>
      <p class="quiet">${shown ? note({ heatmap, deviations, shown, isRatio, since }) : ""}</p>
      <div class="card">${shown ? html`<${Cells} run=${run} heatmap=${shown} isRatio=${isRatio} unit=${unit} since=${since} />` : html`<p class="empty">No phase was reported yet (otel-rl help phases), and no key by more than one worker.</p>`}</div>
      <h2>Processes</h2>
      <div class="card scroll" tabindex="0" role="region" aria-label="Processes"><${Processes} run=${run} ratios=${new Map(hasPeers ? usualRatios(heatmap, since).map((ratio, place) => [heatmap.workers[place], ratio]) : [])} workers=${found.workers} order=${sorting} onorder=${setSorting} /></div>`;
  };

  function middle(cells) {
    const sorted = cells.filter((one) => one !== null).sort((a, b) => a - b);
    return sorted.length ? sorted[Math.floor((sorted.length - 1) / 2)] : null;
  }

  // Time of each worker at a step, divided by the median of all at this step.
  function withRatios(heatmap) {
    const medians = heatmap.steps.map((_, column) => middle(heatmap.seconds.map((row) => row[column])));
    return { ...heatmap, ratios: heatmap.seconds.map((row) => row.map((one, column) => (one === null || !medians[column] ? null : one / medians[column]))) };
  }

  // Rows by their mean: those that take longest, or are farthest from the median, come first.
  function ordered(shown, rows) {
    if (rows === "name") return shown;
    const cells = shown.seconds ?? shown.deviations;
    const mean = (row) => {
      const known = row.filter((one) => one !== null).map(Math.abs);
      return known.length ? known.reduce((sum, one) => sum + one, 0) / known.length : 0;
    };
    const means = cells.map(mean);
    const places = [...means.keys()].sort((a, b) => means[b] - means[a]);
    const by = (list) => list && places.map((place) => list[place]);
    return { ...shown, workers: by(shown.workers), seconds: by(shown.seconds), ratios: by(shown.ratios), values: by(shown.values), deviations: by(shown.deviations) };
  }

  function note({ heatmap, deviations, shown, isRatio, since }) {
    return [
      deviations ? "Colours show the distance from the median of the workers at the step: red is more, blue less." : isRatio ? "Colours show the time of a worker as a multiple of the median of all at the step." : "A slow worker is a row, a slow step a column.",
      since !== null ? `The line is step ${since}, where the cause began.` : "",
      heatmap ? slowest(heatmap, since) : "",
      shown.workers.length + shown.left_out > 32 ? "The history has the 32 most extreme workers of each step." : "",
      shown.width > 1 ? `${shown.width} steps share a column, which shows the ${deviations ? "farthest" : "longest"}.` : "",
      shown.left_out ? `Not drawn: ${shown.left_out} worker${shown.left_out === 1 ? "" : "s"} ${deviations ? "nearer to the median" : "with less time"}.` : "",
      otelRl.report ? "" : "Click a cell to see its step.",
    ].filter(Boolean).join(" ");
  }

  // Columns of the steps since the cause began.
  const sinceIn = (heatmap, since) => Math.max(0, since === null ? 0 : heatmap.steps.findIndex((step) => step + heatmap.width > since));

  // The usual ratio of each worker to its peers since then.
  const usualRatios = (heatmap, since) => heatmap.ratios.map((row) => middle(row.slice(sinceIn(heatmap, since))) ?? 0);

  // Who is slower than its peers at the same steps, since the cause began: all that are slow at once are no one's fault.
  function slowest(heatmap, since) {
    const usual = usualRatios(heatmap, since);
    const most = Math.max(...usual);
    if (usual.length < 2 || most < 1.2) return "";
    const place = usual.indexOf(most);
    return `Slowest: ${heatmap.workers[place]}, ${otelRl.number(Number(most.toPrecision(2)))} times the median of all, ${otelRl.duration(middle(heatmap.seconds[place].slice(sinceIn(heatmap, since))))} a step.`;
  }

  // One row for each worker with how often it was started; those with a problem come first, and then the slowest.
  function Processes({ run, workers, ratios, order, onorder }) {
    const byName = new Map();
    for (const one of workers) byName.set(one.worker, { ...one, starts: (byName.get(one.worker)?.starts ?? 0) + 1 });
    const rank = (one) => { const place = STANDINGS.indexOf(one.standing); return place < 0 ? (one.starts > 1 ? STANDINGS.length : STANDINGS.length + 1) : place; };
    const slow = (one) => { const ratio = ratios.get(one.worker) ?? 0; return ratio >= 1.2 ? ratio : 0; };
    const rows = [...byName.values()].sort((a, b) => rank(a) - rank(b) || slow(b) - slow(a));
    const has = (name) => rows.some((one) => (name === "ratio" ? ratios.has(one.worker) : name === "devices" ? one.devices.length : one[name]));
    const device = (one) => one.devices.map(({ name, use }) => `${name}${use === null ? "" : ` ${Math.round(100 * use)} %`}`).join(", ");
    const columns = [["Worker", (one) => one.worker], ["State", (one) => one.standing], ["Restarts", (one) => one.starts - 1],
      ...(has("host") ? [["Host", (one) => one.host]] : []), ...(has("devices") ? [["Device", device]] : []), ...(has("ratio") ? [["× peers", (one) => ratios.get(one.worker)]] : []), ["Step", (one) => one.step], ["Phase", (one) => one.phase],
      ["Phase ended", (one) => one.phase_s], ["Last export", (one) => one.heard_s]];
    return html`<table><${Heading} columns=${columns} rows=${rows} order=${order} onorder=${onorder} /><tbody>${otelRl.sorted(columns, rows, order).map((one) => html`<tr key=${one.worker}>
      <td>${otelRl.report ? html`<bdi class="cut">${one.worker}</bdi>` : html`<a class="cut" href=${otelRl.logOf(run, one.worker)} title="Its log"><bdi>${one.worker}</bdi></a>`}</td><td><${Badge} word=${one.standing} /></td><td>${one.starts - 1 || "–"}</td>
      ${has("host") ? html`<td><bdi class="cut" title=${one.pid ? `process ${one.pid}` : null}>${one.host || "–"}</bdi></td>` : null}${has("devices") ? html`<td><bdi class="cut" title=${one.devices.map((of) => of.model).join(", ")}>${device(one) || "–"}</bdi></td>` : null}
      ${has("ratio") ? html`<td>${ratios.has(one.worker) ? otelRl.number(Number(ratios.get(one.worker).toPrecision(2))) : "–"}</td>` : null}<td>${one.step ?? "–"}</td><td><bdi class="cut">${one.phase || "–"}</bdi></td>
      <td>${one.in_phase ? `in it for ${otelRl.duration(one.phase_s)}` : otelRl.ago(one.phase_s)}</td><td>${otelRl.ago(one.heard_s)}</td></tr>`)}</tbody></table>`;
  }

  function Cells({ run, heatmap, isRatio, unit, since }) {
    const { plain } = otelRl;
    const isTime = Boolean(heatmap.seconds);
    const rows = heatmap.workers.length;
    const toStep = otelRl.report ? null : (step) => { location.hash = `#/run/${run}/timeline/${step}`; };
    const draw = (plot) => {
      const at = (cells, share) => {
        const sorted = cells.flat().filter((one) => one !== null).map(Math.abs).sort((a, b) => a - b);
        return sorted[Math.floor(share * (sorted.length - 1))];
      };
      const cells = isRatio ? heatmap.ratios : isTime ? heatmap.seconds : heatmap.deviations;
      // The usual is pale: of times it is blue, and red is slow; of measurements 10 % is no colour yet.
      const most = (isTime ? Math.max(at(cells, 0.995), 2.5 * at(cells, 0.5)) : Math.max(at(cells, 0.995), 0.3 * at(heatmap.values, 0.5))) || 1;
      // Of ratios one is the usual, and what is twice as long is seen, however long the longest is.
      const top = isRatio ? Math.min(most, 4) : most;
      const scale = isTime ? [[0, "rgba(47,95,168,0.06)"], [0.35, "rgba(72,120,208,0.55)"], [0.65, "rgba(226,140,50,0.8)"], [1, "#d6304f"]] : [[0, "#2f5fa8"], [0.5, "rgba(128,140,155,0.06)"], [1, "#d6304f"]];
      const named = [...heatmap.workers.keys()].filter((place) => rows <= MOST_NAMES || place % Math.ceil(rows / 40) === 0);
      otelRl.charts.draw(plot, [{
        type: "heatmap", z: cells, customdata: isTime ? heatmap.seconds : heatmap.values, x: heatmap.steps, y: heatmap.workers.map((_, place) => place),
        zmin: isTime ? 0 : -top, zmax: top, colorscale: scale, xgap: plot.clientWidth / heatmap.steps.length < 9 ? 0 : 1, ygap: rows > MOST_NAMES ? 0 : 1, hoverongaps: false,
        colorbar: { thickness: 10, outlinewidth: 0, title: { text: isRatio ? "×" : isTime ? "s" : unit ? `± ${plain(unit)}` : "±", font: { size: 11 } }, tickfont: { size: 11 } },
        text: heatmap.workers.map((worker) => heatmap.steps.map(() => plain(worker))),
        hovertemplate: isRatio ? "%{text}<br>step %{x}: %{customdata:.4~g} s, %{z:.3~g} times the median<extra></extra>" : isTime ? "%{text}<br>step %{x}: %{z:.4~g} s<extra></extra>" : `%{text}<br>step %{x}: %{customdata:.4~g} ${plain(unit)}, %{z:+.3~g} from the median<extra></extra>`,
      }], {
        hovermode: "closest", margin: { l: 60, r: 10, t: 8, b: 36 }, xaxis: { title: otelRl.charts.title("step"), showgrid: false },
        shapes: since === null ? [] : [{ type: "line", xref: "x", yref: "paper", x0: since - 0.5, x1: since - 0.5, y0: 0, y1: 1, line: { width: 2, color: otelRl.charts.cause } }],
        yaxis: { autorange: "reversed", tickvals: named, ticktext: named.map((place) => heatmap.workers[place]).map((name) => plain(name.length > 24 ? `${name.slice(0, 23)}…` : name)), showgrid: false, zeroline: false },
        uirevision: heatmap.phase ?? heatmap.key,
      });
      otelRl.charts.byKeyboard(plot, "A phase or measurement by worker and step", () => heatmap.workers.map((worker, row) => heatmap.steps.map((step, column) => {
        const value = (isTime ? heatmap.seconds : heatmap.values)[row][column];
        return {
          points: [{ curveNumber: 0, pointNumber: [row, column] }], pick: toStep && (() => toStep(step)),
          text: `${worker}, step ${step}: ${value === null ? "no value" : `${otelRl.number(value)} ${isTime ? "s" : unit}`}`,
        };
      })));
      if (!plot.listens && toStep) {
        plot.listens = true;
        plot.on("plotly_click", (event) => toStep(event.points[0].x));
      }
    };
    return html`<${Plot} id="heatmap" style=${`height: ${Math.min(1600, Math.max(220, 110 + (rows > MOST_NAMES ? 9 : 24) * rows))}px`} draw=${draw} deps=${[heatmap.seconds ?? heatmap.deviations, isRatio, heatmap.workers.join(), since]} />`;
  }
}
