/** What can be done to a pool: its buttons, the question before what destroys state, and what came of it. */

import { iconButton } from "../page/icons";
import { button, make, mark, reason, say } from "./dom";
import { isChanging, type PoolFacts } from "./model";
import type { Reply } from "./schema";

export type { Reply } from "./schema";

type Content = Record<string, unknown>;
type Name = "interrupt" | "restart" | "resize" | "down";

/** A question: what is asked, what the button for yes says, and what is done then. */
interface Question {
  of: Name;
  text: string;
  yes: string;
  /** What is to be filled in, with what stands there at first; `read` makes the request of it, or says what is wrong. */
  field?: { label: string; type: "number" | "text"; value: string; read(value: string): Content | string };
  content: Content;
  /** How many nodes the pool had: their numbers mean others once that has changed. */
  nodes: number;
  from: HTMLElement;
}

let questions = 0;

export class PoolActions {
  readonly bar = make("div", "sky-live-tools", { role: "group" });
  readonly asked = make("form", "sky-live-asked");
  readonly told = make("p", "sky-live-told", { role: "status" });
  private readonly buttons: Record<Name, HTMLButtonElement>;
  private readonly text = make("p");
  private readonly label = make("label");
  private readonly labelText = make("span");
  private readonly field = make("input");
  private readonly yes = make("button", "sky-live-ends", { type: "submit" });
  private readonly no = button("Cancel", () => this.close());
  private question: Question | undefined;
  /** What has been begun, and is not done yet. */
  private pending = "";
  private pool: PoolFacts | undefined;

  /** `act` asks the kernel; `soon` is called when something has changed. */
  constructor(
    private readonly act: (content: Content) => Promise<Reply>,
    private readonly soon: () => void,
  ) {
    this.buttons = {
      interrupt: iconButton("stop", "Interrupt", () => void this.send({ action: "interrupt" })),
      restart: iconButton("restart", "Restart", () => this.askRestart()),
      resize: iconButton("add", "Add nodes", () => this.askResize()),
      down: iconButton("down", "Shut down", () => this.askDown()),
    };
    this.bar.append(...Object.values(this.buttons));
    this.text.id = `sky-live-question-${++questions}`;
    mark(this.asked, "aria-labelledby", this.text.id);
    this.asked.hidden = true;
    this.label.append(this.labelText, this.field);
    this.asked.append(this.text, this.label, this.yes, this.no);
    this.asked.addEventListener("submit", (event) => {
      event.preventDefault();
      this.answer();
    });
    this.asked.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        this.close();
      }
    });
  }

  /** What may be done to the pool as it is now; nothing where no kernel is asked. */
  offer(pool: PoolFacts, live: boolean): void {
    this.pool = pool;
    const changing = isChanging(pool);
    const ours = live && pool.state !== "taken";
    const shown: Record<Name, boolean> = {
      interrupt: ours && (pool.runs.length > 0 || pool.state === "starting" || pool.state === "resizing"),
      restart: ours && !changing,
      resize: ours && pool.state === "ready",
      down: live && pool.state !== "ending",
    };
    mark(this.bar, "aria-label", `Pool ${pool.name}`);
    for (const [name, made] of Object.entries(this.buttons) as [Name, HTMLButtonElement][]) {
      this.hide(made, !shown[name]);
    }
    const old = this.question;
    if (old && (!shown[old.of] || old.nodes !== pool.nodes.length)) {
      this.close();
      say(this.told, live ? "The pool has changed meanwhile: nothing was done." : "");
    }
    if (this.pending && live && !changing) {
      say(this.told, outcome(this.pending, pool));
      this.pending = "";
    }
  }

  /** The pool has ended. */
  over(): void {
    this.pending = "";
    this.close();
    say(this.told, "");
  }

  /** Ask whether a node is to be removed. */
  askRemove(node: number): void {
    const host = this.pool?.nodes[node]?.host;
    const from = document.activeElement as HTMLElement;
    const text = `Remove node ${node}${host ? ` (${host})` : ""}? ${this.lost("All ranks get new kernels: what")}`;
    this.open({ of: "resize", text, yes: "Remove", content: { action: "resize", remove: [node] }, from });
  }

  private askRestart(): void {
    const text = `Restart all ranks? ${this.lost("What")}`;
    this.open({ of: "restart", text, yes: "Restart", content: { action: "restart" }, from: this.buttons.restart });
  }

  private askDown(): void {
    const text = `Shut down pool ${this.pool?.name}? ${this.lost("What")}`;
    this.open({ of: "down", text, yes: "Shut down", content: { action: "down" }, from: this.buttons.down });
  }

  private askResize(): void {
    const [local, now] = [this.pool?.provider === "local", this.pool?.nodes.length ?? 1];
    const text = `All ranks get new kernels once the nodes are ready. ${this.lost("What")}`;
    const nodes = {
      label: "Number of nodes",
      type: "number" as const,
      value: String(now + 1),
      read: (value: string) => {
        const wanted = Number(value);
        const sound = Number.isInteger(wanted) && wanted > 0 && wanted !== now;
        return sound ? { nodes: wanted } : `A whole number of nodes, other than the ${now} that there are.`;
      },
    };
    const hosts = {
      label: "Hosts to add, commas between",
      type: "text" as const,
      value: "",
      read: (value: string) => {
        const add = value.split(",").map((host) => host.trim()).filter(Boolean);
        return add.length ? { add } : "The name of at least one host, such as gpu4 or me@gpu5:2222.";
      },
    };
    const field = local ? nodes : hosts;
    const content = { action: "resize" };
    this.open({ of: "resize", text, yes: local ? "Resize" : "Add", field, content, from: this.buttons.resize });
  }

  /** What it costs to go on. */
  private lost(begin: string): string {
    const ends = this.pool?.runs.length ? " The cell that runs there ends." : "";
    return `${begin} the ranks have in memory is lost.${ends}`;
  }

  private open(question: Omit<Question, "nodes">): void {
    this.question = { ...question, nodes: this.pool?.nodes.length ?? 0 };
    const field = question.field;
    say(this.text, question.text);
    say(this.yes, question.yes);
    say(this.told, "");
    this.label.hidden = !field;
    if (field) {
      say(this.labelText, field.label);
      this.field.type = field.type;
      this.field.value = field.value;
    }
    this.asked.hidden = false;
    // The keyboard's first answer is the one that destroys nothing.
    (field ? this.field : this.no).focus();
  }

  private close(): void {
    const question = this.question;
    this.question = undefined;
    const inside = this.asked.contains(document.activeElement);
    this.asked.hidden = true;
    if (question && inside) {
      this.focus(question.from);
    }
  }

  private answer(): void {
    const question = this.question;
    if (!question) {
      return;
    }
    const more = question.field?.read(this.field.value) ?? {};
    if (typeof more === "string") {
      say(this.told, more);
      return;
    }
    this.close();
    void this.send({ ...question.content, ...more });
  }

  private async send(content: Content): Promise<void> {
    this.pending = "";
    say(this.told, "…");
    try {
      const reply = await this.act({ ...content, pool: this.pool?.name });
      say(this.told, reply.message ?? "done");
      if (reply.done === false) {
        this.pending = { restart: "Restart", resize: "Change of nodes" }[String(content.action)] ?? "";
      }
    } catch (error) {
      say(this.told, reason(error));
    }
    this.soon();
  }

  private hide(made: HTMLButtonElement, hidden: boolean): void {
    const focused = made === document.activeElement;
    made.hidden = hidden;
    if (hidden && focused) {
      this.focus(made);
    }
  }

  /** Give the focus to what asked, or where that is gone to what stands beside it. */
  private focus(wanted: HTMLElement): void {
    const there = wanted.isConnected && !wanted.hidden && !wanted.closest("[hidden]");
    const other = Object.values(this.buttons).find((made) => !made.hidden);
    (there ? wanted : other)?.focus();
  }
}

/** What came of something that took long. */
function outcome(what: string, pool: PoolFacts): string {
  const failed = pool.phases.find((phase) => phase.state === "failed");
  if (pool.state === "broken" || failed) {
    const last = failed?.lines[failed.lines.length - 1];
    const why = pool.why || (failed ? `${failed.phase}${last ? `: ${last}` : ""}` : "");
    return `${what} failed${why ? ` (${why})` : ""}.`;
  }
  return `${what}: done, ${pool.nodes.length} node${pool.nodes.length === 1 ? "" : "s"} ready.`;
}
