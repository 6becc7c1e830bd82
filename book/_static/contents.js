// The list of contents marks the section that is being read: the last one whose heading is above
// the middle of the window. (The theme marks headings that come into sight, and loses its place
// in a long section, or after a jump.)
document.addEventListener("DOMContentLoaded", () => {
  const links = [...document.querySelectorAll("#pst-page-toc-nav a.nav-link")];
  const headings = links.map((link) => document.getElementById(link.hash.slice(1)));
  if (links.length === 0) return;
  const mark = () => {
    const passed = headings.filter((e) => e && e.getBoundingClientRect().top < innerHeight / 2);
    const here = headings.indexOf(passed.at(-1));
    links.forEach((link, i) => {
      link.classList.toggle("active", i === here);
      i === here ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
    });
  };
  let asked = 0;
  const soon = () => { clearTimeout(asked); asked = setTimeout(mark, 50); };  // after the theme
  addEventListener("scroll", soon, { passive: true });
  addEventListener("resize", soon);
  soon();
});
