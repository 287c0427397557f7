/** JupyterLab's icons, as its package @jupyterlab/ui-components has them, and of the Material icons what lacks there. */

import { install, make, mark, say, shape } from "./dom";
import CSS from "./icons.css";

// The side of the square that it is drawn in, and its path.
const ICONS = {
  // JupyterLab's (BSD 3-Clause)
  stop: [24, "M6 6h12v12H6z"],
  restart: [
    18,
    "M9 13.5c-2.49 0-4.5-2.01-4.5-4.5S6.51 4.5 9 4.5c1.24 0 2.36.52 3.17 1.33L10 8h5V3l-1.76 1.76A6 6 0 0 0 9 3C5.69 3 3.01 5.69 3.01 9S5.69 15 9 15a5.98 5.98 0 0 0 5.9-5h-1.52c-.46 2-2.24 3.5-4.38 3.5",
  ],
  copy: [
    18,
    "M11.9 1H3.2c-.8 0-1.5.7-1.5 1.5v10.2h1.5V2.5h8.7zm2.2 2.9h-8c-.8 0-1.5.7-1.5 1.5v10.2c0 .8.7 1.5 1.5 1.5h8c.8 0 1.5-.7 1.5-1.5V5.4c-.1-.8-.7-1.5-1.5-1.5m0 11.6h-8V5.4h8z",
  ],
  check: [24, "M9 16.17 4.83 12l-1.42 1.41L9 19 21 7l-1.41-1.41z"],
  download: [24, "M19 9h-4V3H9v6H5l7 7zM5 18v2h14v-2z"],
  where: [24, "M22 11V3h-7v3H9V3H2v8h7V8h2v10h4v3h7v-8h-7v3h-2V8h2v3z"],
  add: [24, "M19 13h-6v6h-2v-6H5v-2h6V5h2v6h6z"],
  remove: [24, "M6 19c0 1.1.9 2 2 2h8c1.1 0 2-.9 2-2V7H6zM19 4h-3.5l-1-1h-5l-1 1H5v2h14z"],
  open: [
    32,
    "M26 28H6a2.003 2.003 0 0 1-2-2V6a2.003 2.003 0 0 1 2-2h10v2H6v20h20V16h2v10a2.003 2.003 0 0 1-2 2M20 2v2h6.586L18 12.586 19.414 14 28 5.414V12h2V2z",
  ],
  link: [
    24,
    "M3.9 12c0-1.71 1.39-3.1 3.1-3.1h4V7H7c-2.76 0-5 2.24-5 5s2.24 5 5 5h4v-1.9H7c-1.71 0-3.1-1.39-3.1-3.1M8 13h8v-2H8zm9-6h-4v1.9h4c1.71 0 3.1 1.39 3.1 3.1s-1.39 3.1-3.1 3.1h-4V17h4c2.76 0 5-2.24 5-5s-2.24-5-5-5",
  ],
  // Material icons (Apache 2.0)
  pause: [24, "M6 19h4V5H6zm8-14v14h4V5z"],
  follow: [24, "M16 13h-3V3h-2v10H8l4 4zM4 19v2h16v-2z"],
  similar: [
    24,
    "M7.41 18.59 8.83 20 12 16.83 15.17 20l1.41-1.41L12 14zm9.18-13.18L15.17 4 12 7.17 8.83 4 7.41 5.41 12 10z",
  ],
  wrap: [
    24,
    "M4 19h6v-2H4zM20 5H4v2h16zm-3 6H4v2h13.25c1.1 0 2 .9 2 2s-.9 2-2 2H15v-2l-3 3 3 3v-2h2c2.21 0 4-1.79 4-4s-1.79-4-4-4z",
  ],
  times: [
    24,
    "M12 2C6.47 2 2 6.48 2 12s4.47 10 10 10 10-4.48 10-10S17.52 2 12 2m0 18c-4.42 0-8-3.58-8-8s3.58-8 8-8 8 3.58 8 8-3.58 8-8 8m.5-13H11v6l5.25 3.15.75-1.23-4.5-2.67z",
  ],
  error: [
    24,
    "M11 15h2v2h-2zm0-8h2v6h-2zm1-5C6.47 2 2 6.48 2 12s4.47 10 10 10 10-4.48 10-10S17.52 2 12 2m0 18c-4.42 0-8-3.58-8-8s3.58-8 8-8 8 3.58 8 8-3.58 8-8 8",
  ],
  bars: [24, "M3 17h12v2H3zm0-6h18v2H3zm0-6h8v2H3z"],
  down: [
    24,
    "M13 3h-2v10h2zm4.83 2.17-1.42 1.42A6.92 6.92 0 0 1 19 12c0 3.87-3.13 7-7 7s-7-3.13-7-7c0-2.19 1.01-4.14 2.58-5.42L6.17 5.17A8.93 8.93 0 0 0 3 12c0 4.97 4.03 9 9 9s9-4.03 9-9c0-2.74-1.23-5.18-3.17-6.83",
  ],
  terminal: [
    24,
    "M20 4H4c-1.11 0-2 .9-2 2v12c0 1.1.89 2 2 2h16c1.1 0 2-.9 2-2V6c0-1.1-.89-2-2-2m0 14H4V8h16zm-2-1h-6v-2h6zM7.5 17l-1.41-1.41L8.67 13l-2.59-2.59L7.5 9l4 4z",
  ],
  folder: [24, "M10 4H4c-1.1 0-2 .9-2 2v12c0 1.1.9 2 2 2h16c1.1 0 2-.9 2-2V8c0-1.1-.9-2-2-2h-8z"],
  file: [24, "M14 2H6c-1.1 0-2 .9-2 2v16c0 1.1.9 2 2 2h12c1.1 0 2-.9 2-2V8zm-1 7V3.5L18.5 9z"],
  up: [24, "m4 12 1.41 1.41L11 7.83V20h2V7.83l5.58 5.59L20 12l-8-8z"],
  logs: [24, "M14 17H4v2h10zm6-8H4v2h16zM4 15h16v-2H4zM4 5v2h16V5z"],
} as const;

export type IconName = keyof typeof ICONS;

/** Put the icons' style on a document or a shadow root once. */
export function installIcons(root: Document | ShadowRoot): void {
  install(root, "icons", CSS);
}

/** An icon, which says nothing to those who do not see it. */
export function icon(name: IconName): SVGSVGElement {
  const svg = shape("svg", { class: "sky-icon", "aria-hidden": "true" });
  svg.append(shape("path"));
  draw(svg, name);
  return svg;
}

/** A button with an icon; its text is its name, and a tooltip. */
export function iconButton(name: IconName, text: string, act: () => void): HTMLButtonElement {
  const button = make("button", "sky-icon-button", { type: "button" });
  button.append(icon(name), make("span", "sky-icon-name"));
  rename(button, text);
  button.addEventListener("click", act);
  return button;
}

/** Give it another name, and where that is told another tooltip or icon. */
export function rename(button: HTMLButtonElement, text: string, tip = text, name?: IconName): void {
  say(button.lastElementChild as Element, text);
  mark(button, "title", tip);
  if (name) {
    draw(button.firstElementChild as SVGSVGElement, name);
  }
}

function draw(svg: SVGSVGElement, name: IconName): void {
  const [side, path] = ICONS[name];
  mark(svg, "viewBox", `0 0 ${side} ${side}`);
  mark(svg.firstElementChild as Element, "d", path);
}
