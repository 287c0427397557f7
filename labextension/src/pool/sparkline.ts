/** Sparklines: up to five minutes of a value from 0 to 1 as a line, the newest at the right. */

import { mark, shape } from "./dom";
import { SPAN } from "./model";
import { percent } from "./status-texts";

const WIDTH = 100;
const HEIGHT = 16;
// A line shows so many seconds at least.
const LEAST = 60;

export function sparkline(): SVGSVGElement {
  const svg = shape("svg", {
    class: "sky-live-spark",
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    preserveAspectRatio: "none",
    role: "img",
  });
  svg.append(shape("polygon"), shape("polyline"));
  return svg;
}

/** Draw values, each with the time that it is of, into a sparkline; `what` they are is for those who do not see it. */
export function draw(svg: SVGSVGElement, what: string, values: [number, number][], now: number): void {
  const points = pointsOf(values, now);
  const [area, line] = [...svg.children];
  const path = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
  mark(line, "points", path);
  const [first, last] = [points[0]?.[0] ?? 0, points[points.length - 1]?.[0] ?? 0];
  mark(area, "points", path && `${first.toFixed(1)},${HEIGHT} ${path} ${last.toFixed(1)},${HEIGHT}`);
  mark(svg, "aria-label", labelOf(what, values));
}

/** Where the line goes: of values that share a column the mean. */
export function pointsOf(values: [number, number][], now: number): [number, number][] {
  const span = Math.min(SPAN, Math.max(LEAST, now - (values[0]?.[0] ?? now)));
  const columns = new Map<number, number[]>();
  for (const [time, value] of values) {
    const column = Math.round(WIDTH * (1 - (now - time) / span));
    if (column >= 0 && column <= WIDTH) {
      columns.get(column)?.push(value) ?? columns.set(column, [value]);
    }
  }
  return [...columns].map(([column, found]) => {
    const mean = found.reduce((sum, value) => sum + value, 0) / found.length;
    return [column, 1 + (HEIGHT - 2) * (1 - Math.min(1, Math.max(0, mean)))];
  });
}

function labelOf(what: string, values: [number, number][]): string {
  if (!values.length) {
    return `${what}: not known yet`;
  }
  const [low, high] = values.reduce(([least, most], [, value]) => [Math.min(least, value), Math.max(most, value)], [
    Infinity,
    -Infinity,
  ]);
  const minutes = Math.max(1, Math.round((values[values.length - 1][0] - values[0][0]) / 60));
  return `${what}, last ${minutes} min: ${percent(low)} to ${percent(high)}`;
}
