// A list of jobs with their last event, in a page. Bundle it, for a browser resolves no packages:
//
//   npx esbuild browser.js --bundle --format=esm --outfile=bundle.js
//
// The page gives the websocket address and its token: index.html?url=ws://TOKEN@HOST:PORT

import { wsconnect } from "@nats-io/nats-core";

import { options, records } from "./records.js";

const url = new URLSearchParams(location.search).get("url");
const list = document.querySelector("#jobs");
const rows = new Map();

const connection = await wsconnect(options(url));
for await (const record of records(connection)) {
  let row = rows.get(record.job_id);
  if (!row) {
    row = document.createElement("li");
    rows.set(record.job_id, row);
    list.append(row);
  }
  // As text: a log may say anything.
  row.textContent = `${record.job_id}, attempt ${record.epoch}: ${record.events.at(-1)?.kind}`;
}
