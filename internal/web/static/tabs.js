// The tabs of the tools. The terminals may stay in view below the two others.
import { $, inAddress, neighbour } from './dom.js';
import { state } from './state.js';

export const view = inAddress('view');
export const onlyXray = view === 'xray';
export const low = matchMedia('(max-height: 430px)'); // as a laptop's screen at 200 % zoom: two panes have no place there
const tabs = ['terminals', 'xray', 'file'];
export let tab;

export function showTab(name) {
  tab = name;
  for (const other of tabs) {
    const button = $(`#tab-${other}`);
    button.ariaSelected = other === name;
    button.tabIndex = other === name ? 0 : -1;
    $(`#${other}`).hidden = other !== name;
  }
  const isKept = state.get('keep', true);
  const isBelow = name !== 'terminals' && isKept && !onlyXray;
  $('#keep').ariaPressed = isKept;
  $('#keep').hidden = name === 'terminals';
  $('#terminals').hidden = name !== 'terminals' && !isBelow;
  $('#tool-splitter').hidden = !isBelow;
  $('#tools').dataset.below = isBelow;
  if (!view) state.set('tab', name);
}

// bringTab shows a tab that a link or a button leads to, also when the lesson has the whole page.
export function bringTab(name) {
  if ($('#main').dataset.panes === 'lesson') state.set('panes', low.matches ? 'tools' : 'both');
  showTab(name);
}

for (const name of tabs) $(`#tab-${name}`).addEventListener('click', () => showTab(name));
$('#tabs').addEventListener('keydown', (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  showTab(neighbour(tabs, tab, step));
  $(`#tab-${tab}`).focus();
  event.preventDefault();
});
$('#keep').addEventListener('click', () => {
  state.set('keep', !state.get('keep', true));
  showTab(tab);
});
showTab(onlyXray ? 'xray' : view ? 'terminals' : state.get('tab', 'terminals'));
