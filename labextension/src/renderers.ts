// What JupyterLab and Notebook 7 load to draw outputs of ours.
import pool from "./pool-renderer";
import run from "./run-renderer";

export default [run, pool];
