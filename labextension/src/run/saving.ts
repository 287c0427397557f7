/** Taking text out of the page: to the clipboard, and into a file. */

import { strip } from "./ansi";
import { make } from "./dom";
import { wholeLog } from "./history";
import type { Host } from "./host";

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

/** Have the browser save a text as a file. */
export function save(text: string, name: string): void {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
