import { describe, expect, it } from "vitest";

import { isStderr, strip } from "../../src/run/ansi";
import { write } from "../../src/run/coloured-text";
import { RankLog } from "../../src/run/rank-output";
import { Streams, Transcript } from "../../src/run/transcript";

function fed(...pieces: string[]): Transcript {
  const transcript = new Transcript();
  pieces.forEach((piece) => transcript.feed(piece));
  return transcript;
}

/** A line as it stands on the page. */
function markup(line: string): string {
  const node = document.createElement("pre");
  write(node, line);
  return node.innerHTML;
}

describe("a transcript", () => {
  it("has no blank line where a bar is taken away for a line, as by tqdm.write", () => {
    const log = new RankLog(0);
    for (const step of [0, 1]) {
      log.feed(1, `\rtrain: ${step}/2`, 0, -1);
      log.feed(1, "\r          \r", 0, -1);
      log.feed(0, `loss ${step}\n`, 0, -1);
    }
    log.feed(1, "\rtrain: 2/2\n", 0, -1);
    const lines = [...log.sequence()].map((line) => strip(line as string));
    expect(lines).toEqual(["loss 0", "loss 1", "train: 2/2"]);
  });

  it("marks lines of stderr, however they come and whatever they reset", () => {
    const pieces = new Transcript();
    pieces.feed("a\n");
    pieces.feed("b", undefined, true);
    pieces.feed("c\x1b[31mred\x1b[0m", undefined, true);
    pieces.feed("\nd\n", undefined, true);
    pieces.feed("e\n");
    const whole = fed("a\n");
    whole.feed("bc\x1b[31mred\x1b[0m\nd\n", undefined, true);
    whole.feed("e\n");
    expect(pieces.lines()).toEqual(whole.lines());
    expect(pieces.lines().map(isStderr)).toEqual([false, true, true, false]);
    expect(pieces.lines().map(strip)).toEqual(["a", "bcred", "d", "e"]);
    expect(markup(pieces.line(1))).toMatch(/^bc<span /);
  });

  it.each([
    [["a\nb\n"], ["a", "b"]],
    [
      ["a\n", "b"],
      ["a", "b"],
    ],
    [
      ["10%\r20%\r", "100%\ndone\n"],
      ["100%", "done"],
    ],
    [["abc\rX\n"], ["Xbc"]],
    [["ab\b\bX\n"], ["Xb"]],
    [["long line\r\x1b[Kshort\n"], ["short"]],
    [["one\ntwo\n\x1b[2Afirst\x1b[2B\rend\n"], ["first", "two", "end"]],
    [["a\x1b[3Cb\n"], ["a   b"]],
    [["x\ny\nz\x1b[2A\r\x1b[Jnew\n"], ["new"]],
    [["a\x1b]0;title\x07b\n"], ["ab"]],
  ])("carries out what %j asks for", (pieces, lines) => {
    expect(fed(...pieces).lines()).toEqual(lines);
  });

  it("waits for the rest of an escape that is cut", () => {
    const transcript = fed("\x1b[3", "1mred\x1b", "[0m plain\n");
    expect(markup(transcript.line(0))).toBe('<span style="color: var(--sky-ansi-1);">red</span> plain');
  });

  it("gives each line the colours it needs", () => {
    const lines = fed("\x1b[1;32mgreen\nstill\x1b[0m\n").lines();
    expect(lines.map(strip)).toEqual(["green", "still"]);
    expect(markup(lines[1])).toContain("font-weight: bold");
  });

  it("keeps the last lines and counts the others", () => {
    const transcript = new Transcript(10);
    for (let line = 0; line < 100; line++) {
      transcript.feed(`${line}\n`);
    }
    expect(transcript.length + transcript.dropped).toBe(100);
    expect(transcript.length).toBeGreaterThanOrEqual(10);
    expect(transcript.length).toBeLessThanOrEqual(21);
    expect(transcript.line(transcript.length - 1)).toBe("99");
  });

  it("tells each line that is finished, once", () => {
    const told: string[] = [];
    const transcript = new Transcript();
    for (const piece of ["a", "b\n1%\r2%", "\r3%\nlast"]) {
      transcript.feed(piece, (line) => told.push(line));
    }
    expect(told).toEqual(["ab", "3%"]);
    expect(transcript.last).toBe("last");
  });

  it("escapes what would be HTML", () => {
    expect(markup('<b>"&')).toBe('&lt;b&gt;"&amp;');
    expect(markup("\x1b[31m<i>\x1b[0m")).toContain("&lt;i&gt;");
  });

  it("keeps up with a hundred thousand lines", () => {
    const text = Array.from({ length: 1000 }, (_, line) => `step ${line} of the training\n`).join("");
    const transcript = new Transcript();
    for (let times = 0; times < 100; times++) {
      transcript.feed(text);
    }
    expect(transcript.length + transcript.dropped).toBe(100_000);
  });
});

describe("streams", () => {
  it("gives another stream a line of its own, and passes its late newline over", () => {
    const streams = new Streams();
    expect(streams.next(1, "50%", false)).toEqual([false, "50%"]);
    expect(streams.next(0, "hello\n", true)).toEqual([true, "hello\n"]);
    expect(streams.next(1, "\nnext", false)).toEqual([false, "next"]);
  });
});
