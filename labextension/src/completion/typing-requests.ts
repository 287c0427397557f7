/**
 * Completion and inspection while the kernel is busy: asked on the control channel, which is not behind the cell.
 *
 * JupyterLab waits for the answer of the kernel itself to the end of the cell, whatever another provider of completions
 * has answered, and its tooltips have no providers. So the requests of the kernel's connection are what is answered.
 */

import { ask, type Kernel } from "../run/kernel-requests";

type Content = Record<string, unknown>;
type Ask = (content: Content) => Promise<{ content: Content }>;

/** What is used of JupyterLab's kernel connection. */
export interface TypingKernel extends Kernel {
  requestComplete: Ask;
  requestInspect: Ask;
}

const COMPLETE = "sky_complete_request";
const INSPECT = "sky_inspect_request";
// A page that got no answer by then asks as it always does.
const PATIENCE = 2000;

/**
 * Have a kernel's requests for completion and inspection answered while it is busy; what it gives undoes that.
 * `concerns` says whether the notebook has cells of ours.
 */
export function answerWhileBusy(kernel: TypingKernel, concerns: () => boolean): () => void {
  const { requestComplete, requestInspect } = kernel;
  const wrapped = (type: string, plain: Ask): Ask => {
    return async (content) => (await answer(kernel, type, content, concerns)) ?? (await plain.call(kernel, content));
  };
  const complete = (kernel.requestComplete = wrapped(COMPLETE, requestComplete));
  const inspect = (kernel.requestInspect = wrapped(INSPECT, requestInspect));
  return () => {
    // Another's that came later stays.
    if (kernel.requestComplete === complete) {
      kernel.requestComplete = requestComplete;
    }
    if (kernel.requestInspect === inspect) {
      kernel.requestInspect = requestInspect;
    }
  };
}

/** What a busy kernel answers; nothing where it is idle, or does not know. */
async function answer(
  kernel: TypingKernel,
  type: string,
  content: Content,
  concerns: () => boolean,
): Promise<{ content: Content } | undefined> {
  if (kernel.status !== "busy" || !concerns()) {
    return undefined;
  }
  try {
    const found = await ask(kernel, type, content, PATIENCE);
    return found.found === false ? undefined : { content: found };
  } catch {
    return undefined;
  }
}
