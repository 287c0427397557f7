// @vitest-environment node
import { ESLint } from "eslint";
import { describe, expect, it } from "vitest";

const eslint = new ESLint();

async function refused(code: string, filePath = "src/run/footer.ts"): Promise<boolean> {
  const [found] = await eslint.lintText(code, { filePath });
  expect(found.fatalErrorCount).toBe(0);
  return found.errorCount > 0;
}

describe("the rule that only page/dom.ts writes markup, styles, addresses and attributes", () => {
  it.each([
    "node.innerHTML = text;",
    "node.innerHTML += text;",
    "node['innerHTML'] = text;",
    "node.outerHTML = text;",
    "node.insertAdjacentHTML('beforeend', text);",
    "document.write(text);",
    "document.createRange().createContextualFragment(text);",
    "new DOMParser().parseFromString(text, 'text/html');",
    "document.createElement(name);",
    "document.createElementNS(space, name);",
    "node.setAttribute('onclick', text);",
    "node.setAttribute(name, text);",
    "node.setAttributeNS(null, 'href', text);",
    "link.href = text;",
    "image.src = text;",
    "frame.srcdoc = text;",
    "form.action = text;",
    "window.location = text;",
    "location.href = text;",
    "location.assign(text);",
    "window.open(text);",
    "node.onclick = text;",
    "node.style = text;",
    "node.style.cssText = text;",
    "node.style.width = text;",
    "node.style[name] = text;",
    "node['style'].width = text;",
    "node.style.setProperty('width', text);",
    "Object.assign(node, { innerHTML: text });",
    "Reflect.set(node, name, text);",
    "eval(text);",
    "new Function(text);",
    "setTimeout('run()', 10);",
    "setTimeout(`run(${text})`, 10);",
    "import(text);",
    "document.execCommand('insertHTML', false, text);",
    "const address = 'javascript:run()';",
    "// eslint-disable-next-line\nnode.innerHTML = text;",
  ])("refuses %s", async (code) => expect(await refused(code)).toBe(true));

  it.each([
    "node.textContent = text;",
    "node.dataset.state = text;",
    "node.title = text;",
    "words.data = text;",
    "this.write(text);",
    "setTimeout(() => run(), 10);",
    "document.execCommand('copy');",
    "const found = { style: text };",
  ])("leaves %s alone", async (code) => expect(await refused(code)).toBe(false));

  it("lets page/dom.ts do it", async () => {
    expect(await refused("node.innerHTML = text;", "src/page/dom.ts")).toBe(false);
  });
});
