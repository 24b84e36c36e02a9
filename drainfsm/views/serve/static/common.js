// What every page needs: elements from text alone, time, and the stream of events.

let offsetMs = 0; // the server's clock less this one's

export const now = () => Date.now() + offsetMs;

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  set(made, attributes);
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

export function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  set(made, attributes);
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

function set(made, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
}

export const byId = (id) => document.getElementById(id);

export function span(ms) {
  const seconds = Math.abs(ms) / 1000;
  const sign = ms < 0 ? "−" : "";
  if (seconds < 100) return `${sign}${seconds.toFixed(1)} s`;
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = parts.findIndex(([size]) => seconds >= size);
  const [size, unit] = parts[at];
  const whole = Math.floor(seconds / size);
  const [next, nextUnit] = parts[at + 1];
  const rest = Math.floor((seconds - whole * size) / next);
  return `${sign}${whole} ${unit} ${rest} ${nextUnit}`;
}

export function instant(unixMs) {
  const at = new Date(unixMs);
  return Number.isNaN(at.getTime()) ? `${unixMs} ms` : at.toISOString().replace("T", " ").slice(0, 19);
}

export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

export const clock = (unixMs) => instant(unixMs).slice(11) || String(unixMs);

export const jobPath = (id) => `/jobs/${encodeURIComponent(id)}`;

// "job/epoch/number" of a drain, whatever the job's name holds.
export function drainPath(jobId, epoch, drainId) {
  const number = String(drainId).split("/").pop();
  return `${jobPath(jobId)}/${epoch}/${encodeURIComponent(number)}`;
}

// Keeps the rows of a table: those that stay are changed in place, so that focus stays too.
export function fill(body, rows) {
  const known = new Map([...body.children].map((row) => [row.dataset.key, row]));
  const news = body.firstElementChild ? "news" : null;
  let before = body.firstElementChild;
  for (const [key, cells, head] of rows) {
    let row = known.get(key);
    known.delete(key);
    if (!row) {
      row = element("tr", { "data-key": key, class: news });
      cells.forEach((_, n) => row.append(n || !head ? element("td") : element("th", { scope: "row" })));
    }
    cells.forEach((cell, n) => put(row.children[n], cell));
    if (row === before) before = before.nextElementSibling;
    else body.insertBefore(row, before);
  }
  for (const row of known.values()) row.remove();
}

// A cell: text, or {text, kind, href}.
function put(cell, content) {
  const { text, kind = "", href = "" } = typeof content === "object" ? content : { text: content };
  if (href) {
    let link = cell.firstElementChild;
    if (!link) cell.replaceChildren((link = element("a")));
    if (link.getAttribute("href") !== href) link.setAttribute("href", href);
    if (link.textContent !== text) link.textContent = text;
  } else if (cell.textContent !== String(text)) cell.textContent = text;
  if (cell.className !== kind) cell.className = kind;
}

const feed = { told: null, lostSince: null, version: null };

function showFeed() {
  const place = byId("feed");
  const told = feed.told;
  let text = "connecting …";
  let stale = false;
  if (feed.lostSince !== null) {
    text = `STALE: no connection to this server for ${span(Date.now() - feed.lostSince)}`;
    stale = true;
  } else if (told && told.stale_since_unix_ms !== null) {
    text = `STALE for ${span(now() - told.stale_since_unix_ms)}: ${told.error} (${told.source})`;
    stale = true;
  } else if (told) text = `live from ${told.source}`;
  if (told && told.unreadable_count) {
    text += `; ${told.unreadable_count} unreadable, last: ${told.unreadable.at(-1)}`;
  }
  if (told && told.version !== feed.version) {
    text += "; this server is of another version now: reload the page";
    stale = true;
  }
  if (place.textContent !== text) place.textContent = text;
  place.classList.toggle("stale", stale);
}

export function follow(query, handlers) {
  const source = new EventSource(`/events${query}`);
  source.addEventListener("open", () => { feed.lostSince = null; showFeed(); });
  source.addEventListener("error", () => { feed.lostSince ??= Date.now(); showFeed(); });
  const heard = (event) => JSON.parse(event.data);
  source.addEventListener("feed", (event) => {
    feed.told = heard(event);
    feed.version ??= feed.told.version;
    offsetMs = feed.told.now_unix_ms - Date.now();
    showFeed();
  });
  for (const [name, handler] of Object.entries(handlers)) {
    source.addEventListener(name, (event) => handler(heard(event)));
  }
  setInterval(showFeed, 1000);
  addEventListener("pagehide", () => source.close());
  // Kept by the browser and shown again: what it shows is from then, and nothing follows.
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
}
