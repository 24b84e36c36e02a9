// A cell a rank, up to many thousands, on one canvas; arrow keys and the pointer say which it is.

const COLOURS = { training: "--spent", waiting: "--wait", holding: "--hold", late: "--bad" };

export class RankGrid {
  constructor(canvas, told, chosen) {
    this.canvas = canvas;
    this.told = told;
    this.chosen = chosen;
    this.ranks = [];
    this.at = 0;
    this.drawn = "";
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("pointermove", (event) => this.point(event));
    addEventListener("resize", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  show(worldSize, nodes, late) {
    const states = new Map();
    for (const one of nodes) for (const rank of one.ranks) states.set(rank, [one.state, one.node]);
    for (const one of late) states.set(one.rank, ["late", one.node, one.phase, one.last_step]);
    const known = [...states.keys()].filter((rank) => rank >= 0);
    const count = Math.min(Math.max(worldSize, ...known.slice(0, 1), 0), 1 << 20);
    this.ranks = Array.from({ length: count }, (_, rank) => states.get(rank) ?? ["training"]);
    const counts = {};
    for (const [state] of this.ranks) counts[state] = (counts[state] ?? 0) + 1;
    const text = Object.entries(counts).map(([state, n]) => `${n} ${state}`).join(", ");
    this.told.textContent = count ? `${count} ranks: ${text}` : "The ranks are not all there.";
    this.canvas.hidden = !count;
    this.draw();
  }

  draw() {
    const count = this.ranks.length;
    if (!count) return;
    const ratio = devicePixelRatio || 1;
    const room = Math.floor(this.canvas.parentElement.clientWidth * ratio) - 2;
    const wanted = Math.ceil(Math.sqrt(count * 2));
    const cell = Math.max(2, Math.min(Math.round(16 * ratio), Math.floor(room / wanted)));
    const columns = Math.max(1, Math.min(wanted, Math.floor(room / cell)));
    const gap = cell > 3 ? 1 : 0;
    const key = `${room}|${matchMedia("(prefers-color-scheme: dark)").matches}|${this.at}|${this.ranks.map(([s]) => s[0]).join("")}`;
    if (key === this.drawn) return;
    this.drawn = key;
    this.columns = columns;
    this.canvas.width = columns * cell;
    this.canvas.height = Math.ceil(count / columns) * cell;
    this.canvas.style.width = `${this.canvas.width / ratio}px`;
    this.cell = cell;
    const style = getComputedStyle(document.documentElement);
    const colours = Object.fromEntries(Object.entries(COLOURS).map(([s, v]) => [s, style.getPropertyValue(v)]));
    const context = this.canvas.getContext("2d");
    this.ranks.forEach(([state], rank) => {
      context.fillStyle = colours[state];
      const x = (rank % columns) * cell, y = Math.floor(rank / columns) * cell;
      context.fillRect(x, y, cell - gap, cell - gap);
    });
    if (document.activeElement === this.canvas) {
      context.strokeStyle = style.getPropertyValue("--link");
      context.lineWidth = 2;
      context.strokeRect((this.at % columns) * cell, Math.floor(this.at / columns) * cell, cell, cell);
    }
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
    if (!(event.key in steps) || !this.ranks.length) return;
    event.preventDefault();
    this.choose(this.at + steps[event.key]);
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const scale = this.canvas.width / box.width / this.cell;
    const column = Math.floor((event.clientX - box.left) * scale);
    const row = Math.floor((event.clientY - box.top) * scale);
    this.choose(row * this.columns + column);
  }

  choose(rank) {
    this.at = Math.max(0, Math.min(this.ranks.length - 1, rank));
    const [state, node, phase, step] = this.ranks[this.at];
    const where = node === undefined ? "" : ` on node ${node}`;
    const doing = phase === undefined ? "" : `, last seen in ${phase}, step ${step ?? "none"}`;
    this.chosen.textContent = `Rank ${this.at}${where}: ${state}${doing}`;
    this.draw();
  }
}
