// Terms of the glossary explain themselves, under the mouse and on focus; Escape closes what is open.
document.addEventListener("DOMContentLoaded", () => {
  const links = document.querySelectorAll('article a[href*="glossary.html#"][title]');
  if (links.length === 0) return;
  const tip = document.createElement("div");
  tip.id = "definition";
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  document.body.append(tip);

  let shown = null;  // the link that is explained
  let leaving = 0;
  const hide = () => {
    clearTimeout(leaving);
    shown?.removeAttribute("aria-describedby");
    shown = null;
    tip.hidden = true;
  };
  const leave = () => { leaving = setTimeout(hide, 150); };  // the mouse may be on its way to the box
  const show = (link) => {
    hide();
    shown = link;
    link.setAttribute("aria-describedby", tip.id);
    tip.textContent = link.dataset.definition;
    tip.hidden = false;
    const at = link.getBoundingClientRect();
    const left = Math.min(at.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const below = at.bottom + 6;
    const top = below + tip.offsetHeight > innerHeight ? at.top - tip.offsetHeight - 6 : below;
    tip.style.left = `${Math.max(8, left) + scrollX}px`;
    tip.style.top = `${top + scrollY}px`;
  };
  links.forEach((link) => {
    link.dataset.definition = link.title;
    link.removeAttribute("title");  // else the browser would show its own, later
    link.addEventListener("mouseenter", () => show(link));
    link.addEventListener("focus", () => show(link));
    link.addEventListener("mouseleave", leave);
    link.addEventListener("blur", hide);
  });
  tip.addEventListener("mouseenter", () => clearTimeout(leaving));
  tip.addEventListener("mouseleave", leave);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
});
