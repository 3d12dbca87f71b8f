// The frame of the page: panes, tabs, theme, keys and the file view.
import { $, announce, api, h, post, setText, tellError } from './dom.js';
import { focusEditor, hideEditor, openWork, reopen } from './editor.js';
import { showFound } from './contents.js';
import { startFollow } from './follow.js';
import { refold, showLesson, startLessons } from './lesson.js';
import { state } from './state.js';
import { startNotes, startTrainer } from './trainer.js';
import { events, focusTerminal, setTerminalOptions, setTerminalTheme, startKeys as startTerminalKeys, startTerminals, terminalShown } from './terminal.js';
import { startXray, showXray } from './xray-view.js';

const address = new URLSearchParams(location.search);
const view = address.get('view');
const onlyXray = address.get('view') === 'xray';
const tabs = ['terminals', 'xray', 'file'];
let tab = 'terminals';

// Tabs. The terminals may stay in view below the two others.

export function showTab(name) {
  tab = name;
  for (const other of tabs) {
    const button = $(`#tab-${other}`);
    button.setAttribute('aria-selected', other === name);
    button.tabIndex = other === name ? 0 : -1;
    $(`#${other}`).hidden = other !== name;
  }
  const keep = name !== 'terminals' && state.get('keep', true) && !onlyXray;
  $('#keep').setAttribute('aria-pressed', state.get('keep', true));
  $('#keep').hidden = name === 'terminals';
  $('#terminals').hidden = name !== 'terminals' && !keep;
  $('#tool-splitter').hidden = !keep;
  $('#tools').dataset.below = keep;
  showXray(name === 'xray');
  terminalShown();
  if (!view) state.set('tab', name);
}

// bringTab shows a tab that a link or a button leads to, also when the lesson has the whole page.
function bringTab(name) {
  if ($('#main').dataset.panes === 'lesson') {
    state.set('panes', low.matches ? 'tools' : 'both');
    apply();
  }
  showTab(name);
}

function startTabs() {
  for (const name of tabs) $(`#tab-${name}`).addEventListener('click', () => showTab(name));
  $('#tabs').addEventListener('keydown', (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    showTab(tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length]);
    $(`#tab-${tab}`).focus();
    event.preventDefault();
  });
  $('#keep').addEventListener('click', () => {
    state.set('keep', !state.get('keep', true));
    showTab(tab);
  });
}

// Splitters: dragged, or moved by arrow keys.

function startSplitter(splitter, name, initial, frame, isVertical) {
  const limits = { min: 15, max: 85 };
  const set = (percent) => {
    const value = Math.round(Math.min(limits.max, Math.max(limits.min, percent)));
    frame.style.setProperty(`--${name}`, `${value}%`);
    splitter.setAttribute('aria-valuenow', value);
    state.set(`splitter-${name}`, value);
  };
  const orient = () => splitter.setAttribute('aria-orientation', isVertical() ? 'vertical' : 'horizontal');
  splitter.setAttribute('aria-valuemin', limits.min);
  splitter.setAttribute('aria-valuemax', limits.max);
  set(state.get(`splitter-${name}`, initial));
  orient();
  addEventListener('resize', orient);
  splitter.addEventListener('keydown', (event) => {
    const step = { ArrowLeft: -5, ArrowUp: -5, ArrowRight: 5, ArrowDown: 5 }[event.key];
    const to = { Home: limits.min, End: limits.max }[event.key];
    if (step === undefined && to === undefined) return;
    set(to ?? Number(splitter.getAttribute('aria-valuenow')) + step);
    event.preventDefault();
  });
  splitter.addEventListener('pointerdown', (event) => {
    splitter.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  splitter.addEventListener('pointermove', (event) => {
    if (!splitter.hasPointerCapture(event.pointerId)) return;
    const box = frame.getBoundingClientRect();
    set(100 * (isVertical() ? (event.clientX - box.left) / box.width : (event.clientY - box.top) / box.height));
  });
}

// The settings. They hold in all windows.

const systemDark = matchMedia('(prefers-color-scheme: dark)');
const themes = ['system', 'light', 'dark'];
const sizes = [80, 90, 100, 115, 130, 150, 175, 200];
const panes = { both: 'lesson and tools', lesson: 'lesson alone', tools: 'tools alone' };
const low = matchMedia('(max-height: 430px)'); // as a laptop's screen at 200 % zoom: two panes have no place there

function apply() {
  const theme = state.get('theme', 'system');
  document.documentElement.dataset.theme = theme;
  $('#theme').textContent = `Theme: ${theme}`;
  setTerminalTheme(theme === 'dark' || (theme === 'system' && systemDark.matches));
  const size = state.get('size', 100);
  document.documentElement.style.setProperty('--size', size / 100);
  setText($('#size'), `${size} %`);
  for (const box of document.querySelectorAll('[data-setting]')) box.checked = state.get(box.dataset.setting, box.dataset.setting === 'fold');
  const shown = onlyXray ? 'tools' : view ? 'both' : state.get('panes', low.matches ? 'lesson' : 'both');
  $('#main').dataset.panes = shown;
  $('#panes').textContent = `View: ${panes[shown]}`;
  setTerminalOptions();
}

const next = (list, value, by = 1) => list[(list.indexOf(value) + by + list.length) % list.length];

function startSettings() {
  const change = (name, value) => {
    state.set(name, value);
    apply();
  };
  $('#theme').addEventListener('click', () => change('theme', next(themes, state.get('theme', 'system'))));
  $('#panes').addEventListener('click', () => change('panes', next(Object.keys(panes), $('#main').dataset.panes)));
  $('#smaller').addEventListener('click', () => change('size', sizes[Math.max(0, sizes.indexOf(state.get('size', 100)) - 1)]));
  $('#larger').addEventListener('click', () => change('size', sizes[Math.min(sizes.length - 1, sizes.indexOf(state.get('size', 100)) + 1)]));
  for (const box of document.querySelectorAll('[data-setting]')) {
    box.addEventListener('change', async () => {
      if (box.dataset.setting === 'notify' && box.checked) box.checked = (await globalThis.Notification?.requestPermission()) === 'granted';
      change(box.dataset.setting, box.checked);
      if (box.dataset.setting === 'fold') refold();
    });
  }
  for (const name of ['theme', 'size', 'panes', 'fold', 'notify', 'reader']) state.on(name, apply);
  for (const query of [systemDark, low]) query.addEventListener('change', apply);
  addEventListener('keydown', (event) => {
    if (event.key !== 'Escape') return;
    for (const menu of document.querySelectorAll('#settings[open], #contents[open]')) {
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
  setText(line, `${cluster.name}: ${cluster.error ? 'does not answer' : 'ready'}`);
  line.title = cluster.error ?? '';
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
    const at = places.findIndex((place) => place.within.contains(document.activeElement));
    const step = event.shiftKey ? -1 : 1;
    places[at < 0 ? 0 : (at + step + places.length) % places.length].focus();
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
  const view = h('div', { className: 'source' });
  view.innerHTML = file.html;
  hideEditor();
  $('#shown').replaceChildren(h('h2', {}, file.path), h('p', { className: 'hint' }, 'This view is read-only. Your own copies are in the folder work/ of the clone.'), view);
  bringTab('file');
  const target = line && $(`#L${Number(line)}`, view);
  target?.classList.add('target');
  (target ?? $('#file')).scrollIntoView({ block: 'center' });
  $('#file').focus({ preventScroll: true });
  announce(`${file.path} is open.`);
}

document.addEventListener('click', (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return; // the address of the link opens the same in another tab
  const link = event.target.closest('a[data-path], a[data-step]');
  if (!link || onlyXray) return;
  event.preventDefault();
  const lesson = /^(\d\d)-[^/]+\/((README|reference)\.md)?$/.exec(link.dataset.path ?? '');
  const shown = lesson || link.dataset.step
    ? showLesson(Number(lesson?.[1] ?? link.dataset.step), new URL(link.href).hash).then(() => link.dataset.find && showFound(link.dataset.find))
    : openFile(link.dataset.path, link.dataset.line);
  shown.catch(tellError);
});

document.body.classList.toggle('only-xray', onlyXray);
const isWide = () => !matchMedia('(max-width: 800px)').matches;
startSplitter($('#splitter'), 'lesson', 50, $('#main'), isWide);
startSplitter($('#tool-splitter'), 'above', 65, $('#tools'), () => false);
startSettings();
startTabs();
if (view !== 'notes') startXray($('#xray'), onlyXray);
showTab(onlyXray ? 'xray' : view ? 'terminals' : state.get('tab', 'terminals'));
state.on('cluster', showCluster);
showCluster();
$('#faults button').addEventListener('click', async () => {
  for (const fault of ['clear', 'back']) await post(`/api/xray/faults/${fault}`).catch(tellError);
});
if (view === 'notes') startNotes().catch(tellError);
else if (!onlyXray) {
  if (view === 'trainer') startTrainer();
  else startFollow();
  startKeys();
  startTerminalKeys();
  events.addEventListener('file', ({ detail }) => openFile(detail.path, detail.line).catch(tellError));
  startTerminals(showTab, () => tab).catch(tellError);
  startLessons(bringTab).catch(tellError);
  if (address.has('file')) openFile(address.get('file'), address.get('line')).catch(tellError);
  else reopen().catch(tellError);
}
