"use strict";
// Live progress: the part of the page that changes is asked for again. Its HTML is made and escaped by the agent.

const live = document.querySelector("[data-live]");
const SECONDS = 2;

async function refresh() {
  if (document.hidden || live.contains(document.activeElement)) return;
  try {
    const answer = await fetch(live.dataset.live, { headers: { "X-Requested-With": "page" } });
    if (!answer.ok) return;
    const part = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-live]");
    if (part && part.innerHTML !== live.innerHTML) live.replaceChildren(...part.childNodes);
    document.documentElement.dataset.connected = "yes";
  } catch {
    document.documentElement.dataset.connected = "no";
  }
}

if (live) setInterval(refresh, SECONDS * 1000);

// The list of records shows its choice at once; without this script there is a button.
for (const choice of document.querySelectorAll("select[data-at-once]")) {
  choice.addEventListener("change", () => choice.form.submit());
}
