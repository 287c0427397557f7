/**
 * What this front end puts on a page. No other module writes markup, styles, addresses or attributes: a lint rule holds
 * them to it (eslint.config.mjs).
 *
 * What is shown comes from strangers' notebooks, from kernels and from servers. It reaches the page as text, or through
 * a function here that lets nothing pass which a browser would run or load.
 */

/** Elements that hold text, fields or other elements. None of them runs or loads anything. */
type Tag =
  | "button" | "details" | "div" | "form" | "h2" | "h3" | "h4" | "i" | "input" | "label" | "li" | "ol" | "option" | "p" | "pre"
  | "progress" | "section" | "select" | "span" | "summary" | "table" | "tbody" | "td" | "textarea" | "th" | "thead" | "tr" | "ul";
type Shape = "svg" | "path" | "polygon" | "polyline";

const SVG = "http://www.w3.org/2000/svg";
// Attributes that say something and do nothing. JupyterLab runs commands of data-commandlinker-*, so data-* are named.
const ATTRIBUTES = new RegExp(
  "^(aria-[a-z]+|role|type|id|class|title|placeholder|scope|tabindex|d|max|points|viewBox|preserveAspectRatio" +
    "|data-(column|dark|state|lm-suppress-shortcuts))$",
);
// What the colours of a terminal, the bars and the lines of a log need.
const PROPERTIES = new Set([
  ...["background-color", "color", "font-style", "font-weight", "height", "max-height", "opacity", "text-decoration", "top", "width"],
]);
const VALUE = /^([a-z]+( line-through)?|line-through|#[0-9a-f]{3,6}|\d+(\.\d+)?(px|%)?|rgb\(\d+,\d+,\d+\)|var\(--sky-[a-z0-9-]+\))$/;
// Nothing runs in such a frame, and it loads nothing but pictures and sounds.
const POLICY = "default-src 'none'; img-src data: http: https:; media-src data: http: https:; font-src data:; style-src 'unsafe-inline'";
const FRAME_STYLE = "body{margin:0;font:13px sans-serif}td,th{padding:2px 8px;text-align:right}";
const MOST_HEIGHT = 600;

export function make<K extends Tag>(
  tag: K,
  className = "",
  attributes: Record<string, string> = {},
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  if (className) {
    node.className = className;
  }
  for (const [name, value] of Object.entries(attributes)) {
    mark(node, name, value);
  }
  return node;
}

export function shape<K extends Shape>(tag: K, attributes: Record<string, string> = {}): SVGElementTagNameMap[K] {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    mark(node, name, value);
  }
  return node;
}

/** Change a text only where it is another: screen readers and layout hear of every change. */
export function say(node: Element, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/** Change an attribute only where it is another. */
export function mark(node: Element, name: string, value: string): void {
  if (!ATTRIBUTES.test(name)) {
    throw new Error(`the attribute ${name} is not one that page/dom.ts sets`);
  }
  if (node.getAttribute(name) !== value) {
    node.setAttribute(name, value);
  }
}

/** Set style properties. A value that is no colour, length or word is left out. */
export function paint(node: HTMLElement, looks: Iterable<readonly [string, string]>): void {
  for (const [property, value] of looks) {
    if (PROPERTIES.has(property) && VALUE.test(value)) {
      node.style.setProperty(property, value);
    }
  }
}

/** Put a style sheet of ours on a document or a shadow root, once. */
export function install(
  root: Document | ShadowRoot,
  name: "auto" | "debugger" | "icons" | "pool" | "pools" | "run",
  css: string,
): void {
  const home = "head" in root ? root.head : root;
  if (!home.querySelector(`style[data-sky="${name}"]`)) {
    const style = document.createElement("style");
    style.dataset.sky = name;
    style.textContent = css;
    home.append(style);
  }
}

/** Make a picture. An SVG in an `img` runs no script and loads nothing. */
export function picture(kind: "image/png" | "image/jpeg" | "image/gif" | "image/svg+xml", data: string, alt: string): HTMLElement {
  const node = document.createElement("img");
  // Halves of letters cannot be encoded.
  const text = kind === "image/svg+xml" ? `,${encodeURIComponent(data.replace(/\p{Surrogate}/gu, "\ufffd"))}` : "";
  node.src = `data:${kind}${text || `;base64,${data.replace(/[^\w+/=-]/g, "")}`}`;
  node.alt = alt;
  node.style.maxWidth = "100%";
  return node;
}

/** Open a picture in a tab of the browser. As an address of its own an SVG could run scripts: it stands in an `img` there. */
export function openPicture(kind: Parameters<typeof picture>[0], data: string, title: string): void {
  const tab = window.open("", "_blank");
  if (tab) {
    tab.document.title = title;
    tab.document.body.append(tab.document.adoptNode(picture(kind, data, title)));
  }
}

/** Make a frame for HTML in which nothing runs, as high as what it holds; `near` is where its text takes its colour from. */
export function frame(html: string, near: Element): HTMLElement {
  const node = document.createElement("iframe");
  // No scripts, forms, pop-ups or navigation; of the same origin, so that its height can be read.
  node.setAttribute("sandbox", "allow-same-origin");
  node.title = "output";
  node.style.cssText = "width:100%;border:0;height:3em";
  node.srcdoc = `<meta http-equiv="Content-Security-Policy" content="${POLICY}"><style>${FRAME_STYLE}</style>${html}`;
  const colour = getComputedStyle(near).color;
  node.onload = () => {
    const page = node.contentDocument;
    if (page?.body) {
      page.body.style.color ||= colour;
    }
    const height = page?.documentElement.scrollHeight ?? 100;
    node.style.height = `${Math.min(MOST_HEIGHT, height + 4)}px`;
  };
  return node;
}

/** Have the browser save a text as a file. */
export function save(text: string, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
