// Tries a Queue, and prints what has happened as JSON: for each trial a list of events with
// their time in milliseconds. A tick is a clock's, which stands still when the machine does.
//
//   node try.mjs FILE
import { pathToFileURL } from 'node:url';

const { Queue } = await import(pathToFileURL(process.argv[2]));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// pass takes more than ms where the machine is slow.
const pass = async (ms) => {
  for (; ms > 0; ms -= 25) await sleep(25);
};

// trial has workers look at names, each time for as long as takes says, and rest after that; delays
// are those of done, for each name one after the other.
async function trial({ workers = 1, takes = 10, rests = 0, delays = {} }, before, after, lasts) {
  const queue = new Queue();
  const events = [], begun = performance.now();
  const note = (event) => events.push({ at: performance.now() - begun, ...event });
  const add = (...names) => names.forEach((name) => {
    note({ what: 'add', name });
    queue.add(name);
  });
  const clock = setInterval(note, 25, { what: 'tick' });
  before(add);
  for (let worker = 0; worker < workers; worker++) {
    (async () => {
      for (;;) {
        note({ what: 'get', worker });
        const name = await queue.get();
        note({ what: 'look', worker, name });
        await sleep(takes);
        const delay = Object.hasOwn(delays, name) ? delays[name].shift() : undefined;
        note({ what: 'done', worker, name, delay });
        queue.done(name, delay);
        if (rests > 0) await sleep(rests);
      }
    })();
  }
  await pass(100);
  await after(add);
  await pass(lasts);
  clearInterval(clock);
  return events;
}
const nothing = () => {};

const trials = {
  once: trial({}, (add) => add('a', 'constructor', 'a', 'b', 'a', 'a', 'b'), nothing, 400),
  woken: trial({ workers: 6, takes: 600 }, nothing, (add) => add('a', 'b', 'c', 'd', 'e', 'f'), 1100),
  busy: trial({ workers: 2, takes: 600 }, nothing, async (add) => {
    for (let i = 0; i < 4; i++) {
      add('a');
      await sleep(100);
    }
  }, 1500),
  waits: trial({ delays: { a: [1500] } }, (add) => add('a'), async (add) => {
    add('b');
    for (let i = 0; i < 30; i++) {
      add('a');
      await sleep(40);
    }
  }, 1000),
  again: trial({ delays: { a: [200, 600] } }, (add) => add('a'), async (add) => {
    await pass(1300);
    add('a');
  }, 500),
  // The delay of a is over while both workers are busy; then it is added.
  over: trial({ workers: 2, takes: 400, delays: { a: [150] } }, (add) => add('a'), async (add) => {
    add('b', 'c', 'd');
    await sleep(550);
    add('a');
  }, 1250),
  // What is added while a worker has it fails there.
  changed: trial({ takes: 400, delays: { a: [700] } }, (add) => add('a'), (add) => add('a'), 1900),
  several: trial({ delays: { a: [900], b: [300], c: [600] } }, (add) => add('a', 'b', 'c'), nothing, 1400),
  both: trial({ workers: 3, takes: 400, rests: 500 }, nothing, async (add) => {
    add('a');
    await sleep(100);
    add('b');
    await sleep(100);
    add('a', 'b');
  }, 1900),
  many: trial({ workers: 4, takes: 0 }, (add) => add(...Array.from({ length: 400 }, (_, i) => `n${i}`)), nothing, 1500),
};
const events = await Promise.all(Object.values(trials));
const text = JSON.stringify(Object.fromEntries(Object.keys(trials).map((name, i) => [name, events[i]])));
process.stdout.write(text + '\n', () => process.exit());
