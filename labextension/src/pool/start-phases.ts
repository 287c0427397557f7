/** What a pool's start has come through: phases with their times, what each node is at, and what was said. */

import { fill, make, mark, say } from "./dom";
import { isChanging, type PartFacts, type PhaseFacts, type PoolFacts } from "./model";
import { duration, phaseText, startText } from "./status-texts";

// What takes longer than usual is not done by that.
const MOST = 0.95;

export class StartLog {
  readonly node = make("details", "sky-live-start");
  private readonly summary = make("summary");
  private readonly list = make("ol");
  private readonly phases: PhaseView[] = [];
  private readonly bar = make("progress", "", { max: "1" });
  private readonly name = make("span", "sky-live-start-name");
  private readonly text = make("span");
  private was = "";

  constructor() {
    const line = make("span");
    line.append(this.name, this.bar, this.text);
    this.summary.append(line);
    this.node.append(this.summary, this.list);
  }

  show(pool: PoolFacts): void {
    this.node.hidden = !pool.phases.length;
    say(this.name, `pool ${pool.name}`);
    say(this.text, startText(pool));
    this.drawBar(pool.phases.find((one) => one.state === "on"));
    const now = isChanging(pool) ? "changing" : pool.phases.some((one) => one.state === "failed") ? "failed" : "done";
    if (now !== this.was) {
      // A line says what goes on. By itself it unfolds for what has failed; what a person has opened stays until it is done.
      if (now === "failed" || this.was === "changing") {
        this.node.open = now === "failed";
      }
      this.was = now;
    }
    while (this.phases.length > pool.phases.length) {
      this.phases.pop()?.node.remove();
    }
    pool.phases.forEach((phase, index) => {
      if (!this.phases[index]) {
        this.phases[index] = new PhaseView();
        this.list.append(this.phases[index].node);
      }
      this.phases[index].show(phase);
    });
  }

  /** How far the phase is that goes on, by how long it usually takes. */
  private drawBar(phase: PhaseFacts | undefined): void {
    this.bar.hidden = !phase?.usual;
    if (phase?.usual) {
      this.bar.value = Math.min(MOST, phase.elapsed / phase.usual);
      mark(this.bar, "aria-label", `${phase.phase}, by its usual time`);
    }
  }
}

class PhaseView {
  readonly node = make("li");
  private readonly line = make("div");
  private readonly details = make("details");
  private readonly summary = make("summary");
  private readonly at = make("div", "sky-live-at");
  private readonly parts = make("ul");
  private readonly log = make("pre", "", { tabindex: "0", role: "log", "aria-live": "off" });

  constructor() {
    this.details.append(this.summary, this.parts, this.log);
    this.node.append(this.line, this.details, this.at);
  }

  show(phase: PhaseFacts): void {
    const text = phaseText(phase);
    const parts = phase.nodes ?? [];
    // The first line of each is what it is about; alone it is no log.
    const told = parts.length > 0 || phase.lines.length > 1;
    mark(this.node, "data-state", phase.state);
    this.line.hidden = told;
    this.details.hidden = !told;
    say(this.line, text);
    say(this.summary, text);
    const last = phase.lines[phase.lines.length - 1] ?? phase.text;
    say(this.at, phase.state === "done" ? "" : last);
    fill(this.parts, parts, () => make("li"), (node, part) => {
      mark(node, "data-state", part.state);
      say(node, partText(part));
    });
    const log = phase.lines.join("\n");
    if (this.log.textContent !== log) {
      const end = this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - 4;
      this.log.textContent = log;
      if (end) {
        this.log.scrollTop = this.log.scrollHeight;
      }
    }
    mark(this.log, "aria-label", `What ${phase.phase} said`);
  }
}

function partText(part: PartFacts): string {
  const line = part.state !== "done" && part.line ? ` · ${part.line}` : "";
  const state = part.state === "on" ? "" : `${part.state}, `;
  return `node ${part.node}: ${state}${duration(part.elapsed)}${line}`;
}
