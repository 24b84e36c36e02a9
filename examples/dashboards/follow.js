// Prints a job's events, over all its attempts:
//
//   node follow.js nats://nats.infra:4222 llm
//   node follow.js ~/.local/state/drainfsm/llm/run.json
//
// The second reads where the embedded server of the present attempt is. That server ends with its
// attempt; the next one writes its own address into the same file, and has all that was before.

import { readFile } from "node:fs/promises";
import { setTimeout as pause } from "node:timers/promises";

import { connect } from "@nats-io/transport-node";

import { options, printable, records } from "./records.js";

const [where, job] = process.argv.slice(2);
if (!where || (!job && !where.endsWith(".json"))) {
  console.error("usage: node follow.js URL JOB, or node follow.js RUN_JSON");
  process.exit(2);
}
const shown = new Set();

async function address() {
  if (!where.endsWith(".json")) return { url: where, job };
  const info = JSON.parse(await readFile(where, "utf8"));
  return { url: info.nats_url, job: info.job_id };
}

async function follow({ url, job: name }) {
  const connection = await connect({ ...options(url), maxReconnectAttempts: 3 });
  try {
    for await (const record of records(connection, name)) {
      if (shown.has(record.id)) continue;
      shown.add(record.id);
      for (const event of record.events) console.log(printable(record.epoch), printable(event.kind));
    }
  } finally {
    await connection.close();
  }
}

let told = "";
for (;;) {
  try {
    const found = await address();
    if (found.url) await follow(found);
  } catch (error) {
    if (error.message !== told) console.error(`${error.message}; trying again`);
    told = error.message;
  }
  await pause(500);
}
