/** Puts the run view's style on a page. */

import { install as put } from "../page/dom";
import { installIcons } from "../page/icons";
import CSS from "./style.css";

/** Put the style on a document or a shadow root once. */
export function install(root: Document | ShadowRoot): void {
  installIcons(root);
  put(root, "run", CSS);
}

/** Whether the page is dark: by JupyterLab's theme, which the style follows by itself, else by what is behind the node. */
export function isDark(node: Element): boolean {
  const said = document.body.dataset.jpThemeLight;
  if (said !== undefined) {
    return said === "false";
  }
  const root = (at: Element) => at.getRootNode();
  const above = (at: Element) => at.parentElement ?? (root(at) instanceof ShadowRoot ? (root(at) as ShadowRoot).host : null);
  for (let at: Element | null = node; at; at = above(at)) {
    const [red, green, blue, alpha = 1] = (getComputedStyle(at).backgroundColor.match(/[\d.]+/g) ?? []).map(Number);
    if (alpha > 0.5 && blue !== undefined) {
      return 0.299 * red + 0.587 * green + 0.114 * blue < 128;
    }
  }
  return matchMedia("(prefers-color-scheme: dark)").matches;
}
