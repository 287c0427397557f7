/** The button that copies to a new kernel what the other ranks have: beside the notice that names the ranks. */

import { make, reason, say } from "./dom";
import type { Host } from "./display-context";
import { ask, type Kernel } from "./kernel-requests";

// As session/cells.py writes it.
const NAMED = /`%sky copy --to (\d+(?:,\d+)*)[ `]/;
// As spec/pool_spec.py has it.
const POOL = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$/;

/** What is used of JupyterLab's kernel connection to run a line behind the cells that wait. */
interface Executing {
  requestExecute?(
    content: { code: string; store_history: boolean; stop_on_error: boolean },
    disposeOnDone?: boolean,
  ): { done: Promise<unknown>; onIOPub: (message: IOPub) => void };
}
interface IOPub {
  header: { msg_type: string };
  content: { text?: unknown };
}

// A page that opens has its kernel later than its outputs; so often, and so many milliseconds apart, it is looked for.
const [LOOKS, APART] = [60, 500];

/** What a page can do about missing names; `find` gives the kernel, once there is one that runs lines. */
export function copies(find: () => Kernel | undefined, pool: () => string): Required<Pick<Host, "lacking" | "copyTo">> {
  return {
    lacking: async () => {
      const kernel = await arrived(find);
      const { ranks } = await ask(kernel, "sky_request", { action: "lacking", ...(pool() ? { pool: pool() } : {}) });
      return Array.isArray(ranks) ? ranks.filter((rank) => Number.isSafeInteger(rank)) : [];
    },
    copyTo: async (ranks) => {
      const kernel = await arrived(find);
      // What is run comes from an output: nothing but numbers and a pool's name gets into it.
      const to = ranks.filter((rank) => Number.isSafeInteger(rank)).join(",");
      const name = POOL.test(pool()) ? ` --name ${pool()}` : "";
      const code = `%sky copy --to ${to}${name}`;
      const future = kernel.requestExecute({ code, store_history: false, stop_on_error: false }, true);
      const told: string[] = [];
      future.onIOPub = ({ header, content }) => {
        if (header.msg_type === "stream" && typeof content.text === "string") {
          told.push(content.text);
        }
      };
      const reply = (await future.done) as { content?: { status?: string; evalue?: string } } | undefined;
      const text = told.join("").trim();
      if (reply?.content?.status !== "ok") {
        throw new Error(text || reply?.content?.evalue || "the kernel did not do it");
      }
      return text;
    },
  };
}

async function arrived(find: () => Kernel | undefined): Promise<Kernel & Required<Executing>> {
  for (let looked = 0; !find() && looked < LOOKS; looked++) {
    await new Promise((resolve) => setTimeout(resolve, APART));
  }
  const kernel = find() as (Kernel & Executing) | undefined;
  if (!kernel?.requestExecute) {
    throw new Error("there is no kernel that copies");
  }
  return kernel as Kernel & Required<Executing>;
}

/** A button for a notice that names ranks which lack names; it shows itself while they do. */
export function copyButton(notice: string, host: Host): HTMLElement | undefined {
  const { lacking, copyTo } = host;
  const ranks = NAMED.exec(notice)?.[1].split(",").map(Number);
  if (!ranks || !lacking || !copyTo) {
    return undefined;
  }
  const node = make("div", "sky-copy-names");
  const said = make("span", "sky-aside", { role: "status" });
  const press = async () => {
    button.disabled = true;
    say(said, "copying …");
    try {
      say(said, await copyTo(ranks));
      await look();
    } catch (error) {
      say(said, reason(error));
    } finally {
      button.disabled = false;
    }
  };
  const button = make("button", "", { type: "button", title: `%sky copy --to ${ranks.join(",")}` });
  button.textContent = "Copy from another rank";
  button.addEventListener("click", () => void press());
  button.hidden = true;
  const look = async () => {
    try {
      const now = await lacking();
      button.hidden = !ranks.some((rank) => now.includes(rank));
    } catch {
      // The pool has ended, or the kernel has no such thing: then there is nothing to copy.
      button.hidden = true;
    }
  };
  node.append(button, said);
  void look();
  return node;
}
