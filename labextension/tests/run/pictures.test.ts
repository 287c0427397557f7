import { describe, expect, it } from "vitest";

import { withPictures } from "../../src/run/pictures";

const HTML = ['<img src="data:image/png;base64,AAAA">', '\n<img src="data:image/gif;base64,QkJC">'];

describe("pictures of a saved run", () => {
  it.each([
    ["are taken from its HTML", { "image/gif": { html: 1 } }, { "image/gif": "QkJC" }],
    ["stay where it holds them itself", { "image/png": "CCCC" }, { "image/png": "CCCC" }],
    ["are left out where there is none of that number", { "image/png": { html: 7 }, "text/plain": "t" }, { "text/plain": "t" }],
    ["are left out where it is of another kind", { "image/png": { html: 1 }, "text/plain": "t" }, { "text/plain": "t" }],
  ])("%s", (_, data, expected) => {
    const run = { items: [{ data, metadata: {} }], title: "sky" };
    expect(withPictures(run, HTML)).toEqual({ items: [{ data: expected, metadata: {} }], title: "sky" });
    expect(withPictures(run, HTML.join(""))).toEqual(withPictures(run, HTML));
  });

  it.each([undefined, null, "text", { items: "none" }, { items: [null, 3, { data: null }] }])("lets %j be", (value) => {
    expect(withPictures(value, "")).toBe(value);
  });
});
