// A browser starts no worker for a page that is opened from a disk (file:). There the search runs in a hidden frame instead,
// which looks like a worker to both sides: to the page that makes it, and to the script in it.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inner = frame.contentWindow
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inner.importScripts = (...urls) => urls.reduce((before, one) => before.then(() => load(inner, one)), Promise.resolve())
      this.inner = inner
      this.loaded = load(inner, url)
    }
    postMessage(data) {
      this.loaded.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() { this.inner.frameElement.remove() }
    set onmessage(handler) { this.addEventListener("message", handler) }
    set onerror(handler) { this.addEventListener("error", handler) }
  }
  window.Worker = window.IFrameWorker
}

function load(inner, url) {
  return new Promise((done, failed) => {
    const script = inner.document.createElement("script")
    script.src = url
    script.onload = done
    script.onerror = failed
    inner.document.body.append(script)
  })
}
