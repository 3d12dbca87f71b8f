// What the page remembers on the server, so that a reload, another window, another port and a
// restart lose nothing: settings, where the learner was, what their commands came to.
import { api, stayConnected, tellError } from './dom.js';

const values = new Map();
const listeners = new Map(); // name -> functions
const waiting = new Map(); // name -> the newest value that has still to be sent
const late = new Map(); // name -> what the server has told while a value of this window was under way
const refused = new Set(); // the names whose last value the server has not taken
let sending = null; // the name whose value is under way
let isLeaving = false;
let isKnown = false; // what the server remembers; before that, nothing may take its place

export const state = {
  get: (name, fallback) => values.get(name) ?? fallback,
  // set is seen at once by this window, and soon after that by the server and the others.
  set(name, value) {
    if (!change(name, value) || !isKnown) return;
    waiting.set(name, JSON.stringify(value));
    flush();
  },
  // isRefused says whether the server does not have the last value of a name.
  isRefused: (name) => !isKnown || refused.has(name),
  // on calls a function with each new value of a name.
  on(name, listener) {
    listeners.set(name, [...(listeners.get(name) ?? []), listener]);
  },
};

function change(name, value) {
  if (JSON.stringify(value) === JSON.stringify(values.get(name))) return false;
  values.set(name, value);
  for (const listener of listeners.get(name) ?? []) listener(value);
  return true;
}

// flush sends one value after the other, or an earlier one might come last. When the page is left, there is no time for that.
async function flush() {
  if (isLeaving) {
    for (const [name, body] of waiting) send(name, body);
    waiting.clear();
  }
  if (sending) return;
  for (const [name, body] of waiting) { // also those that come meanwhile
    sending = name;
    waiting.delete(name);
    await send(name, body);
  }
  sending = null;
  const changed = Object.fromEntries(late);
  late.clear();
  take({ changed });
}

// send has the server take a value. One that it does not take can be set once more.
const send = (name, body) => api(`/api/state/${name}`, { method: 'PUT', body, keepalive: new Blob([body]).size < 60_000 }).then(() => refused.delete(name), (error) => {
  if (JSON.stringify(values.get(name)) === body) values.delete(name);
  refused.add(name);
  tellError(error);
});

addEventListener('pagehide', () => {
  isLeaving = true; // also for what other parts of the page set now
  flush();
});
addEventListener('pageshow', () => { isLeaving = false; });

function take({ changed }) {
  for (const [name, value] of Object.entries(changed)) {
    if (sending === name || waiting.has(name)) late.set(name, value);
    else {
      late.delete(name);
      change(name, value);
    }
  }
}

// Everything else begins with what is known. Without a session the page says so, and begins with nothing.
await api('/api/state').then((all) => {
  take(all);
  isKnown = true;
  stayConnected(() => '/api/state/ws', { message: (data) => take(JSON.parse(data)) });
}).catch(tellError);
