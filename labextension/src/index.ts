// What JupyterLab and Notebook 7 load.
import panel from "./panel";

export default [panel];
