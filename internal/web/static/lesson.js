// The steps, a step's lesson, what its commands came to, and its exercises.
import { $, announce, api, h, post, tell, tellError } from './dom.js';
import { events, send, terminalForCommand } from './terminal.js';

let steps = [];
let current = 0;

// Outcomes by step/block/command. They survive a reload, as the terminals do.
const outcomes = new Map(readOutcomes());

function readOutcomes() {
  try {
    return JSON.parse(sessionStorage.getItem('workshop.outcomes')) ?? [];
  } catch {
    return [];
  }
}

const keyOf = (m) => `${m.step}/${m.block}/${m.command}`;

export async function startLessons() {
  steps = await api('/api/steps');
  const list = h('ol');
  for (const s of steps) {
    list.append(h('li', {}, h('a', { href: `/?step=${s.step}`, 'data-step': s.step, title: s.title }, s.dir)));
  }
  $('#steps').replaceChildren(list);
  $('#lesson').addEventListener('click', (event) => {
    const button = event.target.closest('.run-button');
    if (button) run(button.closest('.run')).catch(tellError);
  });
  addEventListener('popstate', () => showLesson(stepOfAddress(), location.hash, false).catch(tellError));
  for (const type of ['started', 'result', 'busy', 'stale', 'lost']) {
    events.addEventListener(type, (event) => setOutcome(event.detail));
  }
  events.addEventListener('prompt', () => showExercises().catch(tellError));
  events.addEventListener('exited', forgetRunning);
  forgetRunning();
  await showLesson(stepOfAddress(), location.hash, false);
}

const stepOfAddress = () => Number(new URLSearchParams(location.search).get('step')) || steps[0].step;

export async function showLesson(step, hash = '', push = true) {
  const article = $('#lesson');
  if (step !== current) {
    const lesson = await api(`/api/lessons/${step}`);
    current = step;
    article.innerHTML = lesson.html;
    article.scrollTop = 0;
    article.setAttribute('aria-busy', false);
    document.title = `${lesson.title} - Programming the Kubernetes API in Go`;
    for (const link of $('#steps').querySelectorAll('a')) {
      if (Number(link.dataset.step) === step) link.setAttribute('aria-current', 'page');
      else link.removeAttribute('aria-current');
    }
    for (const box of article.querySelectorAll('.run')) prepare(box);
    announce(`${lesson.title}.`);
    showExercises().catch(tellError);
  }
  if (push) history.pushState(null, '', `/?step=${step}${hash}`);
  if (hash) document.getElementById(decodeURIComponent(hash.slice(1)))?.scrollIntoView();
}

// The commands.

function prepare(box) {
  const command = $('code', box)?.textContent.trim().split('\n')[0] ?? '';
  $('.run-button', box)?.setAttribute('aria-label', `Run ${command}`);
  const outcome = $('.outcome', box);
  outcome.setAttribute('role', 'status');
  const known = outcomes.get(keyOf(box.dataset));
  if (known) show(outcome, known);
}

async function run(box) {
  const message = { type: 'run', hash: box.dataset.hash };
  for (const name of ['step', 'block', 'command']) message[name] = Number(box.dataset[name]);
  const terminal = await terminalForCommand();
  send(terminal, message);
}

function setOutcome(message) {
  if (message.step === undefined) {
    if (message.type === 'busy') tell(busy, true);
    return;
  }
  outcomes.set(keyOf(message), message);
  try {
    sessionStorage.setItem('workshop.outcomes', JSON.stringify([...outcomes]));
  } catch { /* then a reload forgets them */ }
  const box = document.querySelector(`.run[data-step="${message.step}"][data-block="${message.block}"][data-command="${message.command}"]`);
  if (box) show($('.outcome', box), message);
}

function forgetRunning() {
  for (const message of outcomes.values()) {
    if (message.type === 'started') setOutcome({ ...message, type: 'lost' });
  }
}

function show(outcome, message) {
  const [state, text] = words(message);
  outcome.hidden = false;
  outcome.dataset.state = state;
  outcome.replaceChildren(h('p', {}, text));
  if (message.difference) outcome.append(h('pre', {}, message.difference));
}

const busy = 'The terminal is busy. Wait until its command ends, press Ctrl-C in it, or open a new terminal.';

function words(message) {
  switch (message.type) {
    case 'started': return ['running', 'The command is running in the terminal.'];
    case 'busy': return ['busy', busy];
    case 'stale': return ['busy', 'The lesson has changed since this page was loaded, so nothing was run. Reload the page.'];
    case 'lost': return ['busy', 'The page was away when this command ended. Look at the terminal.'];
  }
  if (message.ok) return ['ok', message.exitCode ? `ok: exit code ${message.exitCode}, as the lesson expects.` : 'ok'];
  if (message.difference) return ['differs', `Exit code ${message.exitCode}. The output differs from the lesson:`];
  return ['differs', `The command failed with exit code ${message.exitCode}.`];
}

// The exercises. Their buttons run the same commands as make.

const actions = {
  exercise: ['Begin', 'copies the task into work/, and leaves what you already have'],
  check: ['Check', 'says whether it is right, and names the mistake'],
  hint: ['Hint', 'prints one more hint'],
};

async function showExercises() {
  const step = current;
  if (!step) return;
  const tasks = (await api(`/api/exercises/${step}`)) ?? [];
  if (step !== current) return;
  const details = $('#exercises');
  details.hidden = tasks.length === 0;
  const done = tasks.filter((task) => task.state === 'passed').length;
  $('summary', details).textContent = `Exercises of this step: ${done} of ${tasks.length} passed`;
  const held = document.activeElement?.id;
  $('ul', details).replaceChildren(...tasks.map((task) => h('li', { 'data-task': task.task, 'data-state': task.state },
    h('span', { className: 'task' }, h('strong', {}, `${task.task} ${task.name}`), ` ${task.title ?? ''}, ${task.minutes} minutes. `, h('em', {}, task.state), task.mistake ? `: ${task.mistake}` : ''),
    h('span', { className: 'buttons' }, ...Object.entries(actions).map(([action, [label, does]]) => h('button', {
      type: 'button', id: `${action}-${task.task}`, 'data-action': action, title: `make ${action} N=${step} TASK=${task.name} ${does}`,
      'aria-label': `${label} ${task.name}`, onclick: () => act(step, action, task.task).catch(tellError),
    }, label)))))
    .concat(tasks.length ? h('li', {}, h('button', {
      type: 'button', id: 'progress', 'data-action': 'progress', title: 'make progress shows what is done in all steps',
      onclick: () => act(step, 'progress', '').catch(tellError),
    }, 'Progress in all steps')) : []));
  if (held) document.getElementById(held)?.focus();
}

async function act(step, action, task) {
  const terminal = await terminalForCommand();
  tell('');
  await post(`/api/exercises/${step}/${action}?task=${encodeURIComponent(task)}&terminal=${terminal}`);
}
