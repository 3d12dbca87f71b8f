// A step's lesson, what its commands came to, and its exercises.
import { $, announce, api, copyButton, h, keyed, post, setText, tell, tellError } from './dom.js';
import { lookNow, showContents, startContents } from './contents.js';
import { editedSteps, openWork, setExercises } from './editor.js';
import { state } from './state.js';
import { events, send, terminalForCommand } from './terminal.js';

let steps = [];
let current = 0;
let asked = 0; // for a lesson; the last answer counts, and not the latest
const transient = new Map(); // command -> what a terminal has said of it and the server does not remember

const keyOf = (m) => `${m.step}/${m.block}/${m.command}`;

export async function startLessons(showTab) {
  steps = await api('/api/steps');
  startContents(steps, showTab);
  show = showTab;
  $('#lesson').addEventListener('click', (event) => {
    const button = event.target.closest('.run-button');
    if (button) run(button.closest('.run')).catch(tellError);
  });
  addEventListener('popstate', () => showLesson(stepOfAddress(), location.hash, false).catch(tellError));
  for (const type of ['started', 'result', 'busy', 'stale']) {
    events.addEventListener(type, ({ detail }) => {
      if (detail.step === undefined) {
        if (type === 'busy') tell(busy, true);
        return;
      }
      if (type === 'result') transient.delete(keyOf(detail));
      else transient.set(keyOf(detail), detail);
      for (const box of $('#lesson').querySelectorAll('.run')) if (keyOf(box.dataset) === keyOf(detail)) showOutcome(box);
    });
  }
  for (const { step } of steps) state.on(`outcomes-${step}`, () => showOutcomes(step));
  // A command that ended while the connection was away has told nobody so.
  events.addEventListener('prompt', ({ detail }) => {
    for (const [key, { type, terminal }] of transient) if (type === 'started' && terminal === detail.terminal) transient.delete(key);
    showOutcomes(current);
  });
  for (const type of ['prompt', 'opened']) events.addEventListener(type, () => showExercises().catch(tellError));
  events.addEventListener('exited', () => {
    transient.clear();
    showOutcomes(current);
  });
  const { step, hash } = whereToBegin();
  await showLesson(step, hash, false);
}

// A reload goes on where one was; only whoever follows a link wants its section.
const hashOfAddress = () => (performance.getEntriesByType('navigation')[0]?.type === 'reload' && state.get('at', {})[stepOfAddress()] ? '' : location.hash);

const stepOfAddress = () => Number(new URLSearchParams(location.search).get('step')) || steps[0].step;

// whereToBegin is what the address says, or else where the learner was.
function whereToBegin() {
  const place = state.get('place');
  const known = steps.some(({ step }) => step === place?.step);
  if (location.search || !known || (place.step === steps[0].step && !place.id)) return { step: stepOfAddress(), hash: hashOfAddress() };
  tell(`You are back at step ${place.step}${place.title ? `, ${place.title}` : ''}. Contents leads to the rest.`);
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
    for (const box of article.querySelectorAll('.run')) prepare(box);
    for (const pre of article.querySelectorAll('pre.code, .by-hand pre')) withCopy(pre);
    showContents(step);
    $('#steps [aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
    $('#lesson').children[state.get('at', {})[step]]?.scrollIntoView(); // where one was
    announce(`${lesson.title}.`);
    showExercises().catch(tellError);
    events.dispatchEvent(new CustomEvent('lesson', { detail: { step } }));
  }
  if (push) history.pushState(null, '', `/?step=${step}${hash}`);
  if (hash) document.getElementById(decodeURIComponent(hash.slice(1)))?.scrollIntoView();
}

// The commands.

// withCopy puts a button for copying on a block of code.
function withCopy(pre) {
  const frame = h('div', { className: 'copied' });
  pre.replaceWith(frame);
  frame.append(pre, copyButton(pre.textContent));
}

function prepare(box) {
  const text = $('code', box).textContent;
  $('.run-button', box).setAttribute('aria-label', `Run ${text.trim().split('\n')[0]}`);
  box.append(copyButton(text));
  const programs = [...text.matchAll(/(?:^|; )start ([a-z-]+)|go run \.\/\d\d-[a-z-]+\/([a-z-]+)(?= |$)/gm)].map((match) => match[1] ?? match[2]);
  if (programs.length) box.append(lookNow(programs));
  showOutcome(box);
}

// outputOf is the folded output below a command.
const outputOf = (box) => (box.nextElementSibling?.matches('details.output') ? box.nextElementSibling : null);

async function run(box) {
  const message = { type: 'run', hash: box.dataset.hash };
  for (const name of ['step', 'block', 'command']) message[name] = Number(box.dataset[name]);
  const terminal = await terminalForCommand();
  send(terminal, message);
}

// foldExplanations folds what happened, which would give a prediction away, until the commands above it have run.
function foldExplanations(article) {
  if (document.body.classList.contains('trainer')) return; // its slides come one after the other
  let boxes = [];
  for (const element of [...article.children]) {
    if (/^H[23]$/.test(element.tagName)) boxes = [];
    else if (element.matches('.run')) boxes.push(element);
    if (boxes.length === 0 || element.firstElementChild?.textContent !== 'What happened:') continue;
    const details = h('details', { className: 'happened' }, h('summary', {}, 'What happened'));
    element.replaceWith(details);
    details.append(element);
    for (const box of boxes) box.explanation = { details, boxes };
    boxes = [];
  }
}

function showOutcomes(step) {
  if (step === current) for (const box of $('#lesson').querySelectorAll('.run')) showOutcome(box);
  showContents(current);
}

// outcomeOf is what is known of a command as it is written now.
function outcomeOf(box) {
  const message = transient.get(keyOf(box.dataset));
  if (message) return message;
  const known = state.get(`outcomes-${box.dataset.step}`, {})[`${box.dataset.block}/${box.dataset.command}`];
  return known?.hash === box.dataset.hash ? known : null;
}

// unfold opens what would give a prediction away as soon as its commands have run, and folds it again when they have not.
// In between it is as the reader has left it.
function unfold(details, boxes) {
  const hasRun = boxes.every((box) => { const known = outcomeOf(box); return known && !known.type; });
  if (details.hadRun === hasRun) return;
  details.open = hasRun || !state.get('fold', true);
  details.hadRun = hasRun;
}

// refold folds or opens all of it, as the setting says now.
export function refold() {
  for (const details of document.querySelectorAll('details:is(.output, .happened)')) details.hadRun = undefined;
  for (const box of document.querySelectorAll('.run')) showOutcome(box);
}

function showOutcome(box) {
  const message = outcomeOf(box);
  const outcome = $('.outcome', box);
  const output = outputOf(box);
  if (output) unfold(output, [box]);
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

async function showExercises() {
  const step = current;
  if (!step) return;
  const [tasks, ...others] = await Promise.all([step, ...editedSteps().filter((other) => other !== step)].map(async (n) => (await api(`/api/exercises/${n}`).catch((error) => {
    if (n === step) throw error;
  })) ?? []));
  if (step !== current) return;
  setExercises([...tasks, ...others.flat()]);
  if (wanted && tasks.some(({ task, files }) => task === wanted && files?.length)) {
    const { files } = tasks.find(({ task }) => task === wanted);
    wanted = '';
    show('file');
    openWork(files[0]).catch(tellError);
  }
  const details = $('#exercises');
  details.hidden = tasks.length === 0;
  const done = tasks.filter((task) => task.state === 'passed').length;
  setText($('summary', details), `Exercises of this step: ${done} of ${tasks.length} passed`);
  const button = (action, label, title, onclick, props = {}) => h('button', { type: 'button', 'data-action': action, title, onclick, ...props }, label);
  keyed($('ul', details), [...tasks, { task: '' }], ({ task }) => `${step} ${task}`, (task) => (task.task
    ? h('li', { 'data-task': task.task }, h('span', { className: 'task' }), h('span', { className: 'buttons' }, ...Object.entries(actions).map(([action, [label, does]]) => button(action, label,
      action === 'edit' ? does : `make ${action} N=${step} TASK=${task.name} ${does}`, () => act(step, action, task.task).catch(tellError), { 'aria-label': `${label} ${task.name}` }))))
    : h('li', {}, button('progress', 'Progress in all steps', 'make progress shows what is done in all steps', () => act(step, 'progress', '').catch(tellError)))), (element, task) => {
    if (!task.task) return;
    const text = JSON.stringify(task);
    if (element.shown === text) return;
    Object.assign(element, { shown: text, files: task.files });
    element.dataset.state = task.state;
    $('.task', element).replaceChildren(h('strong', {}, `${task.task} ${task.name}`), ` ${task.title ?? ''}, ${task.minutes} minutes. `, h('em', {}, task.state), task.mistake ? `: ${task.mistake}` : '');
    $('[data-action="exercise"]', element).hidden = task.state !== 'not begun';
    $('[data-action="edit"]', element).hidden = !task.files?.length;
  });
}

let wanted = ''; // the task whose copy opens as soon as it is there
let show = () => {};

async function act(step, action, task) {
  if (action === 'edit') {
    show('file');
    await openWork($(`#exercises [data-task="${task}"]`).files[0]);
    return;
  }
  const terminal = await terminalForCommand();
  if (!$('#tools').checkVisibility()) show('terminals'); // what they say, they say there
  tell('');
  await post(`/api/exercises/${step}/${action}?task=${encodeURIComponent(task)}&terminal=${terminal}`);
  wanted = action === 'exercise' ? task : '';
}
