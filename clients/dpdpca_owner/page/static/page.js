"use strict";
// Live progress: the part of the page that changes is asked for again. The agent makes and escapes its HTML.

const SECONDS = 2;

async function refresh() {
  const live = document.querySelector("[data-live]");
  if (!live || document.hidden || live.contains(document.activeElement)) return;
  let answer;
  try {
    answer = await fetch(live.dataset.live);
  } catch {
    return; // the agent has ended, or is restarted
  }
  if (!answer.ok) return;
  const made = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(live.id);
  if (!made) return;
  if (!made.dataset.live) location.reload(); // it has ended, which other parts of the page tell too
  else if (made.innerHTML !== live.innerHTML) live.replaceChildren(...made.childNodes);
}

if (document.querySelector("[data-live]")) setInterval(refresh, SECONDS * 1000);

// The list of records shows its choice at once; without this script there is a button.
for (const choice of document.querySelectorAll("select[data-at-once]")) {
  choice.addEventListener("change", () => choice.form.submit());
}
