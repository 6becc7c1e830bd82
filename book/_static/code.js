// "Show all code", under a chapter's title: opens what is folded, on every page, until it is
// pressed again.
document.addEventListener("DOMContentLoaded", () => {
  const button = document.querySelector("button.show-code");
  const folded = document.querySelectorAll("details.fold");
  if (!button || folded.length === 0) return;
  const show = (all) => {
    folded.forEach((details) => { details.open = all; });
    button.setAttribute("aria-pressed", all);
  };
  button.addEventListener("click", () => {
    const all = button.getAttribute("aria-pressed") !== "true";
    localStorage.setItem("show-all-code", all);
    show(all);
  });
  button.hidden = false;
  show(localStorage.getItem("show-all-code") === "true");
});
