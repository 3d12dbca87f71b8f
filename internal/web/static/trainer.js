// The trainer's two windows: the slides for the room, and the notes. They move together.
import { $, announce, api, h, setText, tellError } from './dom.js';
import { events, setTerminalSize, terminalShown } from './terminal.js';
import { showLesson } from './lesson.js';
import { cut, kinds } from './slides.js';
import { state } from './state.js';

// The deck is what both windows show: a step's sections, and the slide of now.

const deck = { step: 0, sections: [], slides: [], at: 0, notes: null, trouble: '' };
const channel = new BroadcastChannel('workshop-trainer');
let isTrainer = false;
let render = () => {};
let load = async () => {};

const section = () => deck.slides[deck.at]?.section;
const number = () => deck.sections.indexOf(section());
const part = () => section().slides.indexOf(deck.slides[deck.at]);

async function fill(step, sections) {
  Object.assign(deck, { step, sections, slides: sections.flatMap(({ slides }) => slides), at: 0, notes: null, trouble: '' });
  try {
    deck.notes = await api(`/api/trainer/${step}`);
  } catch (error) {
    deck.trouble = error.message;
  }
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
  clock.turn();
  state.set('trainer-place', place);
  channel.postMessage({ place, clock: clock.now });
  render();
}

async function follow(place) {
  if (place.step !== deck.step) await load(place.step);
  deck.at = find(place);
  render();
}

// The clock has an account for each section, of all steps.

const clock = {
  now: { since: 0, at: '', spent: {} },
  turn() {
    const { now } = clock;
    if (now.since) {
      now.spent[now.at] = (now.spent[now.at] ?? 0) + Date.now() - now.since;
      now.since = Date.now();
    }
    now.at = `${deck.step}/${number()}`;
    state.set('trainer-clock', { ...now, spent: { ...now.spent } });
  },
  press(change) {
    clock.turn();
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

function clockTexts() {
  const all = deck.sections.map((_, i) => i);
  const spent = sum(all.map(clock.spent));
  const here = number();
  const late = spent - sum(all.slice(0, here).map(planned)) - Math.min(planned(here), clock.spent(here));
  const minutes = Math.round(Math.abs(late) / minute);
  return [`${time(clock.spent(here))} of ${planned(here) / minute} min`, `${time(spent)} of ${sum(all.map(planned)) / minute} min`,
    minutes === 0 ? 'On time' : `${minutes} min ${late > 0 ? 'late' : 'in hand'}`, late >= minute];
}

// Keys, as in any slide program.

const keys = {
  Next: ['ArrowRight', ' ', 'PageDown', 'Enter'], Back: ['ArrowLeft', 'PageUp', 'Backspace'], First: ['Home'], Last: ['End'],
  Blank: ['b', '.'], Notes: ['n'], Terminal: ['t'], 'Run the next command': ['r'], 'Full screen': ['f'], 'These keys': ['?'], Leave: ['Escape'],
};
const actions = {
  Next: () => go(deck.at + 1),
  Back: () => go(deck.at - 1),
  First: () => go(0),
  Last: () => go(deck.slides.length - 1),
  Blank: () => {
    const blank = document.body.dataset.blank !== 'true';
    setBlank(blank);
    channel.postMessage({ blank });
  },
  Notes: () => open('/?view=notes', 'workshop-notes'),
  Terminal: () => showTools(document.body.dataset.tools !== 'true'),
  'Run the next command': () => [...section().element.querySelectorAll('.slide:not([hidden]) .run')]
    .find((box) => !['ok', 'running'].includes($('.outcome', box).dataset.state))?.querySelector('.run-button').click(),
  'Full screen': () => (document.fullscreenElement ? document.exitFullscreen() : document.documentElement.requestFullscreen()).catch(tellError),
  'These keys': () => $('#slide-keys').showModal(),
  Leave: () => {
    if (document.body.dataset.blank === 'true') actions.Blank();
    else if (isTrainer) location.href = `/?step=${deck.step}#${section().id}`;
  },
};

function startKeys() {
  const name = (key) => ({ ' ': 'Space', ArrowRight: '→', ArrowLeft: '←' }[key] ?? key);
  document.body.append(h('dialog', { id: 'slide-keys', 'aria-label': 'Keys' }, h('h2', {}, 'Keys'), h('dl', {}, ...Object.entries(keys).flatMap(([action, list]) => [
    h('dt', {}, ...list.map((key) => h('kbd', {}, name(key)))), h('dd', {}, action)])),
  h('p', {}, 'F6 leaves a terminal, where all keys are its own.'), h('form', { method: 'dialog' }, h('button', {}, 'Close'))));
  addEventListener('keydown', (event) => {
    const { target, key } = event;
    if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey) return;
    if (target.closest?.('.screen, .cm-editor, input, textarea, select, dialog, [contenteditable], [role="tablist"], [role="separator"]')) return;
    if (['Enter', ' '].includes(key) && target.closest?.('button, a, summary')) return;
    const action = Object.keys(keys).find((name) => keys[name].includes(key.length === 1 ? key.toLowerCase() : key));
    if (!action || !deck.slides.length) return;
    event.preventDefault();
    actions[action]();
  });
}

function setBlank(blank) {
  document.body.dataset.blank = blank;
}

function bar(...more) {
  const button = (action, label = action) => h('button', { type: 'button', title: keys[action].join(' '), onclick: () => actions[action]() }, label);
  return h('nav', { id: 'slide-bar', 'aria-label': 'Slides' }, button('Back', '‹ Back'), button('Next', 'Next ›'),
    h('select', { id: 'slide-step', 'aria-label': 'Step', onchange: ({ target }) => load(Number(target.value)).then(() => go(0)).catch(tellError) }),
    h('select', { id: 'slide-section', 'aria-label': 'Section', onchange: ({ target }) => go(find({ section: target.selectedIndex })) }),
    h('span', { id: 'slide-number' }), ...more.map((action) => button(action)), button('These keys', 'Keys'));
}

async function listSteps() {
  $('#slide-step').replaceChildren(...(await api('/api/steps')).map(({ step, dir }) => h('option', { value: step }, dir)));
  $('#slide-step').value = deck.step;
}

function renderBar() {
  $('#slide-step').value = deck.step;
  const select = $('#slide-section');
  if (select.deck !== deck.sections) {
    select.deck = deck.sections;
    select.replaceChildren(...deck.sections.map(({ title }) => h('option', {}, title)));
  }
  select.selectedIndex = number();
  const { kind, question, nodes } = deck.slides[deck.at];
  const what = kind === 'ask' && !question && !nodes.some((node) => node.matches?.('.question')) ? 'Text' : kinds[kind];
  setText($('#slide-number'), `${what}, ${part() + 1} of ${section().slides.length}`);
  return what;
}

function listen() {
  clock.now = state.get('trainer-clock', clock.now);
  channel.onmessage = ({ data }) => {
    if (data.clock) clock.now = data.clock;
    if (data.blank !== undefined) setBlank(data.blank);
    if (data.place) follow(data.place).catch(tellError);
    else if (deck.slides.length) render();
  };
}

// The window for the room.

function showTools(visible) {
  document.body.dataset.tools = visible;
  terminalShown();
}

export function startTrainer() {
  isTrainer = true;
  document.body.classList.add('trainer');
  $('#main').append(bar('Blank', 'Terminal', 'Notes'));
  const size = () => setTerminalSize(Math.max(13, Math.round(innerWidth / 64)));
  addEventListener('resize', size);
  $('#lesson').addEventListener('click', ({ target }) => target.closest('a[data-path]') && showTools(true));
  size();
  startKeys();
  listen();
  listSteps().catch(tellError);
  state.on('trainer-trouble', (text) => text && tellError(new Error(text)));
  load = (step) => new Promise((done) => {
    events.addEventListener('teach', done, { once: true });
    showLesson(step).catch(tellError);
  });
  let shown = null;
  render = () => {
    const slide = deck.slides[deck.at];
    for (const one of deck.sections) one.element.hidden = one !== slide.section;
    for (const one of slide.section.slides) one.element.hidden = one !== slide;
    const what = renderBar();
    if (shown === slide) return;
    shown = slide;
    showTools(slide.kind === 'run');
    $('#lesson').scrollTop = 0;
    announce(`${slide.section.title}: ${what}, ${part() + 1} of ${slide.section.slides.length}.`);
  };
  const place = state.get('trainer-place', {});
  let isFirst = true;
  events.addEventListener('lesson', async ({ detail: { step } }) => {
    await fill(step, cut($('#lesson')));
    const asked = new URLSearchParams(location.search).get('view') && !new URLSearchParams(location.search).has('step');
    history.replaceState(null, '', `/?view=trainer&step=${step}`);
    if (isFirst && asked && place.step && place.step !== step) {
      isFirst = false;
      showLesson(place.step, '', false).catch(tellError);
      return;
    }
    isFirst = false;
    go(place.step === step ? find(place) : 0);
    events.dispatchEvent(new CustomEvent('teach'));
  });
}

// The window for the trainer.

export async function startNotes() {
  document.body.classList.add('notes');
  const button = (id, text, onclick) => h('button', { type: 'button', id, onclick }, text);
  const text = (id) => h('p', { id });
  $('#main').replaceChildren(h('article', { id: 'notes', tabIndex: 0, 'aria-label': 'Notes' }),
    h('section', { id: 'clock', 'aria-label': 'Clock' }, h('h2', {}, 'Section'), text('clock-section'), h('h2', {}, 'Step'), text('clock-step'), text('clock-late'),
      button('clock-start', 'Start', () => clock.press({ since: clock.now.since ? 0 : Date.now() })), button('clock-reset', 'Reset', () => clock.press({ since: 0, spent: {} }))),
    h('section', { id: 'room', 'aria-label': 'The room' }, h('h2', {}, 'The room'), h('pre', { id: 'board', tabIndex: 0, 'aria-label': 'The board' })),
  bar('Blank'), h('div', { id: 'all-notes' }));
  startKeys();
  listen();
  listSteps().catch(tellError);
  load = async (step) => {
    const lesson = await api(`/api/lessons/${step}`);
    const article = h('article');
    article.innerHTML = lesson.html;
    await fill(step, cut(article));
    document.title = `Notes: ${lesson.title}`;
    $('#all-notes').replaceChildren(h('h1', {}, lesson.title), ...deck.sections.filter(scriptOf).flatMap((one) => notesOf(one)));
  };
  render = () => {
    const what = renderBar();
    const next = deck.sections[number() + 1];
    $('#notes').dataset.what = what;
    $('#notes').replaceChildren(h('h1', {}, section().title), ...notesOf(section()),
      h('p', { id: 'next-section' }, h('strong', {}, 'Next: '), next?.title ?? 'the end of this step'), about());
    tick();
  };
  const tick = () => {
    const [here, step, late, isLate] = clockTexts();
    setText($('#clock-section'), here);
    setText($('#clock-step'), step);
    setText($('#clock-late'), late);
    $('#clock-late').dataset.late = isLate;
    setText($('#clock-start'), clock.now.since ? 'Pause' : 'Start');
  };
  await load(Number(new URLSearchParams(location.search).get('step')) || state.get('trainer-place', { step: 1 }).step);
  deck.at = find(state.get('trainer-place', {}));
  render();
  setInterval(tick, 1000);
  for (;;) {
    const board = await api('/api/board').catch((error) => ({ text: error.message }));
    setText($('#board'), board.text);
    $('#board').classList.toggle('table', Boolean(board.table));
    await new Promise((done) => setTimeout(done, 2000));
  }
}

const html = (tag, className, text) => {
  const element = h(tag, { className });
  element.innerHTML = text;
  return element;
};

function notesOf(one) {
  const script = scriptOf(one);
  if (!script) return [h('p', { className: 'hint' }, deck.trouble || 'TRAINERS.md has no script for this section.')];
  return [h('h2', {}, h('span', {}, `${one.title} · `), `${script.minutes} minutes`), html('blockquote', 'say', script.say), ...script.questions.map((q) => h('section', { className: 'ask', 'data-when': q.when },
    h('h3', {}, q.when === 'before' ? 'Before' : 'After'), html('div', 'asked', q.ask),
    h('h4', {}, 'Often heard, and wrong'), html('div', 'wrong', q.wrong), h('h4', {}, 'Answer'), html('div', 'answer', q.answer)))];
}

const about = () => h('details', {}, h('summary', {}, 'This step, and its exercises'), html('div', '', deck.notes?.about ?? ''));
