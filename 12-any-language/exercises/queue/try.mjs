// Tries a Queue, and prints what was given out as JSON: for each trial a list of
// [worker, name, when it began, when it ended], in milliseconds.
//
//   node try.mjs FILE
import { pathToFileURL } from 'node:url';

const { Queue } = await import(pathToFileURL(process.argv[2]));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// trial has workers look at names, each time for as long as takes says; delays are those of done, one after the other.
async function trial({ workers = 1, takes = 10, delays = [] }, before, after, lasts) {
  const queue = new Queue();
  const looks = [];
  const begun = performance.now();
  const now = () => Math.round(performance.now() - begun);
  before(queue);
  for (let worker = 0; worker < workers; worker++) {
    (async () => {
      for (;;) {
        const look = [worker, await queue.get(), now(), undefined];
        looks.push(look);
        await sleep(takes);
        look[3] = now();
        queue.done(look[1], delays.shift());
      }
    })();
  }
  await sleep(100);
  await after(queue);
  await sleep(lasts);
  return looks;
}
const nothing = () => {};

const [once, woken, busy, waits, again, over] = await Promise.all([
  trial({}, (q) => 'aaaaab'.split('').forEach((name) => q.add(name)), nothing, 400),
  trial({ workers: 2 }, nothing, (q) => { q.add('a'); q.add('b'); }, 400),
  trial({ workers: 2, takes: 600 }, (q) => q.add('a'), (q) => q.add('a'), 1900),
  trial({ delays: [1500] }, (q) => q.add('a'), async (q) => {
    q.add('b');
    for (let i = 0; i < 5; i++) {
      q.add('a');
      await sleep(100);
    }
  }, 1900),
  trial({ delays: [300] }, (q) => q.add('a'), nothing, 1400),
  // The delay of a is over while both workers are busy; then it is added.
  trial({ workers: 2, takes: 400, delays: [150] }, (q) => q.add('a'), async (q) => {
    ['b', 'c', 'd'].forEach((name) => q.add(name));
    await sleep(550);
    q.add('a');
  }, 1250),
]);
console.log(JSON.stringify({ once, woken, busy, waits, again, over }));
process.exit();
