// What a run printed last, and where its ranks are, for a dialog.
import { duration } from "../format";
import { make, say } from "../page/dom";
import type { Log } from "./client";

/** The element to show. */
export function logNode(log: Log): HTMLElement {
  const node = make("div", "sky-pools-text", { tabindex: "0" });
  const said = log.run.elapsed === null ? "" : `, ${duration(log.run.elapsed)}`;
  node.append(told("p", `Run ${log.run.id} (${log.run.state}${said}): ${log.run.title}`));
  for (const { rank, text } of log.ranks) {
    node.append(told("h4", `Rank ${rank}`), told("pre", plain(text)));
  }
  if (!log.ranks.length) {
    node.append(told("p", "Nothing has been printed."));
  }
  return node;
}

/** Each rank's stack, to be shown. */
export function whereNode(text: string): HTMLElement {
  const node = make("div", "sky-pools-text", { tabindex: "0" });
  node.append(told("pre", plain(text)));
  return node;
}

function told(tag: "h4" | "p" | "pre", text: string): HTMLElement {
  const node = make(tag);
  say(node, text);
  return node;
}

/** Text as a terminal would leave it: without colours, and of a line that was written over, the last. */
export function plain(text: string): string {
  const bare = text.replace(/\u001b\[[0-9;?]*[ -/]*[@-~]|\u001b\][^\u0007\u001b]*(\u0007|\u001b\\)/g, "");
  return bare
    .split("\n")
    .map((line) => line.replace(/\r+$/, "").split("\r").pop())
    .join("\n");
}
