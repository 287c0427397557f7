/** Puts the pool panel's style on a page. */

import { install as put } from "../page/dom";
import { installIcons } from "../page/icons";
import CSS from "./style.css";

/** Put the style on a document or a shadow root once. */
export function install(root: Document | ShadowRoot): void {
  installIcons(root);
  put(root, "pool", CSS);
}
