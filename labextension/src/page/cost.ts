/** What a pool's machines cost, or how long it has them, in the words of util/pool_cost.py. */
import * as v from "valibot";

import { number, whole } from "./validate";

export const cost = v.object({
  /** Dollars until `at`, and an hour since then; null where no price is known. */
  total: v.nullable(number),
  hourly: v.nullable(number),
  /** Machines whose price is not known. */
  unknown: whole,
  /** Seconds since 1970. */
  at: number,
  /** Where a scheduler gives the machines for some time: when that is over. */
  ends: v.optional(number),
});
export type Cost = v.InferOutput<typeof cost>;

const HOUR = 3600;
const UNKNOWN = "price unknown";
const CENTS = new Intl.NumberFormat("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

/** Such as "$1.23 so far, $13.20 an hour" or "20 min of the allocation left", so many seconds after it was told. */
export function costText(cost: Cost, after = 0): string {
  if (cost.ends !== undefined) {
    const minutes = Math.max(0, Math.round((cost.ends - cost.at - after) / 60));
    const hours = Math.floor(minutes / 60);
    const rest = hours ? String(minutes % 60).padStart(2, "0") : String(minutes);
    return `${hours ? `${hours} h ` : ""}${rest} min of the allocation left`;
  }
  if (cost.total === null) {
    return UNKNOWN;
  }
  const parts = [`${dollars(cost.total + ((cost.hourly ?? 0) * Math.max(0, after)) / HOUR)} so far`];
  if (cost.hourly === null) {
    parts.push(UNKNOWN);
  } else if (cost.hourly) {
    parts.push(`${rate(cost.hourly)} an hour`);
  }
  if (cost.unknown && cost.hourly !== null) {
    parts.push(`price of ${cost.unknown} machine${cost.unknown > 1 ? "s" : ""} unknown`);
  }
  return parts.join(", ");
}

function dollars(amount: number): string {
  return amount > 0 && amount < 0.01 ? "under $0.01" : `$${grouped(amount)}`;
}

/** With the digits that matter. */
function rate(hourly: number): string {
  if (hourly >= 1) {
    return `$${grouped(hourly)}`;
  }
  const [whole, digits] = hourly.toFixed(4).split(".");
  return `$${whole}.${digits.replace(/0+$/, "").padEnd(2, "0")}`;
}

function grouped(amount: number): string {
  return CENTS.format(amount);
}
