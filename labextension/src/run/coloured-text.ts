/** Text with a terminal's colours, as nodes of the page. */

import { looks, runs } from "./ansi";
import { make, paint } from "./dom";

/** Put a text into a node, in the place of what is there. */
export function write(node: HTMLElement, text: string): void {
  if (!text.includes("\x1b")) {
    node.textContent = text;
    return;
  }
  node.replaceChildren(
    ...runs(text).map(([style, piece]) => {
      const look = looks(style);
      if (!look.length) {
        return piece;
      }
      const span = make("span");
      span.textContent = piece;
      paint(span, look);
      return span;
    }),
  );
}
