import { expect, it, vi } from "vitest";

import { Badge } from "../../src/run/badge";

it("opens the pool's panel below the header, and leaves it when it is shut or nobody can be asked", () => {
  const panel = { attach: vi.fn(), detach: vi.fn() };
  const badge = new Badge(() => panel);
  badge.draw("train", true);
  expect([badge.node.textContent, badge.node.hidden, badge.place.hidden]).toEqual(["Pool train", false, true]);
  badge.node.click();
  expect([badge.node.getAttribute("aria-expanded"), badge.place.hidden]).toEqual(["true", false]);
  expect(panel.attach).toHaveBeenCalledTimes(1);
  badge.node.click();
  expect([badge.node.getAttribute("aria-expanded"), badge.place.hidden]).toEqual(["false", true]);
  expect(panel.detach).toHaveBeenCalledTimes(1);
  badge.node.click();
  badge.draw("train", false);
  expect([badge.node.hidden, badge.place.hidden]).toEqual([true, true]);
});
