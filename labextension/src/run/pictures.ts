/** Pictures of a saved run, which stand in its HTML alone: display/model/saved_output.py puts their numbers into its JSON. */

const PICTURE = /src="data:(image\/(?:png|jpeg|gif));base64,([A-Za-z0-9+/=]+)"/g;

type Data = Record<string, unknown>;

/** A run as it was before: with its pictures. What is no such run stays as it is; what is not there is left out. */
export function withPictures(run: unknown, html: unknown): unknown {
  const items = (run as { items?: unknown } | null | undefined)?.items;
  if (!Array.isArray(items) || !items.some(lacks)) {
    return run;
  }
  const page = Array.isArray(html) ? html.join("") : typeof html === "string" ? html : "";
  const found = [...page.matchAll(PICTURE)];
  const whole = items.map((item: { data: Data }) => {
    if (!lacks(item)) {
      return item;
    }
    const data = Object.entries(item.data).flatMap(([kind, value]) => {
      const number = numberOf(value);
      const [, of, text] = (number === undefined ? undefined : found[number]) ?? [];
      return number === undefined ? [[kind, value]] : of === kind ? [[kind, text]] : [];
    });
    return { ...item, data: Object.fromEntries(data) as Data };
  });
  return { ...(run as object), items: whole };
}

function lacks(item: unknown): boolean {
  const data = (item as { data?: unknown } | null)?.data;
  return typeof data === "object" && data !== null && Object.values(data).some((one) => numberOf(one) !== undefined);
}

function numberOf(value: unknown): number | undefined {
  const number = (value as { html?: unknown } | null | undefined)?.html;
  return typeof number === "number" ? number : undefined;
}
