// What a delta's message brings: binary buffers, whatever a front end makes of them, or the same as text.

/** The bytes of a delta's texts, as a widget's message holds them; none where they got lost on the way. */
export function bytesOf(delta: { data?: unknown }, buffers: unknown): DataView {
  const found = typeof delta.data === "string" ? fromText(delta.data) : view(Array.isArray(buffers) ? buffers[0] : undefined);
  return found ?? new DataView(new ArrayBuffer(0));
}

function fromText(data: string): DataView | undefined {
  try {
    return new DataView(Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)).buffer);
  } catch {
    return undefined; // no base64
  }
}

function view(buffer: unknown): DataView | undefined {
  if (ArrayBuffer.isView(buffer)) {
    return new DataView(buffer.buffer as ArrayBuffer, buffer.byteOffset, buffer.byteLength);
  }
  return buffer instanceof ArrayBuffer ? new DataView(buffer) : undefined;
}
