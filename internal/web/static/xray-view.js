// The X-ray on the screen: programs, watches, requests, faults, the inside of a controller, tours.
import { $, $$, api, button, h, keyed, post, setText, tell } from './dom.js';
import { state as remembered } from './state.js';
import { bringTab, onlyXray } from './tabs.js';
import { terminalForCommand } from './terminal.js';
import { connect, isWatch, leaveFile, programKey, recording } from './xray.js';

const way = 4000; // milliseconds that a dot is on its way
const colours = { ADDED: '#1a7f37', MODIFIED: '#0969da', DELETED: '#cf222e', BOOKMARK: '#59636e', ERROR: '#8250df', FAULT: '#8250df' };
const still = matchMedia('(prefers-reduced-motion: reduce)');

const root = $('#xray');
let isDirty = true;
let chosenProgram = '';
let chosenKey = '';
let lastDrawn = 0;

const number = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;
const clock = (t) => (t ? new Date(t - new Date(t).getTimezoneOffset() * 60000).toISOString().slice(11, 23) : '');
const objectOf = (r) => (r.resource ? `${r.namespace ? `${r.namespace}/` : ''}${r.resource}${r.name ? `/${r.name}` : ''}` : r.path ?? '');

export function startXray() {
  // A part that can be folded stays as it was left, here or in a window of its own.
  for (const part of $$('details', root)) {
    const name = `fold-${part.id.slice('xray-'.length)}${onlyXray ? '-own' : ''}`;
    part.open = remembered.get(name, onlyXray);
    part.addEventListener('toggle', () => remembered.set(name, part.open));
  }
  $('#xray-stop').addEventListener('click', () => act(() => recording.seek(recording.items.length)));
  $('#xray-play').addEventListener('click', () => act(() => recording.play()));
  $('#xray-live').addEventListener('click', goLive);
  $('#xray-position').addEventListener('input', ({ target }) => act(() => recording.seek(Number(target.value))));
  $('#xray-save').addEventListener('click', save);
  $('#xray-open').addEventListener('change', ({ target }) => openFile(target.files[0]).finally(() => { target.value = ''; })); // or the same file could not be opened again
  for (const one of $$('[data-fault]', root)) one.addEventListener('click', () => breakIt(one.dataset.fault));
  connect((text) => {
    isDirty = true;
    if (text !== undefined && root.checkVisibility()) tell(text, text !== '');
  });
  startTours();
  requestAnimationFrame(frame);
}

// chooseProgram shows the newest process of a program alone, or all programs if it is not named or not there.
function chooseProgram(name) {
  const known = [...recording.shown.programs.values()].filter(({ key }) => key.replace(/ \d+$/, '') === name).sort((a, b) => b.last - a.last);
  act(() => { chosenProgram = known[0]?.key ?? ''; });
  if (name && !known.length) tell(`${name} has sent no request yet. Run it, and it appears here.`);
}

// lookNow opens the X-ray of the programs that a command starts; of one, that program's alone.
export const lookNow = (programs) => button('Look now: X-ray', () => {
  bringTab('xray');
  chooseProgram(programs.length === 1 ? programs[0] : '');
}, { className: 'look', title: `The X-ray of ${programs.join(', ')}` });

function act(change) {
  change();
  isDirty = true;
}

async function goLive() {
  if (recording.isFile) await leaveFile();
  act(() => recording.goLive());
}

async function save() {
  const saved = new Blob([JSON.stringify(await api('/api/xray/recording'))], { type: 'application/json' });
  const href = URL.createObjectURL(saved);
  h('a', { href, download: `xray-${new Date().toISOString().slice(0, 19).replaceAll(':', '')}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

async function openFile(file) {
  const saved = JSON.parse(await file.text());
  if (saved.version !== 1 || !Array.isArray(saved.items)) throw new Error('This file is not a recording of the X-ray. Open one that Save has written.');
  act(() => recording.open(saved.items));
  tell(`${file.name} is open: ${saved.items.length} items. Live leaves it.`);
}

// What a learner does.

async function breakIt(name) {
  const query = new URLSearchParams({ program: $('#xray-fault-program').value, resource: $('#xray-fault-resource').value });
  await post(`/api/xray/faults/${name}?${query}`); // what it did comes as an item
}

// terminalOfPage is where a tour runs that the X-ray in its own window begins.
async function terminalOfPage() {
  const [last, all] = [remembered.get('terminal'), remembered.get('terminals', [])];
  return all.includes(last) ? last : all[0] ?? (await post('/api/terminals')).id;
}

async function startTours() {
  const tours = await api('/api/xray/tours/tours.json');
  const begin = async (tour) => {
    $('#xray-look').replaceChildren(h('h3', {}, tour.title), h('ol', {}, ...tour.look.map((sentence) => h('li', {}, sentence))));
    await post(`/api/tours/${tour.name}?terminal=${onlyXray ? await terminalOfPage() : await terminalForCommand()}`);
  };
  $('#xray-tours .buttons').append(...tours.map((tour) => button(tour.title, () => begin(tour), { 'data-tour': tour.name, title: `internal/xray/tours/${tour.name}.sh` })));
}

// Frames. Dots move in each frame; the rest is written at most ten times a second.

function frame(at) {
  requestAnimationFrame(frame);
  if (document.hidden || !root.checkVisibility()) return;
  if (recording.advance() || recording.mode === 'playing') isDirty = true;
  const pause = at - lastDrawn;
  if ((isDirty && pause > 100) || (recording.mode === 'live' && pause > 1000)) { // rates fall when nothing comes
    isDirty = false;
    lastDrawn = at;
    draw(recording.shown);
  }
  drawLanes(recording.shown);
}

// isCounting says whether more items pass than can be shown.
const isCounting = (state) => state.counting && state.rates.at(-1)[0] > recording.now() - 1000;
const isChosen = (item) => !chosenProgram || programKey(item) === chosenProgram;

function draw(state) {
  drawTime(state);
  drawPrograms(state);
  keyed($('#xray-fault-log'), state.buttons.slice(-5).reverse(), (b) => `${b.t} ${b.what}`, (b) => h('li', {}, `${clock(b.t).slice(0, 8)} ${b.what}`));
  drawWatches(state);
  drawInside(state);
  drawKey(state);
  drawRequests(state);
}

function drawTime(state) {
  const words = { live: 'Live', stopped: 'Stopped', playing: 'Playing back' };
  setText($('#xray-mode'), recording.isFile ? `File, ${words[recording.mode].toLowerCase()}` : words[recording.mode]);
  const sum = { begun: 0, event: 0 };
  const since = recording.now() - 1000;
  for (const [t, counts] of state.rates) if (t > since) for (const name of Object.keys(sum)) sum[name] += counts[name] ?? 0;
  setText($('#xray-rates'), [
    recording.isFile ? '' : `${number(sum.begun, 'request')}/s, ${number(sum.event, 'event')}/s`, // a file holds no counts
    state.missed ? `${state.missed} items not shown one by one` : '', recording.mode === 'live' ? '' : clock(state.now),
  ].filter(Boolean).join(', '));
  root.dataset.mode = recording.mode;
  root.dataset.counting = isCounting(state);
  const position = $('#xray-position');
  position.max = recording.items.length;
  if (document.activeElement !== position || recording.mode !== 'stopped') position.value = recording.mode === 'live' ? recording.items.length : recording.position;
}

// choice is a button that chooses what is shown, with a place for what else there is to say.
const choice = (name, props, choose) => h('button', { type: 'button', onclick: () => act(choose), ...props }, h('strong', {}, name), h('span'));

function drawPrograms(state) {
  const watches = new Map();
  for (const request of state.open.values()) if (isWatch(request)) watches.set(programKey(request), (watches.get(programKey(request)) ?? 0) + 1);
  const all = [...state.programs.values()].sort((a, b) => b.last - a.last);
  const first = (p) => (watches.has(p.key) || p.key === chosenProgram ? 0 : 1);
  const programs = all.toSorted((a, b) => first(a) - first(b)).slice(0, 6).sort((a, b) => (a.key < b.key ? -1 : 1));
  keyed($('.programs', root), programs, (p) => p.key, (p) => h('li', {}, choice(p.key, {}, () => { chosenProgram = chosenProgram === p.key ? '' : p.key; })), (element, p) => {
    element.firstChild.setAttribute('aria-pressed', p.key === chosenProgram);
    setText($('span', element), ` ${number(p.requests, 'request')}, ${p.failed} failed, ${number(watches.get(p.key) ?? 0, 'watch', 'watches')}${p.reports ? ', reports its inside' : ''}`);
  });
  options($('#xray-fault-program'), all.slice(0, 20).map((p) => p.key.replace(/ \d+$/, '')));
  options($('#xray-fault-resource'), state.requests.map((r) => r.resource).filter(Boolean));
}

// options keeps what is chosen, or the browser would choose all of them when it is not named any more.
function options(select, names) {
  keyed(select, [...new Set(['', select.value, ...names])].sort(), (name) => name, (name) => h('option', { value: name }, name || 'all'));
}

function drawWatches(state) {
  const watches = [...state.open.values()].filter((r) => isWatch(r) && isChosen(r)).sort((a, b) => a.id - b.id);
  keyed($('.lanes', root), watches.slice(0, 40), (w) => w.id, (w) => h('li', { 'data-watch': w.id }, h('span', { className: 'name' }), h('canvas', { ariaHidden: true }), h('span', { className: 'count' })), (element, w) => {
    setText($('.name', element), `${programKey(w)}: ${objectOf(w)}`);
    setText($('.count', element), `${number(w.events, 'event')}${w.last && !isCounting(state) ? `, last ${w.last}` : ''}`);
    element.dataset.events = w.events;
  });
  setText($('#xray-watches .more'), watches.length > 40 ? `${watches.length - 40} more watches are open.` : '');
}

function drawLanes(state) {
  const now = recording.now();
  for (const [id, element] of $('.lanes', root).keyedElements ?? []) {
    const watch = state.open.get(id);
    const canvas = $('canvas', element);
    const dots = isCounting(state) ? [] : (watch?.dots ?? []).filter((dot) => still.matches || (dot.t <= now && dot.t > now - way));
    if (dots.length === 0 && !canvas.isDrawn) continue;
    drawLane(canvas, still.matches ? dots.slice(-12) : dots, now);
    canvas.isDrawn = dots.length > 0;
    element.dataset.dots = dots.length;
  }
}

function drawLane(canvas, dots, now) {
  const scale = devicePixelRatio;
  const { clientWidth: width, clientHeight: height } = canvas;
  if (canvas.width !== Math.round(width * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext('2d');
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = 'bold 10px system-ui, sans-serif';
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  dots.forEach((dot, i) => {
    const x = still.matches ? width - 10 - 18 * (dots.length - 1 - i) : 8 + (width - 16) * ((now - dot.t) / way);
    context.fillStyle = dot.fault ? colours.FAULT : colours[dot.type] ?? colours.BOOKMARK;
    context.beginPath();
    context.arc(x, height / 2, 8, 0, 2 * Math.PI);
    context.fill();
    context.fillStyle = '#ffffff';
    context.fillText(dot.fault ? '!' : dot.type?.[0] ?? '?', x, height / 2 + 0.5);
  });
}

// The inside of the programs that report.

const columns = [['event', 'Events'], ['queued', 'Queue'], ['working', 'Workers'], ['backing off', 'Backing off'], ['done', 'Done']];

function drawInside(state) {
  const programs = [...state.programs.values()].filter((p) => p.reports && (!chosenProgram || p.key === chosenProgram));
  keyed($('.inside', root), programs, (p) => p.key, insideOf, updateInside);
}

const insideOf = (p) => h('article', { 'data-program': p.key, 'aria-label': `Inside ${p.key}` }, h('h3', {}, p.key),
  h('p', { className: 'queue' }), h('div', { className: 'flow' }, ...columns.map(([state, title]) => h('div', { 'data-column': state }, h('h4', {}, title), h('ul')))),
  h('table', { className: 'caches' }, h('thead', {}, h('tr', {}, ...['Cache', 'Objects', 'resourceVersion', 'Behind'].map((name) => h('th', { scope: 'col' }, name)))), h('tbody')));

function updateInside(element, p) {
  const q = p.queue ?? { waiting: 0, working: 0, backingOff: 0 };
  setText($('.queue', element), `Queue: ${q.waiting} waiting, ${q.working} in work, ${q.backingOff} backing off. ${number(p.workers, 'worker')}.${p.missed ? ` The program was too fast to report ${p.missed} steps.` : ''}`);
  const now = recording.now();
  for (const [name] of columns) {
    // An event about an object that has no key of its own in the queue goes no further.
    const keys = [...p.keys.values()].filter((key) => key.state === name && (name !== 'event' || now - key.since < 5000)).reverse();
    const list = $(`[data-column="${name}"] ul`, element);
    keyed(list, keys.slice(0, 8), (key) => key.key, (key) => h('li', {}, choice(key.key, { 'data-key': key.key }, () => { chosenKey = `${p.key}\n${key.key}`; })), (chip, key) => {
      chip.firstChild.setAttribute('aria-pressed', chosenKey === `${p.key}\n${key.key}`);
      const wait = key.until > now ? ` for ${((key.until - now) / 1000).toFixed(1)} s` : '';
      setText($('span', chip), name === 'backing off' ? wait : name === 'done' ? '' : ` ${key.what}`);
    });
    list.dataset.more = keys.length > 8 ? `${keys.length - 8} more` : '';
  }
  keyed($('.caches tbody', element), p.caches ?? [], (cache) => `${p.caches.indexOf(cache)} ${cache.resource}`, () => h('tr', {}, h('td'), h('td'), h('td'), h('td')), (row, cache) => {
    [cache.resource, cache.objects, cache.resourceVersion, cache.behind ? number(cache.behind, 'event') : 'up to date'].forEach((text, i) => setText(row.children[i], String(text)));
    row.dataset.behind = cache.behind ?? 0;
  });
}

function drawKey(state) {
  const [programName, name] = chosenKey.split('\n');
  const trail = withRequests(state.programs.get(programName)?.keys.get(name)?.trail ?? [], state, programName, name);
  setText($('.chosen', root), chosenKey ? `${name} in ${programName}` : '');
  keyed($('.trail', root), trail, (item) => (item.id ? `${item.id} ${item.what}` : item), (item) => h('li', { 'data-step-kind': item.step }, h('time', {}, clock(item.t)), h('strong', {}, ` ${item.step}`), `${item.what ? ` ${item.what}` : ''}${item.reason ? `, because ${item.reason}` : ''}`), (element, item) => {
    const before = trail[trail.indexOf(item) - 1];
    element.dataset.after = before ? `+${item.t - before.t} ms` : '';
  });
}

// withRequests adds what passed on the wire for the key's object meanwhile.
function withRequests(trail, state, programName, key) {
  if (!trail.length) return trail;
  const wire = state.requests.filter((r) => r.name && key === (r.namespace ? `${r.namespace}/${r.name}` : r.name) && programKey(r) === programName && !isWatch(r) && r.began >= trail[0].t);
  return [...trail, ...wire.map((r) => ({ t: r.began, id: r.id, step: 'request', what: `${r.verb} ${r.resource}, ${r.ended ? `answer ${r.code}` : r.lost ? 'end not seen' : 'open'}` }))].sort((a, b) => a.t - b.t);
}

function drawRequests(state) {
  const rows = state.requests.filter(isChosen).slice(-100).reverse();
  keyed($('#xray-requests tbody'), rows, (r) => r.id, (r) => h('tr', {}, h('td', {}, clock(r.began)), h('td', {}, programKey(r)), h('td', {}, r.verb), h('td', {}, objectOf(r)), h('td'), h('td'), h('td')), (row, r) => {
    setText(row.children[4], r.ended ? String(r.code || 'broken') : r.lost ? 'not seen' : 'open');
    setText(row.children[5], r.ended ? r.took.toFixed(1) : '');
    setText(row.children[6], r.faults.join(', '));
    row.dataset.failed = r.code >= 400 || (r.ended > 0 && !r.code) || r.faults.length > 0;
  });
}
