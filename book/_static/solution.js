// Wide code can be scrolled by the keyboard: the theme sees to it, whenever the window changes its
// size. That a solution was opened, it does not see.
document.addEventListener("toggle", () => dispatchEvent(new Event("resize")), true);
