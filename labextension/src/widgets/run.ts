// The run view as an anywidget: for front ends that have no extension of ours: marimo, VS Code, Colab; others when asked for.
import { drawAsText, foreignVersion } from "../page/fallback-text";
import { actions, type Kernel } from "../run/kernel-requests";
import { copies } from "../run/copy-names";
import type { Host } from "../run/display-context";
import { RunModel } from "../run/model";
import { reason } from "../run/dom";
import { drawPlain } from "../run/rich-output";
import { readDelta, readSnapshot } from "../run/schema";
import { RunView } from "../run/view";
import { bytesOf } from "./bytes";

/** A message of ours, until it has been read. */
type Told = { sky?: unknown; data?: unknown } | null;

/** What is used of anywidget's model. */
interface WidgetModel {
  get(name: string): unknown;
  on(event: string, heard: (message: Told | undefined, buffers?: unknown) => void): void;
  off(event: string, heard: (message: Told | undefined, buffers?: unknown) => void): void;
  send(content: object): void;
  widget_manager?: { kernel?: Kernel | null };
}

export default () => ({
  render({ model, el }: { model: WidgetModel; el: HTMLElement }) {
    const run = new RunModel();
    const kernel = model.widget_manager?.kernel;
    const facts = () => ({ run: run.run, pool: run.pool });
    const reached = kernel?.sendControlMessage ? { ...actions(kernel, facts), ...copies(() => kernel, () => run.pool) } : {};
    const host: Host = { draw: drawPlain, ...reached };
    const view = new RunView(run, host);
    let loaded = false;
    const load = () => {
      const kept = model.get("snapshot");
      if (isEmpty(kept)) {
        return;
      }
      try {
        const snapshot = readSnapshot(kept);
        // It is renewed for pages that come later; whoever has heard it all keeps what it shows.
        if (!loaded || (snapshot.number ?? 0) > run.number) {
          loaded = true;
          run.load(snapshot);
          view.reset();
        }
        if (!el.contains(view.node)) {
          el.replaceChildren(view.node);
        }
      } catch (error) {
        drawAsText(el, foreignVersion(kept, "this run was") || reason(error));
      }
    };
    const hear = (told: Told | undefined, buffers?: unknown) => {
      if (told?.sky !== "delta") {
        return;
      }
      if (!take(run, told, bytesOf(told, buffers))) {
        // A kernel that is busy answers when the cell has ended, with all that is missing.
        model.send({ sky: "open" });
      }
      view.update();
    };
    el.append(view.node);
    load();
    model.on("change:snapshot", load);
    model.on("msg:custom", hear);
    view.attach();
    return () => {
      model.off("change:snapshot", load);
      model.off("msg:custom", hear);
      view.detach();
    };
  },
});

/** A run of which nothing is known yet. */
function isEmpty(kept: unknown): boolean {
  return typeof kept !== "object" || kept === null || !Object.keys(kept).length;
}

/** Take what was told into a run; false where it is no delta, or one is missing before it. */
function take(run: RunModel, told: Told, bytes: DataView): boolean {
  try {
    return run.apply(readDelta(told, bytes.byteLength), bytes);
  } catch {
    return false;
  }
}
