// The button at the foot of a narrow page that leads back to its start. It shows while
// one scrolls up; the theme's own code for it comes with all of Bootstrap.
addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("pst-back-to-top");
  let last = scrollY;
  addEventListener(
    "scroll",
    () => {
      button.style.display = scrollY < last && scrollY > 0 ? "block" : "none";
      last = scrollY;
    },
    { passive: true },
  );
  button.addEventListener("click", () => scrollTo({ top: 0 }));
});
