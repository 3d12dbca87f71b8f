// The terminals: xterm.js on the workshop's WebSockets.
import { $, announce, api, h, keyed, openSocket, post, tell, tellError } from './dom.js';
import { state } from './state.js';
import { FitAddon } from './vendor/addon-fit.mjs';
import { Terminal } from './vendor/xterm.mjs';

// What terminals report: started, result, busy, prompt and exited.
export const events = new EventTarget();

const themes = {
  light: {
    background: '#ffffff', foreground: '#1f2328', cursor: '#1f2328', selectionBackground: '#b6d7ff',
    yellow: '#7d4e00', brightYellow: '#633c01', white: '#57606a', brightWhite: '#24292f',
  },
  dark: { background: '#0d1117', foreground: '#e6edf3', cursor: '#e6edf3', selectionBackground: '#264f78' },
};
const open = new Map(); // id -> {id, screen, term, fit, socket}
const encoder = new TextEncoder();
let active = 0;
let dark = false;
let frame = { showTab: () => {}, tab: () => '' };

export async function startTerminals(showTab, tab) {
  frame = { showTab, tab };
  $('#new-terminal').addEventListener('click', () => add().then(() => focusTerminal()).catch(tellError));
  $('#all-terminals').addEventListener('click', () => {
    state.set('all', !state.get('all', false));
    showList();
  });
  const known = await api('/api/terminals');
  for (const terminal of known) attach(terminal.id);
  if (open.size === 0) await add();
  else choose(open.has(state.get('terminal', 0)) ? state.get('terminal', 0) : open.keys().next().value);
}

async function add() {
  const { id } = await post('/api/terminals');
  attach(id);
  choose(id);
  return id;
}

async function remove(id) {
  if (open.get(id)?.isBusy && !confirm(`A command runs in terminal ${id}. End it?`)) return;
  await api(`/api/terminals/${id}`, { method: 'DELETE' });
  drop(id);
  $('#new-terminal').focus();
}

function drop(id) {
  const terminal = open.get(id);
  if (!terminal) return;
  open.delete(id);
  terminal.socket?.close();
  terminal.sizes.disconnect();
  terminal.term.dispose();
  terminal.screen.remove();
  choose(open.has(active) ? active : open.keys().next().value ?? 0);
}

function choose(id) {
  active = id;
  state.set('terminal', id);
  showList();
}

function showList() {
  const all = state.get('all', false);
  $('#all-terminals').setAttribute('aria-pressed', all);
  keyed($('#terminal-list'), [...open.keys()], (id) => id, (id) => h('span', { className: 'terminal-name' },
    h('button', { type: 'button', 'data-terminal': id, onclick: () => { choose(id); focusTerminal(); } }, `Terminal ${id}`),
    h('button', { type: 'button', className: 'close', 'aria-label': `Close terminal ${id}`, title: 'End this terminal and what runs in it', onclick: () => remove(id).catch(tellError) }, '×')),
  (element, id) => $('button', element).setAttribute('aria-pressed', id === active));
  for (const terminal of open.values()) {
    terminal.screen.hidden = !all && terminal.id !== active;
    terminal.screen.classList.toggle('active', terminal.id === active);
  }
  terminalShown();
}

function attach(id) {
  const screen = h('div', { className: 'screen', 'data-terminal': id });
  $('#screens').append(screen);
  const term = new Terminal({
    fontSize: fontSize(), screenReaderMode: state.get('reader', false), fontFamily: 'ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace',
    scrollback: 10000, minimumContrastRatio: 4.5, cursorBlink: false, theme: dark ? themes.dark : themes.light,
  });
  const fit = new FitAddon();
  term.loadAddon(fit);
  term.open(screen);
  const note = h('p', { className: 'note', role: 'status', hidden: true }, 'Another window writes to this terminal, and this one only looks on. ',
    h('button', { type: 'button', onclick: () => { send(id, { type: 'write' }); focusTerminal(); } }, 'Write here'));
  screen.prepend(note);
  const terminal = { id, screen, term, fit, note, socket: null, isReplaying: false, isWriter: true, isBusy: false, tries: 0 };
  term.registerLinkProvider({ provideLinks: (y, answer) => answer(linksIn(term, y)) });
  term.textarea.setAttribute('aria-label', `Terminal ${id}. F6 leaves it.`);
  term.textarea.addEventListener('focus', () => {
    if (active !== id) choose(id);
  });
  term.attachCustomKeyEventHandler((event) => event.key !== 'F6' && !(event.ctrlKey && event.shiftKey && event.key === 'C'));
  term.onData((data) => {
    // What is shown again may contain questions to the terminal, which were answered when they were asked.
    if (!terminal.isReplaying) sendBytes(terminal, encoder.encode(data));
  });
  term.onBinary((data) => sendBytes(terminal, Uint8Array.from(data, (c) => c.charCodeAt(0))));
  term.onResize(({ cols, rows }) => terminal.isWriter && send(id, { type: 'resize', cols, rows }, true));
  terminal.sizes = new ResizeObserver(() => fitOne(terminal));
  terminal.sizes.observe(screen);
  open.set(id, terminal);
  fitOne(terminal);
  connect(terminal);
}

function connect(terminal) {
  const { id, term } = terminal;
  const socket = openSocket(`/api/terminals/${id}/ws?cols=${term.cols}&rows=${term.rows}`);
  socket.binaryType = 'arraybuffer';
  terminal.socket = socket;
  let isFirst = true;
  socket.onopen = () => {
    if (terminal.tries > 0) {
      term.reset();
      tell('');
    }
    terminal.tries = 0;
  };
  socket.onmessage = ({ data }) => {
    if (typeof data === 'string') {
      receive(terminal, JSON.parse(data));
      return;
    }
    if (isFirst) terminal.isReplaying = true; // until it is parsed, which can be after the next message
    term.write(new Uint8Array(data), isFirst ? () => { terminal.isReplaying = false; } : undefined);
    isFirst = false;
  };
  socket.onclose = () => reconnect(terminal, socket).catch(tellError);
}

// reconnect tries again for as long as the page is open, and slower and slower.
async function reconnect(terminal, socket) {
  if (open.get(terminal.id) !== terminal || terminal.socket !== socket) return;
  terminal.tries++;
  if (terminal.tries > 1) tell('The workshop does not answer. The page tries again; if make web has ended, run it again and open the address that it prints.', true);
  await new Promise((done) => setTimeout(done, Math.min(5000, 250 * 2 ** terminal.tries)));
  const known = await api('/api/terminals').catch(() => null);
  if (open.get(terminal.id) !== terminal) return;
  if (known && !known.some(({ id }) => id === terminal.id)) drop(terminal.id);
  else connect(terminal);
}

function receive(terminal, message) {
  switch (message.type) {
    case 'exited':
      drop(terminal.id);
      announce(`Terminal ${terminal.id} has ended.`);
      break;
    case 'role':
      takeRole(terminal, message);
      break;
    case 'running': // what was typed
    case 'started':
      terminal.isBusy = true;
      terminal.startedAt = Date.now();
      break;
    case 'prompt':
      if (terminal.isBusy) notify(terminal, 'The command has ended.');
      terminal.isBusy = false;
      break;
    case 'result': {
      const text = message.ok ? 'ok' : `The command has ended with exit code ${message.exitCode}${message.ok === undefined ? '' : ', or its output differs'}.`;
      announce(text);
      notify(terminal, text);
      terminal.isBusy = false;
    }
  }
  events.dispatchEvent(new CustomEvent(message.type, { detail: { ...message, terminal: terminal.id } }));
}

// takeRole follows the server: the keys and the size of one window count.
function takeRole(terminal, { writer, cols, rows }) {
  const { term, note } = terminal;
  terminal.isWriter = writer;
  note.hidden = writer;
  term.options.disableStdin = !writer;
  if (writer) fitOne(terminal);
  else term.resize(cols, rows);
}

// notify tells somebody who looks elsewhere that a long command has ended.
function notify(terminal, text) {
  const seconds = Math.round((Date.now() - terminal.startedAt) / 1000);
  if (!document.hidden || seconds < 20 || !state.get('notify', false) || globalThis.Notification?.permission !== 'granted') return;
  new Notification(`Terminal ${terminal.id}, after ${seconds} s`, { body: text, tag: `workshop-${terminal.id}` });
}

// What looks like a file of the clone, with or without a line, opens in the page.
const fileName = /(?<![\w-])(?:\d\d-[a-z-]+|work|internal|cmd|scripts)\/[\w./-]*\w(?::(\d+))?/g;

function linksIn(term, y) {
  const text = term.buffer.active.getLine(y - 1)?.translateToString(true) ?? '';
  return [...text.matchAll(fileName)].map((match) => ({
    text: match[0], range: { start: { x: match.index + 1, y }, end: { x: match.index + match[0].length, y } },
    activate: () => events.dispatchEvent(new CustomEvent('file', { detail: { path: match[0].split(':')[0], line: match[1] } })),
  }));
}

function sendBytes(terminal, bytes) {
  if (terminal.socket?.readyState === WebSocket.OPEN) terminal.socket.send(bytes);
}

export function send(id, message, isOptional = false) {
  const socket = open.get(id)?.socket;
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
  else if (!isOptional) throw new Error(`Terminal ${id} is not connected yet. Try again in a moment.`);
}

// terminalForCommand returns the terminal in which a button's command runs, and brings it into view.
export async function terminalForCommand() {
  if (open.size === 0) await add();
  if (!$('#terminals').checkVisibility() && frame.tab() === 'file') { // the file stays, above it
    state.set('keep', true);
    frame.showTab('file');
  }
  const terminal = open.get(active);
  terminal.term.scrollToBottom();
  if (terminal.socket.readyState === WebSocket.CONNECTING) {
    await new Promise((done) => {
      terminal.socket.addEventListener('open', done, { once: true });
      terminal.socket.addEventListener('close', done, { once: true });
    });
  }
  return active;
}

function fitOne({ isWriter, screen, fit, term }) {
  if (!isWriter || !screen.checkVisibility() || screen.clientHeight === 0) return;
  const { viewportY, baseY } = term.buffer.active;
  fit.fit();
  if (viewportY === baseY) term.scrollToBottom(); // a smaller one shows its end, as it did before
}

export function terminalShown() {
  for (const terminal of open.values()) fitOne(terminal);
}

export function focusTerminal() {
  open.get(active)?.term.focus();
}

let ordinary = 13; // pixels
const fontSize = () => Math.round((ordinary * state.get('size', 100)) / 100);

export function setTerminalSize(pixels) {
  ordinary = pixels;
  setTerminalOptions();
}

// setTerminalOptions follows the settings of the page.
export function setTerminalOptions() {
  for (const { term } of open.values()) {
    term.options.fontSize = fontSize();
    term.options.screenReaderMode = state.get('reader', false);
  }
  terminalShown();
}

// Keys that tablets do not have.
const keys = { Esc: '\x1b', Tab: '\t', 'Ctrl-C': '\x03', 'Ctrl-D': '\x04', '↑': '\x1b[A', '↓': '\x1b[B', '←': '\x1b[D', '→': '\x1b[C', '|': '|', '~': '~' };

export function startKeys() {
  $('#keys').append(...Object.entries(keys).map(([name, bytes]) => h('button', {
    type: 'button', onclick: () => { if (open.has(active)) sendBytes(open.get(active), encoder.encode(bytes)); focusTerminal(); },
  }, name)));
}

export function setTerminalTheme(isDark) {
  dark = isDark;
  for (const { term } of open.values()) term.options.theme = dark ? themes.dark : themes.light;
}
