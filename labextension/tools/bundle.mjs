// Turns src/ into what the browser loads: lib/ for the extension, which @jupyter/builder packs, and one module
// for each file of src/widgets/, which Python hands to anywidget. Types are looked at by `jlpm check`, not here.
import { build } from "esbuild";
import { existsSync, mkdirSync, readdirSync, rmSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(dirname(fileURLToPath(import.meta.url)));
const lib = join(here, "lib");
const widgets = join(here, "..", "sky_jupyter", "static");

const common = {
  absWorkingDir: here,
  // The one package that both outputs hold; an installation has it here alone.
  alias: { valibot: join(here, "tools", "node_modules", "valibot") },
  bundle: true,
  charset: "utf8",
  format: "esm",
  // Style sheets and pictures are text in the modules that use them: so both outputs share them.
  loader: { ".css": "text", ".svg": "text" },
  logLevel: "warning",
  target: "es2022",
};

function modules(folder) {
  const path = join(here, folder);
  return (existsSync(path) ? readdirSync(path) : [])
    .filter((name) => name.endsWith(".ts") && !name.endsWith(".d.ts"))
    .map((name) => join(folder, name));
}

for (const folder of [lib, widgets]) {
  rmSync(folder, { recursive: true, force: true }); // nothing of an earlier build may stay
  mkdirSync(folder, { recursive: true });
}
await build({ ...common, entryPoints: modules("src"), outdir: lib, packages: "external" });
for (const entry of modules(join("src", "widgets"))) {
  const outfile = join(widgets, `${basename(entry, ".ts")}.js`);
  await build({ ...common, entryPoints: [entry], outfile, minify: true });
}
