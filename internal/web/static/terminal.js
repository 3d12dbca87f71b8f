// The terminals: xterm.js on the workshop's WebSockets.
import { $, announce, api, h, keyed, openSocket, post, settings, tell, tellError } from './dom.js';
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
    settings.set('all', !settings.get('all', false));
    showList();
  });
  const known = await api('/api/terminals');
  for (const terminal of known) attach(terminal.id);
  if (open.size === 0) await add();
  else choose(open.has(settings.get('terminal', 0)) ? settings.get('terminal', 0) : open.keys().next().value);
}

async function add() {
  const { id } = await post('/api/terminals');
  attach(id);
  choose(id);
  return id;
}

async function remove(id) {
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
  settings.set('terminal', id);
  showList();
}

function showList() {
  const all = settings.get('all', false);
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
    fontSize: 13, fontFamily: 'ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace',
    scrollback: 10000, minimumContrastRatio: 4.5, cursorBlink: false, theme: dark ? themes.dark : themes.light,
  });
  const fit = new FitAddon();
  term.loadAddon(fit);
  term.open(screen);
  const terminal = { id, screen, term, fit, socket: null, isReplaying: false, tries: 0 };
  term.textarea.setAttribute('aria-label', `Terminal ${id}. F6 leaves it.`);
  term.textarea.addEventListener('focus', () => {
    if (active !== id) choose(id);
  });
  term.attachCustomKeyEventHandler((event) => event.key !== 'F6');
  term.onData((data) => {
    // What is shown again may contain questions to the terminal, which were answered when they were asked.
    if (!terminal.isReplaying) sendBytes(terminal, encoder.encode(data));
  });
  term.onBinary((data) => sendBytes(terminal, Uint8Array.from(data, (c) => c.charCodeAt(0))));
  term.onResize(({ cols, rows }) => send(id, { type: 'resize', cols, rows }, true));
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
    terminal.isReplaying = isFirst;
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
  if (message.type === 'exited') {
    drop(terminal.id);
    announce(`Terminal ${terminal.id} has ended.`);
  } else if (message.type === 'result') {
    announce(message.ok ? 'ok' : `The command has ended with exit code ${message.exitCode}${message.ok === undefined ? '' : ', or its output differs'}.`);
  }
  events.dispatchEvent(new CustomEvent(message.type, { detail: { ...message, terminal: terminal.id } }));
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
  if (!$('#terminals').checkVisibility() && frame.tab() === 'file') frame.showTab('terminals');
  const terminal = open.get(active);
  if (terminal.socket.readyState === WebSocket.CONNECTING) {
    await new Promise((done) => {
      terminal.socket.addEventListener('open', done, { once: true });
      terminal.socket.addEventListener('close', done, { once: true });
    });
  }
  return active;
}

function fitOne(terminal) {
  if (terminal.screen.checkVisibility() && terminal.screen.clientHeight > 0) terminal.fit.fit();
}

export function terminalShown() {
  for (const terminal of open.values()) fitOne(terminal);
}

export function focusTerminal() {
  open.get(active)?.term.focus();
}

export function setTerminalTheme(isDark) {
  dark = isDark;
  for (const { term } of open.values()) term.options.theme = dark ? themes.dark : themes.light;
}
