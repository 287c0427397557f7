import { readFileSync } from "node:fs";
import { defineConfig } from "vitest/config";

export default defineConfig({
  plugins: [
    {
      // As tools/bundle.mjs does it.
      name: "text",
      enforce: "pre",
      load(id) {
        return /\.(css|svg)$/.test(id) ? `export default ${JSON.stringify(readFileSync(id, "utf8"))};` : null;
      },
    },
  ],
  test: { environment: "happy-dom", include: ["tests/**/*.test.ts"] },
});
