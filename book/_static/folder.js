// A page that is opened from a folder may not fetch others, and search would ask for each page it
// found, to quote from it. There it lists the pages alone.
if (location.protocol === "file:") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}
