/** When lines came, as the page heard them: a note for each second in which any did. */

export class LineTimes {
  private readonly lines: number[] = [];
  private readonly times: number[] = [];

  /** What comes from this line on came at `seconds` since 1970. */
  note(line: number, seconds: number): void {
    if (Math.floor(seconds) !== Math.floor(this.times[this.times.length - 1] ?? -1)) {
      this.lines.push(line);
      this.times.push(seconds);
    }
  }

  /** When a line came; undefined of one that was there before the page. */
  of(line: number): number | undefined {
    let [low, high] = [0, this.lines.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.lines[middle] <= line) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low ? this.times[low - 1] : undefined;
  }
}

/** Such as "14:03:21"; blanks where it is not known. */
export function clockTime(seconds: number | undefined): string {
  if (seconds === undefined) {
    return " ".repeat(8);
  }
  const then = new Date(seconds * 1000);
  return [then.getHours(), then.getMinutes(), then.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}
