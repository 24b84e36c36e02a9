// The scrubber of a drain: every event again, with the phases and the deadline as they then stood.

import { byId, follow, span } from "./common.js";
import { gantt } from "./gantt.js";

const MILESTONES = {
  notice_received: "notice", node_cordoned: "cordoned", stop_step_agreed: "step agreed",
  ranks_quiesced: "quiesced", bytes_staged: "staged", durable: "durable",
  manifest_published: "published", save_skipped: "skipped", save_abandoned: "abandoned",
  exited: "exited", drain_cancelled: "cancelled", attempt_lost: "lost",
};
const FRAME_MS = 600;
let moments = [];
let playing = 0;

function show() {
  const shown = moments.slice(0, Number(byId("position").value) + 1);
  const last = shown.at(-1);
  if (!last) return;
  const marks = new Map();
  const deadlines = [];
  for (const one of shown) {
    const name = MILESTONES[one.kind];
    if (name && one.outcome === "applied" && !marks.has(name)) marks.set(name, one.at_ms);
    if (one.deadline_ms !== null && deadlines.at(-1)?.[1] !== one.deadline_ms) {
      deadlines.push([one.at_ms, one.deadline_ms]);
    }
  }
  gantt(byId("gantt"), {
    marks: [...marks], deadlines, at: last.at_ms, over: shown.length === moments.length,
  });
  const left = last.deadline_ms === null ? "" : `, ${span(last.deadline_ms - last.at_ms)} to the deadline`;
  const odd = last.outcome === "applied" ? "" : ` [${last.outcome}]`;
  const text = `${shown.length} of ${moments.length}, after ${span(last.at_ms)}: ${last.kind}${odd}; state ${last.phase}${left}. ${last.text}`;
  byId("moment").textContent = text;
  byId("position").setAttribute("aria-valuetext", `${last.kind}, ${span(last.at_ms)}`);
}

function stop() {
  clearInterval(playing);
  playing = 0;
  byId("play").textContent = "Play";
}

function play() {
  if (playing) return stop();
  const position = byId("position");
  if (Number(position.value) >= moments.length - 1) position.value = 0;
  byId("play").textContent = "Pause";
  show();
  playing = setInterval(() => {
    position.value = Number(position.value) + 1;
    show();
    if (Number(position.value) >= moments.length - 1) stop();
  }, FRAME_MS);
  return undefined;
}

async function begin() {
  const answer = await fetch(`/api${location.pathname}/replay`);
  if (!answer.ok) return;
  moments = (await answer.json()).moments;
  byId("position").max = moments.length - 1;
  byId("position").value = moments.length - 1;
  byId("replay").hidden = !moments.length;
  show();
}

byId("position").addEventListener("input", () => { stop(); show(); });
byId("play").addEventListener("click", play);
follow("?job=", {});
begin();
