// The button at the foot of a narrow page that leads back to its start. It shows once one
// has scrolled up some way; the theme's own code for it comes with all of Bootstrap.
addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("pst-back-to-top");
  let last = scrollY, lowest = scrollY;
  addEventListener(
    "scroll",
    () => {
      if (scrollY > last) lowest = scrollY;
      button.style.display = scrollY > 0 && scrollY < lowest - 300 ? "block" : "none";
      last = scrollY;
    },
    { passive: true },
  );
  button.addEventListener("click", () => scrollTo({ top: 0 }));
});
