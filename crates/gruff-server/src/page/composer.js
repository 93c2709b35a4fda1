// The box one writes in, with its attachments.

import { byId, el, icon, iconButton } from "./dom.js";
import { readFiles, size } from "./files.js";

export class Composer {
  files = [];

  /** `send` gets text and files; `editLast` is asked for in an empty box; `fault` tells what cannot be attached. */
  constructor({ send, stop, editLast, fault }) {
    this.box = byId("composer");
    this.fault = fault;
    this.running = false;
    byId("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit(send);
    });
    byId("stop").addEventListener("click", stop);
    this.box.addEventListener("input", () => this.#changed());
    this.box.addEventListener("keydown", (event) => {
      // While a word is being composed, Enter belongs to the input method.
      if (event.isComposing) return;
      if (event.key === "Enter" && !event.shiftKey && !event.altKey) {
        event.preventDefault();
        this.#submit(send);
      } else if (event.key === "ArrowUp" && this.box.value === "" && !this.running) {
        event.preventDefault();
        editLast();
      }
    });
    byId("attach").addEventListener("click", () => byId("file-input").click());
    byId("file-input").addEventListener("change", async ({ target }) => {
      await this.add(target.files);
      target.value = "";
    });
    this.box.addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length || event.clipboardData.types.includes("text/plain")) return;
      event.preventDefault();
      this.add(event.clipboardData.files);
    });
    this.#drops();
    this.#changed();
  }

  async add(list) {
    const { files, faults } = await readFiles(list);
    this.files.push(...files);
    this.#showFiles();
    this.fault(faults.join(" "));
    this.box.focus();
  }

  set text(text) {
    this.box.value = text;
    this.#changed();
  }

  setRunning(running) {
    this.running = running;
    byId("send").hidden = running;
    byId("stop").hidden = !running;
  }

  focus() {
    // On a phone the keyboard would come up.
    if (!matchMedia("(hover: none)").matches) this.box.focus();
  }

  #submit(send) {
    const text = this.box.value.trim();
    if (this.running || (!text && !this.files.length)) return;
    const files = this.files;
    this.files = [];
    this.text = "";
    this.#showFiles();
    send(text, files);
  }

  #changed() {
    this.box.style.height = "auto";
    this.box.style.height = `${this.box.scrollHeight}px`;
    byId("send").disabled = !this.box.value.trim() && !this.files.length;
  }

  #showFiles() {
    const items = this.files.map((file) =>
      el("li", {}, icon("file"), el("span", {}, file.name), el("small", { className: "quiet" }, size(file.text)),
        iconButton("close", `Leave ${file.name} out`, () => {
          this.files = this.files.filter((other) => other !== file);
          this.#showFiles();
          this.box.focus();
        })));
    byId("files").replaceChildren(...items);
    byId("files").hidden = items.length === 0;
    this.#changed();
  }

  #drops() {
    const [place, carries] = [byId("drop"), (event) => event.dataTransfer?.types.includes("Files")];
    addEventListener("dragover", (event) => {
      if (!carries(event)) return;
      event.preventDefault();
      place.hidden = false;
    });
    addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) place.hidden = true;
    });
    addEventListener("drop", (event) => {
      if (!carries(event)) return;
      event.preventDefault();
      place.hidden = true;
      this.add(event.dataTransfer.files);
    });
  }
}
