/** Rich items where the host draws none itself: pictures, and HTML and text without scripts. */

import { frame, make, picture } from "../page/dom";
import { write } from "./coloured-text";
import type { Item } from "./rank-output";

const IMAGES = ["image/png", "image/jpeg", "image/gif", "image/svg+xml"] as const;

function joined(value: unknown): string {
  return Array.isArray(value) ? value.join("") : typeof value === "string" ? value : (JSON.stringify(value) ?? "");
}

/** Draw an item plainly. HTML stands in a frame of its own, in which nothing runs. */
export function drawPlain(item: Item, node: HTMLElement): void {
  const { data } = item;
  const kind = IMAGES.find((one) => one in data);
  if (kind) {
    const told = data["text/plain"];
    node.replaceChildren(picture(kind, joined(data[kind]), typeof told === "string" ? told.slice(0, 200) : "picture"));
    return;
  }
  if ("text/html" in data) {
    node.replaceChildren(frame(joined(data["text/html"]), node));
    return;
  }
  const text = ["text/markdown", "text/latex", "text/plain"].find((one) => one in data);
  const lines = make("pre");
  write(lines, text ? joined(data[text]) : `(${Object.keys(data).sort().join(", ") || "nothing to show"})`);
  node.replaceChildren(lines);
}
