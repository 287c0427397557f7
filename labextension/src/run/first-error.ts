/** Finding the first line of a log that tells of an error. */

import { strip } from "./ansi";
import type { Block } from "./filtered-lines";

// What Python's tracebacks begin and end with, what logging and glog write, and what compilers and shells say.
const ERROR =
  /^Traceback \(most recent call last\)|^(\w+\.)*\w*(Error|Exception|Interrupt)\b(:|$)|\b(ERROR|CRITICAL|FATAL|NaN loss)\b|^E\d{4} |\b(fatal )?error:|Segmentation fault|CUDA error|out of memory/;

export interface FoundLine {
  key: object;
  index: number;
  text: string;
}

/** The first such line; undefined where there is none. */
export function firstError(blocks: Block[]): FoundLine | undefined {
  for (const { key, lines } of blocks) {
    for (let index = 0; lines && index < lines.count; index++) {
      const text = strip(lines.line(index).text);
      if (ERROR.test(text)) {
        return { key, index, text };
      }
    }
  }
  return undefined;
}
