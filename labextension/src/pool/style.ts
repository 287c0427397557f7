/** Puts the pool panel's style on a page. */

import CSS from "./style.css";

/** Put the style on a document or a shadow root once. */
export function install(root: Document | ShadowRoot): void {
  const home = root instanceof Document ? root.head : root;
  if (!home.querySelector("style[data-sky-pool]")) {
    const style = document.createElement("style");
    style.dataset.skyPool = "";
    style.textContent = CSS;
    home.append(style);
  }
}
