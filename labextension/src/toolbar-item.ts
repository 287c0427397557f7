/** An item of a notebook's toolbar that shows what the notebook's kernel says of itself. */

import type { Widget } from "@lumino/widgets";

import type { FollowedState } from "./run/kernel-state";
import type { Kernel } from "./run/kernel-requests";

// Left of the kernel's name.
const BEFORE = "spacer";

/** What is used of a notebook's panel. */
export interface Panel {
  readonly context: { readonly ready: Promise<void> };
  readonly content: {
    readonly widgets: readonly { readonly model: { readonly sharedModel: { getSource(): string } } }[];
  };
  readonly sessionContext: {
    readonly session: { readonly kernel: Kernel | null } | null;
    readonly kernelChanged: { connect(slot: () => void): boolean; disconnect(slot: () => void): boolean };
  };
  readonly toolbar: {
    insertBefore(at: string, name: string, widget: Widget): boolean;
    addItem(name: string, widget: Widget): boolean;
  };
}

/** Put an item into a notebook's toolbar, and have its state follow the kernel; what it gives takes it away. */
export function addItem(
  panel: Panel,
  name: string,
  widget: Widget,
  state: FollowedState,
): { dispose(): void; readonly isDisposed: boolean } {
  const follow = () => {
    const kernel = panel.sessionContext.session?.kernel ?? undefined;
    state.follow(kernel);
    // A notebook that has nothing to do with us has a kernel that is asked nothing.
    if (kernel && panel.content.widgets.some((cell) => cell.model.sharedModel.getSource().includes("%sky"))) {
      void state.ask();
    }
  };
  panel.sessionContext.kernelChanged.connect(follow);
  void panel.context.ready.then(follow);
  if (!panel.toolbar.insertBefore(BEFORE, name, widget)) {
    panel.toolbar.addItem(name, widget);
  }
  let isDisposed = false;
  return {
    get isDisposed() {
      return isDisposed;
    },
    dispose: () => {
      isDisposed = true;
      panel.sessionContext.kernelChanged.disconnect(follow);
      state.follow(undefined);
      widget.dispose();
    },
  };
}
