/** The kernel of the notebook that something stands in. */

import type { Kernel } from "../run/kernel-requests";

interface Standing {
  parent: Standing | null;
  sessionContext?: { session?: { kernel?: Kernel | null } | null };
}

/** Of a widget's parents the first that has a session tells it; undefined where there is none, or no kernel yet. */
export function kernelOf(widget: object): Kernel | undefined {
  for (let at: Standing | null = (widget as Standing).parent; at; at = at.parent) {
    if (at.sessionContext) {
      return at.sessionContext.session?.kernel ?? undefined;
    }
  }
  return undefined;
}
