/** Taking text out of the page: to the clipboard, and into a file. */

import { strip } from "./ansi";
import { make } from "./dom";
import { wholeLog } from "./journal-reader";
import type { Host } from "./display-context";

/** Put a text into the clipboard; `near` is a node of the view. */
export async function copy(text: string, near: HTMLElement): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages without TLS have no clipboard but this one.
    const area = make("textarea", "sky-hidden");
    area.value = text;
    near.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** The whole logs of ranks, read from the nodes' journals. */
export async function logs(host: Host, ranks: number[]): Promise<string> {
  const found: string[] = [];
  for (const rank of ranks) {
    const log = strip(await wholeLog(host, rank));
    found.push(ranks.length > 1 ? `── rank ${rank}\n${log}` : log);
  }
  return found.join("\n");
}
