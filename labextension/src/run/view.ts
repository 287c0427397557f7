/** The run view: header, tabs, bars and the log of the chosen tab. One requestAnimationFrame draws what is new. */

import { escaped, strip, toHtml } from "./ansi";
import { fold, FoldedLines, rankLabel } from "./fold";
import { History, wholeLog } from "./history";
import type { Host } from "./host";
import { Shown } from "./log";
import { Rank, RunModel } from "./model";
import { fraction, Progress, slowest } from "./progress";
import { install, isDark } from "./style";
import { Transcript } from "./transcript";
import { culprit, duration, status, tabAfter } from "./words";

const LINE = 18;
const OVERSCAN = 10;
const BARS = ["each", "slowest", "off"] as const;
type Bars = (typeof BARS)[number];
const BARS_TOLD: Record<Bars, string> = { each: "Bars: each rank", slowest: "Bars: slowest", off: "Bars: off" };
/** The tab of all ranks; the others are numbers of ranks. */
const ALL = -1;
let views = 0;

/** Lines to be shown: `first` is the number of the first one, as lines go from the beginning. */
interface Lines {
  first: number;
  count: number;
  html(index: number): string;
  text(index: number): string;
}
interface Block {
  key: object;
  lines?: Lines;
  shown?: Shown;
}
interface Drawn {
  node: HTMLElement;
  pre?: HTMLElement;
  first: number;
  html: string;
  version: number;
}

function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = "",
  attributes: Record<string, string> = {},
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  node.className = className;
  for (const [name, value] of Object.entries(attributes)) {
    node.setAttribute(name, value);
  }
  return node;
}

/** Change a text only where it is another: screen readers and layout hear of every change. */
function say(node: HTMLElement, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

export class RunView {
  readonly node = make("section", "sky-run", { "data-lm-suppress-shortcuts": "true", role: "group" });
  following = true;
  private readonly id = `sky-run-${++views}`;
  private chosen = ALL;
  /** Whether the person has chosen the tab: then it is not changed for them. */
  private chose = false;
  private filter = "";
  private bars: Bars;
  private frame = 0;
  private timer: ReturnType<typeof setInterval> | undefined;
  private drawn = new Map<object, Drawn>();
  private histories = new Map<number, History>();
  private loading = false;
  private lastTop = 0;
  private troubles = "";
  private openKey = {};
  private footKey = "";
  private readonly dot = make("span", "sky-dot", { "aria-hidden": "true" });
  private readonly title = make("span", "sky-title");
  private readonly facts = make("span", "sky-facts");
  private readonly tools = make("div", "sky-tools", { role: "group", "aria-label": "Of this run" });
  private readonly tabs = make("div", "sky-tabs", { role: "tablist", "aria-label": "Output" });
  private readonly barsNode = make("div", "sky-bars");
  private readonly panel = make("div", "sky-panel");
  private readonly earlier = make("button", "sky-earlier", { type: "button" });
  private readonly log = make("div", "sky-log", { role: "log", "aria-live": "off", tabindex: "0" });
  private readonly body = make("div", "sky-body");
  private readonly foot = make("div", "sky-foot");
  private readonly whereNode = make("div", "sky-where", {
    role: "group",
    "aria-label": "Where each rank is",
    tabindex: "0",
  });
  private readonly live = make("div", "sky-hidden", { role: "status" });
  private readonly buttons: Record<string, HTMLButtonElement> = {};
  private readonly search = make("input", "", {
    type: "search",
    placeholder: "Filter",
    "aria-label": "Show only lines with this text",
  });

  constructor(
    readonly model: RunModel,
    public host: Host,
  ) {
    this.bars = (BARS as readonly string[]).includes(stored("sky-bars")) ? (stored("sky-bars") as Bars) : "each";
    const head = make("div", "sky-head");
    head.append(this.dot, this.title, this.facts, this.tools);
    this.whereNode.hidden = true;
    this.log.append(this.earlier, this.body, this.foot);
    this.panel.id = `${this.id}-panel`;
    this.panel.append(this.log);
    this.node.append(head, this.tabs, this.barsNode, this.whereNode, this.panel, this.live);
    this.makeTools();
    this.tabs.addEventListener("keydown", (event) => this.onTabKey(event));
    this.log.addEventListener("scroll", () => this.onScroll());
    this.earlier.addEventListener("click", () => void this.loadEarlier());
    // What is typed here is not for the notebook.
    this.node.addEventListener("keydown", (event) => event.stopPropagation());
  }

  /** The node is on the page. */
  attach(): void {
    const root = this.node.getRootNode();
    install(root instanceof ShadowRoot ? root : document);
    this.timer ??= setInterval(() => {
      if (!this.model.finished) {
        this.update();
      }
    }, 1000);
    this.update();
  }

  detach(): void {
    clearInterval(this.timer);
    this.timer = undefined;
    cancelAnimationFrame(this.frame);
    this.frame = 0;
  }

  /** Draw soon what is new. */
  update(): void {
    if (!this.frame) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        if (this.node.isConnected) {
          this.draw();
        }
      });
    }
  }

  /** A new snapshot has been loaded: nothing that was drawn is of it. */
  reset(): void {
    this.drawn.clear();
    this.histories.clear();
    this.body.textContent = "";
    this.footKey = "";
    this.update();
  }

  // -- the tools ----------------------------------------------------------------------------------

  private makeTools(): void {
    const add = (name: string, label: string, act: () => void) => {
      const button = make("button", "", { type: "button" });
      button.textContent = label;
      button.addEventListener("click", act);
      this.buttons[name] = button;
      this.tools.append(button);
    };
    add("interrupt", "Interrupt", () => void this.act("interrupt"));
    add("where", "Where", () => void this.toggleWhere());
    add("follow", "Pause", () => this.follow(!this.following));
    add("bars", "", () => {
      this.bars = BARS[(BARS.indexOf(this.bars) + 1) % BARS.length];
      store("sky-bars", this.bars);
      this.update();
    });
    add("copy", "Copy", () => void this.copy());
    add("download", "Download", () => void this.download());
    this.buttons.where.setAttribute("aria-expanded", "false");
    this.search.addEventListener("input", () => {
      this.filter = this.search.value.toLowerCase();
      this.update();
    });
    this.tools.append(this.search);
  }

  private tell(text: string): void {
    say(this.live, text);
  }

  private async act(name: "interrupt"): Promise<void> {
    try {
      this.tell((await this.host[name]?.()) ?? "");
    } catch (error) {
      this.showWhere(`${name}: ${error instanceof Error ? error.message : error}`);
    }
  }

  private async toggleWhere(): Promise<void> {
    if (!this.whereNode.hidden) {
      this.whereNode.hidden = true;
      this.buttons.where.setAttribute("aria-expanded", "false");
      return;
    }
    this.showWhere("…");
    try {
      this.showWhere((await this.host.where?.()) ?? "");
    } catch (error) {
      this.showWhere(error instanceof Error ? error.message : String(error));
    }
  }

  private showWhere(text: string): void {
    this.whereNode.hidden = false;
    this.buttons.where.setAttribute("aria-expanded", "true");
    this.whereNode.innerHTML = `<pre class="sky-wrap">${toHtml(text)}</pre>`;
  }

  private follow(on: boolean): void {
    this.following = on;
    this.update();
  }

  /** The text of the chosen tab, as far as the page has it. */
  text(): string {
    const lines: string[] = [];
    for (const block of this.blocks()) {
      if (block.lines) {
        for (let index = 0; index < block.lines.count; index++) {
          lines.push(block.lines.text(index));
        }
      } else if (block.shown) {
        const plain = block.shown.item.data["text/plain"];
        lines.push(typeof plain === "string" ? plain : Array.isArray(plain) ? plain.join("") : "");
      }
    }
    return lines.join("\n");
  }

  private async copy(): Promise<void> {
    const text = this.text();
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Pages without TLS have no clipboard but this one.
      const area = make("textarea", "sky-hidden");
      area.value = text;
      this.node.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    this.tell("copied");
  }

  private async download(): Promise<void> {
    const ranks = this.chosen === ALL ? this.model.ranks.map((rank) => rank.rank) : [this.chosen];
    let text: string;
    if (this.host.log && this.model.run) {
      this.tell("reading the whole log");
      try {
        const logs = [];
        for (const rank of ranks) {
          const log = strip(await wholeLog(this.host, rank));
          logs.push(ranks.length > 1 ? `── rank ${rank}\n${log}` : log);
        }
        text = logs.join("\n");
      } catch (error) {
        this.tell(
          `the log cannot be read: ${error instanceof Error ? error.message : error}; what the page has is saved`,
        );
        text = this.text();
      }
    } else {
      text = this.text();
    }
    const link = make("a");
    const name = ranks.length > 1 ? "all" : `rank-${ranks[0]}`;
    link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
    link.download = `sky-${this.model.run || "run"}-${name}.log`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  // -- tabs ---------------------------------------------------------------------------------------

  /** Show a rank's tab, or that of all. */
  choose(tab: number, byPerson = true): void {
    this.chose ||= byPerson;
    if (tab !== this.chosen) {
      this.chosen = tab;
      this.following = true;
      this.drawn.clear();
      this.body.textContent = "";
      this.footKey = "";
    }
    this.update();
  }

  private onTabKey(event: KeyboardEvent): void {
    const order = [...this.tabs.children] as HTMLElement[];
    const next = tabAfter(event.key, order.indexOf(document.activeElement as HTMLElement), order.length);
    const root = this.node.getRootNode() as Document | ShadowRoot;
    const at = order.indexOf(root.activeElement as HTMLElement);
    const target = at < 0 ? next : tabAfter(event.key, at, order.length);
    if (target !== undefined) {
      event.preventDefault();
      this.choose(Number(order[target].dataset.tab));
      order[target].focus();
    }
  }

  private drawTabs(): void {
    const ranks = this.model.ranks;
    this.tabs.hidden = ranks.length < 2;
    if (ranks.length < 2) {
      this.chosen = ranks.length ? ranks[0].rank : ALL;
      this.panel.removeAttribute("role");
      return;
    }
    const wanted = [ALL, ...ranks.map((rank) => rank.rank)];
    if (this.tabs.children.length !== wanted.length) {
      this.tabs.textContent = "";
      for (const tab of wanted) {
        const button = make("button", "", {
          type: "button",
          role: "tab",
          id: `${this.id}-tab-${tab}`,
          "aria-controls": this.panel.id,
        });
        button.dataset.tab = String(tab);
        button.innerHTML =
          tab === ALL
            ? "<span>All</span>"
            : `<span class="sky-dot" aria-hidden="true"></span><span>${ranks.length > 8 ? "" : "rank "}${tab}</span>` +
              '<span class="sky-hidden"></span><span class="sky-chip-bar" aria-hidden="true" hidden><i></i></span>';
        button.addEventListener("click", () => this.choose(tab));
        this.tabs.append(button);
      }
    }
    for (const button of [...this.tabs.children] as HTMLElement[]) {
      const tab = Number(button.dataset.tab);
      const selected = String(tab === this.chosen);
      if (button.getAttribute("aria-selected") !== selected) {
        button.setAttribute("aria-selected", selected);
        button.tabIndex = tab === this.chosen ? 0 : -1;
      }
      const rank = this.model.rank(tab);
      if (rank) {
        this.drawChip(button, rank);
      }
    }
    this.panel.setAttribute("role", "tabpanel");
    this.panel.setAttribute("aria-labelledby", `${this.id}-tab-${this.chosen}`);
  }

  private drawChip(button: HTMLElement, rank: Rank): void {
    if (button.dataset.state !== rank.state) {
      button.dataset.state = rank.state;
      button.title = `rank ${rank.rank}: ${rank.state}`;
      say(button.children[2] as HTMLElement, rank.state);
    }
    const bar = button.children[3] as HTMLElement;
    const progress = rank.state === "running" ? rank.progress : undefined;
    bar.hidden = !progress;
    if (progress) {
      (bar.firstElementChild as HTMLElement).style.width = `${(100 * fraction(progress)).toFixed(1)}%`;
    }
  }

  // -- drawing ------------------------------------------------------------------------------------

  private draw(): void {
    const model = this.model;
    const dark = String(isDark(this.node.parentElement ?? this.node));
    if (this.node.dataset.dark !== dark) {
      this.node.dataset.dark = dark;
    }
    const cause = culprit(model);
    if (cause !== undefined && !this.chose) {
      this.choose(cause, false);
    }
    this.drawHead();
    this.drawTabs();
    this.drawBars();
    this.drawLog();
  }

  private drawHead(): void {
    const model = this.model;
    const count = model.ranks.length;
    this.node.setAttribute("aria-label", `Run on ${model.title}`);
    this.dot.dataset.state = model.state;
    say(this.title, model.title);
    const words = status(model);
    const facts = [`${count} rank${count === 1 ? "" : "s"}`, duration(model.elapsed), ...words];
    if (!model.finished && model.idle >= 5) {
      facts.push(`silent for ${duration(Math.floor(model.idle)).replace(".0 s", " s")}`);
    }
    say(this.facts, facts.join(" · "));
    const told = model.finished || words.length > 1 ? words.join(", ") : "";
    if (told !== this.troubles) {
      this.troubles = told;
      this.tell(`${model.title}: ${told}`);
    }
    const live = !model.finished;
    this.buttons.interrupt.hidden = !live || !this.host.interrupt;
    this.buttons.where.hidden = !live || !this.host.where;
    this.buttons.follow.hidden = !live;
    say(this.buttons.follow, this.following ? "Pause" : "Follow");
    this.buttons.follow.title = this.following ? "Keep the lines still" : "Show the newest lines as they come";
    say(this.buttons.bars, BARS_TOLD[this.bars]);
    this.buttons.bars.hidden = !live || count < 2 || !model.ranks.some((rank) => rank.progress);
    const lines = this.log.scrollHeight > this.log.clientHeight + 4 || this.filter !== "";
    this.search.hidden = !live && !lines;
    this.buttons.download.hidden = !live && !lines;
    if (!live) {
      this.whereNode.hidden = true;
    }
  }

  private drawBars(): void {
    const found: [number, Progress][] = [];
    for (const rank of this.model.ranks) {
      const progress = this.model.finished || rank.state !== "running" ? undefined : rank.progress;
      if (progress && (this.chosen === ALL || this.chosen === rank.rank)) {
        found.push([rank.rank, progress]);
      }
    }
    const last = slowest(found);
    const several = this.model.ranks.length > 1;
    const shown = this.bars === "off" || !last ? [] : this.bars === "slowest" && several ? [last] : found;
    while (this.barsNode.children.length > shown.length) {
      this.barsNode.lastElementChild?.remove();
    }
    while (this.barsNode.children.length < shown.length) {
      const row = make("div", "sky-bar");
      row.append(make("span"), make("progress", "", { max: "1" }), make("span"));
      this.barsNode.append(row);
    }
    shown.forEach(([rank, progress], index) => {
      const [name, bar, aside] = this.barsNode.children[index].children as unknown as [
        HTMLElement,
        HTMLProgressElement,
        HTMLElement,
      ];
      const who = several ? `${this.bars === "slowest" ? "slowest, " : ""}rank ${rank}` : "";
      const label = [who, progress.label].filter(Boolean).join(" · ") || "progress";
      say(name, label);
      bar.value = fraction(progress);
      bar.setAttribute("aria-label", label);
      const percent = `${Math.floor(100 * fraction(progress))}%`;
      bar.textContent = percent;
      say(aside, [percent, progress.aside].filter(Boolean).join(" · "));
    });
    this.barsNode.hidden = shown.length === 0;
  }

  /** What the chosen tab shows, in order. */
  private blocks(): Block[] {
    const several = this.model.ranks.length > 1;
    if (this.chosen === ALL && several) {
      const blocks = this.model.all.parts.map((part) => this.blockOf(part));
      const open = this.model.ranks
        .filter((rank) => rank.log.last)
        .map((rank) => [rank.rank, rank.log.last] as [number, string]);
      const folded = fold(open, (text) => text);
      const lines = folded.map(([ranks, text]) => ({ label: rankLabel(ranks).split(" ").slice(1).join(" "), text }));
      if (lines.length) {
        blocks.push({ key: this.openKey, lines: this.filtered(0, lines.length, (index) => lines[index]) });
      }
      return blocks;
    }
    const rank = this.model.rank(this.chosen);
    if (!rank) {
      return [];
    }
    const history = this.history(rank);
    let parts = rank.log.parts;
    const blocks: Block[] = [];
    if (history) {
      blocks.push(...history.log.parts.map((part) => this.blockOf(part)));
      const mark = history.mark;
      blocks.push(this.blockOf(mark.part, mark.line - mark.part.dropped));
      parts = parts.slice(parts.indexOf(mark.part) + 1);
    }
    return [...blocks, ...parts.map((part) => this.blockOf(part))];
  }

  private blockOf(part: Transcript | FoldedLines | Shown, start = 0): Block {
    if (part instanceof Shown) {
      return { key: part, shown: part };
    }
    if (part instanceof Transcript) {
      const from = Math.max(0, start);
      return {
        key: part,
        lines: this.filtered(part.dropped + from, part.length - from, (index) => ({
          label: "",
          text: part.line(from + index),
        })),
      };
    }
    return { key: part, lines: this.filtered(part.first, part.entries.length, (index) => part.entries[index]) };
  }

  private filtered(first: number, count: number, line: (index: number) => { label: string; text: string }): Lines {
    let kept: number[] | undefined;
    if (this.filter) {
      kept = [];
      for (let index = 0; index < count; index++) {
        if (strip(line(index).text).toLowerCase().includes(this.filter)) {
          kept.push(index);
        }
      }
    }
    const at = (index: number) => line(kept ? kept[index] : index);
    return {
      first,
      count: kept ? kept.length : count,
      html: (index) => {
        const { label, text } = at(index);
        return (label ? `<span class="sky-label">${escaped(label)}</span>` : "") + toHtml(text);
      },
      text: (index) => {
        const { label, text } = at(index);
        return (label ? `[${label.replace(/ /g, "")}] ` : "") + strip(text);
      },
    };
  }

  private history(rank: Rank): History | undefined {
    const history = this.histories.get(rank.rank);
    if (history && !history.fits) {
      this.histories.delete(rank.rank);
      return undefined;
    }
    return history;
  }

  private drawLog(): void {
    const blocks = this.blocks();
    this.drawEarlier();
    const fresh = new Map<object, Drawn>();
    let shift = 0;
    blocks.forEach((block, index) => {
      const drawn = this.drawn.get(block.key) ?? this.begin(block);
      fresh.set(block.key, drawn);
      if (this.body.children[index] !== drawn.node) {
        this.body.insertBefore(drawn.node, this.body.children[index] ?? null);
      }
      if (block.lines) {
        shift += drawn.first >= 0 ? block.lines.first - drawn.first : 0;
        drawn.first = block.lines.first;
        drawn.node.style.height = `${block.lines.count * LINE}px`;
      } else if (block.shown && drawn.version !== block.shown.version) {
        drawn.version = block.shown.version;
        this.host.draw(block.shown.item, drawn.node.lastElementChild as HTMLElement);
      }
    });
    while (this.body.children.length > blocks.length) {
      this.body.lastElementChild?.remove();
    }
    this.drawn = fresh;
    this.drawFoot();
    if (this.following && !this.model.finished) {
      this.log.scrollTop = this.log.scrollHeight;
    } else if (shift > 0) {
      // Lines that went at the top would move all others.
      this.log.scrollTop -= shift * LINE;
    }
    this.lastTop = this.log.scrollTop;
    this.drawLines(blocks);
  }

  private begin(block: Block): Drawn {
    if (block.lines) {
      const node = make("div", "sky-text");
      const pre = make("pre");
      node.append(pre);
      return { node, pre, first: -1, html: "", version: -1 };
    }
    const node = make("div", "sky-item");
    if (this.chosen === ALL && this.model.ranks.length > 1 && block.shown) {
      const who = make("div", "sky-who");
      who.textContent = rankLabel(block.shown.ranks);
      node.append(who);
    }
    node.append(make("div"));
    return { node, first: -1, html: "", version: -1 };
  }

  /** Of each stretch of lines, put those on the page that are in sight. */
  private drawLines(blocks: Block[]): void {
    const top = this.log.scrollTop;
    const height = this.log.clientHeight || 420;
    for (const block of blocks) {
      const drawn = this.drawn.get(block.key);
      if (!block.lines || !drawn?.pre) {
        continue;
      }
      const offset = drawn.node.offsetTop - this.log.offsetTop;
      const from = Math.max(0, Math.floor((top - offset) / LINE) - OVERSCAN);
      const to = Math.min(block.lines.count, Math.ceil((top + height - offset) / LINE) + OVERSCAN);
      let html = "";
      for (let index = from; index < to; index++) {
        html += `<div class="sky-row">${block.lines.html(index)}</div>`;
      }
      if (html !== drawn.html) {
        drawn.html = html;
        drawn.pre.innerHTML = html;
      }
      drawn.pre.style.top = `${from * LINE}px`;
    }
  }

  private drawEarlier(): void {
    const rank = this.chosen === ALL ? undefined : this.model.rank(this.chosen);
    const history = rank && this.history(rank);
    const gone = rank ? (history ? 0 : rank.log.gone) : this.model.ranks.reduce((sum, one) => sum + one.log.gone, 0);
    const can = rank !== undefined && this.host.log !== undefined && this.model.run !== "";
    const more = history ? history.more : gone > 0;
    this.earlier.hidden = !more;
    this.earlier.disabled = !can || this.loading;
    const count = gone.toLocaleString("en");
    say(
      this.earlier,
      this.loading
        ? "reading earlier lines …"
        : can
          ? `▲ show earlier lines${gone ? ` (${count} before these)` : ""}`
          : rank
            ? `… ${count} earlier lines left out; result.stdout(rank) has all of them`
            : `… ${count} earlier lines; each rank's tab leads to its own`,
    );
  }

  private async loadEarlier(): Promise<void> {
    const rank = this.model.rank(this.chosen);
    if (!rank || !this.host.log || this.loading) {
      return;
    }
    let history = this.history(rank);
    const below = this.log.scrollHeight - this.log.scrollTop;
    this.loading = true;
    this.following = false;
    this.update();
    try {
      history ??= new History(rank, this.host);
      await history.load();
      this.histories.set(rank.rank, history);
    } catch (error) {
      this.showWhere(`earlier lines cannot be read: ${error instanceof Error ? error.message : error}`);
    } finally {
      this.loading = false;
    }
    this.draw();
    // What was in sight stays there.
    this.log.scrollTop = this.log.scrollHeight - below;
    this.update();
  }

  /** Below the lines: what ranks raised, their results, and what else there is to say. */
  private drawFoot(): void {
    const all = this.chosen === ALL;
    const ranks = all ? this.model.ranks : this.model.ranks.filter((rank) => rank.rank === this.chosen);
    const key = JSON.stringify([
      this.chosen,
      this.model.notices.length,
      ranks.map((one) => [one.state, one.result !== undefined]),
    ]);
    if (key === this.footKey) {
      return;
    }
    this.footKey = key;
    this.foot.textContent = "";
    const several = this.model.ranks.length > 1;
    const told = (pick: (rank: Rank) => string) =>
      fold(
        ranks.filter((rank) => pick(rank)).map((rank) => [rank.rank, pick(rank)] as [number, string]),
        (text) => text,
      );
    const trouble = (who: string, text: string) => {
      const node = make("div", "sky-trouble");
      node.innerHTML = `${who ? `<div class="sky-who">${escaped(who)}</div>` : ""}<pre class="sky-wrap">${toHtml(text)}</pre>`;
      this.foot.append(node);
    };
    for (const [of, note] of told((rank) => rank.note)) {
      trouble(`${rankLabel(of)} ${this.model.rank(of[0])?.state}`, note);
    }
    for (const [of, text] of told((rank) => rank.traceback)) {
      trouble(several ? rankLabel(of) : "", text);
    }
    const results = ranks.filter((rank) => rank.result).map((rank) => [rank.rank, rank.result] as [number, Shown]);
    for (const [of, shown] of fold(results, (one) => JSON.stringify(one.item))) {
      const node = make("div", "sky-item");
      const who = make("div", "sky-who");
      who.textContent = several && all ? `Out, ${rankLabel(of)}` : "Out";
      const place = make("div");
      node.append(who, place);
      this.foot.append(node);
      this.host.draw(shown.item, place);
    }
    for (const notice of this.model.notices) {
      const node = make("div", "sky-aside");
      node.textContent = notice;
      this.foot.append(node);
    }
    const quiet = this.quiet(ranks);
    if (quiet) {
      const node = make("div", "sky-aside");
      node.textContent = quiet;
      this.foot.append(node);
    }
  }

  private quiet(ranks: Rank[]): string {
    if (!this.model.finished) {
      return "";
    }
    const silent = ranks.filter(
      (rank) => rank.state === "done" && !rank.log.parts.length && !rank.result && !rank.log.gone,
    );
    return silent.length && silent.length < this.model.ranks.length
      ? `${rankLabel(silent.map((rank) => rank.rank))}: no output`
      : "";
  }

  private onScroll(): void {
    const room = this.log.scrollHeight - this.log.clientHeight;
    if (room <= 4) {
      return;
    }
    const atEnd = this.log.scrollTop >= room - LINE;
    // Growing does not move what is in sight: only a person goes up.
    if (!this.model.finished && !this.loading && (atEnd || this.log.scrollTop < this.lastTop - 1)) {
      this.following = atEnd;
    }
    this.lastTop = this.log.scrollTop;
    if (this.log.scrollTop === 0 && !this.following && !this.earlier.hidden && !this.earlier.disabled) {
      void this.loadEarlier();
    }
    this.update();
  }
}

function stored(name: string): string {
  try {
    return localStorage.getItem(name) ?? "";
  } catch {
    return "";
  }
}

function store(name: string, value: string): void {
  try {
    localStorage.setItem(name, value);
  } catch {
    // A page without storage forgets it.
  }
}
