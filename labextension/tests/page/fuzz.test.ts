import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { Misfit } from "../../src/page/validate";
import { PoolModel } from "../../src/pool/model";
import { readSaved } from "../../src/pool/schema";
import { PoolPanel } from "../../src/pool/view";
import { readDelta, readSnapshot, type Snapshot } from "../../src/run/schema";
import widget from "../../src/widgets/run";
import { node as poolNode, pool as aPool, RUN } from "../pool/stub";

const ROUNDS = Number(process.env.SKY_FUZZ_ROUNDS ?? 60);
const SEED = Number(process.env.SKY_FUZZ_SEED ?? 20261122);
const EVIL = [
  `<img src=x onerror="globalThis.skyRan=1">`,
  `"><script>globalThis.skyRan=1</script>`,
  `</textarea></style><svg onload="globalThis.skyRan=1">`,
  `javascript:globalThis.skyRan=1`,
  `red;background:url(//x.invalid/ran)`,
  `\x1b[31m<b onclick="globalThis.skyRan=1">\x1b[0m`,
  "__proto__",
  "\ud800",
  "a\nb\r\x1b[2A\x1b[K\tc",
  "50%|█████     | 5/10 [00:01<00:01, 5it/s]",
  "",
];

/** Random choices that a seed repeats. */
class Chance {
  constructor(private state: number) {}

  next(): number {
    this.state = (this.state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(this.state ^ (this.state >>> 15), 1 | this.state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  }

  below(count: number): number {
    return Math.floor(this.next() * count);
  }

  of<T>(items: readonly T[]): T {
    return items[this.below(items.length)];
  }

  list<T>(most: number, make: (index: number) => T): T[] {
    return Array.from({ length: this.below(most + 1) }, (_, index) => make(index));
  }

  text = () => this.list(3, () => this.of(EVIL)).join(this.of(["", "\n"]));
  whole = () => this.of([0, 1, 2, 3, 299, 2 ** 31, Number.MAX_SAFE_INTEGER]);
  number = () => this.of([0, 0.5, 1, -1, 1e-9, 1e21, 1.7e308, -1.7e308]);
  flag = () => this.next() < 0.5;
  /** Any JSON at all. */
  json = (depth = 0): unknown =>
    this.of([
      this.text,
      this.number,
      this.flag,
      () => null,
      () => (depth > 3 ? [] : this.list(3, () => this.json(depth + 1))),
      () => (depth > 3 ? {} : Object.fromEntries(this.list(3, () => [this.text(), this.json(depth + 1)]))),
    ])();
}

function item(chance: Chance): { data: Record<string, unknown>; metadata: Record<string, unknown> } {
  const kinds = ["text/plain", "text/html", "image/png", "image/svg+xml", "text/latex", "application/json", "__proto__"];
  return {
    data: Object.fromEntries(chance.list(3, () => [chance.of(kinds), chance.flag() ? chance.text() : chance.json()])),
    metadata: {},
  };
}

/** A run that fits its schema, and has nothing usual in it. */
function run(chance: Chance): Snapshot {
  const state = () => chance.of(["running", "done", "failed", "died", "interrupted"] as const);
  const items = chance.list(3, () => item(chance));
  const place = () => (items.length && chance.flag() ? { item: chance.below(items.length) } : { text: chance.text() });
  const numbers = new Set(chance.list(4, () => chance.whole()));
  return {
    version: 1,
    view: chance.text(),
    title: chance.text(),
    run: chance.text(),
    pool: chance.text(),
    state: state(),
    finished: chance.flag(),
    elapsed: chance.number(),
    idle: chance.number(),
    ranks: [...numbers].map((rank) => ({
      rank,
      state: state(),
      parts: chance.list(3, place),
      dropped: chance.whole(),
      stream: chance.text(),
      next: chance.whole(),
      note: chance.text(),
      traceback: chance.text(),
      ...(items.length && chance.flag() ? { result: chance.below(items.length) } : {}),
    })),
    items,
    order: chance.list(9, () => (chance.flag() ? -1 : chance.whole())),
    notices: chance.list(2, chance.text),
    number: 0,
  };
}

function delta(chance: Chance, number: number): [unknown, string] {
  const text = chance.text().replace(/\ud800/g, "");
  const size = new TextEncoder().encode(text).length;
  const { data, metadata } = item(chance);
  const entries = chance.list(4, () =>
    chance.of([
      ["d", chance.whole(), chance.text(), data, metadata],
      ["u", chance.whole(), chance.text(), data, metadata],
      ["r", chance.whole(), data, metadata],
      ["c", chance.whole(), chance.flag()],
      ["e", chance.whole(), { state: "failed", note: chance.text(), traceback: chance.text() }],
      ["n", chance.text()],
    ]),
  );
  entries.push(["s", chance.whole(), chance.below(2), size, chance.of([0, 7]), chance.of([-1, 3])]);
  return [{ sky: "delta", view: "v", number, entries }, text];
}

function pools(chance: Chance): unknown {
  const facts = (number: number) =>
    poolNode(chance.flag() ? number : chance.whole(), {
      state: chance.text(),
      host: chance.text(),
      address: chance.text(),
      uptime: chance.number(),
      accelerators: chance.whole(),
      accelerator: chance.flag() ? chance.text() : null,
      cores: chance.number(),
      memory: chance.number(),
      gpus: chance.list(4, () => ({ name: chance.text(), memory: chance.number() })),
      ranks: chance.list(3, () => ({ rank: chance.whole(), pid: chance.whole(), run: chance.text(), entered: chance.flag(), memory: chance.number() })),
      now: chance.flag() ? chance.list(6, chance.number) : null,
      samples: chance.list(5, () => [chance.number(), ...chance.list(6, chance.number)]),
    });
  const phase = () => ({
    phase: chance.text(),
    text: chance.text(),
    state: chance.of(["on", "done", "failed", chance.text()]),
    at: chance.number(),
    elapsed: chance.number(),
    usual: chance.flag() ? chance.number() : null,
    lines: chance.list(3, chance.text),
    nodes: chance.list(2, () => ({ node: chance.whole(), state: chance.text(), elapsed: chance.number(), line: chance.text() })),
  });
  const one = () =>
    aPool({
      name: chance.text(),
      state: chance.of(["ready", "starting", "broken", chance.text()]),
      why: chance.text(),
      provider: chance.text(),
      plugins: chance.list(2, chance.text),
      uptime: chance.number(),
      away: Object.fromEntries(chance.list(2, () => [chance.text(), chance.text()])),
      apart: Object.fromEntries(chance.list(2, () => [chance.text(), chance.text()])),
      runs: chance.list(2, () => ({ ...RUN, title: chance.text(), count: chance.number(), elapsed: chance.number(), ranks: chance.list(3, chance.whole) })),
      phases: chance.list(3, phase),
      nodes: chance.list(3, facts),
      cost: chance.flag() ? { total: chance.number(), hourly: chance.number(), unknown: chance.whole(), at: chance.number() } : null,
    });
  return { version: 1, at: chance.number(), pools: [one(), ...chance.list(1, one)] };
}

/** The same value with one of its parts, or one of its names, exchanged. */
function mutated(chance: Chance, value: unknown): unknown {
  if (typeof value !== "object" || value === null || chance.next() < 0.15) {
    return chance.json();
  }
  if (Array.isArray(value)) {
    const at = chance.below(value.length);
    return value.length ? value.map((one, index) => (index === at ? mutated(chance, one) : one)) : [chance.json()];
  }
  const entries = Object.entries(value);
  const at = chance.below(entries.length);
  return Object.fromEntries(
    entries.map(([key, one], index) =>
      index !== at ? [key, one] : chance.next() < 0.2 ? [chance.text(), one] : [key, mutated(chance, one)],
    ),
  );
}

/** Nothing that stands on the page could run, load or lead anywhere. */
function isHarmless(root: Element | ShadowRoot): void {
  for (const node of root.querySelectorAll("*")) {
    const tag = node.tagName.toLowerCase();
    expect(["script", "object", "embed", "link", "base", "meta", "a", "form[action]"]).not.toContain(tag);
    for (const { name, value } of node.attributes) {
      expect(name).not.toMatch(/^on|^href$|^formaction$|^xlink/);
      expect(name === "src" ? value : "data:image/").toMatch(/^data:image\//);
      expect(name === "style" ? value : "").not.toMatch(/url|expression/i);
    }
    if (tag === "iframe") {
      expect(node.getAttribute("sandbox")).toBe("allow-same-origin");
    }
  }
}

// The machine may be busy, and the rounds many: nothing here hangs by itself.
describe(`bundles by chance (SKY_FUZZ_SEED=${SEED})`, { timeout: 3_600_000 }, () => {
  const failures: unknown[] = [];
  const caught = (event: ErrorEvent) => failures.push(event.error ?? event.message);

  beforeEach(() => {
    vi.useFakeTimers({ toFake: ["requestAnimationFrame", "cancelAnimationFrame", "setTimeout", "setInterval", "clearInterval"] });
    window.addEventListener("error", caught);
    failures.length = 0;
  });
  afterEach(() => {
    vi.useRealTimers();
    window.removeEventListener("error", caught);
    expect(failures).toEqual([]);
    expect((globalThis as { skyRan?: unknown }).skyRan).toBeUndefined();
    expect(({} as { skyRan?: unknown }).skyRan).toBeUndefined();
  });

  /** Draw a run as marimo does, tell it deltas, and press all that can be pressed. */
  function draw(snapshot: unknown, deltas: [unknown, string][] = []): HTMLElement {
    const el = document.createElement("div");
    document.body.replaceChildren(el);
    let hear = (_message: never, _buffers?: unknown) => undefined as void;
    const model = {
      get: () => snapshot,
      on: (event: string, heard: typeof hear) => {
        hear = event === "msg:custom" ? heard : hear;
      },
      off: () => undefined,
      send: () => undefined,
    };
    const remove = widget().render({ model: model as never, el });
    vi.advanceTimersByTime(50);
    for (const [message, text] of deltas) {
      hear(message as never, [new TextEncoder().encode(text)]);
      vi.advanceTimersByTime(250);
    }
    for (const button of el.querySelectorAll<HTMLElement>("button")) {
      if (!/Download|Copy/.test(button.textContent ?? "")) {
        button.click();
        vi.advanceTimersByTime(250);
      }
    }
    isHarmless(el);
    remove();
    return el;
  }

  it("of runs that fit are drawn without an error, and run nothing", () => {
    for (let round = 0; round < ROUNDS; round++) {
      const chance = new Chance(SEED + round);
      const snapshot = JSON.parse(JSON.stringify(run(chance))) as unknown;
      expect(() => readSnapshot(snapshot), `round ${round}`).not.toThrow();
      const deltas = [1, 2, 3].map((number) => delta(chance, number));
      expect(() => deltas.forEach(([one, text]) => readDelta(one, text.length * 4)), `round ${round}`).not.toThrow();
      expect(draw(snapshot, deltas).querySelector(".sky-run"), `round ${round}`).not.toBeNull();
    }
  });

  it("of runs with a part exchanged are drawn whole, or as text", () => {
    for (let round = 0; round < ROUNDS; round++) {
      const chance = new Chance(SEED + round);
      const snapshot = mutated(chance, JSON.parse(JSON.stringify(run(chance))));
      const el = draw(snapshot, [1, 2].map((number) => [mutated(chance, delta(chance, number)[0]), chance.text()]));
      expect(el.querySelectorAll(".sky-run, .sky-as-text").length, `round ${round}`).toBe(1);
    }
  });

  it("of pools are drawn without an error, and run nothing; with a part exchanged too", () => {
    let drawn = 0;
    for (let round = 0; round < 2 * ROUNDS; round++) {
      const chance = new Chance(SEED + round);
      const whole = pools(chance);
      try {
        const saved = readSaved(JSON.parse(JSON.stringify(round % 2 ? mutated(chance, whole) : whole)));
        for (const facts of saved.pools) {
          const panel = new PoolPanel(() => Promise.resolve({}), () => undefined);
          document.body.replaceChildren(panel.node);
          panel.show(new PoolModel(facts, saved.at), { live: chance.flag(), at: saved.at });
          panel.node.querySelectorAll<HTMLElement>("button, summary").forEach((one) => one.click());
          isHarmless(document.body);
          drawn += 1;
        }
      } catch (error) {
        expect(error, `round ${round}`).toBeInstanceOf(Misfit);
        expect(round % 2, `round ${round}: ${error}`).toBe(1);
      }
    }
    expect(drawn).toBeGreaterThan(ROUNDS / 2);
  });
});
