/** Progress bars in what a rank printed: those of tqdm, Keras and rich-like counts in text, and of transformers in HTML. */

import { strip } from "./ansi";

export interface Progress {
  /** What goes on, such as tqdm's description or "Epoch 2/5". */
  label: string;
  done: number;
  total: number;
  /** What the bar says beside, such as the time that is left. */
  aside: string;
}

// "train:  43%|████      | 43/100 [00:10<00:13,  4.20it/s, loss=0.1]"
const TQDM = /^(.*?)\s*(\d{1,3})%\|[^|]*\|\s*([\d.]+)([kMGT]?)i?B?\s*\/\s*([\d.]+)([kMGT]?)i?B?\s*(?:\[(.*?)\]?)?\s*$/;
// "43/100 ━━━━━━━━━━━━━━━━━━━━ 5s 20ms/step - loss: 0.12", and older "43/100 [=====>....] - ETA: 5s"
const KERAS = /^\s*(\d+)\/(\d+)\s+(?:[━╸╺─ ]*[━╸╺─][━╸╺─ ]*|\[[=>.]+\])\s*(?:-\s*)?(.*)$/;
const EPOCH = /^\s*(Epoch\s+\d+\s*\/\s*\d+)\s*$/i;
const UNITS: Record<string, number> = { "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12 };

/** The bar that a line is; undefined where it is none. */
export function ofLine(line: string): Progress | undefined {
  if (!/[%/]/.test(line) || line.length > 2000) {
    return undefined;
  }
  const text = strip(line);
  const tqdm = TQDM.exec(text);
  if (tqdm) {
    const [, label, percent, done, doneUnit, total, totalUnit, aside] = tqdm;
    const whole = Number(total) * UNITS[totalUnit];
    // Rounded units say less than the percentage.
    const there = doneUnit || totalUnit ? (whole * Number(percent)) / 100 : Number(done);
    return sound({ label: label.replace(/:$/, ""), done: there, total: whole, aside: aside ?? "" });
  }
  const keras = KERAS.exec(text);
  return keras ? sound({ label: "", done: Number(keras[1]), total: Number(keras[2]), aside: keras[3] }) : undefined;
}

/** The heading that Keras prints before each epoch's bar; undefined where the line is none. */
export function heading(line: string): string | undefined {
  return EPOCH.exec(strip(line))?.[1];
}

/** The bar in an item's HTML, as transformers and fastprogress show it. */
export function ofHtml(html: string): Progress | undefined {
  const tag = /<progress\b[^>]*>/i.exec(html.slice(0, 20_000))?.[0];
  if (!tag) {
    return undefined;
  }
  const number = (name: string) => Number(new RegExp(`\\b${name}\\s*=\\s*['"]?([\\d.]+)`, "i").exec(tag)?.[1] ?? NaN);
  const aside = /\[[^\]<]*\d+\s*\/\s*\d+[^\]]*\]/.exec(html)?.[0] ?? "";
  return sound({ label: "", done: number("value"), total: number("max"), aside });
}

function sound(found: Progress): Progress | undefined {
  const { done, total } = found;
  return Number.isFinite(done) && Number.isFinite(total) && total > 0
    ? { ...found, done: Math.min(done, total) }
    : undefined;
}

export function fraction(progress: Progress): number {
  return progress.done / progress.total;
}

/** Of several ranks' bars the one that is least far; undefined where there is none. */
export function slowest(bars: Iterable<[number, Progress]>): [number, Progress] | undefined {
  let found: [number, Progress] | undefined;
  for (const bar of bars) {
    if (!found || fraction(bar[1]) < fraction(found[1])) {
      found = bar;
    }
  }
  return found;
}
