// What a run printed last, and where its ranks are, for a dialog.
import { duration } from "../format";
import type { Log } from "./client";

/** The element to show. */
export function logNode(log: Log): HTMLElement {
  const node = document.createElement("div");
  node.className = "sky-log";
  node.tabIndex = 0;
  const said = log.run.elapsed === null ? "" : `, ${duration(log.run.elapsed)}`;
  const head = document.createElement("p");
  head.textContent = `Run ${log.run.id} (${log.run.state}${said}): ${log.run.title}`;
  node.append(head);
  for (const { rank, text } of log.ranks) {
    const title = document.createElement("h4");
    title.textContent = `Rank ${rank}`;
    const lines = document.createElement("pre");
    lines.textContent = plain(text);
    node.append(title, lines);
  }
  if (!log.ranks.length) {
    const nothing = document.createElement("p");
    nothing.textContent = "Nothing has been printed.";
    node.append(nothing);
  }
  return node;
}

/** Each rank's stack, to be shown. */
export function whereNode(text: string): HTMLElement {
  const node = document.createElement("div");
  node.className = "sky-log";
  node.tabIndex = 0;
  const lines = document.createElement("pre");
  lines.textContent = plain(text);
  node.append(lines);
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
