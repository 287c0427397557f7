/** The run view's look. It follows the theme by JupyterLab's variables; elsewhere by the page's colour scheme. */

export const CSS = `
.sky-run {
  --sky-text: var(--jp-content-font-color1, light-dark(#1c1c1c, #e6e6e6));
  --sky-ground: var(--jp-layout-color0, light-dark(#ffffff, #1e1e1e));
  --sky-soft: var(--jp-content-font-color2, light-dark(#4d4d4d, #b8b8b8));
  --sky-edge: var(--jp-border-color1, light-dark(#bdbdbd, #616161));
  --sky-raised: var(--jp-layout-color2, light-dark(#eeeeee, #333333));
  --sky-focus: var(--jp-brand-color1, light-dark(#1565c0, #64b5f6));
  --sky-ansi-0: light-dark(#3e424d, #8a8f9c);
  --sky-ansi-1: light-dark(#b3261e, #ff7b72);
  --sky-ansi-2: light-dark(#00701a, #4cc46a);
  --sky-ansi-3: light-dark(#7a5700, #e0b13c);
  --sky-ansi-4: light-dark(#0b57b0, #6cb2ff);
  --sky-ansi-5: light-dark(#8e2aa3, #d78be8);
  --sky-ansi-6: light-dark(#00697a, #45c2d1);
  --sky-ansi-7: light-dark(#5c5c5c, #b5b5b5);
  color-scheme: light;
  color: var(--sky-text);
  font-family: var(--jp-ui-font-family, system-ui, sans-serif);
  font-size: var(--jp-ui-font-size1, 13px);
  line-height: 1.4;
  padding: 0 0 0 8px;
  min-width: 0;
}
.sky-run[data-dark="true"], body[data-jp-theme-light="false"] .sky-run { color-scheme: dark; }
.sky-run *, .sky-run *::before { box-sizing: border-box; }
.sky-run [hidden] { display: none !important; }
.sky-head { display: flex; flex-wrap: wrap; align-items: center; gap: 2px 8px; min-height: 24px; }
.sky-title { font-weight: 600; }
.sky-facts { color: var(--sky-soft); }
.sky-dot { display: inline-block; width: 9px; height: 9px; border-radius: 50%; flex: none; background: var(--sky-ansi-7); }
.sky-run [data-state="running"] > .sky-dot, .sky-dot[data-state="running"] { background: var(--sky-ansi-4); }
.sky-run [data-state="done"] > .sky-dot, .sky-dot[data-state="done"] { background: var(--sky-ansi-2); }
.sky-run [data-state="failed"] > .sky-dot, .sky-dot[data-state="failed"],
.sky-run [data-state="died"] > .sky-dot, .sky-dot[data-state="died"] { background: var(--sky-ansi-1); border-radius: 1px; }
.sky-run [data-state="interrupted"] > .sky-dot, .sky-dot[data-state="interrupted"] { background: var(--sky-ansi-3); border-radius: 1px; }
@media (prefers-reduced-motion: no-preference) {
  .sky-dot[data-state="running"] { animation: sky-pulse 1.6s ease-in-out infinite; }
  @keyframes sky-pulse { 50% { opacity: 0.35; } }
}
.sky-tools { display: flex; flex-wrap: wrap; gap: 4px; margin-left: auto; align-items: center; }
.sky-run button {
  font: inherit; color: inherit; background: transparent; border: 1px solid transparent; border-radius: 3px;
  padding: 1px 7px; cursor: pointer; min-height: 24px; min-width: 24px;
}
.sky-tools button { border-color: var(--sky-edge); }
.sky-run button:hover { background: var(--sky-raised); }
.sky-run :focus-visible { outline: 2px solid var(--sky-focus); outline-offset: 1px; }
.sky-run button[aria-pressed="true"] { background: var(--sky-raised); border-color: var(--sky-soft); }
.sky-run input[type="search"] {
  font: inherit; color: inherit; background: var(--sky-ground); border: 1px solid var(--sky-edge); border-radius: 3px;
  padding: 1px 6px; width: 11em; min-height: 24px;
}
.sky-run input::placeholder { color: var(--sky-soft); opacity: 1; }
.sky-tabs { display: flex; flex-wrap: wrap; gap: 2px; margin: 4px 0 0; border-bottom: 1px solid var(--sky-edge); max-height: 6.5em; overflow-y: auto; }
.sky-tabs button { display: flex; align-items: center; gap: 5px; border-bottom: 2px solid transparent; border-radius: 3px 3px 0 0; color: var(--sky-soft); white-space: nowrap; }
.sky-tabs button[aria-selected="true"] { color: var(--sky-text); border-bottom-color: var(--sky-focus); font-weight: 600; }
.sky-chip-bar { width: 40px; height: 5px; border-radius: 3px; background: var(--sky-raised); overflow: hidden; outline: 1px solid var(--sky-edge); }
.sky-chip-bar > i { display: block; height: 100%; background: var(--sky-ansi-4); }
.sky-bars { display: grid; gap: 3px; margin: 6px 0 2px; }
.sky-bar { display: grid; grid-template-columns: minmax(5em, max-content) minmax(60px, 1fr) minmax(3em, max-content); gap: 8px; align-items: center; }
.sky-bar progress { width: 100%; height: 10px; accent-color: var(--sky-focus); }
.sky-bar span { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; max-width: 40vw; font-variant-numeric: tabular-nums; }
.sky-panel { position: relative; }
.sky-log { max-height: 420px; overflow: auto; padding: 4px 0; overscroll-behavior: auto; }
.sky-run pre, .sky-row {
  font-family: var(--jp-code-font-family, ui-monospace, monospace); font-size: var(--jp-code-font-size, 13px);
  margin: 0; padding: 0; background: transparent; color: inherit; white-space: pre; line-height: 18px; tab-size: 8;
}
.sky-text { position: relative; min-width: max-content; }
.sky-text > pre { position: absolute; left: 0; min-width: 100%; border: 0; overflow: visible; }
.sky-row { height: 18px; }
.sky-label { display: inline-block; min-width: 5ch; padding-right: 1ch; color: var(--sky-soft); user-select: none; }
.sky-item { padding: 4px 0; overflow-x: auto; max-width: 100%; }
.sky-item > .sky-who, .sky-who { color: var(--sky-soft); font-size: 90%; }
.sky-run .sky-wrap { white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.35; }
.sky-trouble { border-left: 3px solid var(--sky-ansi-1); padding: 2px 0 2px 8px; margin: 4px 0; }
.sky-aside { color: var(--sky-soft); font-size: 95%; }
.sky-where { border: 1px solid var(--sky-edge); border-radius: 3px; margin: 4px 0; padding: 4px 8px; max-height: 300px; overflow: auto; }
.sky-hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
@media (max-width: 600px) { .sky-tools { margin-left: 0; } .sky-run input[type="search"] { width: 8em; } }
`;

/** Put the style on a document or a shadow root once. */
export function install(root: Document | ShadowRoot): void {
  const home = root instanceof Document ? root.head : root;
  if (!home.querySelector('style[data-sky-run]')) {
    const style = document.createElement('style');
    style.dataset.skyRun = '';
    style.textContent = CSS;
    home.append(style);
  }
}

/** Whether the page is dark: by JupyterLab's theme, which the style follows by itself, else by what is behind the node. */
export function isDark(node: Element): boolean {
  const said = document.body.dataset.jpThemeLight;
  if (said !== undefined) {
    return said === 'false';
  }
  for (let at: Element | null = node; at; at = at.parentElement) {
    const [red, green, blue, alpha = 1] = (getComputedStyle(at).backgroundColor.match(/[\d.]+/g) ?? []).map(Number);
    if (alpha > 0.5 && blue !== undefined) {
      return 0.299 * red + 0.587 * green + 0.114 * blue < 128;
    }
  }
  return matchMedia('(prefers-color-scheme: dark)').matches;
}
