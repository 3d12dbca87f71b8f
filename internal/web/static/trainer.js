// The trainer's two windows: the slides for the room, and the notes. They move together.
import { $, $$, announce, api, h, inAddress, keyed, setText, tell, wait } from './dom.js';
import { events, setTerminalOptions } from './terminal.js';
import { showLesson } from './lesson.js';
import { cut, kinds } from './slides.js';
import { state } from './state.js';

// The deck is what both windows show: a step's sections, and the slide of now.

const deck = { step: 0, sections: [], slides: [], at: 0, notes: null, trouble: '' };
const channel = new BroadcastChannel('workshop-trainer');
const places = {}; // step -> where one was last
let render = () => {};
let load = async () => {};

const section = () => deck.slides[deck.at]?.section;
const number = () => deck.sections.indexOf(section());
const part = () => section().slides.indexOf(deck.slides[deck.at]);

async function fill(step, sections) {
  Object.assign(deck, { step, sections, slides: sections.flatMap(({ slides }) => slides), at: 0, notes: null, trouble: '' });
  let trouble = '';
  const notes = await api(`/api/trainer/${step}`).catch((error) => { trouble = error.message; });
  if (deck.step === step) Object.assign(deck, { notes, trouble }); // or another step was chosen meanwhile
}

const scriptOf = (one) => deck.notes?.scripts.find(({ title }) => title === one?.title);
const find = (place) => {
  const slides = deck.sections[place.section ?? 0]?.slides ?? [];
  return Math.max(0, deck.slides.indexOf(slides[Math.min(place.part ?? 0, slides.length - 1)]));
};

// go shows a slide here, and in the other windows.
function go(at) {
  deck.at = Math.max(0, Math.min(deck.slides.length - 1, at));
  const place = { step: deck.step, section: number(), part: part(), title: section().title, id: section().id };
  places[deck.step] = place;
  clock.turn();
  state.set('trainer-place', place);
  channel.postMessage({ place, clock: clock.now });
  render();
}

// reveal goes to the slide, or the section, that holds what a link leads to, if there is one.
function reveal(hash) {
  const target = hash && document.getElementById(decodeURIComponent(hash.slice(1)));
  const holds = ({ element }) => element.contains(target);
  const slide = target && (deck.slides.find(holds) ?? deck.sections.find(holds)?.slides[0]);
  if (!slide) return false;
  go(deck.slides.indexOf(slide));
  return true;
}

async function follow(place) {
  places[place.step] = place;
  if (place.step !== deck.step) await load(place.step);
  deck.at = find(place);
  render();
}

// The clock has an account for each section, of all steps.

const clock = {
  now: { since: 0, at: '', spent: {} },
  count() {
    const { now } = clock;
    if (!now.since) return;
    now.spent[now.at] = (now.spent[now.at] ?? 0) + Date.now() - now.since;
    now.since = Date.now();
  },
  turn() {
    const { now } = clock;
    clock.count();
    now.at = `${deck.step}/${number()}`;
    state.set('trainer-clock', { ...now, spent: { ...now.spent } });
  },
  press(change) {
    clock.count();
    Object.assign(clock.now, change);
    clock.turn();
    channel.postMessage({ clock: clock.now });
    render();
  },
  // spent returns the milliseconds of a section.
  spent(i) {
    const { spent, since, at } = clock.now;
    const key = `${deck.step}/${i}`;
    return (spent[key] ?? 0) + (since && at === key ? Date.now() - since : 0);
  },
};

const minute = 60_000;
const planned = (i) => (scriptOf(deck.sections[i])?.minutes ?? 0) * minute;
const sum = (list) => list.reduce((a, b) => a + b, 0);
const time = (ms) => `${Math.floor(ms / minute)}:${String(Math.floor(ms / 1000) % 60).padStart(2, '0')}`;

function tick() {
  const all = deck.sections.map((_, i) => i);
  const spent = sum(all.map(clock.spent));
  const here = number();
  const late = spent - sum(all.slice(0, here).map(planned)) - Math.min(planned(here), clock.spent(here));
  const minutes = Math.round(Math.abs(late) / minute);
  setText($('#clock-section'), `${time(clock.spent(here))} of ${planned(here) / minute} min`);
  setText($('#clock-step'), `${time(spent)} of ${sum(all.map(planned)) / minute} min`);
  setText($('#clock-late'), minutes === 0 ? 'On time' : `${minutes} min ${late > 0 ? 'late' : 'in hand'}`);
  $('#clock-late').dataset.late = late >= minute;
  setText($('#clock-start'), clock.now.since ? 'Pause' : 'Start');
}

// Keys, as in any slide program.

const actions = {
  Next: [['ArrowRight', ' ', 'PageDown', 'Enter'], () => go(deck.at + 1)],
  Back: [['ArrowLeft', 'PageUp', 'Backspace'], () => go(deck.at - 1)],
  First: [['Home'], () => go(0)],
  Last: [['End'], () => go(deck.slides.length - 1)],
  Blank: [['b', '.'], () => {
    const blank = !isBlank();
    setBlank(blank);
    channel.postMessage({ blank });
  }],
  Notes: [['n'], () => open('/?view=notes', 'workshop-notes')],
  Terminal: [['t'], () => showTools(document.body.dataset.tools !== 'true')],
  'Run the next command': [['r'], () => {
    const next = $$('.slide:not([hidden]) .run', section().element)
      .find((box) => $('.outcome', box).hidden || $('.outcome', box).dataset.state === 'busy');
    if (next) $('.run-button', next).click();
    else tell('No command of this slide is left to run. X forgets what has run in this step.');
  }],
  'Forget what has run': [['x'], () => state.set(`outcomes-${deck.step}`, null)],
  'Full screen': [['f'], () => (document.fullscreenElement ? document.exitFullscreen() : document.documentElement.requestFullscreen())],
  'These keys': [['?'], () => $('#slide-keys').showModal()],
  Leave: [['Escape'], () => {
    if (isBlank()) act('Blank');
    else if (document.body.classList.contains('trainer')) location.href = `/?step=${deck.step}#${section().id}`;
  }],
};
const act = (name) => actions[name][1]();
// once has one window of several do something, where the browser can tell.
const once = (f) => (navigator.locks ? navigator.locks.request('workshop-act', { ifAvailable: true }, async (lock) => {
  if (!lock) return;
  f();
  await wait(300);
}) : f());
const isBlank = () => document.body.dataset.blank === 'true';
const setBlank = (blank) => { document.body.dataset.blank = blank; };

// startWindow does what both windows need: the bar, the keys, and the other window.
async function startWindow() {
  clock.now = structuredClone(state.get('trainer-clock', clock.now)); // what is remembered changes by state.set alone
  channel.onmessage = ({ data }) => {
    if (data.clock) clock.now = data.clock;
    if (data.blank !== undefined) setBlank(data.blank);
    if (data.act && deck.slides.length && document.body.classList.contains('trainer')) {
      if (data.act === 'Terminal') act(data.act);
      else once(() => act(data.act));
    }
    if (data.place) follow(data.place);
    else if (deck.slides.length) render();
  };
  const name = (key) => ({ ' ': 'Space', ArrowRight: '→', ArrowLeft: '←' }[key] ?? key);
  $('#slide-keys dl').append(...Object.entries(actions).flatMap(([action, [keys]]) => [
    h('dt', {}, ...keys.map((key) => h('kbd', {}, name(key)))), h('dd', {}, action)]));
  addEventListener('keydown', (event) => {
    const { target, key } = event;
    if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey) return;
    if (target.closest?.('.screen, .cm-editor, input, textarea, select, dialog, [contenteditable], [role="tablist"], [role="separator"]')) return;
    if (['Enter', ' '].includes(key) && target.closest?.('button, a, summary')) return;
    const action = Object.keys(actions).find((one) => actions[one][0].includes(key.length === 1 ? key.toLowerCase() : key));
    if (!action || !deck.slides.length) return;
    event.preventDefault();
    act(action);
  });
  $('#slide-bar').hidden = false;
  for (const button of $$('#slide-bar button')) {
    button.title = actions[button.dataset.do][0].join(' ');
    button.addEventListener('click', () => act(button.dataset.do));
  }
  $('#slide-section').addEventListener('change', ({ target }) => go(find({ section: target.selectedIndex })));
  $('#slide-step').addEventListener('change', async ({ target }) => {
    delete places[target.value]; // its first slide
    await load(Number(target.value));
    go(0);
  });
  $('#slide-step').append(...(await api('/api/steps')).map(({ step, dir }) => h('option', { value: step, selected: step === deck.step }, dir)));
}

function renderBar() {
  $('#slide-step').value = deck.step;
  keyed($('#slide-section'), deck.sections, (one) => one, ({ title }) => h('option', {}, title));
  $('#slide-section').selectedIndex = number();
  const { kind, question, nodes } = deck.slides[deck.at];
  const what = kind === 'ask' && !question && !nodes.some((node) => node.matches?.('.question')) ? 'Text' : kinds[kind];
  setText($('#slide-number'), `${what}, ${part() + 1} of ${section().slides.length}`);
  return what;
}

// The window for the room.

function showTools(visible) {
  document.body.dataset.tools = visible;
}

export function startTrainer() {
  document.body.classList.add('trainer');
  const size = () => setTerminalOptions({ pixels: Math.max(13, Math.round(innerWidth / 64)) });
  addEventListener('resize', size);
  $('#lesson').addEventListener('click', (event) => {
    const link = event.target.closest('a');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (link.dataset.path) showTools(true);
    else if (Number(link.dataset.step ?? deck.step) === deck.step && reveal(link.hash)) {
      event.preventDefault(); // the address stays that of the slides
      event.stopPropagation();
    }
  });
  size();
  startWindow();
  const warn = (text) => {
    if (text || $('#status').textContent.startsWith('Nobody can follow')) tell(text ?? '', Boolean(text));
  };
  state.on('trainer-trouble', warn);
  warn(state.get('trainer-trouble'));
  let filled;
  load = async (step) => {
    await showLesson(step);
    await filled;
  };
  let shown = null;
  render = () => {
    const slide = deck.slides[deck.at];
    for (const one of deck.sections) one.element.hidden = one !== slide.section;
    for (const one of slide.section.slides) one.element.hidden = one !== slide;
    const what = renderBar();
    if (shown === slide) return;
    shown = slide;
    if ($('#status').textContent.startsWith('No command of this slide')) tell('');
    showTools(slide.kind === 'run');
    $('#lesson').scrollTop = 0;
    announce(`${slide.section.title}: ${what}, ${part() + 1} of ${slide.section.slides.length}.`);
  };
  const begin = async (step) => {
    await fill(step, cut($('#lesson')));
    const { hash } = location;
    history.replaceState(null, '', `/?view=trainer&step=${step}`);
    const place = places[step] ?? state.get('trainer-place');
    if (!reveal(hash)) go(place?.step === step ? find(place) : 0);
  };
  events.addEventListener('lesson', ({ detail: { step } }) => { filled = begin(step); });
}

// The window for the trainer.

export async function startNotes() {
  document.body.classList.add('notes');
  for (const name of ['Terminal', 'Run the next command']) actions[name][1] = () => channel.postMessage({ act: name });
  $('#main').replaceChildren($('#notes-view').content, $('#slide-bar'));
  $('#clock-start').addEventListener('click', () => clock.press({ since: clock.now.since ? 0 : Date.now() }));
  $('#clock-reset').addEventListener('click', () => clock.press({ since: 0, spent: {} }));
  startWindow();
  load = async (step) => {
    const lesson = await api(`/api/lessons/${step}`);
    await fill(step, cut(h('article', { innerHTML: lesson.html })));
    document.title = `Notes: ${lesson.title}`;
    $('#all-notes').replaceChildren(h('h1', {}, lesson.title), ...deck.sections.filter(scriptOf).flatMap(notesOf));
  };
  render = () => {
    $('#notes').dataset.what = renderBar();
    $('#notes').replaceChildren(h('h1', {}, section().title), ...notesOf(section()),
      h('p', { id: 'next-section' }, h('strong', {}, 'Next: '), deck.sections[number() + 1]?.title ?? 'the end of this step'),
      h('details', {}, h('summary', {}, 'This step, and its exercises'), h('div', { innerHTML: deck.notes?.about ?? '' })));
    tick();
  };
  await load(Number(inAddress('step')) || state.get('trainer-place', { step: 1 }).step);
  deck.at = find(state.get('trainer-place', {}));
  render();
  setInterval(tick, 1000);
  for (;;) {
    const board = await api('/api/board').catch((error) => ({ text: error.message }));
    setText($('#board'), board.text);
    $('#board').classList.toggle('table', Boolean(board.table));
    await wait(2000);
  }
}

const html = (tag, className, innerHTML) => h(tag, { className, innerHTML });

function notesOf(one) {
  const script = scriptOf(one);
  if (!script) return [h('p', { className: 'hint' }, deck.trouble || 'TRAINERS.md has no script for this section.')];
  return [h('h2', {}, h('span', {}, `${one.title} · `), `${script.minutes} minutes`), html('blockquote', 'say', script.say), ...script.questions.map((q) => h('section', { className: 'ask', 'data-when': q.when },
    h('h3', {}, q.when === 'before' ? 'Before' : 'After'), html('div', 'asked', q.ask),
    h('h4', {}, 'Often heard, and wrong'), html('div', 'wrong', q.wrong), h('h4', {}, 'Answer'), html('div', 'answer', q.answer)))];
}
