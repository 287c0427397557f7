import { beforeEach, describe, expect, it } from "vitest";

import { RunModel } from "../../src/run/model";
import { drawPlain } from "../../src/run/rich-output";
import { RunView } from "../../src/run/view";
import { buttonOf, TOOLS } from "../../src/run/view-commands";

function cell(active = false): HTMLElement {
  const node = document.createElement("div");
  node.className = active ? "jp-Cell jp-mod-active" : "jp-Cell";
  document.body.append(node);
  return node;
}

function run(place: HTMLElement): RunView {
  const view = new RunView(new RunModel(() => 0), { draw: drawPlain });
  place.append(view.node);
  return view;
}

beforeEach(() => {
  document.body.replaceChildren();
});

describe("a command of a run's view", () => {
  it("has a button for each", () => {
    const view = run(cell(true));
    for (const [tool] of TOOLS) {
      expect(view.node.querySelectorAll(`button[data-tool="${tool}"]`).length, tool).toBe(1);
    }
  });

  it("goes to the run of the active cell, else to the last one", () => {
    const [first, second] = [run(cell(true)), run(cell())];
    expect(first.node.contains(buttonOf(document, "wrap") ?? null)).toBe(true);
    document.querySelector(".jp-mod-active")?.classList.remove("jp-mod-active");
    expect(second.node.contains(buttonOf(document, "wrap") ?? null)).toBe(true);
  });

  it("presses nothing that a person could not", () => {
    expect(buttonOf(document, "wrap")).toBe(undefined);
    const view = run(cell(true));
    const button = view.node.querySelector<HTMLButtonElement>('button[data-tool="wrap"]');
    button!.hidden = true;
    expect(buttonOf(document, "wrap")).toBe(undefined);
    button!.hidden = false;
    button!.disabled = true;
    expect(buttonOf(document, "wrap")).toBe(undefined);
  });
});
