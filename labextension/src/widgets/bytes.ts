// What a delta's message brings: binary buffers, whatever a front end makes of them, or the same as text.
import type { Delta } from "../run/model";

/** A delta as a widget's message may hold it: with its buffer in base64 where buffers do not arrive. */
export interface WidgetDelta extends Delta {
  data?: string;
}

/** The bytes of a delta's texts; undefined where they got lost on the way. */
export function bytesOf(delta: WidgetDelta, buffers: unknown): DataView | undefined {
  const size = delta.entries.reduce((sum, entry) => sum + (entry[0] === "s" ? (entry[3] as number) : 0), 0);
  const found = typeof delta.data === "string" ? fromText(delta.data) : view(Array.isArray(buffers) ? buffers[0] : undefined);
  if (found === undefined) {
    return size === 0 ? new DataView(new ArrayBuffer(0)) : undefined;
  }
  return found.byteLength >= size ? found : undefined;
}

function fromText(data: string): DataView {
  return new DataView(Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)).buffer);
}

function view(buffer: unknown): DataView | undefined {
  if (ArrayBuffer.isView(buffer)) {
    return new DataView(buffer.buffer as ArrayBuffer, buffer.byteOffset, buffer.byteLength);
  }
  return buffer instanceof ArrayBuffer ? new DataView(buffer) : undefined;
}
