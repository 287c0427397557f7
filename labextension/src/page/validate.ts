/** Whether what came from outside is what it should be. The schemas stand beside what uses them, and give the types. */
import * as v from "valibot";

export const number = v.pipe(v.number(), v.finite());
/** A count, or the number of a rank, a node or an entry. */
export const whole = v.pipe(v.number(), v.safeInteger(), v.minValue(0));
export const text = v.string();
/** Values by name; names that an object has by itself are left out. */
export const record = v.record(v.string(), v.unknown());

/** What does not fit its schema. */
export class Misfit extends Error {}

/** The value, without anything that its schema does not name; one that does not fit is thrown. `what` it is to be. */
export function read<const S extends v.GenericSchema>(schema: S, value: unknown, what: string): v.InferOutput<S> {
  const found = v.safeParse(schema, value, { abortEarly: true });
  if (!found.success) {
    const [issue] = found.issues;
    const place = v.getDotPath(issue);
    const why = issue.expected ? `expected ${issue.expected}` : issue.message;
    throw new Misfit(`${what} is not as it should be (${place ? `${place.slice(0, 100)}: ` : ""}${why})`);
  }
  return found.output;
}
