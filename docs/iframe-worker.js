// Search in pages that are opened from the disk, where browsers start no worker: its script runs in a hidden frame.
// Zensical looks for a script of this name, and would load one from a network if there were none.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.body.appendChild(document.createElement("iframe"));
      this.frame.hidden = true;
      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => setTimeout(() => this.onmessage?.({ data: structuredClone(data) }));
      const script = inner.document.createElement("script");
      this.loaded = new Promise((done) => script.addEventListener("load", done));
      script.src = url;
      inner.document.body.append(script);
    }
    postMessage(message) {
      const data = structuredClone(message); // as a worker has it: what it changes stays its own
      this.loaded.then(() => this.frame.contentWindow?.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
