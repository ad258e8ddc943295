// Pages that are opened from a disk may start no Worker. The search of the theme uses one, and gets a hidden frame in its place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html>";
      frame.addEventListener("load", () => {
        const inside = frame.contentWindow;
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        const script = inside.document.createElement("script");
        script.src = new URL(url, document.baseURI);
        script.addEventListener("load", () => {
          const waiting = this.waiting;
          this.waiting = null;
          waiting.forEach((data) => this.postMessage(data));
        });
        script.addEventListener("error", (event) => this.dispatchEvent(new ErrorEvent("error", event)));
        inside.document.head.append(script);
        this.inside = inside;
      }, { once: true });
      document.head.append(frame);
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {}
  };
}
