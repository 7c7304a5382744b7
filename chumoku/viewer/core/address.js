// The address of a view: its name, and parameters that other pages give it.
//
//   #/look?tab=heads&text=…       values that the view would otherwise take from the last visit, by their names there
//   language=ja  theme=dark       instead of the saved ones (early.js)
//   embedded                      for a frame in another page: without the header and the footer
//
// The other page can change the theme of a frame later: frame.postMessage({ theme: "dark" }, "*").

/** The name of the view in the address, or "". */
export const addressedView = () => location.hash.replace(/^#\/?/, "").split(/[/?]/)[0];

/** The value of a parameter, or null. */
export const parameter = (name) => new URLSearchParams(location.hash.replace(/^[^?]*/, "")).get(name);

/** Call setTheme(name) when the page around this frame changes its theme. */
export function followTheme(setTheme) {
  if (!("embedded" in document.documentElement.dataset)) return;
  addEventListener("message", ({ source, data }) => {
    if (source === parent && ["dark", "light"].includes(data?.theme)) setTheme(data.theme);
  });
}
