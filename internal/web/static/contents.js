// Finding one's way: steps and sections with their ticks, search, the glossary, and where the learner is.
import { $, $$, api, button, h, keyed, later, once, setText } from './dom.js';
import { state } from './state.js';
import { view } from './tabs.js';

let steps = [];
let terms = new Map(); // of the glossary: a term in small letters -> its entry

export function startContents(all) {
  steps = all;
  if (!view) $('#lesson').addEventListener('scroll', rememberPlace); // a trainer's slides are elsewhere
  const field = $('#search');
  field.addEventListener('input', later(200, () => search(field.value)));
  field.addEventListener('keydown', async ({ key }) => {
    if (key === 'Escape') search(field.value = '');
    if (key !== 'Enter' && key !== 'ArrowDown') return;
    await search(field.value);
    $('#found a')?.focus();
  });
  $('#found').addEventListener('click', ({ target }) => target.closest('a') && search(field.value = ''));
  $('#contents').addEventListener('click', ({ target }) => { if (target.matches('a')) $('#contents').open = false; });
  loadTerms();
}

async function loadTerms() {
  const { html } = await api('/api/glossary');
  terms = new Map($$('li:has(strong)', parse(html)).map((entry) => [$('strong', entry).textContent.toLowerCase(), entry]));
  explainTerms();
}

const flat = (element) => element.textContent.replace(/\s+/g, ' ');
const parse = (html) => h('template', { innerHTML: html }).content;

// Ticks.

// known is what the last run of a command has come to, unless the lesson has another command there by now.
export function known({ dataset: { step, block, command, hash } }) {
  const outcome = state.get(`outcomes-${step}`, {})[`${block}/${command}`];
  return outcome?.hash === hash ? outcome : null;
}
const boxesOf = (heading) => {
  const boxes = [];
  for (let at = heading.nextElementSibling; at && !at.matches('h2, h3'); at = at.nextElementSibling) boxes.push(...(at.matches('.run') ? [at] : $$('.run', at)));
  return boxes;
};
const countOf = ({ step, hashes }) => Object.entries(state.get(`outcomes-${step}`, {})).filter(([at, { ok, hash }]) => ok && hash === hashes[at]).length;

// showContents draws the steps, and the sections of the one that is shown.
export function showContents(step) {
  const at = steps.findIndex((s) => s.step === step);
  // Elements stay, and the focus in them.
  keyed($('#steps ol'), steps, (s) => s.step, (s) => h('li', {}, h('a', { href: `/?step=${s.step}`, 'data-step': s.step }, s.dir, h('span', { className: 'visually-hidden' }))), (element, s) => {
    const link = element.firstChild;
    const done = countOf(s);
    const isWhole = s.commands > 0 && done === s.commands;
    link.title = `${s.title}: ${done} of ${s.commands} commands`;
    link.dataset.done = isWhole;
    setText(link.lastChild, isWhole ? ', done' : '');
    link.ariaCurrent = s.step === step ? 'page' : null;
  });
  keyed($('#contents ol'), $$('#lesson :is(h2, h3)[id]'), (heading) => `${step} ${heading.id}`, (heading) => h('li', { className: heading.tagName.toLowerCase() },
    h('a', { href: `#${heading.id}` }, heading.textContent), h('span')), (element, heading) => {
    const boxes = boxesOf(heading);
    const done = boxes.filter((box) => known(box)?.ok).length;
    element.dataset.done = boxes.length > 0 && done === boxes.length;
    setText(element.lastChild, boxes.length ? ` ${done} of ${boxes.length}` : '');
  });
  for (const [id, other, word] of [['#previous-step', steps[at - 1], 'Previous: '], ['#next-step', steps[at + 1], 'Next: ']]) {
    const link = $(id);
    link.hidden = !other;
    if (!other) continue;
    link.textContent = word + other.dir;
    link.href = `/?step=${other.step}`;
    link.dataset.step = other.step;
  }
  if ($('#lesson').shownStep !== step) explainTerms();
  $('#lesson').shownStep = step;
}

const rememberPlace = later(400, () => {
  const { top } = $('#lesson').getBoundingClientRect();
  const heading = $$('#lesson :is(h2, h3)[id]').findLast((one) => one.getBoundingClientRect().top <= top + 80);
  const step = $('#lesson').shownStep;
  state.set('at', { ...state.get('at', {}), [step]: [...$('#lesson').children].findIndex((one) => one.getBoundingClientRect().bottom > top + 8) });
  state.set('place', { step, id: heading?.id ?? '', title: heading?.textContent ?? '' });
});

// Search: all lessons, paragraph by paragraph.

const index = once(async () => {
  const lessons = await Promise.all(steps.map(({ step }) => api(`/api/lessons/${step}`).catch((error) => {
    if (error.code !== 409) throw error;
    return { step, html: '' }; // somebody with a prefix cannot do it
  })));
  return lessons.flatMap(({ step, html }) => {
    let id = '';
    let title = '';
    return $$('h1, h2, h3, p, li, tr, pre', parse(html)).map((element) => {
      if (element.matches('h1, h2, h3')) [id, title] = [element.id, element.textContent];
      const text = flat(element);
      return { step, id, title, text, lower: text.toLowerCase() };
    });
  });
});

async function search(text) {
  const found = $('#found');
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  found.hidden = text.length < 2;
  if (found.hidden) return;
  const all = (await index()).filter(({ lower }) => words.every((word) => lower.includes(word)));
  if ($('#search').value !== text || found.dataset.text === text) return; // more has been typed since, or it is there
  found.dataset.text = text;
  found.replaceChildren(h('p', { role: 'status' }, all.length ? `${all.length} places${all.length > 40 ? ', of which these are the first 40' : ''}` : 'Nothing found. Each word has to be in the same paragraph.'),
    h('ol', {}, ...all.slice(0, 40).map((place) => {
      const at = Math.max(0, place.lower.indexOf(words[0]) - 60);
      return h('li', {}, h('a', { href: `/?step=${place.step}#${place.id}`, 'data-step': place.step, 'data-find': place.text }, `${String(place.step).padStart(2, '0')} ${place.title}`), ` ${at ? '…' : ''}${place.text.slice(at, at + 180)}`);
    })));
}

// showFound goes to the paragraph that a search has found, below its heading.
export function showFound(text) {
  const found = $$('#lesson :is(p, li, tr, pre)').find((element) => flat(element) === text);
  for (const details of $$('#lesson details')) details.open ||= details.contains(found);
  found?.scrollIntoView({ block: 'center' });
  found?.classList.add('target');
}

// The glossary: the first use of a term in a section shows its sentence.

function explainTerms() {
  if (!terms.size) return;
  const seen = new Set();
  const pattern = new RegExp(`\\b(${[...terms.keys()].sort((a, b) => b.length - a.length).map((term) => term.replace(/[^\w ]/g, '\\$&')).join('|')})s?\\b`, 'i');
  for (const element of $$('#lesson :is(h2, h3, p, li)')) {
    if (element.matches('h2, h3')) seen.clear();
    else explainIn(element, pattern, seen);
  }
}

function explainIn(element, pattern, seen) {
  for (const node of [...element.childNodes]) {
    if (node.nodeType !== Node.TEXT_NODE) continue;
    let rest = node;
    for (let match = pattern.exec(rest.data); match; match = pattern.exec(rest.data)) {
      const word = rest.splitText(match.index);
      rest = word.splitText(match[0].length);
      const term = match[1].toLowerCase();
      if (seen.has(term)) continue;
      seen.add(term);
      word.replaceWith(button(match[0], ({ target }) => explain(target, terms.get(term)), { className: 'term' }));
    }
  }
}

// explain opens the sentence below the term, and closes it again.
function explain(word, entry) {
  const isOpen = word.nextElementSibling?.matches('.explained');
  const old = $('#lesson .explained');
  if (old) old.previousElementSibling.ariaExpanded = false;
  old?.remove();
  word.ariaExpanded = !isOpen;
  if (!isOpen) word.after(h('span', { className: 'explained', role: 'note', innerHTML: entry.innerHTML }));
}
