/** Progress bars that ranks show as widgets, as `tqdm.auto` does: heard from the comms in the notebook's kernel. */

import { ask, type Kernel } from "./kernel-requests";
import type { Progress } from "./parse-progress";
import { readOpenings } from "./schema";

const REQUEST = "sky_widgets_request";
// So many widgets are remembered, those heard of last; and so deep a box is looked into.
const MOST = 2000;
const DEPTH = 3;
const MODEL = "IPY_MODEL_";
const FIELDS = ["_model_name", "value", "min", "max", "bar_style", "children", "description"];

type State = Record<string, unknown>;
interface CommMessage {
  header: { msg_type: string };
  content: { comm_id?: unknown; data?: { method?: unknown; state?: unknown } };
}

export class WidgetBars {
  private readonly states = new Map<string, State>();
  private readonly asked = new Set<string>();
  private readonly slot = (_: unknown, message: never) => this.hear(message);

  /** `changed` is told when a bar may have moved. */
  constructor(
    private readonly kernel: Kernel,
    private readonly changed: () => void,
  ) {
    kernel.iopubMessage.connect(this.slot);
  }

  close(): void {
    this.kernel.iopubMessage.disconnect(this.slot);
  }

  /** The bar of a widget that is not full yet; of one that is not known, the kernel is asked once. */
  bar(id: string): Progress | undefined {
    if (!this.states.has(id) && !this.asked.has(id)) {
      this.asked.add(id);
      void this.fetch(id).catch(() => undefined);
    }
    const all = this.below(id, DEPTH);
    const at = all.findIndex(({ _model_name: name }) => name === "FloatProgressModel" || name === "IntProgressModel");
    const { value, min = 0, max, bar_style: style, description } = all[at] ?? {};
    if (typeof value !== "number" || typeof min !== "number" || typeof max !== "number" || max <= min || value >= max) {
      return undefined;
    }
    if (style === "danger" || style === "success") {
      // Its loop is over, short of its end or not.
      return undefined;
    }
    const texts = (part: State[]) => part.map((one) => (one._model_name === "HTMLModel" ? plain(one.value) : "")).join("");
    const label = texts(all.slice(0, at)).replace(/:?\s*\d*%?\s*$/, "") || plain(description);
    const aside = /\[(.*)\]/.exec(texts(all.slice(at + 1)))?.[1] ?? "";
    return { label, done: value - min, total: max - min, aside };
  }

  /** A widget and those in it, in the order in which they stand. */
  private below(id: string, depth: number): State[] {
    const state = this.states.get(id);
    const inside = Array.isArray(state?.children) && depth > 0 ? state.children : [];
    const ids = inside.filter((one): one is string => typeof one === "string" && one.startsWith(MODEL));
    return state ? [state, ...ids.flatMap((one) => this.below(one.slice(MODEL.length), depth - 1))] : [];
  }

  private async fetch(id: string): Promise<void> {
    for (const { content } of readOpenings(await ask(this.kernel, REQUEST, { widgets: [id] }))) {
      // What has been heard meanwhile is newer.
      if (!this.states.has(content.comm_id)) {
        this.keep(content.comm_id, (content.data as { state?: unknown } | undefined)?.state);
      }
    }
    this.changed();
  }

  private hear({ header, content }: CommMessage): void {
    const id = content?.comm_id;
    if (typeof id !== "string") {
      return;
    }
    if (header.msg_type === "comm_open") {
      this.keep(id, content.data?.state);
    } else if (header.msg_type === "comm_close") {
      this.states.delete(id);
    } else if (header.msg_type === "comm_msg" && this.states.has(id) && content.data?.method === "update") {
      this.keep(id, content.data.state);
      this.changed();
    }
  }

  private keep(id: string, told: unknown): void {
    if (typeof told !== "object" || told === null) {
      return;
    }
    const fields = FIELDS.filter((field) => Object.hasOwn(told, field)).map((field) => [field, (told as State)[field]]);
    const state = { ...this.states.get(id), ...Object.fromEntries(fields) };
    this.states.delete(id);
    this.states.set(id, state);
    if (this.states.size > MOST) {
      this.states.delete(this.states.keys().next().value as string);
    }
  }
}

/** The words of an HTML widget, which are shown as text. */
function plain(value: unknown): string {
  if (typeof value !== "string") {
    return "";
  }
  const words = value.slice(0, 500).replace(/<[^>]*>/g, "").replace(/&nbsp;|\s+/g, " ");
  return words.replace(/&(lt|gt|amp);/g, (_, name: string) => ({ lt: "<", gt: ">" })[name] ?? "&").trim();
}
