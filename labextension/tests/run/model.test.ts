import { describe, expect, it } from "vitest";

import { AllLog, FoldedItems } from "../../src/run/all-ranks";
import { blocksOfAll } from "../../src/run/filtered-lines";
import { rankNumbers } from "../../src/run/folding";
import { JournalReader } from "../../src/run/journal-reader";
import type { Host, JournalEvent } from "../../src/run/display-context";
import { Shown } from "../../src/run/rank-output";
import { type Delta, RunModel, type Snapshot } from "../../src/run/model";
import { readDelta } from "../../src/run/schema";
import { ofHtml, ofLine, slowest } from "../../src/run/parse-progress";
import { culprit, duration, status, tabAfter } from "../../src/run/run-status";

function snapshot(more: Partial<Snapshot> = {}): Snapshot {
  return {
    version: 1,
    view: "v",
    run: "r",
    title: "sky",
    state: "running",
    finished: false,
    elapsed: 2,
    idle: 1,
    ranks: [0, 1].map((rank) => ({ rank, state: "running" as const, parts: [] })),
    items: [],
    order: [],
    notices: [],
    number: 0,
    ...more,
  };
}

function delta(number: number, ...entries: (string | unknown[])[]): [Delta, DataView] {
  // "0 text" is printed by rank 0 on stdout.
  const texts: Uint8Array[] = [];
  const done = entries.map((entry) => {
    if (typeof entry !== "string") {
      return entry;
    }
    const bytes = new TextEncoder().encode(entry.slice(2));
    texts.push(bytes);
    return ["s", Number(entry[0]), 0, bytes.length, 0, -1];
  });
  // A part of a larger buffer, as Jupyter's are.
  const whole = new Uint8Array(7 + texts.reduce((sum, bytes) => sum + bytes.length, 0));
  let at = 7;
  for (const bytes of texts) {
    whole.set(bytes, at);
    at += bytes.length;
  }
  return [readDelta({ sky: "delta", view: "v", number, entries: done }, whole.length - 7), new DataView(whole.buffer, 7)];
}

function all({ all: log }: { all: AllLog }): string[] {
  return log.parts.flatMap((part) =>
    part instanceof FoldedItems
      ? part.apart.map(([ranks, shown]) => `${rankNumbers(ranks)}: <${shown.item.data["text/plain"]}>`)
      : Array.from({ length: part.length }, (_, index) => `${part.label(index)}: ${part.text(index)}`),
  );
}

describe("a run", () => {
  it("grows by deltas, in order of arrival, with equal lines folded", () => {
    const model = new RunModel();
    model.load(snapshot());
    expect(model.apply(...delta(1, "0 hello\na", "1 hello\nb\n"))).toBe(true);
    expect(model.apply(...delta(2, "0 é\n"))).toBe(true);
    expect(all(model)).toEqual(["0-1: hello", "1: b", "0: aé"]);
    expect(model.rank(0)?.log.lineCount).toBe(2);
  });

  it("notices that a delta is missing, and takes none twice", () => {
    const model = new RunModel();
    model.load(snapshot({ number: 4 }));
    expect(model.apply(...delta(4, "0 old\n"))).toBe(true);
    expect(model.apply(...delta(6, "0 later\n"))).toBe(false);
    expect(model.rank(0)?.log.lineCount).toBe(0);
    expect(model.apply(...delta(5, "0 next\n"))).toBe(true);
  });

  it("counts what its pool costs, from what it was told to what it is told at the end", () => {
    let now = 100;
    const model = new RunModel(() => now);
    const cost = (total: number | null, hourly: number | null) => ({ total, hourly, unknown: total === null ? 1 : 0, at: 0 });
    model.load(snapshot());
    expect(model.costText).toBe("");
    model.load(snapshot({ cost: cost(1, 36) }));
    now += 200;
    expect(model.costText).toBe("$3.00 so far, $36.00 an hour");
    const [told, buffer] = delta(1, "0 a\n");
    model.apply({ ...told, cost: cost(3, 0.526) }, buffer);
    now += 3600;
    expect(model.costText).toBe("$3.53 so far, $0.526 an hour");
    model.apply(...delta(2, ["over", 3802, cost(3.6, 0)]));
    now += 3600;
    expect(model.costText).toBe("$3.60 so far");
    model.load(snapshot({ cost: cost(null, null) }));
    expect(model.costText).toBe("price unknown");
  });

  it("goes on from a snapshot's unfinished line, cursor and order", () => {
    const model = new RunModel();
    const ranks = [
      { rank: 0, state: "running" as const, stream: "stdout", parts: [{ text: "x\n10%\r" }] },
      { rank: 1, state: "running" as const, parts: [{ text: "y\n" }, { item: 0, ids: ["plot"] }] },
    ];
    const items = [{ data: { "text/plain": "1" }, metadata: {} }];
    // Of rank 1 more has come than is kept.
    model.load(snapshot({ ranks, items, order: [1, 3, 0, 1, 1, -1] }));
    expect(all(model)).toEqual(["1: y", "0: x", "1: <1>"]);
    model.apply(...delta(1, "0 20%\n", ["u", 1, "plot", { "text/plain": "2" }, {}]));
    expect(model.rank(0)?.log.parts.flatMap((part) => ("lines" in part ? part.lines() : []))).toEqual(["x", "20%"]);
    const shown = model.rank(1)?.log.parts[1] as Shown;
    expect(shown.item.data["text/plain"]).toBe("2");
    expect(shown.version).toBe(1);
  });

  it("clears, now or with the next output", () => {
    const model = new RunModel();
    model.load(snapshot());
    model.apply(...delta(1, "0 a\n", ["c", 0, true]));
    expect(model.rank(0)?.log.lineCount).toBe(1);
    model.apply(...delta(2, "0 b\n"));
    expect(model.rank(0)?.log.parts).toHaveLength(1);
    expect(model.rank(0)?.log.last).toBe("");
    expect(model.rank(0)?.log.lineCount).toBe(1);
  });

  it("clears a rank out of what all have shown", () => {
    const model = new RunModel();
    model.load(snapshot());
    model.apply(...delta(1, "0 both\nmine\n", "1 both\nother\n", ["c", 0, true]));
    expect(all(model)).toEqual(["0-1: both", "0: mine", "1: other"]);
    model.apply(...delta(2, "0 other\n"));
    expect(all(model)).toEqual(["1: both", "0-1: other"]);
    model.apply(...delta(3, ["c", 1, false]));
    expect(all(model)).toEqual(["0: other"]);
  });

  it("has no holes in its window: what was passed over is counted and begins it anew", () => {
    const model = new RunModel();
    model.load(snapshot());
    model.apply(...delta(1, "0 a\nb\n"));
    const [next, buffer] = delta(2, "0 z\n");
    next.entries[0][4] = 1000;
    model.apply(next, buffer);
    expect(model.rank(0)?.log.gone).toBe(1002);
    expect(model.rank(0)?.log.lineCount).toBe(1);
    model.apply(...delta(3, "0 half"));
    const [last, rest] = delta(4, "0 end\n");
    last.entries[0][4] = 10;
    model.apply(last, rest);
    expect(model.rank(0)?.log.gone).toBe(1013);
  });

  it("has no hole in its middle: text before a stretch that lost its beginning goes, items stay", () => {
    const model = new RunModel();
    model.load(snapshot());
    model.apply(...delta(1, "0 first\n", ["d", 0, null, { "text/plain": "plot" }, {}]));
    for (let number = 2; number < 14; number++) {
      model.apply(...delta(number, `0 ${"line\n".repeat(1000)}`));
    }
    const log = model.ranks[0].log;
    expect(log.parts).toHaveLength(2);
    expect(log.parts[0]).toBeInstanceOf(Shown);
    expect(log.gone + log.lineCount).toBe(12_001);
  });

  it("is silent as long as its ranks are, whatever is said of them", () => {
    let now = 0;
    const model = new RunModel(() => now);
    model.load(snapshot({ idle: 0 }));
    now = 40;
    model.apply(...delta(1, ["n", "rank 1 sleeps"]));
    expect(model.idle).toBe(40);
    model.apply(...delta(2, "0 awake\n"));
    expect(model.idle).toBe(0);
  });

  it("is over where nobody tells how it goes on", () => {
    const model = new RunModel();
    model.load(snapshot());
    model.end("the kernel died", "stopped");
    expect([model.finished, model.state, status(model), model.notices]).toEqual([
      ...[true, "interrupted", ["interrupted"], ["the kernel died"]],
    ]);
    model.load(snapshot());
    model.end("it has been restarted", "unknown");
    expect([model.finished, model.state, status(model)]).toEqual([true, "running", ["end not known"]]);
    model.load(snapshot({ finished: true, unknown: true }));
    expect(status(model)).toEqual(["end not known"]);
  });

  it("says that it goes on where nobody waits for its end any more", () => {
    const model = new RunModel();
    model.load(snapshot());
    model.apply(...delta(1, ["over", 9]));
    expect([model.finished, model.state, status(model)]).toEqual([true, "running", ["goes on"]]);
  });

  it("knows who is to blame, and says how it fares", () => {
    let now = 100;
    const model = new RunModel(() => now);
    model.load(snapshot());
    now += 3;
    expect(model.elapsed).toBe(5);
    expect(model.idle).toBe(4);
    expect(status(model)).toEqual(["running"]);
    model.apply(...delta(1, ["e", 0, { state: "interrupted", note: "", traceback: "" }]));
    expect(culprit(model)).toBeUndefined();
    model.apply(...delta(2, ["e", 1, { state: "failed", note: "", traceback: "ValueError" }], ["over", 9]));
    expect(culprit(model)).toBe(1);
    expect(status(model)).toEqual(["rank 1 failed", "rank 0 interrupted"]);
    expect(model.elapsed).toBe(9);
  });
});

describe("folding", () => {
  function folded(...entries: (string | [number, string])[]): string[] {
    // "0 text" is a line of rank 0, [0, "text"] an item.
    const log = new AllLog();
    for (const entry of entries) {
      if (typeof entry === "string") {
        log.addLine(Number(entry[0]), entry.slice(2));
      } else {
        log.addItem(new Shown({ data: { "text/plain": entry[1] }, metadata: {} }, entry[0]));
      }
    }
    return all({ all: log });
  }

  it("keeps each rank's own order", () => {
    expect(folded("0 a", "0 b", "1 b", "1 a")).toEqual(["0: a", "0-1: b", "1: a"]);
  });

  it("folds what one rank says twice with what another says twice", () => {
    expect(folded("0 same", "0 same", "1 same", "1 same", "2 same")).toEqual(["0-2: same", "0-1: same"]);
  });

  it("folds items as lines, and lines around them", () => {
    const one = (rank: number): (string | [number, string])[] => [`${rank} a`, [rank, "plot"], `${rank} b`];
    expect(folded(...one(0), ...one(1), [2, "plot"], [2, "other"])).toEqual([
      "0-1: a",
      "0-2: <plot>",
      "0-1: b",
      "2: <other>",
    ]);
  });

  it("puts items between which nothing is printed in the order of the ranks, each rank's own in theirs", () => {
    const log = new AllLog();
    const show = (rank: number, name: string) => log.addItem(new Shown({ data: { "text/plain": name }, metadata: {} }, rank));
    [...["0a", "2a", "2b", "1a"], ...["0b", "1b"]].forEach((name) => show(Number(name[0]), name));
    const shown = blocksOfAll(log, [], "").map((block) => block.shown?.item.data["text/plain"]);
    expect(shown).toEqual(["0a", "1a", "2a", "0b", "1b", "2b"]);
  });

  it("shows an item apart while it is another than those it came with", () => {
    const model = new RunModel();
    model.load(snapshot());
    const shown = (kind: string, rank: number, text: string) => [kind, rank, "bar", { "text/plain": text }, {}];
    model.apply(...delta(1, shown("d", 0, "0%"), shown("d", 1, "0%")));
    expect(all(model)).toEqual(["0-1: <0%>"]);
    model.apply(...delta(2, shown("u", 1, "50%")));
    expect(all(model)).toEqual(["0: <0%>", "1: <50%>"]);
    model.apply(...delta(3, shown("u", 0, "50%")));
    expect(all(model)).toEqual(["0-1: <50%>"]);
  });

  it("goes on folding after the oldest lines went, and keeps items", () => {
    const log = new AllLog(50);
    log.addItem(new Shown({ data: { "text/plain": "plot" }, metadata: {} }, 0));
    for (let line = 0; line < 1000; line++) {
      log.addLine(0, `line ${line}`);
      log.addLine(1, `line ${line}`);
    }
    const [item, ...lines] = all({ all: log });
    expect(item).toBe("0: <plot>");
    expect(lines.length).toBeLessThanOrEqual(100);
    expect(lines[lines.length - 1]).toBe("0-1: line 999");
    expect(lines.every((line) => line.startsWith("0-1: "))).toBe(true);
    expect(log.parts[1].first).toBe(1001 - lines.length);
  });

  it("names ranks as people do", () => {
    expect(rankNumbers([5, 0, 1, 2])).toBe("0-2, 5");
    expect(rankNumbers([3])).toBe("3");
  });
});

describe("progress", () => {
  it.each([
    ["train:  43%|████▎     | 43/100 [00:10<00:13,  4.20it/s, loss=0.1]", "train", 43, 100],
    ["  0%|          | 0/10 [00:00<?, ?it/s]", "", 0, 10],
    ["model.bin: 50%|#####     | 1.50G/3.00G [01:00<01:00, 25MB/s]", "model.bin", 1.5e9, 3e9],
    [
      "\x1b[1m43/100\x1b[0m \x1b[32m━━━━━━━━\x1b[0m\x1b[37m━━━━━━━━━━━━\x1b[0m \x1b[1m5s\x1b[0m 20ms/step - loss: 0.12",
      "",
      43,
      100,
    ],
    ["7/9 [======>.......] - ETA: 5s", "", 7, 9],
  ])("is read from %j", (line, label, done, total) => {
    expect(ofLine(line)).toMatchObject({ label, done, total });
  });

  it.each(["loss 3/4", "100% sure", "path/to/10", "1/2", ""])("is not read from %j", (line) => {
    expect(ofLine(line)).toBeUndefined();
  });

  it("is read from the HTML of transformers", () => {
    const html =
      "<div><progress value='12' max='60' style='width:300px'></progress>[12/60 00:10 < 00:40, Epoch 1/5]</div>";
    expect(ofHtml(html)).toMatchObject({ done: 12, total: 60, aside: "[12/60 00:10 < 00:40, Epoch 1/5]" });
    expect(ofHtml("<b>no</b>")).toBeUndefined();
  });

  it("of HTML is over with its last value", () => {
    const model = new RunModel();
    model.load(snapshot());
    const bar = (value: number) => ({ "text/html": `<progress value='${value}' max='60'></progress>` });
    model.apply(...delta(1, ["d", 0, "bar", bar(12), {}]));
    expect(model.rank(0)?.progress).toMatchObject({ done: 12 });
    model.apply(...delta(2, ["u", 0, "bar", bar(60), {}]));
    expect(model.rank(0)?.progress).toBeUndefined();
  });

  it("is that of the slowest rank when bars are merged", () => {
    const bar = (done: number) => ({ label: "", done, total: 10, aside: "" });
    expect(
      slowest([
        [0, bar(5)],
        [1, bar(2)],
        [2, bar(9)],
      ])?.[0],
    ).toBe(1);
    expect(slowest([])).toBeUndefined();
  });

  it("carries Keras' epoch, and is over with its line", () => {
    const model = new RunModel();
    model.load(snapshot());
    model.apply(...delta(1, "0 Epoch 2/5\n", "0 3/10 ━━━━━━ 5s 20ms/step"));
    expect(model.rank(0)?.progress).toMatchObject({ label: "Epoch 2/5", done: 3 });
    model.apply(...delta(2, "0 \n"));
    expect(model.rank(0)?.progress).toBeUndefined();
  });
});

describe("scrolling back", () => {
  const events: JournalEvent[] = Array.from({ length: 3000 }, (_, seq) => ({
    kind: "stream",
    name: "stdout",
    seq,
    text: `line ${seq}\n`,
  }));
  const host: Host = {
    draw: () => undefined,
    // A node gives less than it was asked for.
    log: async (_, from, count) => {
      const page = events.slice(from, from + Math.min(count, 300));
      return { from, next: from + page.length, end: events.length, events: page };
    },
  };

  it("reads what came before the window, up to it, and no line twice", async () => {
    const model = new RunModel();
    model.load(
      snapshot({ ranks: [{ rank: 0, state: "running", parts: [{ text: "line 1999\n" }], dropped: 1999, next: 2000 }] }),
    );
    const [next, buffer] = delta(1, "0 line 2000\nline 2001\n");
    next.entries[0][5] = 2000;
    model.apply(next, buffer);
    const rank = model.ranks[0];
    const history = new JournalReader(rank.log, rank.next, host);
    expect(await history.load()).toBeGreaterThanOrEqual(500);
    while (history.more) {
      await history.load();
    }
    const lines = history.log.parts.flatMap((part) => ("lines" in part ? part.lines() : []));
    expect(lines).toHaveLength(2000);
    expect(lines[0]).toBe("line 0");
    expect(lines[1999]).toBe("line 1999");
    expect(history.mark.line).toBe(1);
    expect(history.fits(rank.log)).toBe(true);
  });

  it("reads up to the end of a window of which nobody knows where it begins, and goes on below", async () => {
    const model = new RunModel();
    model.load(snapshot());
    const [flood, buffer] = delta(1, "0 line 2998\nline 2999\n");
    flood.entries[0][4] = 2998;
    flood.next = [[0, 3000]];
    model.apply(flood, buffer);
    const rank = model.ranks[0];
    const history = new JournalReader(rank.log, rank.next, host);
    while (history.more) {
      await history.load();
    }
    expect(history.log.lineCount).toBe(3000);
    expect(history.mark.line).toBe(2);
    model.apply(...delta(2, "0 more\n"));
    expect(history.mark.part.line(history.mark.line - history.mark.part.dropped)).toBe("more");
  });
});

describe("words", () => {
  it("says seconds as people do", () => {
    expect([1.25, 59.9, 125, 3700].map(duration)).toEqual(["1.3 s", "59.9 s", "2 min 5 s", "1 h 1 min"]);
  });

  it("leads from tab to tab by the arrow keys, around the end", () => {
    expect(["ArrowRight", "ArrowLeft", "Home", "End", "x"].map((key) => tabAfter(key, 2, 3))).toEqual([
      0,
      1,
      0,
      2,
      undefined,
    ]);
  });
});
