/** The side panel: a title, a toolbar, and a section each for the pools that are used and those that nobody manages. */
import { LabIcon, PanelWithToolbar, refreshIcon, SidePanel, ToolbarButton } from "@jupyterlab/ui-components";
import { type AccordionPanel, Widget } from "@lumino/widgets";

import { make, say } from "../page/dom";
import type { Pool } from "./client";
import type { FilesView } from "./files-view";
import iconText from "./icon.svg";
import { isLost, type ListActions, PoolsView } from "./view";
import type { Watcher } from "./watcher";

// Ages are shown in minutes, and in seconds below one.
const TICK = 5000;
// The sections' heights beside that of files.
const SIZES = [2, 1, 4];
const NOBODY = "None. Here are pools that were kept (--keep), or whose notebook is gone.";

export const icon = new LabIcon({ name: "sky-jupyter:pools", svgstr: iconText });

export class PoolsPanel extends SidePanel {
  private readonly used: PoolsView;
  private readonly lost: PoolsView;
  private readonly filesSection = new PanelWithToolbar();
  private timer: ReturnType<typeof setInterval> | undefined;

  constructor(
    private readonly watcher: Watcher,
    deeds: ListActions,
    private readonly files: FilesView,
  ) {
    super();
    this.addClass("sky-pools-panel");
    this.id = "sky-jupyter-pools";
    this.title.icon = icon;
    this.title.caption = "Pools";
    this.used = new PoolsView(deeds, "Pools in use");
    this.lost = new PoolsView(deeds, "Detached pools", NOBODY);
    const title = make("h2", "sky-pools-title");
    say(title, "Pools");
    this.toolbar.addItem("title", new Widget({ node: title }));
    const refresh = () => void watcher.refresh();
    this.toolbar.addItem("refresh", new ToolbarButton({ icon: refreshIcon, tooltip: "Refresh", onClick: refresh }));
    this.section("In use", this.used);
    this.section("Detached", this.lost);
    this.filesSection.addClass("sky-pools-section");
    this.filesSection.addWidget(new Widget({ node: files.node }));
    watcher.changed.connect(this.draw, this);
  }

  /** Browse the files of a pool's ranks, in a section that comes with the first time. */
  browse(pool: Pool): void {
    this.filesSection.title.label = `Files: ${pool.name}`;
    const sections = this.content as AccordionPanel;
    const isNew = !this.filesSection.parent;
    if (isNew) {
      this.addWidget(this.filesSection);
    }
    sections.expand(sections.widgets.indexOf(this.filesSection));
    if (isNew) {
      // A section that comes would take all the room.
      sections.setRelativeSizes(SIZES);
    }
    void this.files.show(pool);
  }

  override dispose(): void {
    if (!this.isDisposed) {
      clearInterval(this.timer);
      this.watcher.dispose();
      super.dispose();
    }
  }

  protected override onAfterShow(): void {
    void this.watcher.refresh();
    this.timer ??= setInterval(() => this.draw(), TICK);
  }

  protected override onAfterHide(): void {
    clearInterval(this.timer);
    this.timer = undefined;
  }

  private section(label: string, view: PoolsView): void {
    const section = new PanelWithToolbar();
    section.addClass("sky-pools-section");
    section.title.label = label;
    section.addWidget(new Widget({ node: view.node }));
    this.addWidget(section);
  }

  private draw(): void {
    const { pools, problem } = this.watcher;
    const now = Date.now() / 1000;
    this.used.fail(problem);
    this.used.show(pools.filter((pool) => !isLost(pool)), now, pools);
    this.lost.show(pools.filter(isLost), now, pools);
  }
}
