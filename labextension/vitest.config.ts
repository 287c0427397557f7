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
  // A busy machine takes longer than the five seconds that are usual.
  test: { environment: "happy-dom", include: ["tests/**/*.test.ts"], testTimeout: 60_000, hookTimeout: 60_000 },
});
