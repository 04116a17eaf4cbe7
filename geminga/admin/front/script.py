"""The script of the pages: it asks for the page again and puts what has changed into the one that is shown.

Served as a file of its own, since the pages forbid scripts within them. Elements keep their identity: by
`data-key` or `id`, else by their order. So the reader's scroll position, focus and typed text stay. Nothing
is asked while the page is hidden or paused, or text of it is selected.
"""

from typing import Final

PATH: Final = "/geminga/page.js"
EVERY_S: Final = 5

SCRIPT: Final = """\
"use strict";
(() => {
  const EVERY_MS = %d;
  const root = document.documentElement;
  const main = document.querySelector("main");
  const told = document.getElementById("told");
  const button = document.createElement("button");
  let paused = false, timer = 0, asking = false, lastAnswer = new Date();

  const keyOf = (node) => node.id || (node.dataset && node.dataset.key) || "";

  function morph(old, wanted) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== wanted.data) old.data = wanted.data;
      return;
    }
    for (const { name } of [...old.attributes])
      if (name !== "open" && !wanted.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of wanted.attributes)
      if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
    const keyed = new Map();
    for (const child of old.children) if (keyOf(child)) keyed.set(keyOf(child), child);
    let at = old.firstChild;
    for (const child of [...wanted.childNodes]) {
      const key = keyOf(child);
      let kept = key ? keyed.get(key) : at && !keyOf(at) ? at : null;
      if (kept && kept.nodeName !== child.nodeName) kept = null;
      if (!kept) {
        old.insertBefore(document.importNode(child, true), at);
        continue;
      }
      if (kept === at) at = at.nextSibling;
      else old.insertBefore(kept, at);
      morph(kept, child);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  function show(wanted) {
    const focused = document.activeElement;
    const above = [...main.children].reverse().find((part) => part.getBoundingClientRect().top <= 0);
    const top = above ? above.getBoundingClientRect().top : 0;
    morph(main, wanted);
    if (above && above.isConnected) scrollBy(0, above.getBoundingClientRect().top - top);
    if (focused !== document.activeElement)
      (focused.isConnected ? focused : main).focus({ preventScroll: true });
  }

  function isInUse() {
    const selection = getSelection();
    return document.hidden || (selection.type === "Range" && selection.containsNode(main, true));
  }

  async function update() {
    if (asking || paused) return;
    clearTimeout(timer);
    if (!isInUse()) {
      asking = true;
      try {
        const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(60000) });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const wanted = page.querySelector("main");
        if (!wanted) throw new Error(`status ${answer.status}`);
        if (page.documentElement.dataset.version !== root.dataset.version) return location.reload();
        lastAnswer = new Date();
        told.textContent = "";
        if (!paused && !isInUse()) show(wanted);
      } catch (error) {
        told.textContent = `The broker has not answered since ${lastAnswer.toLocaleTimeString()}: ` +
          "the figures below are old.";
      } finally {
        asking = false;
      }
    }
    if (!paused) timer = setTimeout(update, EVERY_MS);
  }

  button.type = "button";
  button.textContent = "Pause";
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Go on" : "Pause";
    clearTimeout(timer);
    if (!paused) update();
  });
  document.getElementById("refresh").replaceChildren(`Renewed every ${EVERY_MS / 1000} s `, button);
  document.addEventListener("visibilitychange", update);
  timer = setTimeout(update, EVERY_MS);
})();
""" % (EVERY_S * 1000)  # noqa: UP031
