/** Whether a person can see a node of the page: it is scrolled into sight, and the page is not hidden. */

export class VisibilityObserver {
  private inside = false;
  private seen = false;
  private observer: IntersectionObserver | undefined;
  private readonly onVisibility = () => this.judge();

  /** `turn` is called whenever it changes. */
  constructor(
    private readonly node: Element,
    private readonly turn: (seen: boolean) => void,
  ) {}

  /** The node is on the page. */
  begin(): void {
    if (this.observer) {
      return;
    }
    this.observer = new IntersectionObserver((entries) => {
      this.inside = entries[entries.length - 1].isIntersecting;
      this.judge();
    });
    this.observer.observe(this.node);
    document.addEventListener("visibilitychange", this.onVisibility);
  }

  /** It is not any more. */
  end(): void {
    this.observer?.disconnect();
    this.observer = undefined;
    document.removeEventListener("visibilitychange", this.onVisibility);
    this.inside = false;
    this.judge();
  }

  private judge(): void {
    const seen = this.inside && document.visibilityState !== "hidden";
    if (seen !== this.seen) {
      this.seen = seen;
      this.turn(seen);
    }
  }
}
