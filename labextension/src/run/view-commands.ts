/** Which button of which run's view a command presses. */

/** Of each button that a command is for: its name in the header, and the command's label and caption. */
export const TOOLS = [
  ["follow", "Pause or Follow the Run's Lines", "Keep the lines still, or show the newest as they come"],
  ["bars", "Change the Run's Progress Bars", "Per rank, or as one"],
  ["error", "Jump to the Run's First Error", "Scroll to the first line that tells of an error"],
  ["similar", "Fold Similar Lines of Runs", "Fold lines that differ only in numbers, or not"],
  ["wrap", "Wrap Long Lines of Runs", "Break long lines, or not"],
  ["times", "Show Times of Runs' Lines", "Show when each line was heard, or not"],
  ["download", "Download the Run's Log", "Save the lines as a file"],
  ["copy", "Copy the Run's Log", "Copy the lines of the tab that is open"],
] as const;

export type Tool = (typeof TOOLS)[number][0];

/** The button in the run's view of the active cell, else in the notebook's last view; undefined where none can be pressed. */
export function buttonOf(notebook: ParentNode, tool: Tool): HTMLButtonElement | undefined {
  const views = [...notebook.querySelectorAll<HTMLElement>(".sky-run")];
  const view = notebook.querySelector<HTMLElement>(".jp-Cell.jp-mod-active .sky-run") ?? views[views.length - 1];
  const button = view?.querySelector<HTMLButtonElement>(`button[data-tool="${tool}"]`);
  return button && !button.hidden && !button.disabled ? button : undefined;
}
