// All jobs: rows arrive as they change; ages are counted here.

import { byId, fill, follow, jobPath, now, plural, span } from "./common.js";

const jobs = new Map();
const SHOWN_MAX = 500;

function heard(told) {
  if (told.whole) jobs.clear();
  for (const job of told.jobs) jobs.set(job.job_id, job);
  show();
}

function urgency(a, b) {
  if ((a.deadline_unix_ms === null) !== (b.deadline_unix_ms === null)) {
    return a.deadline_unix_ms === null ? 1 : -1;
  }
  if (a.deadline_unix_ms !== null) return a.deadline_unix_ms - b.deadline_unix_ms;
  return (b.last_unix_ms ?? 0) - (a.last_unix_ms ?? 0) || (a.job_id < b.job_id ? -1 : 1);
}

export function standing(job) {
  if (job.drain_id !== null) return { text: job.phase, kind: "warn" };
  if (job.phase === "lost") return { text: "lost", kind: "bad" };
  if (job.fenced_by !== null) return `superseded by attempt ${job.fenced_by}`;
  if (job.exit_code === 0) return "finished";
  if (job.exit_code === 75) return { text: "left, wants to be started again", kind: "warn" };
  if (job.exit_code !== null) return { text: `ended with exit code ${job.exit_code}`, kind: "bad" };
  return job.healthy ? { text: "running", kind: "good" } : "starting";
}

function deadline(job) {
  if (job.deadline_unix_ms === null) return "";
  const left = job.deadline_unix_ms - now();
  const text = left < 0 ? `${span(-left)} past` : span(left);
  const good = job.outlook === "committed" || (job.outlook === "fits" && left > 0);
  return { text: `${text}; save ${job.outlook}`, kind: good ? "good" : "bad" };
}

function commit(job) {
  if (job.committed_unix_ms !== null) {
    const age = now() - job.committed_unix_ms;
    return `${span(Math.max(0, age))} ago${job.committed_step === null ? "" : `, step ${job.committed_step}`}`;
  }
  return job.running ? { text: "nothing", kind: "warn" } : "nothing";
}

function show() {
  const wanted = byId("filter").value.toLowerCase();
  const all = [...jobs.values()];
  const found = all.filter((job) => job.job_id.toLowerCase().includes(wanted)).sort(urgency);
  fill(byId("jobs").tBodies[0], found.slice(0, SHOWN_MAX).map((job) => [
    job.job_id,
    [
      { text: `${job.job_id} / ${job.epoch}`, href: jobPath(job.job_id) },
      standing(job), deadline(job), commit(job),
      job.world_size ? `${job.world_size} on ${job.node_count}` : `0 on ${job.node_count}`,
      `${job.healthy_count} of ${job.started_count}`,
      job.blind_count ? { text: job.blind_count, kind: "bad" } : "0",
    ],
    true,
  ]));
  const open = all.filter((job) => job.drain_id !== null).length;
  const running = all.filter((job) => job.running).length;
  const cut = found.length > SHOWN_MAX ? `; the first ${SHOWN_MAX} of ${found.length} are shown` : "";
  byId("summary").textContent =
    `${plural(all.length, "job")}, ${running} running, ${open} with an open drain${cut}`;
  byId("empty").hidden = all.length > 0;
}

if (byId("jobs")) {
  byId("filter").addEventListener("input", show);
  follow("", { fleet: heard });
  setInterval(show, 1000);
}
