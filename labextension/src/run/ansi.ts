/** Terminal colours: reading SGR codes, and turning them into looks that suit light and dark pages. As display/model/ansi.py. */

export interface Style {
  /** It was written to stderr: a row says so, no piece of it. */
  readonly stderr: boolean;
  readonly bold: boolean;
  readonly faint: boolean;
  readonly italic: boolean;
  readonly underline: boolean;
  readonly inverse: boolean;
  readonly strike: boolean;
  /** SGR codes of a foreground, such as "38;5;9", for both. */
  readonly fg: string;
  readonly bg: string;
}

type Flag = "stderr" | "bold" | "faint" | "italic" | "underline" | "inverse" | "strike";

export const PLAIN: Style = Object.freeze({
  stderr: false,
  bold: false,
  faint: false,
  italic: false,
  underline: false,
  inverse: false,
  strike: false,
  fg: "",
  bg: "",
});

/** CSI, whose parameters and end are the first two groups; OSC with its terminator; any other escape. */
export const ESCAPE = "\\x1b\\[([0-?]*)[ -/]*([@-~])|\\x1b\\][^\\x07\\x1b]*(?:\\x07|\\x1b\\\\)|\\x1b[ -/]*[0-~]?";

const FLAGS: Flag[] = ["stderr", "bold", "faint", "italic", "underline", "inverse", "strike"];
/** No terminal's code: text of stderr is marked with it, as in display/model/ansi.py. */
const STDERR = 1002;
const PLAINLY = "\x1b[0m";
const SET: Record<number, Flag> = {
  [STDERR]: "stderr",
  1: "bold",
  2: "faint",
  3: "italic",
  4: "underline",
  7: "inverse",
  9: "strike",
  21: "underline",
};
const UNSET: Record<number, Flag[]> = {
  22: ["bold", "faint"],
  23: ["italic"],
  24: ["underline"],
  27: ["inverse"],
  29: ["strike"],
};
const CODE: Record<Flag, string> = {
  stderr: String(STDERR),
  bold: "1",
  faint: "2",
  italic: "3",
  underline: "4",
  inverse: "7",
  strike: "9",
};

// Each style is one object, so that equal ones are told by identity.
const known = new Map<string, Style>();
const steps = new Map<string, Style>();

function intern(style: Style): Style {
  const codes = codesOf(style);
  if (!codes) {
    return PLAIN;
  }
  const found = known.get(codes);
  if (found) {
    return found;
  }
  if (known.size > 4096) {
    known.clear();
    steps.clear();
  }
  known.set(codes, style);
  return style;
}

/** The style after the SGR sequence with these parameters, such as "1;31". */
export function restyled(style: Style, codes: string): Style {
  const key = `${codesOf(style)}|${codes}`;
  let done = steps.get(key);
  if (!done) {
    done = intern(applied(style, codes));
    steps.set(key, done);
  }
  return done;
}

function applied(style: Style, codes: string): Style {
  const numbers = codes
    .slice(0, 200)
    .split(/[;:]/)
    .map((code) => (/^\d+$/.test(code) ? Number(code.slice(0, 4)) : 0));
  let position = 0;
  while (position < numbers.length) {
    const number = numbers[position++];
    if (number === 38 || number === 48) {
      const size = numbers[position] === 5 ? 2 : numbers[position] === 2 ? 4 : 1;
      const rest = numbers.slice(position, position + size);
      position += size;
      if (rest.length === size && size > 1 && Math.max(...rest) < 256) {
        const colour = `38;${rest.join(";")}`;
        style = number === 38 ? { ...style, fg: colour } : { ...style, bg: colour };
      }
    } else {
      style = once(style, number);
    }
  }
  return style;
}

function once(style: Style, number: number): Style {
  if (number === 0) {
    return PLAIN;
  }
  if (SET[number]) {
    return { ...style, [SET[number]]: true };
  }
  if (UNSET[number]) {
    return { ...style, ...Object.fromEntries(UNSET[number].map((name) => [name, false])) };
  }
  if (number === 39) {
    return { ...style, fg: "" };
  }
  if (number === 49) {
    return { ...style, bg: "" };
  }
  if ((number >= 30 && number <= 37) || (number >= 90 && number <= 97)) {
    return { ...style, fg: String(number) };
  }
  if ((number >= 40 && number <= 47) || (number >= 100 && number <= 107)) {
    return { ...style, bg: String(number - 10) };
  }
  return style;
}

/** The SGR parameters that make the style out of plain text. */
export function codesOf(style: Style): string {
  if (style === PLAIN) {
    return "";
  }
  const codes = FLAGS.filter((name) => style[name]).map((name) => CODE[name]);
  if (style.fg) {
    codes.push(style.fg);
  }
  if (style.bg) {
    const [kind, ...rest] = style.bg.split(";");
    codes.push([Number(kind) + 10, ...rest].join(";"));
  }
  return codes.join(";");
}

/** Text in a style, and plain again after it. */
export function wrapped(style: Style, text: string): string {
  return style === PLAIN || !text ? text : `\x1b[${codesOf(style)}m${text}${PLAINLY}`;
}

/** A line with a text behind it: in one piece with what is in the same style, however it came. */
export function joined(line: string, style: Style, text: string): string {
  const codes = codesOf(style);
  const at = line.lastIndexOf("\x1b[", line.length - PLAINLY.length - 1);
  return codes && line.endsWith(PLAINLY) && at >= 0 && line.startsWith(`\x1b[${codes}m`, at)
    ? line.slice(0, -PLAINLY.length) + text + PLAINLY
    : line + wrapped(style, text);
}

/** The style on stderr. */
export function onStderr(style: Style): Style {
  return style.stderr ? style : intern({ ...style, stderr: true });
}

/** Whether a line was written to stderr, as far as it begins so. */
export function isStderr(line: string): boolean {
  return line.startsWith(`\x1b[${STDERR}`);
}

/** The pieces of a text between escapes, each with its style; other escapes than SGR are dropped. */
export function runs(text: string): [Style, string][] {
  if (!text.includes("\x1b")) {
    return text ? [[PLAIN, text]] : [];
  }
  const found: [Style, string][] = [];
  let style: Style = PLAIN;
  let start = 0;
  for (const match of text.matchAll(new RegExp(ESCAPE, "g"))) {
    if (match.index > start) {
      found.push([style, text.slice(start, match.index)]);
    }
    start = match.index + match[0].length;
    if (match[2] === "m") {
      style = restyled(style, match[1]);
    }
  }
  if (start < text.length) {
    found.push([style, text.slice(start)]);
  }
  return found;
}

/** The text without any escape. */
export function strip(text: string): string {
  return text.includes("\x1b") ? text.replace(new RegExp(ESCAPE, "g"), "") : text;
}

/** How text in a style looks: style properties with their values. */
export function looks(style: Style): [string, string][] {
  let [fg, bg] = [style.fg, style.bg];
  if (style.inverse) {
    [fg, bg] = [bg || "ground", fg || "text"];
  }
  const lines = [style.underline ? "underline" : "", style.strike ? "line-through" : ""].filter(Boolean);
  const found: [string, string][] = [
    ["color", fg && colour(fg, !!bg)],
    ["background-color", bg && colour(bg, true)],
    ["font-weight", style.bold ? "bold" : ""],
    ["opacity", style.faint ? "0.8" : ""],
    ["font-style", style.italic ? "italic" : ""],
    ["text-decoration", lines.join(" ")],
  ];
  return found.filter(([, value]) => value);
}

function colour(code: string, onColour: boolean): string {
  if (code === "ground" || code === "text") {
    return `var(--sky-${code})`;
  }
  const [first, kind, ...rest] = code.split(";").map(Number);
  if (first === 38) {
    if (kind === 2) {
      return `rgb(${rest.join(",")})`;
    }
    return rest[0] >= 16 ? of256(rest[0]) : named(rest[0] % 8, rest[0] > 7, onColour);
  }
  return named(first % 10, first >= 90, onColour);
}

/** One of the sixteen; black and white are what they say on a colour, and the page's own text otherwise. */
function named(index: number, bright: boolean, onColour: boolean): string {
  if (onColour && index === 0 && !bright) {
    return "#000";
  }
  if (onColour && index === 7) {
    return "#fff";
  }
  return index === 7 && bright ? "inherit" : `var(--sky-ansi-${index})`;
}

function of256(number: number): string {
  if (number >= 232) {
    const level = 8 + 10 * (number - 232);
    return `rgb(${level},${level},${level})`;
  }
  const levels = [0, 95, 135, 175, 215, 255];
  const cube = number - 16;
  return `rgb(${levels[Math.floor(cube / 36)]},${levels[Math.floor(cube / 6) % 6]},${levels[cube % 6]})`;
}
