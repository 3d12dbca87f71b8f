// The learner's copies below work/, in an editor. What is not saved yet is kept on the server, too.
import { $, $$, announce, api, button, h, keyed, later, once, setText, tell } from './dom.js';
import { state } from './state.js';
import { events, make } from './terminal.js';

const files = new Map(); // path -> {path, hash, saved, view, isConflict, kept, turn}; kept is the draft as JSON, as long as nobody has typed here
let rows = []; // the exercises of the step that is shown, and of those that open files belong to
let shown; // the file in the editor
let cm; // the modules of CodeMirror, loaded with the first file

const load = once(async () => {
  const parts = await Promise.all(['state', 'view', 'commands', 'language', 'lint', 'search'].map((name) => import(`@codemirror/${name}`)));
  const modes = await Promise.all(['go', 'yaml', 'shell'].map((name) => import(`./vendor/codemirror/mode-${name}.js`)));
  const { classHighlighter } = await import('@lezer/highlight');
  cm = Object.assign({ classHighlighter, modes: Object.assign({}, ...modes) }, ...parts);
  $('#save').addEventListener('click', () => save(shown));
  for (const one of $$('[data-edit]')) one.addEventListener('click', () => doTask(one.dataset.edit, editedStep(shown.path), taskOf(shown)));
  $('#take-disk').addEventListener('click', () => inTurn(shown, settle, false));
  $('#keep-mine').addEventListener('click', () => inTurn(shown, settle, true));
  setInterval(look, 2000);
});

function language(path) {
  const { modes, StreamLanguage } = cm;
  const mode = path.endsWith('.go') ? modes.go : /\.ya?ml$/.test(path) ? modes.yaml : path.endsWith('.sh') ? modes.shell : null;
  return mode ? StreamLanguage.define(mode) : [];
}

function extensions(path) {
  const isTabbed = /\.(go|mod)$/.test(path);
  return [
    cm.lineNumbers(), cm.lintGutter(), cm.highlightActiveLine(), cm.history(), cm.bracketMatching(), cm.indentOnInput(), cm.highlightSelectionMatches(),
    cm.EditorState.languageData.of(() => [{ indentOnInput: /^\s*[{}]$/ }]), cm.indentUnit.of(isTabbed ? '\t' : '  '), cm.EditorState.tabSize.of(4), cm.EditorView.lineWrapping,
    cm.syntaxHighlighting(cm.classHighlighter), language(path),
    cm.keymap.of([{ key: 'Mod-s', run: () => { save(files.get(path)); return true; } }, cm.indentWithTab, ...cm.searchKeymap, ...cm.historyKeymap, ...cm.defaultKeymap]),
    cm.EditorView.contentAttributes.of({ 'aria-label': `${path}. F6 leaves the editor.`, tabindex: '0' }),
    cm.EditorView.updateListener.of((update) => { if (update.docChanged) changed(); }),
  ];
}

const draftOf = (path) => `draft-${path.toLowerCase().replace(/[^a-z0-9]+/g, '-').slice(-50)}`;
const textOf = (file) => file.view.state.doc.toString();
const isDirty = (file) => textOf(file) !== file.saved;

// openWork shows one of the learner's files. A draft that was not saved goes on.
export async function openWork(path, line, isFocused = true) {
  await load();
  if (!files.has(path)) await open(path);
  const file = files.get(path);
  const isNew = file !== shown;
  show(file);
  if (line) goTo(file, Number(line));
  else if (isNew && file.view.state.selection.main.head === 0) goTo(file, textOf(file).split('\n').findIndex((text) => /your turn|is not done yet/i.test(text)) + 1);
  if (!isFocused) return;
  file.view.focus();
  announce(`${path} is open.`);
}

async function open(path) {
  const disk = await read(path);
  if (files.has(path)) return; // it was asked for twice
  const draft = state.get(draftOf(path));
  const hasDraft = draft?.path === path && draft.text !== disk.text;
  const { text, hash } = hasDraft ? draft : disk;
  const view = new cm.EditorView({ doc: text, extensions: extensions(path), parent: $('#editor .editor') });
  files.set(path, { path, view, hash, kept: JSON.stringify(hasDraft ? draft : null), saved: disk.text, isConflict: hash !== disk.hash, turn: Promise.resolve() });
  rememberOpen();
  events.dispatchEvent(new CustomEvent('opened')); // its exercise may be another step's
}

let toOpen = []; // what reopen has still to open
const rememberOpen = () => state.set('files', [...new Set([...files.keys(), ...toOpen])]);

// reopen opens what was open before a reload, and leaves the focus where it is.
export async function reopen() {
  const all = state.get('files', []);
  const last = state.get('edited');
  toOpen = [...all.filter((path) => path !== last), ...all.filter((path) => path === last)];
  while (toOpen.length) {
    await openWork(toOpen[0], undefined, false).catch(() => {}); // it has gone
    toOpen.shift();
    rememberOpen();
  }
}

function show(file) {
  shown = file;
  state.set('edited', file.path);
  drawFrame();
  showVerdict();
}

// hideEditor leaves the place to a file that is only shown.
export function hideEditor() {
  shown = undefined;
  drawFrame();
}

function close(file) {
  if (isDirty(file) && !confirm(`${file.path} has changes that are not saved. Forget them?`)) return;
  if (file.kept !== 'null') state.set(draftOf(file.path), null);
  files.delete(file.path);
  file.view.destroy();
  rememberOpen();
  if (file === shown) shown = undefined;
  if (files.size > 0) show(shown ?? files.values().next().value);
  drawFrame();
  focusEditor(); // the button that had the focus is gone
}

function drawFrame() {
  $('#files').hidden = files.size === 0;
  $('#editor').hidden = !shown;
  $('#shown').hidden = Boolean(shown);
  keyed($('#files'), files.values(), (file) => file, (file) => h('span', { className: 'terminal-name' },
    button('', () => { show(file); focusEditor(); }, { 'data-file': file.path, title: file.path }),
    button('×', () => close(file), { className: 'close', 'aria-label': `Close ${file.path}` })),
  (element, file) => {
    setText(element.firstChild, `${file.path.split('/').slice(-2).join('/')}${isDirty(file) ? ' •' : ''}`);
    element.firstChild.ariaPressed = file === shown;
    file.view.dom.hidden = file !== shown;
  });
  if (!shown) return;
  setText($('#edited'), `${shown.path}${isDirty(shown) ? ', not saved' : ''}`);
  $('#conflict').hidden = !shown.isConflict;
  const task = taskOf(shown);
  $('#asked').hidden = !task;
  if (task) {
    setText($('#asked summary'), `What ${task.name} asks for: ${task.title}`);
    setText($('#asked pre'), task.do.trim());
  }
  for (const one of $$('[data-edit]')) {
    one.hidden = !task;
    if (task) one.title = `make ${one.dataset.edit} TASK=${task.name}, in the terminal`;
  }
}

// keep stores what is not saved yet. A window in which nobody has typed leaves the draft as another one has made it since.
function keep(file) {
  if (files.get(file.path) !== file) return; // it was closed meanwhile
  const draft = isDirty(file) ? { path: file.path, text: textOf(file), hash: file.hash } : null;
  if (JSON.stringify(draft) === file.kept) return;
  state.set(draftOf(file.path), draft);
  file.kept = draft ? undefined : 'null'; // of two that were typed, the window that is left last keeps its own
}

const keepAll = () => files.forEach(keep);
const keepDrafts = later(500, keepAll);
addEventListener('pagehide', () => {
  keepAll();
  if (files.size > 0) rememberOpen(); // another window may have closed them
});

// What is neither in a file nor kept by the server would be lost with the page.
addEventListener('beforeunload', (event) => {
  if ([...files.values()].some((file) => isDirty(file) && state.isRefused(draftOf(file.path)))) event.preventDefault();
});

function changed() {
  drawFrame();
  keepDrafts();
}

// replace makes the text another one, with the cursor where it was by line and column.
function replace(file, text) {
  file.problem = undefined; // which write says again
  const { doc, selection } = file.view.state;
  if (doc.toString() === text) return;
  const line = doc.lineAt(selection.main.head);
  const column = selection.main.head - line.from;
  file.view.dispatch({ changes: { from: 0, to: doc.length, insert: text } });
  const now = lineOf(file, line.number);
  file.view.dispatch({ selection: { anchor: Math.min(now.from + column, now.to) }, scrollIntoView: true });
}

// read returns a file with the line ends that the editor has, or one with others would look changed.
const read = (path) => api(`/api/edit?path=${encodeURIComponent(path)}`).then((disk) => ({ ...disk, text: disk.text.replace(/\r\n?/g, '\n') }));

// inTurn reads or writes a file on the disk after what was asked for before: each begins with the hash that the last one has left.
const inTurn = (file, f, ...args) => (file.turn = file.turn.catch(() => {}).then(() => f(file, ...args)));
const save = (file) => inTurn(file, write);
// look asks whether somebody else has written the file that is shown. A page that has lost its server says so elsewhere.
const look = () => shown && !document.hidden && inTurn(shown, compare).catch(() => {});

async function write(file) {
  const { path } = file;
  const text = textOf(file);
  let answer;
  try {
    answer = await api(`/api/edit?path=${encodeURIComponent(path)}`, { method: 'PUT', body: JSON.stringify({ text, hash: file.hash }) });
  } catch (error) {
    file.isConflict ||= error.code === 409;
    drawFrame();
    throw error;
  }
  Object.assign(file, { hash: answer.hash, saved: answer.text, isConflict: false });
  if (textOf(file) === text) replace(file, answer.text); // unless more was typed meanwhile
  keep(file);
  drawFrame();
  file.problem = answer.problem && { line: answer.line, text: `gofmt: ${answer.problem}` };
  if (file === shown) showVerdict();
  tell(answer.problem ? `${path} is saved, but it is not Go yet: line ${answer.line}: ${answer.problem}.` : `${path} is saved.`, Boolean(answer.problem));
}

async function compare(file) {
  if (file.isConflict) return;
  const disk = await read(file.path);
  if (disk.hash === file.hash) return;
  if (isDirty(file) && textOf(file) !== disk.text) {
    file.isConflict = true;
    keep(file);
  } else {
    Object.assign(file, { hash: disk.hash, saved: disk.text });
    replace(file, disk.text);
  }
  drawFrame();
}

async function settle(file, keepMine) {
  const disk = await read(file.path);
  Object.assign(file, { hash: disk.hash, saved: disk.text, isConflict: false });
  if (!keepMine) replace(file, disk.text); // Ctrl-Z takes that back
  changed();
}

// The exercises: which one a file belongs to, and what its last check has said.

const taskOf = ({ path }) => {
  const tasks = rows.filter(({ files: own }) => own?.includes(path));
  return tasks.find(({ state: is }) => is !== 'passed') ?? tasks.at(-1);
};

// editedSteps are the steps that open files belong to: work/03-informer/... is of step 3.
const editedStep = (path) => parseInt(path.split('/')[1], 10);
export const editedSteps = () => [...new Set([...files.keys()].map(editedStep))].filter(Number.isInteger);

export function setExercises(now) {
  rows = now;
  if (!shown) return;
  drawFrame();
  showVerdict();
}

let checking; // {file, terminal} while a file is being checked: what the last check has said says nothing any more

// doTask runs make for a task, or for a step. Check reads what is on the disk, and reset sets it aside.
export async function doTask(action, step, task) {
  if (action !== 'hint') for (const path of task.files ?? []) if (files.has(path) && isDirty(files.get(path))) await save(files.get(path));
  const terminal = await make(action, step, task.name);
  if (action !== 'check' || !shown || !task.files?.includes(shown.path)) return;
  checking = { file: shown, terminal };
  $('#verdict').dataset.state = 'ok';
  $('#verdict').replaceChildren(`Checking ${task.name}…`);
  mark(shown, []);
}

function showVerdict() {
  if (checking?.file === shown) return;
  const task = taskOf(shown);
  const said = task?.said;
  const isHere = said?.file === shown.path;
  let text = task?.state === 'passed' ? `${task.name} has passed.` : '';
  if (said) text = `${isHere ? 'Line' : `${said.file.split('/').pop()}, line`} ${said.line}: ${said.text}`;
  const verdict = $('#verdict');
  verdict.dataset.state = said ? 'differs' : 'ok';
  const isNew = verdict.textContent !== text;
  if (isNew) verdict.replaceChildren(said ? button(text, () => openWork(said.file, said.line), { className: 'line' }) : text);
  mark(shown, [...(shown.problem ? [shown.problem] : []), ...(isHere ? [said] : [])]);
  if (isNew && isHere) shown.view.dispatch({ effects: centre(shown, said.line) });
}

function lineOf({ view: { state: { doc } } }, line) {
  return doc.line(Math.min(Math.max(line, 1), doc.lines));
}

function mark(file, places) {
  file.view.dispatch(cm.setDiagnostics(file.view.state, places.map(({ line, text }) => {
    const { from, to } = lineOf(file, line);
    return { from, to, severity: 'error', message: text };
  })));
}

const centre = (file, line) => cm.EditorView.scrollIntoView(lineOf(file, line).from, { y: 'center' });
const goTo = (file, line) => file.view.dispatch({ selection: { anchor: lineOf(file, line).from }, effects: centre(file, line) });

export const focusEditor = () => shown?.view.focus();
for (const type of ['prompt', 'exited']) {
  events.addEventListener(type, ({ detail }) => {
    if (detail.terminal === checking?.terminal) checking = undefined;
    look(); // a command may have written it
  });
}
