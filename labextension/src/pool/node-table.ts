/** The table of a pool's nodes. Rows are changed in place, so that focus and selection stay. */

import { iconButton } from "../page/icons";
import { fill, make, mark, say } from "./dom";
import type { NodeFacts, PoolFacts, PoolModel, Sample } from "./model";
import { draw, sparkline } from "./sparkline";
import { nodeState, ofBytes, percent, rankText, ranksText, whole } from "./status-texts";

const COLUMNS = ["node", "state", "where", "accelerator", "CPU", "memory", "GPU", "ranks", "up", "remove"] as const;
type Column = (typeof COLUMNS)[number];
// Of more GPUs than this a node's mean is shown, and each where it is unfolded.
const FEW = 2;

export class NodesTable {
  readonly node = make("div", "sky-live-scroll", { role: "region", tabindex: "0" });
  private readonly head = make("tr", "", { role: "row" });
  private readonly body = make("tbody", "", { role: "rowgroup" });
  private readonly table = make("table", "sky-live-nodes", { role: "table" });
  private readonly rows: Row[] = [];

  /** `remove` is called with a node's number. */
  constructor(private readonly remove: (node: number) => void) {
    for (const column of COLUMNS) {
      const cell = make("th", "", { role: "columnheader", scope: "col", "data-column": column });
      const name = make("span");
      name.textContent = column;
      cell.append(name);
      this.head.append(cell);
    }
    // A table that becomes cards on a narrow screen is one only by its roles.
    const head = make("thead", "", { role: "rowgroup" });
    head.append(this.head);
    this.table.append(head, this.body);
    this.node.append(this.table);
  }

  show(model: PoolModel, live: boolean, now: number): void {
    const pool = model.facts;
    mark(this.node, "aria-label", `Nodes of pool ${pool.name}`);
    mark(this.table, "aria-label", `Nodes of pool ${pool.name}`);
    const none: Record<Column, boolean> = {
      node: false,
      state: false,
      where: !pool.nodes.some((node) => node.host || node.address),
      accelerator: !pool.nodes.some((node) => node.accelerators),
      CPU: !pool.nodes.some((node) => node.now),
      memory: !pool.nodes.some((node) => node.now),
      GPU: !pool.nodes.some((node) => node.gpus.length),
      ranks: !pool.nodes.some((node) => node.ranks.length),
      up: !pool.nodes.some((node) => node.uptime),
      // The head stays, and so does what is being changed.
      remove: !live || pool.nodes.length < 2 || pool.state !== "ready",
    };
    COLUMNS.forEach((column, index) => ((this.head.children[index] as HTMLElement).hidden = none[column]));
    while (this.rows.length > pool.nodes.length) {
      this.rows.pop()?.node.remove();
    }
    const spans = spansOf(pool);
    pool.nodes.forEach((facts, index) => {
      if (!this.rows[index]) {
        this.rows[index] = new Row(this.remove);
        this.body.append(this.rows[index].node);
      }
      this.rows[index].show(facts, pool, model.samples.get(facts.node) ?? [], none, now);
      this.rows[index].span(spans[index], none);
    });
  }
}

class Row {
  readonly node = make("tr", "", { role: "row" });
  private readonly cells = {} as Record<Column, HTMLElement>;
  private readonly state = make("span");
  private readonly cpu = new Use("CPU use");
  private readonly memory = new Use("memory use");
  private readonly gpus: GpuUses;
  private readonly ranks = new Foldable();
  private readonly away: HTMLButtonElement;
  private number = 0;

  constructor(remove: (node: number) => void) {
    for (const column of COLUMNS) {
      const header = column === "node";
      const cell = make(header ? "th" : "td", "", { role: header ? "rowheader" : "cell", "data-column": column });
      this.cells[column] = cell;
      this.node.append(cell);
    }
    mark(this.cells.node, "scope", "row");
    const state = make("div", "sky-live-state");
    state.append(make("span", "sky-live-dot", { "aria-hidden": "true" }), this.state);
    this.cells.state.append(state);
    this.cells.CPU.append(this.cpu.node);
    this.cells.memory.append(this.memory.node);
    this.gpus = new GpuUses(this.cells.GPU);
    this.cells.ranks.append(this.ranks.node);
    this.away = iconButton("remove", "Remove", () => remove(this.number));
    this.cells.remove.append(this.away);
  }

  show(node: NodeFacts, pool: PoolFacts, samples: Sample[], none: Record<Column, boolean>, now: number): void {
    this.number = node.node;
    for (const column of COLUMNS) {
      this.cells[column].hidden = none[column];
    }
    mark(this.node, "data-state", node.state);
    say(this.cells.node, String(node.node));
    say(this.state, nodeState(node, pool));
    say(this.cells.where, node.host && node.address ? `${node.host} (${node.address})` : node.host || node.address);
    const kind = node.accelerator ?? node.gpus[0]?.name ?? "";
    say(this.cells.accelerator, node.accelerators ? `${node.accelerators} × ${kind || "accelerator"}` : "");
    const told = node.now !== null;
    this.cpu.node.hidden = this.memory.node.hidden = !told;
    if (node.now) {
      this.cpu.show(series(samples, 0, 1), `${percent(node.now[0])} of ${Number(node.cores.toPrecision(3))} cores`, now);
      this.memory.show(series(samples, 1, node.memory), ofBytes(node.now[1], node.memory), now);
    }
    this.gpus.show(node, samples, now);
    const starting = pool.state === "starting";
    this.ranks.show(ranksText(node), node.ranks.length > 1 ? node.ranks.map((rank) => rankText(rank, starting)) : []);
    if (node.ranks.length === 1) {
      this.ranks.show(rankText(node.ranks[0], starting), []);
    }
    say(this.cells.up, node.uptime ? whole(node.uptime) : "");
    this.away.hidden = node.node === 0;
    mark(this.away, "aria-label", `Remove node ${node.node}`);
    mark(this.away, "title", `Remove node ${node.node}`);
  }

  /** Have what is told of the machine stand for so many rows. */
  span(rows: number, none: Record<Column, boolean>): void {
    for (const column of ["CPU", "memory"] as const) {
      const cell = this.cells[column] as HTMLTableCellElement;
      cell.hidden = none[column] || rows === 0;
      if (rows && cell.rowSpan !== rows) {
        cell.rowSpan = rows;
      }
    }
  }
}

/** Of each node, of how many rows its machine's figures are: none where a node above has told them. */
function spansOf(pool: PoolFacts): number[] {
  const machine = (node: NodeFacts) => (pool.provider === "local" ? "here" : node.host || `node ${node.node}`);
  const spans: number[] = [];
  pool.nodes.forEach((node, index) => {
    let first = index;
    while (first > 0 && machine(pool.nodes[first - 1]) === machine(node) && pool.nodes[first - 1].cores === node.cores) {
      first -= 1;
    }
    spans.push(first === index ? 1 : 0);
    spans[first] += first === index ? 0 : 1;
  });
  return spans;
}

/** What is used of something: a line of the last minutes, and how much it is now. */
class Use {
  readonly node = make("div", "sky-live-use");
  private readonly line = sparkline();
  private readonly text = make("span");

  constructor(private what: string) {
    this.node.append(this.line, this.text);
  }

  show(values: [number, number][], text: string, now: number, what = this.what): void {
    this.what = what;
    draw(this.line, what, values, now);
    say(this.text, text);
  }
}

/** A node's GPUs: how busy, and how full. */
class GpuUses {
  private readonly uses: Use[] = [];
  private readonly all = make("details");
  private readonly mean = [new Use(""), new Use("")];
  private readonly each = make("div");
  private again = () => {};

  constructor(cell: HTMLElement) {
    const summary = make("summary");
    summary.append(...this.mean.map((use) => use.node));
    this.all.append(summary);
    this.all.addEventListener("toggle", () => this.again());
    cell.append(this.all, this.each);
  }

  show(node: NodeFacts, samples: Sample[], now: number): void {
    this.again = () => this.show(node, samples, now);
    const [count, last] = [node.gpus.length, node.now];
    const many = count > FEW;
    this.all.hidden = !many || !last;
    if (this.each.parentElement === this.all !== many) {
      many ? this.all.append(this.each) : this.all.after(this.each);
    }
    while (this.uses.length > 2 * count) {
      this.uses.pop()?.node.remove();
    }
    while (this.uses.length < 2 * count) {
      const use = new Use("");
      this.uses.push(use);
      this.each.append(use.node);
    }
    if (!last) {
      this.each.hidden = true;
      return;
    }
    // What is folded away is drawn once it is unfolded.
    this.each.hidden = many && !this.all.open;
    (this.each.hidden ? [] : node.gpus).forEach((gpu, index) => {
      const [busy, full] = [2 + 2 * index, 3 + 2 * index];
      const name = count > 1 ? `GPU ${index}` : "GPU";
      const lead = count > 1 ? `${index}: ` : "";
      this.uses[2 * index].show(series(samples, busy, 1), `${lead}${percent(last[busy])}`, now, `${name} use`);
      const text = ofBytes(last[full], gpu.memory);
      this.uses[2 * index + 1].show(series(samples, full, gpu.memory), text, now, `${name} memory`);
    });
    if (many) {
      const total = node.gpus.reduce((sum, gpu) => sum + gpu.memory, 0);
      const places = node.gpus.map((_, index) => 2 + 2 * index);
      const sum = (row: number[], shift: number) => places.reduce((all, place) => all + (row[place + shift] ?? 0), 0);
      const over = (shift: number, most: number): [number, number][] =>
        samples.map(([time, ...row]) => [time, most ? sum(row, shift) / most : 0]);
      this.mean[0].show(over(0, count), `${count} GPUs: ${percent(sum(last, 0) / count)}`, now, "Use of all GPUs");
      this.mean[1].show(over(1, total), ofBytes(sum(last, 1), total), now, "Memory of all GPUs");
    }
  }
}

/** A line of text, with more of them to unfold where there are any. */
class Foldable {
  readonly node = make("div");
  private readonly line = make("span");
  private readonly details = make("details");
  private readonly summary = make("summary");
  private readonly list = make("ul");

  constructor() {
    this.details.append(this.summary, this.list);
    this.node.append(this.line, this.details);
  }

  show(text: string, more: string[]): void {
    this.line.hidden = more.length > 0;
    this.details.hidden = !more.length;
    say(this.line, text);
    say(this.summary, text);
    fill(this.list, more, () => make("li"), (node, item) => say(node, item));
  }
}

/** One value of each sample, as a part of all that there is. */
function series(samples: Sample[], index: number, most: number): [number, number][] {
  return samples.map((sample) => [sample[0], most ? (sample[1 + index] ?? 0) / most : 0]);
}
