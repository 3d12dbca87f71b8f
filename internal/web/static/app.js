// The frame of the page: splitters, settings, keys and the file view.
import { $, $$, announce, api, h, inAddress, neighbour, post, setText } from './dom.js';
import { focusEditor, hideEditor, openWork, reopen } from './editor.js';
import { showFound } from './contents.js';
import { startFollow } from './follow.js';
import { showLesson, startLessons } from './lesson.js';
import { state } from './state.js';
import { bringTab, low, onlyXray, tab, view } from './tabs.js';
import { startNotes, startTrainer } from './trainer.js';
import { events, focusTerminal, setTerminalOptions, startTerminals } from './terminal.js';
import { startXray } from './xray-view.js';

// Splitters: dragged, or moved by arrow keys.

const splitter = $('#splitter');

function startSplitter(bar, name) {
  const frame = bar.parentElement;
  const [min, max] = [Number(bar.ariaValueMin), Number(bar.ariaValueMax)];
  const set = (percent) => {
    const value = Math.round(Math.min(max, Math.max(min, percent)));
    frame.style.setProperty(`--${name}`, `${value}%`);
    bar.ariaValueNow = value;
    state.set(`splitter-${name}`, value);
  };
  set(state.get(`splitter-${name}`, Number(bar.ariaValueNow)));
  bar.addEventListener('keydown', (event) => {
    const now = Number(bar.ariaValueNow);
    const to = { ArrowLeft: now - 5, ArrowUp: now - 5, ArrowRight: now + 5, ArrowDown: now + 5, Home: min, End: max }[event.key];
    if (to === undefined) return;
    set(to);
    event.preventDefault();
  });
  bar.addEventListener('pointerdown', (event) => {
    bar.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  bar.addEventListener('pointermove', (event) => {
    if (!bar.hasPointerCapture(event.pointerId)) return;
    const box = frame.getBoundingClientRect();
    set(100 * (bar.ariaOrientation === 'vertical' ? (event.clientX - box.left) / box.width : (event.clientY - box.top) / box.height));
  });
}

// The settings. They hold in all windows.

const systemDark = matchMedia('(prefers-color-scheme: dark)');
const narrow = matchMedia('(max-width: 800px)'); // the lesson stands above the tools
const themes = ['system', 'light', 'dark'];
const sizes = [80, 90, 100, 115, 130, 150, 175, 200];
const panes = { both: 'lesson and tools', lesson: 'lesson alone', tools: 'tools alone' };

function apply() {
  const theme = state.get('theme', 'system');
  document.documentElement.dataset.theme = theme;
  $('#theme').textContent = `Theme: ${theme}`;
  const size = state.get('size', 100);
  document.documentElement.style.setProperty('--size', size / 100);
  setText($('#size'), `${size} %`);
  for (const box of $$('[data-setting]')) box.checked = state.get(box.dataset.setting, box.defaultChecked);
  const shown = onlyXray ? 'tools' : view ? 'both' : state.get('panes', low.matches ? 'lesson' : 'both');
  $('#main').dataset.panes = shown;
  $('#panes').textContent = `View: ${panes[shown]}`;
  splitter.ariaOrientation = narrow.matches ? 'horizontal' : 'vertical';
  setTerminalOptions({ dark: theme === 'dark' || (theme === 'system' && systemDark.matches) });
}

function startSettings() {
  const size = (step) => state.set('size', sizes[sizes.indexOf(state.get('size', 100)) + step] ?? state.get('size'));
  $('#theme').addEventListener('click', () => state.set('theme', neighbour(themes, state.get('theme', 'system'))));
  $('#panes').addEventListener('click', () => state.set('panes', neighbour(Object.keys(panes), $('#main').dataset.panes)));
  $('#smaller').addEventListener('click', () => size(-1));
  $('#larger').addEventListener('click', () => size(1));
  for (const box of $$('[data-setting]')) {
    box.addEventListener('change', async () => {
      if (box.dataset.setting === 'notify' && box.checked) box.checked = (await globalThis.Notification?.requestPermission()) === 'granted';
      state.set(box.dataset.setting, box.checked);
    });
  }
  for (const name of ['theme', 'size', 'panes', 'fold', 'notify', 'reader']) state.on(name, apply);
  for (const query of [systemDark, low, narrow]) query.addEventListener('change', apply);
  addEventListener('keydown', (event) => {
    if (event.key !== 'Escape') return;
    for (const menu of $$('#settings[open], #contents[open]')) {
      if (menu.contains(document.activeElement)) $('summary', menu).focus(); // what had the focus is not shown any more
      menu.open = false;
    }
  });
  apply();
}

// The state of the cluster, and the faults that still strike.

function showCluster() {
  const cluster = state.get('cluster');
  if (!cluster) return;
  const line = $('#cluster');
  setText(line, `${cluster.name}: ${cluster.error || 'ready'}`);
  line.dataset.state = cluster.error ? 'away' : 'ready';
  $('#faults').hidden = !cluster.faults;
  if (cluster.faults) setText($('#faults span'), `The X-ray breaks something for the programs of your terminals: ${cluster.faults.join(', ')}.`);
}

// F6 moves on to the next part of the page, out of a terminal too.

function startKeys() {
  addEventListener('keydown', (event) => {
    if (event.key !== 'F6') return;
    event.preventDefault();
    event.stopPropagation();
    const places = [
      { within: $('#lesson-pane'), focus: () => $('#lesson').focus() },
      { within: $('#tabs'), focus: () => $(`#tab-${tab}`).focus() },
      { within: $('#editor'), focus: focusEditor },
      { within: $('#terminals'), focus: focusTerminal },
    ].filter((place) => place.within.checkVisibility());
    const at = places.find((place) => place.within.contains(document.activeElement));
    (at ? neighbour(places, at, event.shiftKey ? -1 : 1) : places[0]).focus();
  }, { capture: true });
}

// The file view, and links into other lessons.

export async function openFile(path, line) {
  if (path.startsWith('work/')) {
    bringTab('file');
    await openWork(path, line);
    return;
  }
  const file = await api(`/api/file?path=${encodeURIComponent(path)}`);
  const source = h('div', { className: 'source', innerHTML: file.html });
  hideEditor();
  $('#shown').replaceChildren(h('h2', {}, file.path), h('p', { className: 'hint' }, 'This view is read-only. Your own copies are in the folder work/ of the clone.'), source);
  bringTab('file');
  const target = line && $(`#L${Number(line)}`, source);
  target?.classList.add('target');
  (target ?? $('#file')).scrollIntoView({ block: 'center' });
  $('#file').focus({ preventScroll: true });
  announce(`${file.path} is open.`);
}

document.addEventListener('click', async (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return; // the address of the link opens the same in another tab
  const link = event.target.closest('a[data-path], a[data-step]');
  if (!link || onlyXray) return;
  event.preventDefault();
  const { path, line, step, find } = link.dataset;
  if (!step) return openFile(path, line);
  await showLesson(Number(step), new URL(link.href).hash);
  if (find) showFound(find);
});

document.body.classList.toggle('only-xray', onlyXray);
startSplitter(splitter, 'lesson');
startSplitter($('#tool-splitter'), 'above');
startSettings();
state.on('cluster', showCluster);
showCluster();
$('#faults button').addEventListener('click', () => (state.get('cluster').faults.includes('unreachable') ? ['clear', 'back'] : ['clear']).forEach((fault) => post(`/api/xray/faults/${fault}`)));
if (view === 'notes') startNotes();
else startXray();
if (view !== 'notes' && !onlyXray) {
  if (view === 'trainer') startTrainer();
  else startFollow();
  startKeys();
  events.addEventListener('file', ({ detail }) => openFile(detail.path, detail.line));
  startTerminals();
  startLessons();
  reopen().then(() => inAddress('file') && openFile(inAddress('file'), inAddress('line')));
}
