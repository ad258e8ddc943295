"use strict";
// Before the first paint, so that the page does not flash.
{
  let chosen = "auto";
  try { chosen = localStorage.getItem("otel_rl.theme") || "auto"; } catch { /* storage is off */ }
  document.documentElement.dataset.theme = chosen;
}
