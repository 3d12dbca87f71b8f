// Finding one's way: steps and sections with their ticks, search, the glossary, and where the learner is.
import { $, api, h, keyed, later, setText, tellError } from './dom.js';
import { state } from './state.js';
import { chooseProgram } from './xray-view.js';

let steps = [];
let showTab = () => {};
let terms = []; // of the glossary: {term, element}

export function startContents(all, show) {
  steps = all;
  showTab = show;
  $('#lesson').addEventListener('scroll', rememberPlace);
  const field = $('#search');
  field.addEventListener('input', later(200, () => search(field.value).catch(tellError)));
  field.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') search(field.value = '');
    if (event.key === 'Enter' || event.key === 'ArrowDown') search(field.value).then(() => $('#found a')?.focus(), tellError);
  });
  $('#found').addEventListener('click', (event) => event.target.closest('a') && search(field.value = ''));
  api('/api/glossary').then(({ html }) => {
    terms = [...parse(html).querySelectorAll('li')].map((element) => ({ element, term: $('strong', element)?.textContent }));
    explainTerms();
  }).catch(tellError);
}

const parse = (html) => h('template', { innerHTML: html }).content;

// Ticks.

const boxesOf = (heading) => {
  const boxes = [];
  for (let at = heading.nextElementSibling; at && !/^H[23]$/.test(at.tagName); at = at.nextElementSibling) boxes.push(...(at.matches('.run') ? [at] : at.querySelectorAll('.run')));
  return boxes;
};
const isDone = ({ dataset: { step, block, command, hash } }) => {
  const known = state.get(`outcomes-${step}`, {})[`${block}/${command}`];
  return known?.ok && known.hash === hash;
};
const countOf = (step) => Object.values(state.get(`outcomes-${step}`, {})).filter(({ ok }) => ok).length;

// showContents draws the steps, and the sections of the one that is shown.
export function showContents(step) {
  const at = steps.findIndex((s) => s.step === step);
  // Elements stay, and the focus in them.
  const list = $('#steps ol') ?? $('#steps').appendChild(h('ol'));
  keyed(list, steps, (s) => s.step, (s) => h('li', {}, h('a', { href: `/?step=${s.step}`, 'data-step': s.step }, s.dir, h('span', { className: 'visually-hidden' }))), (element, s) => {
    const link = element.firstChild;
    const done = Math.min(countOf(s.step), s.commands);
    const isWhole = s.commands > 0 && done === s.commands;
    link.title = `${s.title}: ${done} of ${s.commands} commands`;
    link.dataset.done = isWhole;
    setText(link.lastChild, isWhole ? ', done' : '');
    if (s.step === step) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  });
  keyed($('#contents ol'), $('#lesson').querySelectorAll('h2[id], h3[id]'), (heading) => `${step} ${heading.id}`, (heading) => h('li', { className: heading.tagName.toLowerCase() },
    h('a', { href: `#${heading.id}`, onclick: () => { $('#contents').open = false; } }, heading.textContent), h('span')), (element, heading) => {
    const boxes = boxesOf(heading);
    const done = boxes.filter(isDone).length;
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
  const heading = [...$('#lesson').querySelectorAll('h2[id], h3[id]')].findLast((one) => one.getBoundingClientRect().top <= top + 80);
  const step = $('#lesson').shownStep;
  state.set('at', { ...state.get('at', {}), [step]: [...$('#lesson').children].findIndex((one) => one.getBoundingClientRect().bottom > top + 8) });
  state.set('place', { step, id: heading?.id ?? '', title: heading?.textContent ?? '' });
});

// Search: all lessons, paragraph by paragraph.

let index;

async function load() {
  const lessons = await Promise.all(steps.map(({ step }) => api(`/api/lessons/${step}`).catch((error) => {
    if (error.code !== 409) throw error;
    return { step, html: '' }; // somebody with a prefix cannot do it
  })));
  return lessons.flatMap(({ step, html }) => {
    let id = '';
    let title = '';
    return [...parse(html).querySelectorAll('h1, h2, h3, p, li, tr, pre')].map((element) => {
      if (/^H[123]$/.test(element.tagName)) [id, title] = [element.id, element.textContent];
      const text = element.textContent.replace(/\s+/g, ' ');
      return { step, id, title, text, lower: text.toLowerCase() };
    });
  });
}

async function search(text) {
  const found = $('#found');
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  found.hidden = text.length < 2;
  if (found.hidden) return;
  index ??= load().catch((error) => {
    index = undefined;
    throw error;
  });
  const all = (await index).filter(({ lower }) => words.every((word) => lower.includes(word)));
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
  const found = [...$('#lesson').querySelectorAll('p, li, tr, pre')].find((element) => element.textContent.replace(/\s+/g, ' ') === text);
  for (let at = found?.closest('details'); at; at = at.parentElement.closest('details')) at.open = true;
  found?.scrollIntoView({ block: 'center' });
  found?.classList.add('target');
}

// The glossary: the first use of a term in a section shows its sentence.

function explainTerms() {
  if (!terms.length) return;
  const seen = new Set();
  const patterns = new Map(terms.filter(({ term }) => term).map((entry) => [entry.term.toLowerCase(), entry]));
  const pattern = new RegExp(`\\b(${[...patterns.keys()].sort((a, b) => b.length - a.length).map((term) => term.replace(/[^\w ]/g, '\\$&')).join('|')})s?\\b`, 'i');
  for (const element of $('#lesson').querySelectorAll('h2, h3, p, li')) {
    if (/^H[23]$/.test(element.tagName)) seen.clear();
    else explainIn(element, pattern, patterns, seen);
  }
}

function explainIn(element, pattern, patterns, seen) {
  for (const node of [...element.childNodes]) {
    if (node.nodeType !== Node.TEXT_NODE) continue;
    let rest = node;
    for (let match = pattern.exec(rest.data); match; match = pattern.exec(rest.data)) {
      const word = rest.splitText(match.index);
      rest = word.splitText(match[0].length);
      const term = match[1].toLowerCase();
      if (seen.has(term)) continue;
      seen.add(term);
      const button = h('button', { type: 'button', className: 'term', onclick: () => explain(button, patterns.get(term).element) }, match[0]);
      word.replaceWith(button);
    }
  }
}

// explain opens the sentence below the term, and closes it again.
function explain(button, entry) {
  const isOpen = button.nextElementSibling?.matches('.explained');
  const old = $('.explained', $('#lesson'));
  old?.previousElementSibling.setAttribute('aria-expanded', false);
  old?.remove();
  button.setAttribute('aria-expanded', !isOpen);
  if (!isOpen) button.after(h('span', { className: 'explained', role: 'note', innerHTML: entry.innerHTML }));
}

// lookNow opens the X-ray of the programs that a command starts; of one, that program's alone.
export const lookNow = (programs) => h('button', {
  type: 'button', className: 'look', title: `The X-ray of ${programs.join(', ')}`,
  onclick: () => {
    showTab('xray');
    chooseProgram(programs.length === 1 ? programs[0] : '');
  },
}, 'Look now: X-ray');
