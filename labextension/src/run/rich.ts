/** Rich items where the host draws none itself: pictures, and HTML and text without scripts. */

import { toHtml } from "./ansi";
import type { Item } from "./log";

const IMAGES = ["image/png", "image/jpeg", "image/gif", "image/svg+xml"];

function joined(value: unknown): string {
  return Array.isArray(value) ? value.join("") : typeof value === "string" ? value : JSON.stringify(value);
}

/** Draw an item plainly. HTML stands in a frame of its own, in which nothing runs. */
export function drawPlain(item: Item, node: HTMLElement): boolean {
  node.textContent = "";
  const kind = IMAGES.find((one) => one in item.data);
  if (kind) {
    const image = document.createElement("img");
    const data = joined(item.data[kind]);
    image.src =
      kind === "image/svg+xml"
        ? `data:${kind},${encodeURIComponent(data)}`
        : `data:${kind};base64,${data.replace(/\s/g, "")}`;
    image.alt = typeof item.data["text/plain"] === "string" ? item.data["text/plain"].slice(0, 200) : "picture";
    image.style.maxWidth = "100%";
    node.append(image);
    return true;
  }
  if ("text/html" in item.data) {
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", "allow-same-origin");
    frame.title = "output";
    frame.style.cssText = "width:100%;border:0;height:3em";
    frame.srcdoc = `<base target="_blank"><style>body{margin:0;font:13px sans-serif;color:${getComputedStyle(node).color}}td,th{padding:2px 8px;text-align:right}</style>${joined(item.data["text/html"])}`;
    frame.onload = () => {
      const height = frame.contentDocument?.documentElement.scrollHeight ?? 100;
      frame.style.height = `${Math.min(600, height + 4)}px`;
    };
    node.append(frame);
    return true;
  }
  const text = ["text/markdown", "text/latex", "text/plain"].find((one) => one in item.data);
  const pre = document.createElement("pre");
  pre.innerHTML = toHtml(
    text ? joined(item.data[text]) : `(${Object.keys(item.data).sort().join(", ") || "nothing to show"})`,
  );
  node.append(pre);
  return true;
}
