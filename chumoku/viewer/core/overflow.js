// Boxes that scroll: an edge fades where more is hidden behind it, because many systems hide scroll bars.

/** Let the edges of a box fade; → the box. */
export function fadeEdges(box) {
  const update = () => {
    box.classList.toggle("more-before", box.scrollLeft > 1);
    box.classList.toggle("more-after", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
    box.classList.toggle("more-below", box.scrollTop + box.clientHeight < box.scrollHeight - 1);
  };
  box.classList.add("fades");
  box.addEventListener("scroll", update, { passive: true });
  new ResizeObserver(update).observe(box);
  new MutationObserver(update).observe(box, { childList: true, subtree: true });
  return box;
}

/** Scroll a box sideways until an element is in its middle; the page itself does not move. */
export function scrollToMiddle(box, element) {
  const [outer, inner] = [box.getBoundingClientRect(), element.getBoundingClientRect()];
  box.scrollLeft += inner.left + inner.width / 2 - outer.left - outer.width / 2;
}
