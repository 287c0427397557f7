import { describe, expect, it } from "vitest";

import { frame, install, make, mark, paint, picture } from "../../src/page/dom";
import { drawAsText } from "../../src/page/fallback-text";

const EVIL = `"><img src=x onerror=alert(1)><script>alert(1)</script>`;

describe("what page/dom.ts puts on a page", () => {
  it("has attributes that say something, and none that do something", () => {
    const node = make("div", EVIL, { "aria-label": EVIL, role: "log" });
    expect(node.getAttribute("aria-label")).toBe(EVIL);
    for (const name of ["onclick", "href", "src", "style", "srcdoc", "formaction", "data-commandlinker-command", "xlink:href"]) {
      expect(() => mark(node, name, "x")).toThrow("is not one");
    }
    expect(node.children.length).toBe(0);
  });

  it("has styles that are colours, lengths and words, and no addresses", () => {
    const node = make("span");
    const values = ["url(//x.invalid/a)", "red;background:url(//x.invalid)", "expression(alert(1))", "var(--jp-x)", "image-set('x')"];
    paint(node, [...values.map((value) => ["color", value] as const), ["background-image", "red"], ["behavior", "red"]]);
    expect(node.getAttribute("style") ?? "").toBe("");
    paint(node, [["color", "var(--sky-ansi-1)"], ["width", "12.5%"], ["background-color", "rgb(1,2,3)"]]);
    expect(node.style.width).toBe("12.5%");
    expect(node.style.color).toBe("var(--sky-ansi-1)");
  });

  it("has pictures that are data and nothing else", () => {
    const src = (kind: "image/png" | "image/svg+xml", data: string) =>
      (picture(kind, data, EVIL) as HTMLImageElement).getAttribute("src") ?? "";
    expect(src("image/png", `AA" onerror="x`)).toBe("data:image/png;base64,AAonerror=x");
    expect(src("image/svg+xml", `<svg onload="x">`)).toBe("data:image/svg+xml,%3Csvg%20onload%3D%22x%22%3E");
    expect(src("image/svg+xml", "\ud800")).toBe("data:image/svg+xml,%EF%BF%BD");
  });

  it("has frames in which nothing runs", () => {
    const node = frame(EVIL, document.body) as HTMLIFrameElement;
    expect(node.getAttribute("sandbox")).toBe("allow-same-origin");
    expect(node.getAttribute("srcdoc")).toMatch(/^<meta http-equiv="Content-Security-Policy" content="default-src 'none';/);
  });

  it("has each style sheet once", () => {
    install(document, "run", "a{}");
    install(document, "run", "a{}");
    expect(document.querySelectorAll('style[data-sky="run"]').length).toBe(1);
  });

  it("has the text of what cannot be drawn", () => {
    const node = document.createElement("div");
    drawAsText(node, "this run is not as it should be", [EVIL, "\x1b[31mred"]);
    expect(node.querySelector("pre")?.textContent).toBe(`${EVIL}red`);
    expect(node.querySelector("p")?.textContent).toBe("This run is not as it should be. It is shown as text.");
    drawAsText(node, "why", { length: 1 });
    expect(node.querySelector("pre")?.textContent).toBe("(the output has no text)");
  });
});
