// The learner's copies below work/, in an editor. What is not saved yet is kept on the server, too.
import { $, announce, api, h, keyed, later, post, setText, tell, tellError } from './dom.js';
import { state } from './state.js';
import { events, terminalForCommand } from './terminal.js';

const files = new Map(); // path -> {path, hash, saved, view state, isConflict}
let rows = []; // the exercises of the step that is shown, and of those that open files belong to
let shown = '';
let view;
let cm; // the modules of CodeMirror, loaded with the first file

// load brings CodeMirror, once, also if two files are opened at the same time.
let loading;
const load = () => (loading ??= loadOnce().catch((error) => {
  loading = undefined;
  throw error;
}));

async function loadOnce() {
  const parts = await Promise.all(['state', 'view', 'commands', 'language', 'lint', 'search'].map((name) => import(`@codemirror/${name}`)));
  const modes = await Promise.all(['go', 'yaml', 'shell'].map((name) => import(`./vendor/codemirror/mode-${name}.js`)));
  const { classHighlighter } = await import('@lezer/highlight');
  cm = Object.assign({ classHighlighter, modes: Object.assign({}, ...modes) }, ...parts);
  $('#editor').append(
    h('div', { className: 'bar' },
      h('strong', { id: 'edited' }),
      h('button', { type: 'button', id: 'save', title: 'Ctrl-S. A Go file is written as gofmt writes it.', onclick: () => save(shown).catch(tellError) }, 'Save'),
      ...['check', 'hint', 'reset'].map((action) => h('button', { type: 'button', 'data-edit': action, onclick: () => act(action).catch(tellError) }, `${action[0].toUpperCase()}${action.slice(1)}`))),
    h('div', { id: 'conflict', role: 'alert', hidden: true },
      h('span', {}, 'This file has changed on the disk since you began to edit it. '),
      h('button', { type: 'button', onclick: () => settle(false).catch(tellError) }, 'Take the file on the disk'), ' ',
      h('button', { type: 'button', onclick: () => settle(true).catch(tellError) }, 'Keep mine')),
    h('details', { id: 'asked' }, h('summary'), h('pre', { tabIndex: 0 })),
    h('p', { id: 'verdict', role: 'status' }),
    h('div', { className: 'editor' }));
  view = new cm.EditorView({ parent: $('#editor .editor') });
  setInterval(() => look().catch(() => {}), 2000); // a page that has lost its server says so elsewhere
}

function language(path) {
  const { modes, StreamLanguage } = cm;
  const mode = path.endsWith('.go') ? modes.go : /\.ya?ml$/.test(path) ? modes.yaml : path.endsWith('.sh') ? modes.shell : null;
  return mode ? StreamLanguage.define(mode) : [];
}

const isTabbed = (path) => path.endsWith('.go') || path.endsWith('.mod');

function extensions(path) {
  return [
    cm.lineNumbers(), cm.lintGutter(), cm.highlightActiveLine(), cm.history(), cm.bracketMatching(), cm.indentOnInput(), cm.highlightSelectionMatches(),
    cm.EditorState.languageData.of(() => [{ indentOnInput: /^\s*[{}]$/ }]), cm.indentUnit.of(isTabbed(path) ? '\t' : '  '), cm.EditorState.tabSize.of(4), cm.EditorView.lineWrapping,
    cm.syntaxHighlighting(cm.classHighlighter), language(path),
    cm.keymap.of([{ key: 'Mod-s', run: () => { save(path).catch(tellError); return true; } }, cm.indentWithTab, ...cm.searchKeymap, ...cm.historyKeymap, ...cm.defaultKeymap]),
    cm.EditorView.contentAttributes.of({ 'aria-label': `${path}. F6 leaves the editor.`, tabindex: '0' }),
    cm.EditorView.updateListener.of((update) => { if (update.docChanged) changed(); }),
  ];
}

const draftOf = (path) => `draft-${path.toLowerCase().replace(/[^a-z0-9]+/g, '-').slice(-50)}`;
const textOf = (file) => (file.path === shown ? view.state : file.view).doc.toString();
const isDirty = (file) => textOf(file) !== file.saved;

// openWork shows one of the learner's files. A draft that was not saved goes on.
export async function openWork(path, line, isFocused = true) {
  await load();
  let file = files.get(path);
  if (!file) {
    const disk = await read(path);
    const draft = state.get(draftOf(path));
    const isDraft = draft?.path === path && draft.text !== disk.text;
    file = files.get(path) ?? { path, saved: disk.text, hash: isDraft ? draft.hash : disk.hash, isConflict: isDraft && draft.hash !== disk.hash, hasDraft: isDraft, writes: 0, saving: Promise.resolve() };
    file.view ??= cm.EditorState.create({ doc: isDraft ? draft.text : disk.text, extensions: extensions(path) });
    files.set(path, file);
    rememberOpen();
    events.dispatchEvent(new CustomEvent('opened')); // its exercise may be another step's
  }
  const isNew = path !== shown;
  show(path);
  if (line) goTo(Number(line));
  else if (isNew && view.state.selection.main.head === 0) goTo(textOf(file).split('\n').findIndex((text) => /your turn|is not done yet/i.test(text)) + 1);
  if (!isFocused) return;
  view.focus();
  announce(`${path} is open.`);
}

const rememberOpen = () => state.set('files', [...files.keys()]);

// reopen opens what was open before a reload, and leaves the focus where it is.
export async function reopen() {
  const all = state.get('files', []);
  const last = state.get('edited');
  for (const path of [...all.filter((path) => path !== last), ...all.filter((path) => path === last)]) {
    await openWork(path, undefined, false).catch(() => state.set('files', state.get('files', []).filter((other) => other !== path))); // it has gone
  }
}

function show(path) {
  if (files.has(shown)) files.get(shown).view = view.state;
  shown = path;
  state.set('edited', path);
  view.setState(files.get(path).view);
  drawFrame();
  showVerdict();
}

// hideEditor leaves the place to a file that is only shown.
export function hideEditor() {
  if (files.has(shown)) files.get(shown).view = view.state;
  shown = '';
  drawFrame();
}

function close(path) {
  const file = files.get(path);
  if (isDirty(file) && !confirm(`${path} has changes that are not saved. Forget them?`)) return;
  if (file.hasDraft) state.set(draftOf(path), null);
  if (path === shown) shown = '';
  files.delete(path);
  rememberOpen();
  if (files.size > 0) show(shown || files.keys().next().value);
  drawFrame();
  if (files.size > 0) view.focus(); // the button that had the focus is gone
}

function drawFrame() {
  const file = files.get(shown);
  $('#files').hidden = files.size === 0;
  $('#editor').hidden = !file;
  $('#shown').hidden = Boolean(file);
  keyed($('#files'), [...files.keys()], (path) => path, (path) => h('span', { className: 'terminal-name' },
    h('button', { type: 'button', 'data-file': path, title: path, onclick: () => { show(path); view.focus(); } }),
    h('button', { type: 'button', className: 'close', 'aria-label': `Close ${path}`, onclick: () => close(path) }, '×')),
  (element, path) => {
    setText(element.firstChild, `${path.split('/').slice(-2).join('/')}${isDirty(files.get(path)) ? ' •' : ''}`);
    element.firstChild.setAttribute('aria-pressed', path === shown);
  });
  if (!file) return;
  setText($('#edited'), `${shown}${isDirty(file) ? ', not saved' : ''}`);
  $('#conflict').hidden = !file.isConflict;
  const task = taskOf(shown);
  $('#asked').hidden = !task;
  if (task) {
    setText($('#asked summary'), `What ${task.name} asks for: ${task.title}`);
    setText($('#asked pre'), task.do.trim());
  }
  for (const button of $('#editor').querySelectorAll('[data-edit]')) {
    button.hidden = !task;
    if (task) button.title = `make ${button.dataset.edit} TASK=${task.name}, in the terminal`;
  }
}

// keep stores what is not saved yet. A file without changes removes only its own draft, not that of another window.
function keep(file) {
  const draft = isDirty(file) ? { path: file.path, text: textOf(file), hash: file.hash } : null;
  if (draft || file.hasDraft) state.set(draftOf(file.path), draft);
  file.hasDraft = Boolean(draft);
}

const keepAll = () => files.forEach(keep);
const keepDrafts = later(500, keepAll);
addEventListener('pagehide', () => {
  keepAll();
  if (files.size > 0) rememberOpen(); // another window may have closed them
});

function changed() {
  drawFrame();
  keepDrafts();
}

// replace makes the text another one, with the cursor where it was by line and column.
function replace(text) {
  const { doc, selection } = view.state;
  if (doc.toString() === text) return;
  const line = doc.lineAt(selection.main.head);
  const column = selection.main.head - line.from;
  view.dispatch({ changes: { from: 0, to: doc.length, insert: text } });
  const now = view.state.doc.line(Math.min(line.number, view.state.doc.lines));
  view.dispatch({ selection: { anchor: Math.min(now.from + column, now.to) }, scrollIntoView: true });
}

// read returns a file with the line ends that the editor has, or one with others would look changed.
const read = (path) => api(`/api/edit?path=${encodeURIComponent(path)}`).then((disk) => ({ ...disk, text: disk.text.replace(/\r\n?/g, '\n') }));

// save writes a file, one save after the other: the next one begins with the hash that the last one has left.
function save(path) {
  const file = files.get(path);
  file.saving = file.saving.catch(() => {}).then(() => write(file));
  return file.saving;
}

async function write(file) {
  const { path } = file;
  const text = textOf(file);
  let answer;
  file.isWriting = true;
  try {
    answer = await api(`/api/edit?path=${encodeURIComponent(path)}`, { method: 'PUT', body: JSON.stringify({ text, hash: file.hash }) });
  } catch (error) {
    file.isConflict ||= error.code === 409;
    drawFrame();
    throw error;
  } finally {
    file.isWriting = false;
    file.writes++;
  }
  Object.assign(file, { hash: answer.hash, saved: answer.text, isConflict: false });
  if (path === shown && textOf(file) === text) replace(answer.text); // unless more was typed meanwhile
  if (files.get(path) === file) keep(file); // or it was closed meanwhile
  drawFrame();
  if (answer.problem && path === shown) mark([{ line: answer.line, text: `gofmt: ${answer.problem}` }]);
  tell(answer.problem ? `${path} is saved, but it is not Go yet: line ${answer.line}: ${answer.problem}.` : `${path} is saved.`, Boolean(answer.problem));
}

// look asks whether somebody else has written the file.
async function look() {
  const file = files.get(shown);
  if (!file || document.hidden || $('#editor').hidden || file.isConflict || file.isWriting) return;
  const { writes } = file;
  const disk = await read(file.path);
  if (disk.hash === file.hash || file.path !== shown || file.isWriting || file.writes !== writes) return; // a text of before our own save says nothing
  if (isDirty(file) && textOf(file) !== disk.text) {
    file.isConflict = true;
    keep(file);
  } else {
    Object.assign(file, { hash: disk.hash, saved: disk.text });
    replace(disk.text);
  }
  drawFrame();
}

async function settle(keepMine) {
  const file = files.get(shown);
  const disk = await read(file.path);
  if (files.get(shown) !== file) return; // another file is shown by now, and this one asks again
  Object.assign(file, { hash: disk.hash, saved: disk.text, isConflict: false });
  if (!keepMine) replace(disk.text); // Ctrl-Z takes that back
  changed();
}

// The exercises: which one a file belongs to, and what its last check has said.

const taskOf = (path) => {
  const tasks = rows.filter(({ files: own }) => own?.includes(path));
  return tasks.find(({ state: is }) => is !== 'passed') ?? tasks.at(-1);
};

// editedSteps are the steps that open files belong to: work/03-informer/... is of step 3.
export const editedSteps = () => [...new Set([...files.keys()].map((path) => parseInt(path.split('/')[1], 10)))].filter(Number.isInteger);

export function setExercises(now) {
  rows = now;
  if (!files.has(shown)) return;
  drawFrame();
  showVerdict();
}

let checking = ''; // the file that is being checked: what the last check has said says nothing any more

async function act(action) {
  const task = taskOf(shown);
  if (action !== 'hint' && isDirty(files.get(shown))) await save(shown); // reset sets aside what is on the disk
  const terminal = await terminalForCommand();
  await post(`/api/exercises/${task.task.split('.')[0]}/${action}?task=${encodeURIComponent(task.name)}&terminal=${terminal}`);
  if (action !== 'check') return;
  checking = shown;
  $('#verdict').dataset.state = 'ok';
  $('#verdict').replaceChildren(`Checking ${task.name}…`);
  mark([]);
}

function showVerdict() {
  if (checking === shown) return;
  const task = taskOf(shown);
  const said = task?.said;
  const isHere = said?.file === shown;
  let text = task?.state === 'passed' ? `${task.name} has passed.` : '';
  if (said) text = `${isHere ? 'Line' : `${said.file.split('/').pop()}, line`} ${said.line}: ${said.text}`;
  const verdict = $('#verdict');
  verdict.dataset.state = said ? 'differs' : 'ok';
  const isNew = verdict.textContent !== text;
  if (isNew) verdict.replaceChildren(said ? h('button', { type: 'button', className: 'line', onclick: () => openWork(said.file, said.line).catch(tellError) }, text) : text);
  mark(isHere ? [said] : []);
  if (isNew && isHere) scrollTo(said.line);
}

function mark(places) {
  const { doc } = view.state;
  view.dispatch(cm.setDiagnostics(view.state, places.map(({ line, text }) => {
    const { from, to } = doc.line(Math.min(Math.max(line, 1), doc.lines));
    return { from, to, severity: 'error', message: text };
  })));
}

function scrollTo(line) {
  const { from } = view.state.doc.line(Math.min(Math.max(line, 1), view.state.doc.lines));
  view.dispatch({ effects: cm.EditorView.scrollIntoView(from, { y: 'center' }) });
  return from;
}

function goTo(line) {
  view.dispatch({ selection: { anchor: scrollTo(line) } });
}

export const focusEditor = () => view?.focus();
events.addEventListener('prompt', () => {
  checking = '';
  look().catch(tellError); // a command may have written it
});
