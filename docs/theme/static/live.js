// Live figures of the course: frames with the pages of ../../live, which follow the theme of this page.
//
//   <div class="live" data-title="…"><a href="…/figures.html#/softmax?language=en">…</a></div>     a frame, once it is near
//   <div class="live" data-title="…" data-open="Start …"><a href="…/ja-en.html#/look?…">…</a></div>   a button first
"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => {
    const chosen = document.body.dataset.theme; // auto, light or dark
    return chosen === "light" || chosen === "dark" ? chosen : dark.matches ? "dark" : "light";
  };

  function addFrame(place) {
    const frame = document.createElement("iframe");
    frame.title = place.dataset.title;
    frame.loading = "lazy";
    frame.src = `${place.querySelector("a").href}&theme=${theme()}&embedded`;
    // A frame that was loaded while the theme changed has the old one.
    frame.addEventListener("load", () => frame.contentWindow.postMessage({ theme: theme() }, "*"));
    place.prepend(frame);
  }

  function addButton(place) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = place.dataset.open;
    button.addEventListener("click", () => {
      addFrame(place);
      button.remove();
    });
    place.prepend(button);
  }

  const frames = () => [...document.querySelectorAll(".live iframe")];
  const sendTheme = () => frames().forEach((frame) => frame.contentWindow.postMessage({ theme: theme() }, "*"));

  addEventListener("DOMContentLoaded", () => {
    for (const place of document.querySelectorAll(".live")) (place.dataset.open ? addButton : addFrame)(place);
    new MutationObserver(sendTheme).observe(document.body, { attributeFilter: ["data-theme"] });
    dark.addEventListener("change", sendTheme);
  });

  // The page of the figures tells its height; that of the translator scrolls.
  addEventListener("message", ({ source, data }) => {
    const frame = frames().find((one) => one.contentWindow === source);
    if (frame && Number.isFinite(data?.height)) frame.style.height = `${Math.min(4000, Math.ceil(data.height))}px`;
  });
})();
