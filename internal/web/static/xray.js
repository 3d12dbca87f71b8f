// What the X-ray knows: the last items that passed, the state that follows from them, and time,
// which can be stopped, stepped and played back.
import { api, stayConnected } from './dom.js';

const kept = 10000;
const spare = 1000; // so many more are kept, and then forgotten at once

// State is what follows from a sequence of items. It is plain data, so that it can be copied.
const newState = () => ({ programs: new Map(), open: new Map(), requests: [], buttons: [], now: 0, rates: [], missed: 0, counting: false });

export const programKey = (item) => `${item.program ?? ''} ${item.pid ?? ''}`.trim();

function programOf(state, item) {
  const key = programKey(item) || 'unknown';
  let program = state.programs.get(key);
  if (!program) {
    program = { key, requests: 0, failed: 0, reports: false, missed: 0, caches: [], queue: null, workers: 0, keys: new Map() };
    state.programs.set(key, program);
    limit(state.programs, 100);
  }
  program.last = Math.max(program.last ?? 0, item.t);
  return program;
}

function limit(map, size) {
  for (const key of map.keys()) {
    if (map.size <= size) return;
    map.delete(key);
  }
}

export const isWatch = (request) => request.verb.startsWith('watch');

function begin(state, item) {
  const request = { ...item, began: item.t, ended: 0, code: 0, took: 0, events: 0, faults: [], dots: [], last: '' };
  state.open.set(item.id, request);
  state.requests.push(request);
  if (state.requests.length > 400) state.requests.splice(0, 100);
  programOf(state, item).requests++;
  return request;
}

function apply(state, item) {
  state.now = Math.max(state.now, item.t); // a program reports a little later what it has done
  const program = item.kind === 'counts' || item.kind === 'button' ? null : programOf(state, item);
  switch (item.kind) {
    case 'counts':
      state.counting = item.missed > 0;
      state.missed += item.missed;
      state.rates.push([item.t, item.counts]);
      while (state.rates[0][0] < item.t - 1000) state.rates.shift();
      if (item.open) followOpen(state, item);
      break;
    case 'begun':
      if (!state.open.has(item.id)) begin(state, item);
      break;
    case 'event': {
      const watch = state.open.get(item.id);
      if (!watch) break;
      watch.events++;
      watch.dots.push({ t: item.t, type: item.type, fault: item.fault });
      if (item.object) watch.last = `${item.type} ${item.object}`;
      if (watch.dots.length > 150) watch.dots.splice(0, 50);
      break;
    }
    case 'fault': {
      const request = state.open.get(item.id) ?? state.requests.findLast(({ id }) => id === item.id);
      if (!request) break;
      request.faults.push(item.fault);
      request.dots.push({ t: item.t, type: 'FAULT', fault: item.fault });
      request.last = [item.fault, item.type, item.object].filter(Boolean).join(' ');
      break;
    }
    case 'ended': {
      const request = state.open.get(item.id) ?? begin(state, item);
      Object.assign(request, { ended: item.t, code: item.code ?? 0, took: item.took ?? 0 });
      if (item.fault && !request.faults.includes(item.fault)) request.faults.push(item.fault);
      if (request.code >= 400) program.failed++;
      state.open.delete(item.id);
      break;
    }
    case 'program':
      program.reports = item.what !== 'ended';
      program.missed += item.missed ?? 0;
      break;
    case 'button':
      state.buttons.push({ t: item.t, what: item.what });
      if (state.buttons.length > 20) state.buttons.shift();
      break;
    case 'state':
      program.reports = true;
      for (const field of ['caches', 'queue', 'workers']) if (item[field] !== undefined) program[field] = item[field];
      break;
    case 'step':
      program.reports = true;
      follow(program, item);
  }
}

// While more items pass than can be shown, the server names only what is under way.
function followOpen(state, item) {
  const named = new Set();
  for (const request of item.open) {
    named.add(request.id);
    const known = state.open.get(request.id) ?? begin(state, request);
    known.events = Math.max(known.events, request.events ?? 0);
  }
  for (const [id, request] of state.open) {
    if (named.has(id)) continue;
    request.lost = true; // its end is among what was missed
    state.open.delete(id);
  }
}

// follow moves a key on its way from the event through the queue to the write.
function follow(program, item) {
  const key = program.keys.get(item.key) ?? { key: item.key, trail: [] };
  program.keys.delete(item.key); // and last again, so that the oldest is forgotten first
  program.keys.set(item.key, key);
  limit(program.keys, 200);
  key.trail.push(item);
  if (key.trail.length > 200) key.trail.splice(0, 50);
  const isDone = item.step === 'phase' && item.what === 'done';
  key.state = isDone ? 'done' : { phase: 'working', write: 'working' }[item.step] ?? item.step;
  key.what = item.what ?? '';
  key.until = item.until ?? 0;
  key.since = item.t;
}

// Recording holds the last items and the state at any of them.
class Recording {
  items = [];
  base = newState(); // the state before the first item that is kept
  live = newState();
  shown = this.live;
  mode = 'live';
  position = 0; // so many items are in the shown state, unless it is live
  end = 0; // where playing back ends
  isFile = false;

  add(item) {
    this.items.push(item);
    apply(this.live, item);
    if (this.items.length <= kept + spare) return;
    for (const old of this.items.splice(0, spare)) apply(this.base, old);
    this.position = Math.max(0, this.position - spare);
    this.end = Math.max(0, this.end - spare);
  }

  open(items) {
    Object.assign(this, new Recording(), { isFile: true });
    for (const item of items.slice(-kept)) this.add(item);
    this.seek(this.items.length);
  }

  seek(position) {
    this.mode = 'stopped';
    this.position = Math.min(this.items.length, Math.max(0, position));
    this.shown = structuredClone(this.base);
    for (let i = 0; i < this.position; i++) apply(this.shown, this.items[i]);
  }

  play() {
    if (this.mode === 'live' || this.position >= this.items.length) this.seek(0);
    this.mode = 'playing';
    this.end = this.items.length; // more may come meanwhile
    this.startedAt = performance.now();
    this.startedFrom = this.items[this.position]?.t ?? 0;
  }

  goLive() {
    this.mode = 'live';
    this.shown = this.live;
  }

  // advance plays what is due by now. A pause of over a second is cut to one second.
  advance() {
    if (this.mode !== 'playing') return false;
    const due = this.startedFrom + performance.now() - this.startedAt;
    const before = this.position;
    while (this.position < this.end && this.items[this.position].t <= due) apply(this.shown, this.items[this.position++]);
    if (this.position >= this.end) this.mode = 'stopped';
    else if (this.items[this.position].t > due + 1000) this.startedFrom += this.items[this.position].t - due - 1000;
    return this.position !== before;
  }

  // now is the time of what is shown.
  now() {
    if (this.mode === 'live') return Date.now() + ahead;
    if (this.mode === 'playing') return this.startedFrom + performance.now() - this.startedAt;
    return this.shown.now;
  }
}

let ahead = 0; // milliseconds that the server's clock is ahead of the browser's

export const recording = new Recording();

// leaveFile goes back from an opened file to what happens, beginning with what the server remembers.
export async function leaveFile() {
  const { items } = await api('/api/xray/recording');
  Object.assign(recording, new Recording());
  for (const item of items ?? []) recording.add(item);
}

// connect feeds the recording for as long as the page is open.
export async function connect(changed) {
  await leaveFile().catch(() => {}); // then the socket says what is wrong
  stayConnected(() => '/api/xray/ws', {
    opened() {
      counted = null;
      changed('');
    },
    message(data) {
      receive(JSON.parse(data));
      changed();
    },
    broken: () => changed('The X-ray is not connected. The page tries again.'),
  });
}

let counted = null; // the counts of the batch before

function receive(batch) {
  ahead = batch.now - Date.now();
  const counts = {};
  for (const [kind, n] of Object.entries(batch.counts)) counts[kind] = counted ? n - (counted[kind] ?? 0) : 0;
  counted = batch.counts;
  if (recording.isFile) return;
  for (const item of batch.items ?? []) recording.add(item);
  recording.add({ kind: 'counts', t: batch.now, counts, missed: batch.missed, open: batch.open });
}
