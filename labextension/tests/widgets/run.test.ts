import { beforeEach, describe, expect, it, vi } from "vitest";

import { readDelta } from "../../src/run/schema";
import { bytesOf } from "../../src/widgets/bytes";
import widget from "../../src/widgets/run";

type WidgetDelta = Record<string, unknown>;
type Heard = (...args: never[]) => void;

/** anywidget's model, as its documentation has it. */
class Model {
  heard = new Map<string, Heard>();
  send = vi.fn();

  constructor(public snapshot: object) {}

  get(name: string): unknown {
    return name === "snapshot" ? this.snapshot : undefined;
  }

  on(event: string, heard: Heard): void {
    this.heard.set(event, heard);
  }

  off(event: string): void {
    this.heard.delete(event);
  }

  tell(delta: WidgetDelta, buffers?: unknown): void {
    (this.heard.get("msg:custom") as (delta: WidgetDelta, buffers?: unknown) => void)(delta, buffers);
  }

  renew(snapshot: object): void {
    this.snapshot = snapshot;
    (this.heard.get("change:snapshot") as () => void)();
  }
}

const snapshot = (number: number, text: string) => ({
  version: 1,
  view: "v",
  run: "r",
  pool: "p",
  title: "sky",
  state: "running",
  finished: false,
  elapsed: 1,
  idle: 0,
  ranks: [{ rank: 0, state: "running", parts: text ? [{ text }] : [] }],
  items: [],
  order: [],
  notices: [],
  number,
});

const encoded = (text: string) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));

function delta(number: number, text: string, data?: string): WidgetDelta {
  const size = new TextEncoder().encode(text).length;
  return { sky: "delta", view: "v", number, entries: [["s", 0, 0, size, 0, -1]], ...(data === undefined ? {} : { data }) };
}

function shown(model: Model): [HTMLElement, () => void] {
  const el = document.createElement("div");
  const home = document.createElement("div");
  document.body.replaceChildren(home);
  // As marimo does.
  home.attachShadow({ mode: "open" }).append(el);
  return [el, widget().render({ model: model as never, el })];
}

describe("the run view as a widget", () => {
  beforeEach(() => vi.useFakeTimers({ toFake: ["requestAnimationFrame", "setTimeout", "setInterval"] }));

  it("goes on by messages that are JSON alone", () => {
    const model = new Model(snapshot(0, "first\n"));
    const [el, remove] = shown(model);
    model.tell(delta(1, "größer ✓\n", encoded("größer ✓\n")), []);
    model.tell(delta(2, "last\n", encoded("last\n")));
    vi.advanceTimersByTime(500);
    expect(el.textContent).toContain("first");
    expect(el.textContent).toContain("größer ✓");
    expect(el.textContent).toContain("last");
    expect(model.send).not.toHaveBeenCalled();
    remove();
    expect(model.heard.size).toBe(0);
  });

  it("asks for all of it where a buffer got lost, and shows what it is then given", () => {
    const model = new Model(snapshot(0, ""));
    const [el] = shown(model);
    model.tell(delta(1, "lost\n"), []);
    expect(model.send).toHaveBeenCalledWith({ sky: "open" });
    model.tell(delta(2, "after\n", encoded("after\n")));
    model.renew(snapshot(2, "lost\nafter\n"));
    vi.advanceTimersByTime(500);
    expect(el.textContent).toMatch(/lost.*after/s);
  });

  it("keeps what it shows where the snapshot says nothing new", () => {
    const model = new Model(snapshot(0, ""));
    const [el] = shown(model);
    model.tell(delta(1, "here\n", encoded("here\n")));
    model.renew(snapshot(1, "other\n"));
    vi.advanceTimersByTime(500);
    expect(el.textContent).toContain("here");
    expect(el.textContent).not.toContain("other");
  });
});

describe("a delta's bytes", () => {
  const text = (bytes: DataView | undefined) => bytes && new TextDecoder().decode(bytes);

  it("are found whatever a front end makes of buffers", () => {
    const whole = new TextEncoder().encode("--abc");
    for (const buffer of [new DataView(whole.buffer, 2), whole.subarray(2), whole.slice(2).buffer]) {
      expect(text(bytesOf(delta(1, "abc"), [buffer]))).toBe("abc");
    }
    expect(text(bytesOf(delta(1, "abc", encoded("abc")), undefined))).toBe("abc");
  });

  it("are none where they got lost, and the delta is refused", () => {
    for (const buffers of [undefined, [{}], [7]]) {
      expect(bytesOf(delta(1, "abc"), buffers).byteLength).toBe(0);
    }
    expect(bytesOf(delta(1, "abc", "no base64!"), []).byteLength).toBe(0);
    expect(() => readDelta(delta(1, "abc"), 0)).toThrow("did not come");
    expect(() => readDelta(delta(1, "abc"), 2)).toThrow("did not come");
    expect(readDelta({ sky: "delta", view: "v", number: 1, entries: [["n", "note"]] }, 0).number).toBe(1);
  });
});
