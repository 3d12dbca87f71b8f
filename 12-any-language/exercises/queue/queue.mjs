// A queue of names for controllers, as that of client-go.
export class Queue {
  #wanted = new Set(); // somebody has to look at these
  #held = new Set(); // somebody does, or failed and has to wait
  #ready = []; // those that are wanted and not held
  #wake = []; // calls of get that wait

  // add says that somebody has to look at a name.
  add(name) {
    this.#wanted.add(name);
    this.#offer(name);
  }

  // get returns the next name, as soon as there is one.
  async get() {
    while (this.#ready.length === 0) await new Promise((resolve) => this.#wake.push(resolve));
    const name = this.#ready.shift();
    this.#wanted.delete(name);
    this.#held.add(name);
    return name;
  }

  // done says that a look has ended. If it has failed, delay says how many milliseconds later
  // somebody has to look again.
  done(name, delay) {
    if (delay === undefined) return this.#release(name);
    this.#wanted.add(name);
    setTimeout(() => this.#release(name), delay);
  }

  #release(name) {
    this.#held.delete(name);
    if (this.#wanted.has(name)) this.#offer(name);
  }

  #offer(name) {
    if (this.#held.has(name) || this.#ready.includes(name)) return;
    this.#ready.push(name);
    this.#wake.shift()?.();
  }
}
