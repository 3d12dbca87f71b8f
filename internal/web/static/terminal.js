// The terminals: xterm.js on the workshop's WebSockets.
import { $, announce, api, button, h, keyed, post, stayConnected, tell } from './dom.js';
import { state } from './state.js';
import { showTab, tab } from './tabs.js';
import { FitAddon } from './vendor/addon-fit.mjs';
import { Terminal } from './vendor/xterm.mjs';

// What terminals report (started, running, result, busy, stale, role, unread, prompt, exited), and what the page says of itself: file, opened, lesson.
export const events = new EventTarget();

const themes = {
  light: {
    background: '#ffffff', foreground: '#1f2328', cursor: '#1f2328', selectionBackground: '#b6d7ff',
    yellow: '#7d4e00', brightYellow: '#633c01', white: '#57606a', brightWhite: '#24292f',
  },
  dark: { background: '#0d1117', foreground: '#e6edf3', cursor: '#e6edf3', selectionBackground: '#264f78' },
};
const open = new Map(); // id -> {id, screen, term, fit, connection}
const answers = /^\x1b(?:[\]P].|\[[?>]?[\d;]*(?:[cnRt]|\$y))/; // what xterm.js says of itself when a program asks, and no key
const encoder = new TextEncoder();
let active = 0;
const look = { dark: false, pixels: 13 };

export async function startTerminals() {
  $('#new-terminal').addEventListener('click', async () => {
    await add();
    focusTerminal();
  });
  $('#all-terminals').addEventListener('click', () => {
    state.set('all', !state.get('all', false));
    showList();
  });
  $('#keys').append(...Object.entries(keys).map(([name, bytes]) => button(name, () => {
    if (open.has(active)) sendBytes(open.get(active), encoder.encode(bytes));
    focusTerminal();
  })));
  state.on('terminals', follow);
  follow(state.get('terminals', []));
  if (open.size === 0) await add();
  else choose(open.has(state.get('terminal')) ? state.get('terminal') : open.keys().next().value);
}

// follow shows the terminals that there are, whichever window has opened or closed them.
function follow(ids) {
  for (const id of ids) if (!open.has(id)) attach(id);
  for (const id of [...open.keys()]) if (!ids.includes(id)) drop(id);
  showList();
}

// Keys that tablets do not have.
const keys = { Esc: '\x1b', Tab: '\t', 'Ctrl-C': '\x03', 'Ctrl-D': '\x04', '↑': '\x1b[A', '↓': '\x1b[B', '←': '\x1b[D', '→': '\x1b[C', '|': '|', '~': '~' };

async function add() {
  const { id } = await post('/api/terminals');
  if (!open.has(id)) attach(id);
  open.get(id).isOwn = true; // another window may have been the first to show it
  send(id, { type: 'write' }, true);
  choose(id);
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
  const hadFocus = terminal.screen.contains(document.activeElement);
  open.delete(id);
  terminal.connection.socket.close();
  terminal.sizes.disconnect();
  terminal.term.dispose();
  terminal.screen.remove();
  if (id === active) choose(open.keys().next().value ?? 0);
  else showList();
  if (hadFocus) $('#new-terminal').focus();
  announce(`Terminal ${id} has ended.`);
  events.dispatchEvent(new CustomEvent('exited', { detail: { terminal: id } }));
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
    button(`Terminal ${id}`, () => { choose(id); focusTerminal(); }, { 'data-terminal': id }),
    button('×', () => remove(id), { className: 'close', 'aria-label': `Close terminal ${id}`, title: 'End this terminal and what runs in it' })),
  (element, id) => { element.firstChild.ariaPressed = id === active; });
  for (const { id, screen } of open.values()) {
    screen.hidden = !all && id !== active;
    screen.classList.toggle('active', id === active);
  }
}

const options = () => ({
  fontSize: Math.round((look.pixels * state.get('size', 100)) / 100), screenReaderMode: state.get('reader', false), theme: look.dark ? themes.dark : themes.light,
});

// setTerminalOptions follows the settings of the page, and what this window says besides.
export function setTerminalOptions(change) {
  Object.assign(look, change);
  for (const terminal of open.values()) {
    Object.assign(terminal.term.options, options());
    fitOne(terminal);
  }
}

function attach(id) {
  const note = h('p', { className: 'note', role: 'status', hidden: true }, 'Another window writes to this terminal, and this one only looks on. ',
    button('Write here', () => { send(id, { type: 'write' }); focusTerminal(); }));
  const screen = h('div', { className: 'screen', 'data-terminal': id }, note);
  $('#screens').append(screen);
  const term = new Terminal({
    ...options(), fontFamily: 'ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace',
    scrollback: 10000, minimumContrastRatio: 4.5, cursorBlink: false,
  });
  const fit = new FitAddon();
  term.loadAddon(fit);
  term.open(screen);
  const terminal = { id, screen, term, fit, note, isReplaying: false, isWriter: true, isBusy: false };
  term.registerLinkProvider({ provideLinks: (y, answer) => answer(linksIn(term, y)) });
  term.textarea.setAttribute('aria-label', `Terminal ${id}. F6 leaves it.`);
  term.textarea.addEventListener('focus', () => {
    if (active !== id) choose(id);
  });
  term.attachCustomKeyEventHandler((event) => event.key !== 'F6' && !(event.ctrlKey && event.shiftKey && event.key === 'C'));
  term.onData((data) => {
    // What is shown again may contain questions to the terminal, which were answered when they were asked. Keys count.
    if (!terminal.isReplaying || !answers.test(data)) sendBytes(terminal, encoder.encode(data));
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
  let isFirst;
  let drawn; // bytes of which the server does not know that they are on the screen
  terminal.connection = stayConnected(() => `/api/terminals/${id}/ws`, {
    opened(isAgain) {
      isFirst = true;
      drawn = 0;
      send(id, { type: 'resize', cols: term.cols, rows: term.rows });
      if (terminal.isOwn) send(id, { type: 'write' });
      terminal.isOwn = false;
      if (!isAgain) return;
      term.reset();
      if ($('#status').textContent.startsWith('The workshop does not answer')) tell('');
    },
    message(data) {
      if (typeof data === 'string') {
        const said = JSON.parse(data);
        if (said.type === 'again') { // there was more than could be drawn, and its end comes next
          isFirst = true;
          term.write('\x1bc');
        } else receive(terminal, said);
        return;
      }
      const isReplay = isFirst;
      isFirst = false;
      if (isReplay) terminal.isReplaying = true; // until it is parsed, which can be after the next message
      term.write(new Uint8Array(data), () => {
        if (isReplay) terminal.isReplaying = false;
        drawn += data.byteLength;
        if (drawn < 65536) return;
        send(id, { type: 'drawn', bytes: drawn }, true);
        drawn = 0;
      });
    },
    broken(tries) {
      if (tries > 1) tell('The workshop does not answer. The page tries again; if make web has ended, run it again and open the address that it prints.', true);
    },
    hasEnded: () => open.get(id) !== terminal,
  });
}

function receive(terminal, message) {
  switch (message.type) {
    case 'exited':
      drop(terminal.id);
      return;
    case 'unread':
      tell(`The program in terminal ${terminal.id} does not read what you type, so the rest of it was dropped.`, true);
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

// In pieces, because the server takes no message of more than 1 MiB.
function sendBytes({ id, connection: { socket } }, bytes) {
  if (socket.readyState !== WebSocket.OPEN) tell(`Terminal ${id} is not connected, so what you typed was dropped.`, true);
  else for (let at = 0; at < bytes.length; at += 65536) socket.send(bytes.subarray(at, at + 65536));
}

export function send(id, message, isOptional = false) {
  const socket = open.get(id)?.connection?.socket;
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
  else if (!isOptional) throw new Error(`Terminal ${id} is not connected yet. Try again in a moment.`);
}

// terminalForCommand returns the terminal in which a button's command runs, and brings it into view.
export async function terminalForCommand() {
  if (open.size === 0) await add();
  if (!$('#terminals').checkVisibility() && tab === 'file') { // the file stays, above it
    state.set('keep', true);
    showTab('file');
  }
  const { term, connection: { socket } } = open.get(active);
  term.scrollToBottom();
  if (socket.readyState === WebSocket.CONNECTING) {
    await new Promise((done) => { for (const type of ['open', 'close']) socket.addEventListener(type, done, { once: true }); });
  }
  send(active, { type: 'write' }, true); // whoever clicks means this window
  return active;
}

// make runs a make command of an exercise in the terminal.
export async function make(action, step, task = '') {
  const terminal = await terminalForCommand();
  await post(`/api/exercises/${step}/${action}?${new URLSearchParams({ task, terminal })}`);
  return terminal;
}

function fitOne({ isWriter, screen, fit, term }) {
  if (!isWriter || !screen.checkVisibility() || screen.clientHeight === 0) return;
  const { viewportY, baseY } = term.buffer.active;
  fit.fit();
  if (viewportY === baseY) term.scrollToBottom(); // a smaller one shows its end, as it did before
}

export function focusTerminal() {
  (open.get(active)?.term ?? $('#new-terminal')).focus();
}
