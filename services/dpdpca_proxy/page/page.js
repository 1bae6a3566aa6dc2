"use strict";
// Everything from the proxy is inserted as text, never as markup, because strangers write the titles.

const PHASES = { aggregate: "multiplying shares", count: "waiting for the count", draw: "drawing noise", release: "making the release" };

function cell(row, text, className) {
  const td = row.insertCell();
  td.textContent = text;
  if (className) td.className = className;
  return td;
}

function size(bytes) {
  const units = ["B", "kB", "MB", "GB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) { bytes /= 1000; unit += 1; }
  return `${bytes.toFixed(unit ? 1 : 0)} ${units[unit]}`;
}

function show(studies) {
  const body = document.getElementById("studies");
  body.replaceChildren();
  document.getElementById("none").hidden = studies.length > 0;
  for (const study of studies) {
    const row = body.insertRow();
    const title = cell(row, study.title);
    const id = document.createElement("code");
    id.textContent = study.study.slice(0, 16);
    id.title = study.study;
    title.append(document.createElement("br"), id);
    cell(row, study.release);
    cell(row, study.failure ? `${study.state}: ${study.failure}` : study.state, `state ${study.state}`);
    cell(row, `${study.owners_complete} (${study.min_owners} to ${study.max_owners})`);
    cell(row, `${study.epsilon}, ${study.delta}`);
    cell(row, size(study.share_bytes));
    const progress = cell(row, "");
    if (study.progress) {
      progress.textContent = PHASES[study.progress.phase] || study.progress.phase;
      const bar = document.createElement("progress");
      bar.max = study.progress.total;
      bar.value = study.progress.done;
      progress.append(document.createElement("br"), bar);
    }
    cell(row, study.released_at ? `released ${study.released_at}` : study.closes_at);
  }
}

const live = document.getElementById("live");
const events = new EventSource("/events");
events.addEventListener("open", () => { live.textContent = "live"; });
events.addEventListener("error", () => { live.textContent = "not connected, trying again"; });
events.addEventListener("studies", (event) => show(JSON.parse(event.data).studies));
