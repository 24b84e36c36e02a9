// Phases of one drain as bars, and its deadline, which only ever moves to the left.

import { drawn, span } from "./common.js";

const LEFT = 100;
const WIDTH_MIN = 300;
const ROW = 24;

// marks: [name, ms since the first notice]; deadlines: [when, deadline] in the same; at: now.
export function gantt(place, { marks, deadlines, at, over }) {
  const ordered = [...marks].sort((a, b) => a[1] - b[1]);
  const bars = ordered.slice(1).map(([name, to], n) => [name, ordered[n][1], to]);
  if (!over && ordered.length) bars.push(["…", ordered.at(-1)[1], Math.max(at, ordered.at(-1)[1])]);
  const width = Math.max(WIDTH_MIN, place.clientWidth);
  const ends = [1, at, ...deadlines.map(([, deadline]) => deadline), ...bars.map(([, , to]) => to)];
  const scale = (width - LEFT - 20) / Math.max(...ends);
  const x = (ms) => LEFT + Math.max(0, ms) * scale;
  const height = Math.max(1, bars.length) * ROW + 26;
  const parts = bars.flatMap(([name, from, to], n) => [
    drawn("text", { x: LEFT - 8, y: n * ROW + 17, "text-anchor": "end" }, name),
    drawn("rect", {
      x: x(from), y: n * ROW + 4, width: Math.max(1.5, x(to) - x(from)), height: 16, rx: 2,
      fill: name === "…" ? "var(--spent)" : "var(--bar)",
    }),
    drawn("text", { x: Math.min(x(to) + 5, width - 70), y: n * ROW + 17 }, span(to - from)),
  ]);
  deadlines.forEach(([, deadline], n) => {
    const last = n === deadlines.length - 1;
    parts.push(drawn("line", {
      x1: x(deadline), x2: x(deadline), y1: 0, y2: height - 18, stroke: "var(--bad)",
      "stroke-width": last ? 3 : 1, "stroke-dasharray": last ? null : "4 3",
    }));
    if (last) {
      parts.push(drawn("text", {
        x: x(deadline), y: height - 4, "text-anchor": x(deadline) > width / 2 ? "end" : "start",
      }, `deadline ${span(deadline)}`));
    }
  });
  parts.push(drawn("line", {
    x1: x(at), x2: x(at), y1: 0, y2: height - 18, stroke: "currentColor", "stroke-width": 1,
  }));
  const told = bars.map(([name, from, to]) => `${name} from ${span(from)} to ${span(to)}`);
  const label = `Phases: ${told.join(", ") || "none yet"}. Deadline ${span(deadlines.at(-1)?.[1] ?? 0)} after the first notice.`;
  place.replaceChildren(drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...parts));
}
