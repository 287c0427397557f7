// The run view as an anywidget: for front ends that have no extension of ours, as marimo, VS Code and Colab.
import { actions, type Kernel } from "../run/control";
import type { Host } from "../run/host";
import { type Delta, RunModel, type Snapshot } from "../run/model";
import { drawPlain } from "../run/rich";
import { RunView } from "../run/view";

/** What is used of anywidget's model. */
interface WidgetModel {
  get(name: string): unknown;
  on(event: string, heard: (message: Delta, buffers: DataView[]) => void): void;
  off(event: string, heard: (message: Delta, buffers: DataView[]) => void): void;
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
    const load = () => {
      const snapshot = model.get("snapshot") as Snapshot | Record<string, never>;
      if (snapshot.version === 1 && ((snapshot as Snapshot).number ?? 0) >= run.number) {
        run.load(snapshot as Snapshot);
        view.reset();
      }
    };
    const hear = (delta: Delta, buffers: DataView[]) => {
      if (delta.sky === "delta" && !run.apply(delta, buffers?.[0])) {
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
