/** Small helps for elements of the page; more of them are the run view's. */

import { make } from "../page/dom";

export { make, mark, say, shape } from "../page/dom";
export { reason } from "../run/dom";

/** Have as many children as there are items, each made once and told of its item; they stay in place. */
export function fill<T>(parent: HTMLElement, items: readonly T[], begin: () => HTMLElement, tell: (node: HTMLElement, item: T, index: number) => void): void {
  while (parent.children.length > items.length) {
    parent.lastElementChild?.remove();
  }
  items.forEach((item, index) => {
    let node = parent.children[index] as HTMLElement | undefined;
    if (!node) {
      node = begin();
      parent.append(node);
    }
    tell(node, item, index);
  });
}

export function button(text: string, act: () => void): HTMLButtonElement {
  const made = make("button", "", { type: "button" });
  made.textContent = text;
  made.addEventListener("click", act);
  return made;
}
