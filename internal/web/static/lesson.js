// A step's lesson, what its commands came to, and its exercises.
import { $, $$, announce, api, copyButton, h, inAddress, keyed, setText, tell, wrap } from './dom.js';
import { known, showContents, startContents } from './contents.js';
import { doTask, editedSteps, openWork, setExercises } from './editor.js';
import { state } from './state.js';
import { bringTab, view } from './tabs.js';
import { events, send, terminalForCommand } from './terminal.js';
import { lookNow } from './xray-view.js';

let steps = [];
let current = 0;
let asked = 0; // for a lesson; the last answer counts, and not the latest
const transient = new Map(); // command -> what a terminal has said of it and the server does not remember

const keyOf = (m) => `${m.step}/${m.block}/${m.command}`;

export async function startLessons() {
  steps = await api('/api/steps');
  startContents(steps);
  $('#lesson').addEventListener('click', ({ target }) => target.matches('.run-button') && run(target.closest('.run')));
  $('#exercises').addEventListener('click', ({ target }) => target.dataset.action && act(target.dataset.action, target.closest('li')?.task));
  addEventListener('popstate', () => showLesson(stepOfAddress(), location.hash, false));
  for (const type of ['started', 'result', 'busy', 'stale']) {
    events.addEventListener(type, ({ detail }) => {
      if (detail.step === undefined) return;
      if (['busy', 'stale'].includes(type)) announce(words(detail)[1]);
      if (type === 'result') transient.delete(keyOf(detail));
      else transient.set(keyOf(detail), detail);
      for (const box of $$('#lesson .run')) if (keyOf(box.dataset) === keyOf(detail)) showOutcome(box);
    });
  }
  for (const { step } of steps) state.on(`outcomes-${step}`, showOutcomes);
  state.on('fold', refold);
  // A command that ended while the connection was away has told nobody so.
  for (const type of ['prompt', 'exited']) {
    events.addEventListener(type, ({ detail }) => {
      for (const [key, { type, terminal }] of transient) if (type !== 'stale' && terminal === detail.terminal) transient.delete(key);
      showOutcomes();
    });
  }
  for (const type of ['prompt', 'exited', 'opened']) events.addEventListener(type, showExercises);
  const { step, hash } = whereToBegin();
  await showLesson(step, hash, false);
}

// A reload goes on where one was; only whoever follows a link wants its section.
const hashOfAddress = () => (performance.getEntriesByType('navigation')[0]?.type === 'reload' && state.get('at', {})[stepOfAddress()] ? '' : location.hash);

// stepOfAddress is the step that the address names; a trainer's window without one goes on where the trainer was.
const stepOfAddress = () => Number(inAddress('step')) || (view && state.get('trainer-place')?.step) || steps[0].step;

// whereToBegin is what the address says, or else where the learner was.
function whereToBegin() {
  const place = state.get('place');
  const isThere = steps.some(({ step }) => step === place?.step);
  if (location.search || !isThere || (place.step === steps[0].step && !place.id)) return { step: stepOfAddress(), hash: hashOfAddress() };
  tell(`You are back at step ${place.step}${place.title ? `, ${place.title}` : ''}. Contents leads to the rest.`);
  history.replaceState(null, '', `/?step=${place.step}`); // where a link to a section leads
  return { step: place.step, hash: '' };
}

export async function showLesson(step, hash = '', push = true) {
  const article = $('#lesson');
  const mine = ++asked;
  if (step !== current) {
    const lesson = await api(`/api/lessons/${step}`);
    if (mine !== asked) return;
    current = step;
    article.innerHTML = lesson.html;
    article.scrollTop = 0;
    article.setAttribute('aria-busy', false);
    document.title = `${lesson.title} - Programming the Kubernetes API in Go`;
    foldExplanations(article);
    for (const box of $$('.run', article)) prepare(box);
    for (const pre of $$('pre.code, .by-hand pre', article)) wrap(pre, h('div', { className: 'copied' })).append(copyButton(pre.textContent));
    showContents(step);
    const here = $('#steps [aria-current]');
    if (here) $('#steps ol').scrollLeft = here.offsetLeft - 60; // scrollIntoView would have Tab begin there
    article.children[state.get('at', {})[step]]?.scrollIntoView(); // where one was
    announce(`${lesson.title}.`);
    showExercises();
    events.dispatchEvent(new CustomEvent('lesson', { detail: { step } }));
  }
  if (push) history.pushState(null, '', `/?step=${step}${hash}`);
  if (hash) document.getElementById(decodeURIComponent(hash.slice(1)))?.scrollIntoView();
}

// The commands.

function prepare(box) {
  const text = $('code', box).textContent;
  $('.run-button', box).setAttribute('aria-label', `Run ${text.trim().split('\n')[0]}`);
  box.append(copyButton(text));
  const programs = [...text.matchAll(/(?:^|; )start ([a-z-]+)|go run \.\/\d\d-[a-z-]+\/([a-z-]+)(?= |$)/gm)].map((match) => match[1] ?? match[2]);
  if (programs.length) box.append(lookNow(programs));
  showOutcome(box);
}

async function run(box) {
  const { hash, step, block, command } = box.dataset;
  send(await terminalForCommand(), { type: 'run', hash, step: Number(step), block: Number(block), command: Number(command) });
}

// foldExplanations folds what happened, which would give a prediction away, until the commands above it have run.
function foldExplanations(article) {
  if (document.body.classList.contains('trainer')) return; // its slides come one after the other
  let boxes = [];
  for (const element of [...article.children]) {
    if (element.matches('h2, h3')) boxes = [];
    else if (element.matches('.run')) boxes.push(element);
    if (boxes.length === 0 || element.firstElementChild?.textContent !== 'What happened:') continue;
    const details = wrap(element, h('details', { className: 'happened' }, h('summary', {}, 'What happened')));
    for (const box of boxes) box.explanation = { details, boxes };
    boxes = [];
  }
}

function showOutcomes() {
  for (const box of $$('#lesson .run')) showOutcome(box);
  showContents(current);
}

// unfold opens what would give a prediction away as soon as its commands have run, and folds it again when they have not.
// In between it is as the reader has left it.
function unfold(details, boxes) {
  const hasRun = boxes.every((box) => !transient.has(keyOf(box.dataset)) && known(box));
  if (details.hadRun === hasRun) return;
  details.open = hasRun || !state.get('fold', true);
  details.hadRun = hasRun;
}

// refold folds or opens all of it, as the setting says now.
function refold() {
  for (const details of $$('details:is(.output, .happened)')) details.hadRun = undefined;
  showOutcomes();
}

function showOutcome(box) {
  const message = transient.get(keyOf(box.dataset)) ?? known(box);
  const outcome = $('.outcome', box);
  const output = box.nextElementSibling;
  if (output?.matches('details.output')) unfold(output, [box]);
  if (box.explanation) unfold(box.explanation.details, box.explanation.boxes);
  outcome.hidden = !message;
  if (!message) return;
  const [kind, text] = words(message);
  outcome.dataset.state = kind;
  outcome.replaceChildren(h('p', {}, text), ...(message.difference ? [h('pre', {}, message.difference)] : []));
}

const busy = 'The terminal is busy. Wait until its command ends, press Ctrl-C in it, or open a new terminal.';

function words(message) {
  switch (message.type) {
    case 'started': return ['running', 'The command is running in the terminal.'];
    case 'busy': return ['busy', busy];
    case 'stale': return ['busy', 'The lesson has changed since this page was loaded, so nothing was run. Reload the page.'];
  }
  if (message.ok) return ['ok', message.exitCode ? `ok: exit code ${message.exitCode}, as the lesson expects.` : 'ok'];
  return message.difference ? ['differs', `Exit code ${message.exitCode}. The output differs from the lesson:`] : ['differs', `The command failed with exit code ${message.exitCode}.`];
}

// The exercises. Their buttons run the same commands as make.

const actions = {
  exercise: ['Begin', 'copies the task into work/, and leaves what you already have'],
  edit: ['Edit', 'opens your copy beside the lesson'],
  check: ['Check', 'says whether it is right, and names the mistake'],
  hint: ['Hint', 'prints one more hint'],
};

const rowOf = ({ task, name }, step) => h('li', { 'data-task': task }, h('span', { className: 'task' }), h('span', { className: 'buttons' },
  ...Object.entries(actions).map(([action, [label, does]]) => h('button', {
    type: 'button', 'data-action': action, 'aria-label': `${label} ${name}`, title: action === 'edit' ? does : `make ${action} N=${step} TASK=${name} ${does}`,
  }, label))));

async function showExercises() {
  const step = current;
  if (!step) return;
  const others = editedSteps().filter((other) => other !== step);
  const [tasks, ...more] = await Promise.all([api(`/api/exercises/${step}`), ...others.map((other) => api(`/api/exercises/${other}`).catch(() => []))]);
  if (step !== current) return;
  setExercises([...tasks, ...more.flat()]);
  const begun = tasks.find(({ task, files }) => task === wanted && files?.length);
  if (begun) {
    wanted = '';
    act('edit', begun);
  }
  const details = $('#exercises');
  details.hidden = tasks.length === 0;
  setText($('summary', details), `Exercises of this step: ${tasks.filter((task) => task.state === 'passed').length} of ${tasks.length} passed`);
  keyed($('ul', details), tasks, ({ task }) => `${step} ${task}`, (task) => rowOf(task, step), (element, task) => {
    if (JSON.stringify(element.task) === JSON.stringify(task)) return;
    element.task = task;
    element.dataset.state = task.state;
    $('.task', element).replaceChildren(h('strong', {}, `${task.task} ${task.name}`), ` ${task.title ?? ''}, ${task.minutes} minutes. `, h('em', {}, task.state), task.mistake ? `: ${task.mistake}` : '');
    $('[data-action="exercise"]', element).hidden = task.state !== 'not begun';
    $('[data-action="edit"]', element).hidden = !task.files?.length;
  });
}

let wanted = ''; // the task whose copy opens as soon as it is there

async function act(action, task = {}) {
  if (action === 'edit') {
    bringTab('file');
    await openWork(task.files[0]);
    return;
  }
  if (!$('#tools').checkVisibility()) bringTab('terminals'); // what they say, they say there
  tell('');
  await doTask(action, current, task);
  wanted = action === 'exercise' ? task.task : '';
}
