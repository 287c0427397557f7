// What JupyterLab and Notebook 7 load.
import panel from "./side-panel";
import restoreRuns from "./restore-runs-plugin";

export default [panel, restoreRuns];
