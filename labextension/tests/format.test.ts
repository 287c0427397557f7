import { expect, test } from "vitest";

import { count, duration } from "../src/format";

test("a duration is said in its largest unit, and in hours and minutes below a day", () => {
  const said = [-1, 0, 59.9, 60, 3599, 3600, 7500, 86_400, 300_000].map(duration);
  expect(said).toEqual(["0 s", "0 s", "59 s", "1 min", "59 min", "1 h", "2 h 5 min", "1 d", "3 d"]);
});

test("one is singular", () => {
  expect([count(0, "node"), count(1, "node"), count(2, "node")]).toEqual(["0 nodes", "1 node", "2 nodes"]);
});
