// Figures to play with: where a page has some, Vega is loaded from this site, and each gets its
// controls. Without a script, what is seen first stays.
document.addEventListener("DOMContentLoaded", () => {
  const figures = document.querySelectorAll("div.playable");
  if (figures.length === 0) return;

  // Which row says what these choices mean.
  const says = (spec, view) => {
    const at = spec.params.reduce((sum, { name }) => {  // in their order, which objects lose
      const options = spec.usermeta.controls[name];
      return sum * options.length + options.indexOf(view.signal(name));
    }, 0);
    return spec.data.values.find((row) => row.at === at && row.says).says;
  };

  const play = async (figure) => {
    const spec = JSON.parse(figure.querySelector("script").textContent);
    const place = document.createElement("div");
    const spoken = document.createElement("p");
    spoken.className = "spoken";
    spoken.setAttribute("aria-live", "polite");
    const first = figure.querySelector("img");
    figure.append(place, spoken);
    spec.width = "container";
    spec.autosize = { type: "fit-x", contains: "padding" };
    const { view } = await vegaEmbed(place, spec, { actions: false, renderer: "svg" }).catch((error) => {
      place.remove();  // what is seen first stays
      throw error;
    });
    first.remove();
    for (const name of Object.keys(spec.usermeta.controls)) {
      view.addSignalListener(name, () => { spoken.textContent = says(spec, view); });
    }
    figure.view = view;
    figure.dataset.ready = "true";
  };

  const vega = document.createElement("script");
  vega.src = "vega/vega.js";
  vega.addEventListener("load", () => figures.forEach(play));
  document.head.append(vega);
});
