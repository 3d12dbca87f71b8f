// The frame of the page: panes, tabs, theme, keys and the file view.
import { $, api, announce, h, settings, tellError } from './dom.js';
import { showLesson, startLessons } from './lesson.js';
import { focusTerminal, setTerminalTheme, startTerminals, terminalShown } from './terminal.js';
import { startXray, showXray } from './xray-view.js';

const address = new URLSearchParams(location.search);
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
  const keep = name !== 'terminals' && settings.get('keep', true) && !onlyXray;
  $('#keep').setAttribute('aria-pressed', settings.get('keep', true));
  $('#keep').hidden = name === 'terminals';
  $('#terminals').hidden = name !== 'terminals' && !keep;
  $('#tool-splitter').hidden = !keep;
  $('#tools').dataset.below = keep;
  showXray(name === 'xray');
  terminalShown();
  settings.set('tab', name);
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
    settings.set('keep', !settings.get('keep', true));
    showTab(tab);
  });
}

// Splitters: dragged, or moved by arrow keys.

function startSplitter(splitter, variable, initial, frame, isVertical) {
  const limits = { min: 15, max: 85 };
  const set = (percent) => {
    const value = Math.round(Math.min(limits.max, Math.max(limits.min, percent)));
    frame.style.setProperty(variable, `${value}%`);
    splitter.setAttribute('aria-valuenow', value);
    settings.set(variable, value);
  };
  const orient = () => splitter.setAttribute('aria-orientation', isVertical() ? 'vertical' : 'horizontal');
  splitter.setAttribute('aria-valuemin', limits.min);
  splitter.setAttribute('aria-valuemax', limits.max);
  set(settings.get(variable, initial));
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

// Light and dark: as the system, until the switch says otherwise.

const systemDark = matchMedia('(prefers-color-scheme: dark)');

function startTheme() {
  const themes = ['system', 'light', 'dark'];
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
    $('#theme').textContent = `Theme: ${theme}`;
    setTerminalTheme(theme === 'dark' || (theme === 'system' && systemDark.matches));
  };
  $('#theme').addEventListener('click', () => {
    const next = themes[(themes.indexOf(settings.get('theme', 'system')) + 1) % themes.length];
    settings.set('theme', next);
    apply(next);
  });
  systemDark.addEventListener('change', () => apply(settings.get('theme', 'system')));
  apply(settings.get('theme', 'system'));
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
      { within: $('#terminals'), focus: focusTerminal },
    ].filter((place) => place.within.checkVisibility());
    const at = places.findIndex((place) => place.within.contains(document.activeElement));
    const step = event.shiftKey ? -1 : 1;
    places[at < 0 ? 0 : (at + step + places.length) % places.length].focus();
  }, { capture: true });
}

// The file view, and links into other lessons.

export async function openFile(path, line) {
  const file = await api(`/api/file?path=${encodeURIComponent(path)}`);
  const view = h('div', { className: 'source' });
  view.innerHTML = file.html;
  $('#file').replaceChildren(h('h2', {}, file.path), h('p', { className: 'hint' }, 'This view is read-only. Your own copies are in the folder work/ of the clone.'), view);
  showTab('file');
  const target = line && $(`#L${Number(line)}`, view);
  target?.classList.add('target');
  (target ?? $('#file')).scrollIntoView({ block: 'center' });
  $('#file').focus({ preventScroll: true });
  announce(`${file.path} is open.`);
}

document.addEventListener('click', (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  const link = event.target.closest('a[data-path], a[data-step]');
  if (!link || onlyXray) return;
  event.preventDefault();
  const lesson = /^(\d\d)-[^/]+\/((README|reference)\.md)?$/.exec(link.dataset.path ?? '');
  const shown = lesson || link.dataset.step
    ? showLesson(Number(lesson?.[1] ?? link.dataset.step), new URL(link.href).hash)
    : openFile(link.dataset.path, link.dataset.line);
  shown.catch(tellError);
});

document.body.classList.toggle('only-xray', onlyXray);
const isWide = () => !matchMedia('(max-width: 800px)').matches;
startSplitter($('#splitter'), '--lesson', 50, $('#main'), isWide);
startSplitter($('#tool-splitter'), '--above', 65, $('#tools'), () => false);
startTheme();
startTabs();
startXray($('#xray'), onlyXray);
showTab(onlyXray ? 'xray' : settings.get('tab', 'terminals'));
if (!onlyXray) {
  startKeys();
  startTerminals(showTab, () => tab).catch(tellError);
  startLessons().catch(tellError);
  if (address.has('file')) openFile(address.get('file'), address.get('line')).catch(tellError);
}
