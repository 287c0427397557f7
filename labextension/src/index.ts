// What JupyterLab and Notebook 7 load.
import type { JupyterFrontEndPlugin } from "@jupyterlab/application";

import restoreRuns from "./run-restore";

const plugins: JupyterFrontEndPlugin<unknown>[] = [restoreRuns];

export default plugins;
