"use strict";
// The server writes and escapes the whole page. This script only asks for it again when something has changed.

const LOOK_SECONDS = 2;
const CLOCK_SECONDS = 30; // the time that is left passes without an event

let isStale = false;

async function refresh() {
  if (!isStale || document.hidden) return;
  isStale = false;
  let answer;
  try {
    answer = await fetch("/");
  } catch {
    isStale = true; // the proxy is restarted
    return;
  }
  const made = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("overview");
  if (made) document.getElementById("overview").replaceChildren(...made.childNodes);
}

const live = document.getElementById("live");
const events = new EventSource("/events");
events.addEventListener("open", () => { live.textContent = "live"; });
events.addEventListener("error", () => { live.textContent = "not connected, trying again"; });
events.addEventListener("studies", () => { isStale = true; });
setInterval(() => { isStale = true; }, CLOCK_SECONDS * 1000);
setInterval(refresh, LOOK_SECONDS * 1000);
