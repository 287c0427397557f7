// What JupyterLab and Notebook 7 load.
import type { JupyterFrontEndPlugin } from "@jupyterlab/application";

const plugins: JupyterFrontEndPlugin<unknown>[] = [];

export default plugins;
