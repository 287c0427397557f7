// The run view as an anywidget: for front ends that have no extension of ours. marimo gets it, others when asked for.
import { actions, type Kernel } from "../run/control";
import type { Host } from "../run/host";
import { RunModel, type Snapshot } from "../run/model";
import { drawPlain } from "../run/rich";
import { RunView } from "../run/view";
import { bytesOf, type WidgetDelta } from "./bytes";

/** What is used of anywidget's model. */
interface WidgetModel {
  get(name: string): unknown;
  on(event: string, heard: (message: WidgetDelta, buffers?: unknown) => void): void;
  off(event: string, heard: (message: WidgetDelta, buffers?: unknown) => void): void;
  send(content: object): void;
  widget_manager?: { kernel?: Kernel | null };
}

export default () => ({
  render({ model, el }: { model: WidgetModel; el: HTMLElement }) {
    const run = new RunModel();
    const kernel = model.widget_manager?.kernel;
    const facts = () => ({ run: run.run, pool: run.pool });
    const host: Host = { draw: drawPlain, ...(kernel?.sendControlMessage ? actions(kernel, facts) : {}) };
    const view = new RunView(run, host);
    let loaded = false;
    const load = () => {
      const snapshot = model.get("snapshot") as Snapshot | Record<string, never>;
      // It is renewed for pages that come later; whoever has heard it all keeps what it shows.
      if (snapshot.version === 1 && (!loaded || ((snapshot as Snapshot).number ?? 0) > run.number)) {
        loaded = true;
        run.load(snapshot as Snapshot);
        view.reset();
      }
    };
    const hear = (delta: WidgetDelta, buffers?: unknown) => {
      if (delta.sky !== "delta") {
        return;
      }
      const bytes = bytesOf(delta, buffers);
      if (bytes === undefined || !run.apply(delta, bytes)) {
        // A kernel that is busy answers when the cell has ended, with all that is missing.
        model.send({ sky: "open" });
      }
      view.update();
    };
    load();
    model.on("change:snapshot", load);
    model.on("msg:custom", hear);
    el.append(view.node);
    view.attach();
    return () => {
      model.off("change:snapshot", load);
      model.off("msg:custom", hear);
      view.detach();
    };
  },
});
