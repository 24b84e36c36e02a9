// The records of a job (or of all: "*"), from the first on and then as they come, by the official
// NATS client. `connection`: what `connect` or `wsconnect` of that client gives.

import { DeliverPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";

const LOOK_MS = 2_000;

export async function* records(connection, job = "*") {
  const seen = new Set();
  while (!connection.isClosed()) {
    for await (const record of reading(connection, job)) {
      if (seen.has(record.id)) continue;
      seen.add(record.id);
      yield record;
    }
  }
}

// Until the stream turns out to be another one: it was deleted and made anew, or came back from a
// backup. Its sequences begin at 1 again, so that a consumer of the old one would hear nothing.
async function* reading(connection, job) {
  const streams = (await jetstreamManager(connection)).streams;
  const { created } = await streams.info("DRAINFSM");
  const consumer = await jetstream(connection).consumers.get("DRAINFSM", {
    filter_subjects: [`drainfsm.v1.${job}.*`],
    deliver_policy: DeliverPolicy.All,
  });
  const messages = await consumer.consume();
  let last = 0;
  let behind = false;
  const look = setInterval(async () => {
    const found = await streams.info("DRAINFSM").catch(() => null);
    if (found === null) return; // away, or not there yet
    const less = found.state.last_seq < last;
    if (found.created !== created || (less && behind)) messages.stop();
    behind = less; // once may be a new leader that has not caught up
  }, LOOK_MS);
  // A record counts only where `follows` is the number of records of its subject that counted
  // before it, and once per `id`; what does not is a leftover of a writer that was wrong.
  const counted = new Map();
  const ids = new Set();
  try {
    for await (const message of messages) {
      last = message.seq;
      const record = read(message);
      // Who writes for one job may write anything there, but nothing of another.
      if (record === null || record.job_id !== message.subject.split(".").at(-2)) continue;
      const place = counted.get(message.subject) ?? 0;
      if (record.follows !== place || ids.has(record.id)) continue;
      counted.set(message.subject, place + 1);
      ids.add(record.id);
      yield record;
    }
  } finally {
    clearInterval(look);
  }
}

// null: no record. Somebody else wrote there, and what they wrote may be any JSON.
function read(message) {
  try {
    const found = message.json();
    const whole = found.events.every((event) => typeof event.kind === "string");
    return whole && typeof found.id === "string" ? found : null;
  } catch {
    return null;
  }
}

// Text of others for a terminal: nothing in it moves a cursor or turns the direction of writing.
export const printable = (text) => String(text).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, "?");

// "nats://TOKEN@HOST:PORT" (or ws://) as options of `connect`; user and password likewise.
export function options(url) {
  const parts = new URL(url);
  const [user, pass] = [parts.username, parts.password].map(decodeURIComponent);
  const servers = url.startsWith("ws") ? `${parts.protocol}//${parts.host}` : parts.host;
  if (!user) return { servers };
  return pass ? { servers, user, pass } : { servers, token: user };
}
