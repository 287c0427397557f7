/**
 * Which of our requests a kernel knows, asked in a way that every kernel understands: one that is asked what it does
 * not know writes an error into the server's log, and does not answer.
 */

import { ask, type Kernel } from "./kernel-requests";

const STEP = 100;
const ENDS = ["restarting", "autorestarting", "terminating", "dead"];

/** What is used of JupyterLab's kernel connection to hear that its kernel ends. */
interface Mortal {
  readonly statusChanged?: {
    connect(slot: (sender: unknown, status: string) => void): boolean;
    disconnect(slot: (sender: unknown, status: string) => void): boolean;
  };
}

/** What kernels have said that they know, and what is being asked. */
const features = new WeakMap<Kernel, unknown[]>();
const asked = new WeakMap<Kernel, Promise<unknown[]>>();

/** Whether a kernel knows a request, as util/control_channel.py has it say; thrown where it says nothing. */
export async function knows(kernel: Kernel, type: string, patience: number): Promise<boolean> {
  if (features.get(kernel)?.includes(type)) {
    return true;
  }
  // It may have learnt it since.
  const found = asked.get(kernel) ?? look(kernel, patience);
  asked.set(kernel, found);
  return (await found).includes(type);
}

/** Wait for the connection, which a page that opens has later than its kernel: JupyterLab refuses to ask before. */
async function connected(kernel: Kernel, patience: number): Promise<void> {
  const state = () => (kernel as { connectionStatus?: string }).connectionStatus ?? "connected";
  for (const end = Date.now() + patience; state() !== "connected" && Date.now() < end; ) {
    await new Promise((resolve) => setTimeout(resolve, STEP));
  }
}

async function look(kernel: Kernel, patience: number): Promise<unknown[]> {
  try {
    await connected(kernel, patience);
    const told = (await ask(kernel, "kernel_info_request", {}, patience)).supported_features;
    const found = Array.isArray(told) ? told : [];
    if (!features.has(kernel)) {
      const forget = whenEnding(kernel, () => {
        features.delete(kernel);
        forget();
      });
    }
    features.set(kernel, found);
    return found;
  } finally {
    asked.delete(kernel);
  }
}

/** Have a function called with the status of a kernel that ends or restarts, until what this gives is called. */
export function whenEnding(kernel: Kernel, act: (status: string) => void): () => void {
  const { statusChanged } = kernel as Mortal;
  const slot = (_: unknown, status: string) => {
    if (ENDS.includes(status)) {
      act(status);
    }
  };
  statusChanged?.connect(slot);
  return () => void statusChanged?.disconnect(slot);
}
