// The records of a job (or of all: "*"), from the first on and then as they come, by the official
// NATS client. `connection`: what `connect` or `wsconnect` of that client gives.

import { DeliverPolicy, jetstream } from "@nats-io/jetstream";

export async function* records(connection, job = "*") {
  const consumer = await jetstream(connection).consumers.get("DRAINFSM", {
    filter_subjects: [`drainfsm.v1.${job}.*`],
    deliver_policy: DeliverPolicy.All,
  });
  // A record counts only where `follows` is the number of records of its subject that counted
  // before it, and once per `id`; what does not is a leftover of a writer that was wrong.
  const counted = new Map();
  const seen = new Set();
  for await (const message of await consumer.consume()) {
    const record = read(message);
    if (record === null) continue;
    const place = counted.get(message.subject) ?? 0;
    if (record.follows !== place || seen.has(record.id)) continue;
    counted.set(message.subject, place + 1);
    seen.add(record.id);
    yield record;
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
