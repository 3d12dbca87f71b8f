// The slides of the trainer's view are the lesson itself: each section is cut where its question,
// its commands and its explanation begin, and its code comes last.
import { $, $$, h, wrap } from './dom.js';

export const kinds = { ask: 'Question', run: 'Commands', explain: 'Explanation', code: 'Code' };
const room = { ask: 14, run: 7, explain: 13, code: 1 }; // lines of a slide

// cut moves the nodes of a lesson into its sections, and these into slides.
export function cut(article) {
  const sections = [];
  for (const node of [...article.childNodes]) {
    if (/^H[1-3]$/.test(node.nodeName)) {
      const element = wrap(node, h('div', { className: 'section' }));
      sections.push({ title: node.textContent.replace(/^\d+\.\s+/, ''), id: node.id, element, nodes: [] });
    } else sections.at(-1)?.nodes.push(node);
  }
  for (const section of sections) {
    section.slides = rounds(section.nodes).flatMap((round) => Object.keys(kinds)
      .flatMap((kind) => pages(round[kind], room[kind]).map((nodes) => ({ kind, nodes, question: kind === 'ask' ? '' : round.question }))));
    if (!section.slides.length) section.slides.push({ kind: 'ask', nodes: [], question: '' });
    for (const slide of section.slides) {
      slide.section = section;
      slide.element = h('div', { className: 'slide', 'data-kind': slide.kind, 'data-question': slide.question }, ...slide.nodes);
      section.element.append(slide.element);
    }
  }
  return sections;
}

// rounds cuts a section in parts of one question, its commands, its explanation and its code.
function rounds(nodes) {
  const all = [];
  let round, at, excerpt;
  const begin = (kind) => {
    round = { ask: [], run: [], explain: [], code: [], question: '' };
    at = kind;
    all.push(round);
  };
  begin('ask');
  for (const node of nodes) {
    if (node.nodeType === Node.COMMENT_NODE) excerpt = /^ code: (\S+) ?(.*?) $/.exec(node.data);
    if (node.nodeType === Node.TEXT_NODE && !node.data.trim() || node.nodeType === Node.COMMENT_NODE) {
      node.remove();
      continue;
    }
    const first = node.nodeName === 'P' ? node.firstElementChild : null;
    const lead = first?.nodeName === 'STRONG' && first === node.firstChild ? first.textContent : '';
    if (lead === 'Predict:') {
      if (at !== 'ask') begin('ask');
      node.classList.add('question');
      round.question += node.textContent;
    } else if (lead === 'What happened:') at = 'explain';
    else if (isCommand(node) && at === 'explain') begin('run');
    else if (isCommand(node)) at = 'run';
    else if (at === 'run') at = 'explain';
    if (excerpt && isCode(node)) {
      const [, file, part] = excerpt;
      const figure = h('figure', { className: 'excerpt' }, h('figcaption', {},
        h('a', { 'data-path': file, href: `/?file=${encodeURIComponent(file)}` }, file), part && ` ${part}`));
      figure.style.setProperty('--lines', lines($('code', node).textContent, 95));
      round[at].push(h('p', { className: 'to-code' }, `The code, ${file}, is on the last slide of this part.`));
      round.code.push(wrap(node, figure));
    } else round[at].push(node);
    excerpt = null;
  }
  return all;
}

const isCode = (node) => Boolean(node.matches?.('pre.code, .copied:has(pre.code)'));
const isCommand = (node) => Boolean(node.matches?.('.run, .expected, details.output, .by-hand'));

// pages cuts what does not fit on one slide. What introduces the next thing stays with it.
function pages(nodes, most) {
  const all = [];
  let left = 0;
  let keep = false;
  for (const node of nodes) {
    const high = height(node);
    if (!all.length || (high > left && !keep)) {
      all.push([]);
      left = most;
    }
    all.at(-1).push(node);
    left -= high;
    keep = /:\s*$/.test(node.textContent) && node.nodeName === 'P' || node.matches?.('.run');
  }
  return all;
}

const lines = (text, width) => text.trimEnd().split('\n').reduce((n, line) => n + Math.max(1, Math.ceil(line.length / width)), 0);

// height is how many lines something has in large type, as near as one can say without showing it.
function height(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return 1;
  if (node.matches('.expected, details.output')) return 1.2;
  if (node.matches('figure')) {
    const { width, height } = $('svg', node)?.viewBox.baseVal ?? {};
    return width ? Math.min(12, 1 + 31 * height / width) : 10;
  }
  if (node.matches('pre, .run, .by-hand, .copied')) return 0.6 + 0.8 * lines(($('code', node) ?? node).textContent, 88);
  const { length } = node.textContent;
  if (node.matches('.question')) return 1 + 1.5 * Math.ceil(length / 58);
  const rows = $$('li, tr', node);
  if (!rows.length) return 0.7 + Math.ceil(length / 80);
  return rows.reduce((n, row) => n + 0.4 + Math.max(...[...row.cells ?? [row]].map((cell) => Math.ceil(cell.textContent.length * (row.cells?.length ?? 1) / 80))), 0);
}
