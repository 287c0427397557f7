// What JupyterLab and Notebook 7 load.
import panel from "./panel";
import restoreRuns from "./run-restore";

export default [panel, restoreRuns];
