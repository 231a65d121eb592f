// The pictures of the question that is being written: chosen, dropped or pasted.

import { byId, make } from "./dom.js";

const chosen = [];

/** The pictures as they are now, which are none from then on. Each has a `name` and a `url` with its bytes. */
export function take() {
  const taken = chosen.splice(0);
  show();
  return taken;
}

/** Lets pictures be chosen by the button, dropped on `area`, and pasted anywhere. `notice` is told what was no picture. */
export function install(area, notice) {
  const files = byId("files");
  byId("add").addEventListener("click", () => files.click());
  files.addEventListener("change", async () => {
    const added = [...files.files];
    files.value = "";
    await add(added, notice);
  });
  document.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length) {
      event.preventDefault();
      add([...event.clipboardData.files], notice);
    }
  });
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    area.classList.add("drop");
  });
  document.addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) area.classList.remove("drop");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    area.classList.remove("drop");
    add([...event.dataTransfer.files], notice);
  });
}

async function add(files, notice) {
  const pictures = files.filter((file) => file.type.startsWith("image/"));
  notice(pictures.length < files.length ? "Only pictures can be added here." : "");
  chosen.push(...(await Promise.all(pictures.map(read))));
  show();
}

/** A file as a data URL, which is how pictures travel. */
function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve({ name: file.name, url: reader.result });
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

function show() {
  byId("pictures").replaceChildren(...chosen.map((picture) => {
    const name = `Remove ${picture.name}`;
    const button = make("button", { type: "button", class: "small", "aria-label": name }, "Remove");
    button.addEventListener("click", () => {
      chosen.splice(chosen.indexOf(picture), 1);
      show();
      byId("question").focus();
    });
    return make("li", {}, make("img", { src: picture.url, alt: picture.name }), button);
  }));
}
