/** What a page tells its person, and what it keeps for them. */

export { make, mark, paint, say } from "../page/dom";

/** A message for people out of whatever was thrown. */
export function reason(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export function stored(name: string): string {
  try {
    return localStorage.getItem(name) ?? "";
  } catch {
    return "";
  }
}

export function store(name: string, value: string): void {
  try {
    localStorage.setItem(name, value);
  } catch {
    // A page without storage forgets it.
  }
}
