// What JupyterLab and Notebook 7 load.
import autoSwitch from "./auto-switch";
import busyCompletion from "./busy-completion";
import debuggerSelector from "./debugger-selector";
import panel from "./side-panel";
import restoreRuns from "./restore-runs-plugin";
import runCommands from "./run-commands";
import runEnds from "./run-end-plugin";

export default [autoSwitch, busyCompletion, debuggerSelector, panel, restoreRuns, runCommands, runEnds];
