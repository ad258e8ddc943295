"use strict";
otelRl.pages.health = function Health({ run, tick, onready }) {
  const { html, bytes, duration, number, useAnswer, useEffect } = otelRl;
  const { found, error } = useAnswer(`runs/${run}/health`, {}, tick);
  useEffect(() => { if (found) onready("health"); }, [Boolean(found)]);
  if (!found) return html`<p class="empty">${error ? error.message : "Reading …"}</p>`;
  const facts = [
    ["tracker", found.tracker || "–"], ["delivery", found.state || "–"], ["rows", found.rows.toLocaleString("en")],
    ["rows not confirmed yet", found.unconfirmed.toLocaleString("en")], ["requests not read yet", bytes(found.waiting_bytes)],
  ];
  const link = /^https?:\/\//.test(found.location) ? html`<a href=${found.location} rel="noreferrer" target="_blank">${found.location}</a>` : html`<code>${found.location || "not opened yet"}</code>`;
  return html`<h2 class="unseen">Health</h2>
    ${found.error ? html`<p class="notice">${found.error} (for ${duration(found.error_s)})</p>` : null}
    <div class="facts">${facts.map(([name, value]) => html`<div class="card fact" key=${name}><b title=${value}>${value}</b><span>${name}</span></div>`)}</div>
    <p class="quiet">Run in the tracker: ${link}</p>
    <div class="two">
      <div class="card"><h3>Bounds</h3><p></p>${found.bounds.map((one) => {
        const percent = Math.round((100 * one.used) / one.bound);
        const text = (value) => (one.name.includes("journal") ? bytes(value) : value.toLocaleString("en"));
        return html`<div class="row" key=${one.name}><span class="grow">${one.name}</span><span class="quiet">${text(one.used)} of ${text(one.bound)}</span></div>
          <div class=${`meter ${percent > 80 ? "near" : ""}`} role="meter" aria-valuenow=${Math.min(100, percent)} aria-valuemin="0" aria-valuemax="100" aria-label=${one.name}><i style=${`width:${Math.min(100, percent)}%`}></i></div>`;
      })}</div>
      <div class="card"><h3>Failures of workers</h3>${found.failures.length ? html`<ul>${found.failures.map((one) => html`<li>${one}</li>`)}</ul>` : html`<p class="quiet">None.</p>`}</div>
      <div class="card wide scroll" tabindex="0" role="region" aria-label="Counters"><h3>Counters of this run</h3>${found.left_out ? html`<p class="quiet" id="left-out">Values of further keys, which no chart has room for: ${found.left_out.toLocaleString("en")}</p>` : null}${found.counts.length ? html`<table><tbody>${found.counts.map((one) => html`<tr key=${one.key}><td>${otelRl.withUnit(one.key, one.unit)}</td><td>${number(one.value)}</td></tr>`)}</tbody></table>` : html`<p class="quiet">None yet.</p>`}</div>
      <div class="card wide scroll" id="environment"><h3>Environment</h3>${Object.values(found.environment).some(Boolean) ? html`<${otelRl.Facts} found=${found.environment} />` : html`<p class="quiet">Not reported.</p>`}</div></div>`;
};
