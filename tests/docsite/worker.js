// SPDX-License-Identifier: Apache-2.0
// The search of the site runs in a worker, and a page that was opened as a file may start none. There
// a hidden frame does the same. Zensical's offline plugin would load such a script from the network.
"use strict";
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.onmessage = null;
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data }));
      const script = inside.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = () => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      };
      inside.document.body.appendChild(script);
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else
        setTimeout(() => {
          const inside = this.frame.contentWindow;
          inside?.dispatchEvent(new inside.MessageEvent("message", { data }));
        });
    }
    terminate() {
      this.frame.remove();
    }
  };
}
