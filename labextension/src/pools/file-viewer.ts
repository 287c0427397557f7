// A file of a rank in a tab: its text, a part at a time, or its picture. It is only read.
import { size } from "../format";
import { make, mark, picture, say } from "../page/dom";
import type { Content } from "./client";
import { type OpenedFile, reason } from "./files-view";
import { plain } from "./run-dialog";

// As many bytes as the kernel shows of a text.
const PART = 512 * 1024;

export class FileViewer {
  readonly node = make("div", "sky-file");
  private readonly facts = make("span", "sky-file-facts", { role: "status" });
  private readonly place = make("div", "sky-file-content", { tabindex: "0" });
  private readonly parts: HTMLButtonElement[];
  private next = 0;
  private from = 0;

  constructor(private readonly file: OpenedFile) {
    const bar = make("div", "sky-file-bar", { role: "group", "aria-label": file.title });
    this.parts = [
      button("Beginning", () => void this.show(0)),
      button("Before", () => void this.show(Math.max(0, this.from - PART))),
      button("After", () => void this.show(this.next)),
      button("End", () => void this.show(-PART)),
    ];
    const again = button("Reload", () => void this.show(this.from));
    bar.append(...this.parts, again, button("Fetch", () => file.fetch()), this.facts);
    this.node.append(bar, this.place);
    this.parts.forEach((one) => (one.hidden = true));
  }

  /** Read it from a byte on. */
  async show(from = 0): Promise<void> {
    say(this.facts, "…");
    try {
      this.draw(await this.file.read(from));
    } catch (error) {
      say(this.facts, reason(error));
    }
  }

  private draw(content: Content): void {
    const whole = size(content.size);
    if (content.kind === "text") {
      const { from, next, size: all } = content;
      [this.from, this.next] = [from, next];
      const isCut = from > 0 || next < all;
      say(this.facts, isCut ? `${size(from)} to ${size(next)} of ${whole}` : whole);
      const [beginning, before, after, end] = this.parts;
      this.parts.forEach((one) => (one.hidden = !isCut));
      beginning.disabled = before.disabled = from === 0;
      after.disabled = end.disabled = next >= all;
      const lines = make("pre");
      say(lines, plain(content.text));
      this.place.replaceChildren(lines);
    } else if (content.kind === "other") {
      say(this.facts, `${whole}: neither text nor a picture of up to 4 MB. Fetch copies it to the notebook's folder.`);
      this.place.replaceChildren();
    } else {
      say(this.facts, whole);
      this.place.replaceChildren(picture(content.kind, content.data, this.file.title));
    }
  }
}

function button(text: string, act: () => void): HTMLButtonElement {
  const node = make("button", "sky-file-button", { type: "button" });
  say(node, text);
  mark(node, "title", text);
  node.addEventListener("click", act);
  return node;
}
