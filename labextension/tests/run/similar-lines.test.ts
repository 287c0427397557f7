import { describe, expect, it } from "vitest";

import { AllLog } from "../../src/run/all-ranks";
import { blocksOfAll, textOf } from "../../src/run/filtered-lines";
import { parse, rangeText, SimilarLines } from "../../src/run/similar-lines";

function shown(log: AllLog, folds: SimilarLines, filter = ""): string[] {
  return blocksOfAll(log, [], filter, folds).flatMap(({ lines }) =>
    Array.from({ length: lines?.count ?? 0 }, (_, index) => {
      const line = lines?.line(index);
      return `${line?.fold?.text ?? ""}[${line?.label}] ${line?.text}`;
    }),
  );
}

function turn(log: AllLog, folds: SimilarLines, row: number): void {
  blocksOfAll(log, [], "", folds)[0].lines?.line(row).fold?.turn?.();
}

const common = (...texts: string[]) => rangeText(texts.map(parse));

describe("lines that differ in numbers", () => {
  it("have each number's range, and what is the same in all as it is", () => {
    expect(common("step 3 loss 0.31", "step 3 loss 0.345", "step 3 loss 3e-1")).toBe("step 3 loss 3e-1 to 0.345");
    expect(common("at -5 of 0-7", "at 3 of 0-7")).toBe("at -5 to 3 of 0-7");
    expect(common("1,234 tokens", "987 tokens")).toBe("987 to 1,234 tokens");
    expect(common("12:03:01 up", "12:03:05 up")).toBe("12:03:01 to 05 up");
  });

  it("are told from those that differ in more: in words, in colour, in what is no number", () => {
    expect(parse("loss nan").pattern).not.toBe(parse("loss 0.3").pattern);
    expect(parse("\x1b[31mloss 1\x1b[0m").pattern).not.toBe(parse("\x1b[32mloss 1\x1b[0m").pattern);
    expect(common("\x1b[31mloss 1\x1b[0m", "\x1b[31mloss 2\x1b[0m")).toBe("\x1b[31mloss 1 to 2\x1b[0m");
    expect(parse(`${"x".repeat(1000)}1`).words).toEqual([]);
  });

  it("fold to one with their ranks, and open to the lines themselves", () => {
    const [log, folds] = [new AllLog(), new SimilarLines(() => undefined)];
    for (let rank = 0; rank < 8; rank++) {
      log.addLine(rank, `loss 0.3${rank % 4}`);
    }
    log.addLine(0, "done");
    expect(shown(log, folds)).toEqual(["▸ 4[0-7] loss 0.30 to 0.33", "[0] done"]);
    turn(log, folds, 0);
    const lines = ["│[0, 4] loss 0.30", "│[1, 5] loss 0.31", "│[2, 6] loss 0.32", "│[3, 7] loss 0.33"];
    expect(shown(log, folds)).toEqual(["▾ 4[0-7] loss 0.30 to 0.33", ...lines, "[0] done"]);
    turn(log, folds, 0);
    expect(shown(log, folds)).toHaveLength(2);
    // What is copied is the lines.
    expect(textOf(blocksOfAll(log, [], "")).split("\n")).toHaveLength(5);
  });

  it("keep the order of each rank's own lines, and fold consecutive ones of one rank", () => {
    const [log, folds] = [new AllLog(), new SimilarLines(() => undefined)];
    for (let rank = 0; rank < 2; rank++) {
      for (const epoch of [1, 2]) {
        log.addLine(rank, `step ${epoch}0${rank}`);
        log.addLine(rank, `step ${epoch}1${rank}`);
        log.addLine(rank, `saved ${epoch}${rank}`);
      }
    }
    expect(shown(log, folds)).toEqual([
      "▸ 4[0-1] step 100 to 111",
      "▸ 2[0-1] saved 10 to 11",
      "▸ 4[0-1] step 200 to 211",
      "▸ 2[0-1] saved 20 to 21",
    ]);
  });

  it("are folded among those that a filter leaves, and what each rank is writing too", () => {
    const [log, folds] = [new AllLog(), new SimilarLines(() => undefined)];
    log.addLine(0, "loss 1");
    log.addLine(0, "other");
    log.addLine(0, "loss 2");
    expect(shown(log, folds, "loss")).toEqual(["▸ 2[0] loss 1 to 2"]);
    const open = [0, 1].map((rank) => ({ label: String(rank), text: `${rank}0 %`, ranks: [rank] }));
    const last = blocksOfAll(log, open, "", folds)[1].lines;
    expect(last?.line(0)).toMatchObject({ label: "0-1", text: "0 to 10 %".replace("0 to", "00 to") });
  });

  it("are not folded with what stands far up", () => {
    const [log, folds] = [new AllLog(), new SimilarLines(() => undefined)];
    log.addLine(0, "loss 1");
    for (let line = 0; line < 300; line++) {
      log.addLine(1, `${"x".repeat(line + 1)}`);
    }
    log.addLine(2, "loss 2");
    expect(shown(log, folds).filter((text) => text.includes("loss"))).toEqual(["[0] loss 1", "[2] loss 2"]);
  });

  it("are found in 8 times 100,000 lines by looking at the window alone", () => {
    const [log, folds] = [new AllLog(), new SimilarLines(() => undefined)];
    let draws = 0;
    for (let line = 0; line < 100_000; line++) {
      for (let rank = 0; rank < 8; rank++) {
        log.addLine(rank, `step ${line} loss ${(line * 8 + rank) / 1000}`);
      }
      if (line % 5000 === 0) {
        draws += shown(log, folds).length;
      }
    }
    expect(draws).toBe(20);
    expect(shown(log, folds)[0]).toMatch(/^▸ \d+\[0-7\] step \d+ to 99999 loss [\d.]+ to 799.999$/);
  });
});
