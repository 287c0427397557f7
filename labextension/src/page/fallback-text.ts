/** What a page shows of an output that it does not know how to draw: why, and the text that stands for it. */
import { strip } from "../run/ansi";
import { make, say } from "./dom";

/** Put it into a node, in the place of what is there; `kept` is the output's text/plain, whatever that is. */
export function drawAsText(node: HTMLElement, why: string, kept?: unknown): void {
  const line = make("p", "sky-as-text");
  say(line, `${why.slice(0, 1).toUpperCase()}${why.slice(1)}. It is shown as text.`);
  const text = Array.isArray(kept) ? kept.join("") : kept;
  const lines = make("pre");
  say(lines, typeof text === "string" && text ? strip(text) : "(the output has no text)");
  node.replaceChildren(line, lines);
}

/** Of a kind of output: the version that a page cannot draw, in words; empty where it can. */
export function foreignVersion(value: unknown, what: string): string {
  const version = typeof value === "object" && value !== null ? (value as { version?: unknown }).version : undefined;
  return typeof version === "number" && version !== 1 ? `${what} saved by another version of Sky Jupyter` : "";
}
