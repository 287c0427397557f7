// The states of the run view and of the pool panel on a page, for pictures and measures of them: tests/browser/test_gallery.py.
import { PoolModel } from "../src/pool/model";
import { install as installPool } from "../src/pool/style";
import { PoolPanel } from "../src/pool/view";
import { RunModel, type Snapshot } from "../src/run/model";
import { drawPlain } from "../src/run/rich-output";
import { readDelta } from "../src/run/schema";
import { RunView } from "../src/run/view";
import { GB, node, pool, RUN } from "./pool/stub";

// What JupyterLab's themes set, as far as our styles ask for it.
const THEMES: Record<string, Record<string, string>> = {
  light: {
    "--jp-content-font-color1": "rgba(0,0,0,.87)", "--jp-content-font-color2": "rgba(0,0,0,.54)",
    "--jp-layout-color0": "#fff", "--jp-layout-color1": "#fff", "--jp-layout-color2": "#eee", "--jp-layout-color3": "#bdbdbd",
    "--jp-border-color1": "#bdbdbd", "--jp-border-color2": "#e0e0e0", "--jp-brand-color1": "#0d47a1",
    "--jp-inverse-layout-color3": "#616161", "--jp-ui-font-color1": "rgba(0,0,0,.87)", "--jp-warn-color1": "#f57c00",
  },
  dark: {
    "--jp-content-font-color1": "#fff", "--jp-content-font-color2": "rgba(255,255,255,.7)",
    "--jp-layout-color0": "#111", "--jp-layout-color1": "#212121", "--jp-layout-color2": "#424242", "--jp-layout-color3": "#616161",
    "--jp-border-color1": "#616161", "--jp-border-color2": "#424242", "--jp-brand-color1": "#90caf9",
    "--jp-inverse-layout-color3": "#e0e0e0", "--jp-ui-font-color1": "#fff", "--jp-warn-color1": "#f57c00",
  },
};
const STDERR = (text: string) => `\x1b[1002m${text}\x1b[0m`;
const nothing = async () => "";

function plot(rank: number): Record<string, unknown> {
  const points = Array.from({ length: 20 }, (_, x) => `${20 + 30 * x},${420 - 380 / (1 + 0.2 * x * (1 + 0.3 * rank))}`).reverse();
  const svg =
    `<svg xmlns="http://www.w3.org/2000/svg" width="640" height="480"><rect width="640" height="480" fill="white"/>` +
    `<polyline points="${points.join(" ")}" fill="none" stroke="#1f77b4" stroke-width="3"/></svg>`;
  return { "image/svg+xml": svg, "text/plain": `<plot of rank ${rank}>` };
}

function snapshot(ranks: Partial<Snapshot["ranks"][number]>[], more: Partial<Snapshot> = {}): Snapshot {
  return {
    version: 1, view: "v", run: "r", pool: "default", title: "sky", state: "running", finished: false, elapsed: 83, idle: 0,
    ranks: ranks.map((one, rank) => ({ rank, state: "running", parts: [], ...one })),
    items: [], order: [], notices: [], number: 0, ...more,
  };
}

const losses = (rank: number, count: number) =>
  Array.from({ length: count }, (_, step) => `step ${step}  loss ${(2 / (1 + step / 9) + rank / 100).toFixed(3)}\n`).join("");
const bar = (rank: number) => `${losses(rank, 30)}train:  ${40 + 7 * rank}%|████      | ${40 + 7 * rank}/100 [00:10<00:13,  4.20it/s]`;
const LONG = `a line that is much longer than any window: ${"tokens per second ".repeat(30)}`;
const TRACEBACK =
  "\x1b[31mTraceback (most recent call last):\x1b[0m\n  Cell In[7], line 8\n    loss = step(model, batch)\n  Cell In[5], line 3, in step\n    raise ValueError('loss is nan')\n\x1b[31mValueError\x1b[0m: loss is nan";

const RUNS: Record<string, () => Snapshot> = {
  running: () => snapshot([0, 1, 2, 3].map((rank) => ({ parts: [{ text: bar(rank) }] }))),
  silent: () => snapshot([{ parts: [{ text: "waiting\n" }] }, {}], { idle: 4000, elapsed: 36000 }),
  done: () =>
    snapshot([{ state: "done", parts: [{ text: losses(0, 60) }], result: 0 }], {
      finished: true, state: "done", items: [{ data: { "text/plain": "{'loss': 0.264}" }, metadata: {} }],
    }),
  short: () => snapshot([{ state: "done", parts: [{ text: "one line\n" }] }, { state: "done", parts: [] }], { finished: true, state: "done" }),
  failed: () =>
    snapshot(
      [
        { state: "interrupted", parts: [{ text: losses(0, 12) }] },
        { state: "failed", parts: [{ text: `${losses(1, 9)}${STDERR("WARNING: gradients overflow")}\n` }], traceback: TRACEBACK },
      ],
      { finished: true, state: "failed", notices: ["rank 0 freed from a collective; every name is kept"] },
    ),
  failing: () => snapshot([{ parts: [{ text: losses(0, 40) }] }, { state: "failed", parts: [{ text: losses(1, 40) }], traceback: TRACEBACK }]),
  plots: () =>
    snapshot([0, 1, 2, 3].map((rank) => ({ state: "done", parts: [{ text: "drawn\n" }, { item: rank }] })), {
      finished: true, state: "done", items: [0, 1, 2, 3].map((rank) => ({ data: plot(rank), metadata: {} })),
    }),
  wrapped: () =>
    snapshot([0, 1].map((rank) => ({ state: "done", parts: [{ text: `${losses(rank, 5)}${LONG}\n${STDERR(`E1123 error of rank ${rank}`)}\n${losses(rank, 40)}` }] })), {
      finished: true, state: "done",
    }),
  similar: () =>
    snapshot([0, 1, 2, 3].map((rank) => ({ state: "done", parts: [{ text: `ready\n${losses(rank, 9)}saved rank-${rank}.pt\n${losses(rank, 5)}` }] })), {
      finished: true, state: "done",
    }),
  many: () => snapshot(Array.from({ length: 20 }, (_, rank) => ({ state: rank % 7 ? "running" : "done", parts: [{ text: bar(rank % 5) }] }))),
};

const NAN = "Traceback (most recent call last):\n  Cell In[5], line 3, in step\nValueError: loss is nan";
/** So many ranks, of which some have ended in each way. */
const crowd = (count: number, more: Partial<Snapshot> = {}) =>
  snapshot(
    Array.from({ length: count }, (_, rank) => {
      const state = rank % 97 === 41 ? "failed" : rank % 211 === 7 ? "died" : rank % 53 === 3 ? "interrupted" : rank < count / 3 ? "done" : "running";
      return { state, parts: [{ text: `ready\n${losses(rank % 8, 4)}` }], ...(state === "failed" ? { traceback: NAN } : {}), ...(state === "died" ? { note: "killed by SIGKILL" } : {}) } as Partial<Snapshot["ranks"][number]>;
    }),
    more,
  );
RUNS.grid = () => crowd(100);
RUNS.thousand = () => snapshot(Array.from({ length: 1000 }, (_, rank) => ({ state: rank % 5 ? "running" : "done", parts: [{ text: `ready\n${losses(0, 4)}` }] })));
RUNS["thousand-failed"] = () => crowd(1000);

const machine = { host: "", address: "", cores: 16, memory: 64 * GB };
const PHASES = [
  { phase: "machines", text: "4 machines", state: "done", at: 0, elapsed: 0.4, usual: null, lines: [] },
  {
    phase: "environment", text: "the environment", state: "on", at: 1, elapsed: 12, usual: 40, lines: ["uv venv", "torch 2.9.0: 402 of 880 MB"],
    nodes: [0, 1, 2, 3].map((one) => ({ node: one, state: one ? "on" : "done", elapsed: 12, line: one ? "torch 2.9.0: 402 of 880 MB" : "" })),
  },
];
const samples = Array.from({ length: 60 }, (_, at) => [300 - 5 * at, 0.4 + 0.3 * Math.sin(at / 7), 20 * GB + (at * GB) / 9]);
const variable = (name: string, more: object) => ({
  name, type: "float", value: "", shape: "", dtype: "", device: "", size: "", bytes: null, magnitude: null, when: null, origin: "the nodes", note: "", ...more,
});
// What the ranks of the state "pool-names" have.
const NAMES = [
  variable("data", { type: "ndarray", shape: "100000x1000", dtype: "float64", size: "800 MB", bytes: 8e8, origin: "the notebook" }),
  variable("jnp", { type: "module", origin: "import on the nodes" }),
  variable("loss", { value: "0.31 to 0.34 on 8 ranks", size: "24 bytes", bytes: 24 }),
  variable("shard", { type: "Tensor", shape: "8 different", dtype: "float32", device: "cuda:0", size: "100 bytes to 800 bytes", bytes: 800 }),
  variable("text", {
    type: "str", value: "'hello' on ranks 0-3, 'bye' on ranks 4-7", shape: "5 characters on ranks 0-3, 3 characters on ranks 4-7", size: "52 bytes to 54 bytes",
    bytes: 54, note: "the notebook has another now, which is sent when a cell reads it",
  }),
  variable("x", { type: "Array", shape: "128x64", dtype: "float32", device: "cpu:0", size: "33 kB", bytes: 33_000 }),
];
const POOLS: Record<string, () => ReturnType<typeof pool>> = {
  "pool-names": () => pool({ nodes: [node(0, { ...machine, now: [0.5, 24 * GB], samples })] }),
  "pool-local": () =>
    pool({ nodes: [0, 1, 2, 3].map((one) => node(one, { ...machine, now: [0.5, 24 * GB], samples })), runs: [{ ...RUN, title: "train(model, data)" }] }),
  "pool-gpus": () =>
    pool({
      provider: "ssh",
      nodes: [0, 1].map((one) =>
        node(one, {
          host: `gpu-node-${one}.cluster.example.org`, accelerators: 2, accelerator: "NVIDIA H100 80GB HBM3", cores: 96, memory: 1000 * GB,
          gpus: [0, 1].map(() => ({ name: "NVIDIA H100 80GB HBM3", memory: 80 * GB })),
          now: [0.5, 240 * GB, 0.97, 61 * GB, 0.91, 60 * GB],
          samples: samples.map(([age, busy]) => [age, busy, 240 * GB, 0.9 + busy / 10, 61 * GB, 0.9, 60 * GB]),
        }),
      ),
    }),
  "pool-starting": () =>
    pool({ state: "starting", uptime: 0, phases: PHASES, nodes: [0, 1, 2, 3].map((one) => node(one, { ...machine, state: "starting", now: null, samples: [], ranks: [], uptime: 0 })) }),
  "pool-begun": () => POOLS["pool-starting"](),
  "pool-failed": () =>
    pool({ state: "broken", why: "no space left on the disk", phases: [PHASES[0], { ...PHASES[1], state: "failed" }], nodes: [node(0, { ...machine, state: "lost" })] }),
};

function theme(name: string): void {
  document.body.dataset.jpThemeLight = String(name === "light");
  for (const [property, value] of Object.entries(THEMES[name])) {
    document.body.style.setProperty(property, value);
  }
  document.body.style.background = THEMES[name]["--jp-layout-color0"];
  document.body.style.setProperty("--jp-ui-font-family", "DejaVu Sans, sans-serif");
  document.body.style.setProperty("--jp-code-font-family", "DejaVu Sans Mono, monospace");
  document.body.style.setProperty("--jp-ui-font-size1", "13px");
  document.body.style.setProperty("--jp-code-font-size", "13px");
}

let shown: { model: RunModel; view: RunView } | undefined;

/** Put one state on the page, and nothing else. */
function show(name: string): void {
  calm = 0;
  document.body.replaceChildren();
  localStorage.clear();
  localStorage.setItem("sky-wrap", name === "wrapped" ? "on" : "off");
  localStorage.setItem("sky-similar", name === "similar" ? "on" : "off");
  if (name in RUNS) {
    const model = new RunModel(() => 10_000);
    model.load(RUNS[name]());
    const place = { attach: () => undefined, detach: () => undefined };
    const live = { interrupt: nothing, where: nothing, pool: () => place };
    const view = new RunView(model, { draw: drawPlain, ...(model.finished ? { pool: () => place } : live) });
    shown?.view.detach();
    shown = { model, view };
    document.body.append(view.node);
    view.reset();
    view.attach();
  } else {
    installPool(document);
    const panel = new PoolPanel(async () => ({}), () => undefined, async () => ({ names: NAMES, notes: [] }));
    const place = document.createElement("div");
    if (name === "pool-begun") {
      // What the renderer of a start has around its panel.
      place.className = "sky-pool-output sky-pool-starts";
      place.innerHTML = '<div class="sky-live-line"><span>pool train · the environment · 12.0 s</span><span></span></div>';
    }
    place.append(panel.node);
    document.body.append(place);
    panel.node.querySelector<HTMLDetailsElement>(".sky-live-variables")!.open = name === "pool-names";
    const now = 1_764_000_000;
    panel.show(new PoolModel(POOLS[name](), now), { live: true, at: now });
  }
}

// After a draw its scroll events come with the next frame, and what follows from them with the one after it.
const CALM = 3;
let calm = 0;

/** Asked once a frame: whether all of what is shown is drawn, however long a frame takes. */
function settled(): boolean {
  calm = isDrawn() ? calm + 1 : 0;
  return calm > CALM;
}

/** Whether pictures are loaded, variables have come, and a run's view has nothing left to draw at its width. */
function isDrawn(): boolean {
  const pictures = [...document.images].every((one) => one.complete);
  const variables = !document.querySelector(".sky-live-variables[open] tbody:empty");
  const view = shown?.view.node.isConnected ? shown.view : undefined;
  return pictures && variables && (!view || (!view["frame"] && view["waiting"] === undefined && view["wide"] > 0));
}

/** What a page's frames take while ranks print: each interval in milliseconds, and what drawing and taking deltas took. */
async function flood(name: string, seconds: number, lines: number): Promise<{ frames: number[]; longest: number; lines: number }> {
  show(name);
  const { model, view } = shown!;
  const encoder = new TextEncoder();
  let [number, step, told, longest] = [model.number, 0, 0, 0];
  const timer = setInterval(() => {
    const began = performance.now();
    const texts = model.ranks.map(({ rank }) =>
      encoder.encode(Array.from({ length: lines }, (_, at) => `step ${step * lines + at} of rank ${at % 2 ? rank : "all"}: loss ${(1 / (step + 1)).toFixed(4)}\n`).join("")),
    );
    const bytes = new Uint8Array(texts.reduce((sum, one) => sum + one.length, 0));
    let at = 0;
    const entries = texts.map((one, index) => {
      bytes.set(one, at);
      at += one.length;
      return ["s", model.ranks[index].rank, 0, one.length, 0, -1];
    });
    const prepared = performance.now() - began;
    const delta = readDelta({ sky: "delta", view: "v", number: ++number, entries }, bytes.length);
    model.apply(delta, new DataView(bytes.buffer));
    view.update();
    longest = Math.max(longest, performance.now() - began - prepared);
    told += lines * texts.length;
    step += 1;
  }, 50);
  const frames: number[] = [];
  await new Promise<void>((done) => {
    let last = performance.now();
    const end = last + seconds * 1000;
    const next = () => {
      const now = performance.now();
      frames.push(now - last);
      last = now;
      now < end ? requestAnimationFrame(next) : done();
    };
    requestAnimationFrame(next);
  });
  clearInterval(timer);
  return { frames, longest, lines: told };
}

Object.assign(window, { gallery: { flood, names: [...Object.keys(RUNS), ...Object.keys(POOLS)], settled, show, theme } });
