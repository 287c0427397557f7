// Numbers as people say them.

/** How long something has lasted: `4 s`, `3 min`, `2 h 5 min`, `3 d`. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) {
    return `${whole} s`;
  }
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) {
    return `${minutes} min`;
  }
  const hours = Math.floor(minutes / 60);
  if (hours < 24) {
    return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  }
  return `${Math.floor(hours / 24)} d`;
}

/** How large something is, in letters that a narrow table has room for: `640 B`, `3.1 kB`, `2.0 GB`. */
export function size(bytes: number): string {
  if (bytes < 1000) {
    return `${bytes} B`;
  }
  const power = Math.min(4, Math.floor(Math.log10(bytes) / 3));
  return `${(bytes / 1000 ** power).toFixed(1)} ${["", "kB", "MB", "GB", "TB"][power]}`;
}

/** `1 node`, `3 nodes`. */
export function count(number: number, word: string): string {
  return `${number} ${word}${number === 1 ? "" : "s"}`;
}
