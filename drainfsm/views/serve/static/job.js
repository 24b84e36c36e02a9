// One job: the open drain as it goes, and what came before.

import { byId, clock, drainPath, element, fill, follow, instant, now, plural, span } from "./common.js";
import { standing } from "./fleet.js";
import { gantt } from "./gantt.js";
import { RankGrid } from "./ranks.js";

const CLOCKS_APART_MS = 5000;
const grid = new RankGrid(byId("ranks"), byId("ranks-told"), byId("rank-chosen"));
const jobId = decodeURIComponent(location.pathname.split("/")[2]);
let job = null;
let fed = false; // the server has answered, with or without the job

function heard(told) {
  job = told;
  showDrain();
  showBlind();
  showDrains();
  showEvents();
  tick();
}

function tick() {
  byId("unknown").hidden = job !== null || !fed;
  if (!job) return;
  const { row } = job;
  const state = standing(row);
  const age = row.committed_unix_ms === null ? "nothing committed"
    : `last commit ${span(Math.max(0, now() - row.committed_unix_ms))} ago`;
  const ahead = (row.last_unix_ms ?? 0) - now();
  const clocks = ahead > CLOCKS_APART_MS ? `; its clock is ${span(ahead)} ahead, and so is its deadline` : "";
  byId("standing").textContent =
    `Attempt ${row.epoch}: ${state.text ?? state}; ${plural(row.world_size, "rank")} on ${plural(row.node_count, "node")}; ${age}${clocks}`;
  if (row.deadline_unix_ms === null) return;
  const left = row.deadline_unix_ms - now();
  byId("countdown").textContent = left >= 0 ? span(left) : `${span(-left)} past the deadline`;
  byId("countdown").className = left < 30000 ? "bad" : left < 120000 ? "warn" : "";
  showGantt();
}

function showGantt() {
  const began = job.row.opened_unix_ms ?? job.marks[0]?.[1] ?? 0;
  gantt(byId("gantt"), {
    marks: job.marks.map(([name, at]) => [name, at - began]),
    deadlines: job.deadlines.map(([at, deadline]) => [at - began, deadline - began]),
    at: now() - began,
    over: false,
  });
}

function showDrain() {
  byId("drain").hidden = job.row.drain_id === null;
  if (job.row.drain_id === null) return;
  byId("drain-title").textContent = `Drain ${job.row.drain_id}: ${job.row.phase}`;
  const { budget } = job;
  const verdict = byId("verdict");
  const { outlook } = job.row;
  verdict.textContent = verdictOf(outlook, budget);
  verdict.className = ["fits", "committed"].includes(outlook) ? "good" : "bad";
  fill(byId("budget").tBodies[0], [
    ...(budget?.terms ?? []).map((term) => [term.name, [term.name, span(term.value_ms), term.basis], true]),
    ...(budget ? [["needed", ["needed", span(budget.needed_ms), "sum"], true]] : []),
    ...(budget ? [["skew", ["clock skew", span(budget.clock_skew_ms), "off the deadline"], true]] : []),
  ]);
  grid.show(job.row.world_size, job.nodes, job.late);
  byId("late").replaceChildren(...job.late.slice(0, 50).map((one) => element(
    "li", { class: "bad" },
    `${one.rank < 0 ? "a rank" : `rank ${one.rank}`} of node ${one.node} is late: ${one.phase}, last step ${one.last_step ?? "none"}`,
  )));
  fill(byId("notices").tBodies[0], job.notices.map((one) => [
    one.identity,
    [one.identity, one.notice_class + (one.withdrawn ? ", withdrawn" : ""), one.cause, instant(one.deadline_unix_ms)],
    true,
  ]));
}

function verdictOf(outlook, budget) {
  if (outlook === "committed") return "The save is committed; the job leaves.";
  if (outlook === "given up") return "The save was given up; the job leaves on an earlier commit.";
  if (!budget) return "";
  const sign = outlook === "fits" ? "more than" : "not more than";
  return `${span(budget.remaining_ms)} remain, ${sign} the ${span(budget.needed_ms)} that are needed: the save ${outlook}.`;
}

function showBlind() {
  byId("blind").hidden = !job.blind.length;
  byId("blind").querySelector("ul").replaceChildren(...job.blind.slice(0, 50).map((one) => element(
    "li", {}, `${one.source} on node ${one.node}, since ${instant(one.since_unix_ms)}: ${one.detail}`,
  )));
}

function showDrains() {
  byId("no-drains").hidden = job.drains.length > 0;
  byId("drains").hidden = !job.drains.length;
  fill(byId("drains").tBodies[0], job.drains.map((one) => [
    one.drain_id,
    [
      { text: one.drain_id, href: drainPath(jobId, one.epoch, one.drain_id) },
      instant(one.opened_unix_ms), one.cause,
      { text: one.outcome, kind: ["committed", "cancelled", "ended"].includes(one.outcome) ? "good" : "bad" },
      one.remaining_ms === null ? "" : span(one.remaining_ms),
    ],
    true,
  ]));
}

function shownEvents() {
  const kinds = byId("kinds").value;
  if (kinds === "all") return job.events;
  if (kinds === "decisions") return job.decisions;
  return job.decisions.filter(({ kind }) => /notice|source|deadline/.test(kind));
}

function showEvents() {
  if (!job) return;
  const seen = new Map();
  const rows = shownEvents().map((one) => {
    const same = `${one.at_unix_ms} ${one.epoch} ${one.kind}`;
    seen.set(same, (seen.get(same) ?? 0) + 1);
    const kind = one.note ? { text: `${one.kind} (${one.note})`, kind: "bad" } : one.kind;
    return [`${same} ${seen.get(same)}`, [clock(one.at_unix_ms), one.epoch, kind, one.text]];
  });
  fill(byId("events").tBodies[0], rows.reverse());
}

byId("kinds").addEventListener("change", showEvents);
follow(`?job=${encodeURIComponent(jobId)}`, { job: heard, feed: () => { fed = true; } });
setInterval(tick, 250);
