// What every part of the page uses: elements, and requests to the server.

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

// h makes an element. What begins with on is a listener, and the rest are properties or, as
// data-* and aria-*, attributes.
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export const button = (text, onclick, props = {}) => h('button', { type: 'button', onclick, ...props }, text);

// wrap puts a frame in the place of a node, and the node in the frame.
export function wrap(node, frame) {
  node.replaceWith(frame);
  frame.append(node);
  return frame;
}

// keyed makes a container's children those of a list, and keeps the element of each key, so
// that focus and animations survive an update.
export function keyed(container, list, key, make, update = () => {}) {
  const old = container.keyedElements ?? new Map();
  const now = new Map();
  for (const value of list) {
    const k = key(value);
    const element = old.get(k) ?? make(value);
    update(element, value);
    now.set(k, element);
  }
  for (const [k, element] of old) if (!now.has(k)) element.remove(); // first, or those behind it would lose their places
  let place = container.firstChild;
  for (const element of now.values()) {
    if (element === place) place = place.nextSibling;
    else container.insertBefore(element, place);
  }
  container.keyedElements = now;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const inAddress = (name) => new URLSearchParams(location.search).get(name);

// The token comes in the fragment of the address, which browsers send to nobody, and stays in
// this tab. A new tab of the same page asks the others.
let token = '';
await findToken();

async function findToken() {
  const tabs = new BroadcastChannel('workshop-token');
  let found = /^#token=(\w+)$/.exec(location.hash)?.[1];
  if (found) history.replaceState(null, '', location.pathname + location.search);
  try {
    found ??= sessionStorage.getItem('workshop.token');
  } catch { /* as in setToken */ }
  found ||= await new Promise((done) => {
    tabs.onmessage = ({ data }) => data && done(data);
    tabs.postMessage('');
    setTimeout(done, 300, '');
  });
  setToken(found);
  tabs.onmessage = ({ data }) => data || !token || tabs.postMessage(token);
}

function setToken(value) {
  token = value;
  try {
    sessionStorage.setItem('workshop.token', value);
  } catch { /* then each load needs the address */ }
}

addEventListener('hashchange', () => {
  const [, found] = /^#token=(\w+)$/.exec(location.hash) ?? [];
  if (!found) return;
  setToken(found); // what has been typed is sent while the page is left
  location.reload();
});

// api asks the server, and throws what the server says when it refuses.
export async function api(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...options.headers, 'Workshop-Token': token } });
  } catch {
    throw new Error('The workshop does not answer. Run make web again, and open the address that it prints.');
  }
  const text = await response.text();
  if (response.status === 401) setToken(''); // make web no longer knows it, and a new tab must not get it
  if (!response.ok) throw Object.assign(new Error(text.trim() || `The server answers ${response.status} to ${path}.`), { code: response.status });
  return text ? JSON.parse(text) : null;
}

export const post = (path) => api(path, { method: 'POST' });

export const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// stayConnected opens a socket, and opens it again when it breaks, slower and slower, until hasEnded says that there is
// nothing to connect to.
export function stayConnected(path, { opened = () => {}, message, broken = () => {}, hasEnded = () => false }) {
  const connection = {};
  let tries = 0;
  const dial = () => {
    const socket = connection.socket = new WebSocket(`${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}${path()}`, ['workshop', token || 'none']);
    socket.binaryType = 'arraybuffer';
    socket.onopen = () => {
      opened(tries > 0);
      tries = 0;
    };
    socket.onmessage = ({ data }) => message(data);
    socket.onclose = async () => {
      broken(++tries);
      await wait(Math.min(5000, 250 * 2 ** tries));
      if (!(await hasEnded())) dial();
    };
  };
  dial();
  return connection;
}

// tell shows a line at the top of the page; announce only says it to a screen reader.
export function tell(text, isError = false) {
  const status = $('#status');
  setText(status, text);
  status.classList.toggle('error', isError);
}
export const tellError = (error) => tell(error.message, true);
// announce says it also if it was said just before.
export function announce(text) {
  const box = $('#announce');
  box.textContent = '';
  setTimeout(() => { box.textContent = text; }, 50);
}

// What nobody has caught, the learner reads. The browser's console has it too if it is a mistake of the page.
addEventListener('unhandledrejection', (event) => {
  tellError(event.reason);
  if (event.reason.constructor === Error) event.preventDefault();
});

// copyButton copies a text for the learner to paste.
export const copyButton = (text) => button('Copy',
  // Over http, and not from this machine, there is no clipboard.
  () => (navigator.clipboard?.writeText(text.trim()) ?? Promise.reject()).then(() => tell('Copied.'), () => tell('The browser does not let this page copy. Select the text instead.', true)),
  { className: 'copy', title: 'Copy', 'aria-label': `Copy ${text.trim().split('\n')[0]}` });

// later calls a function once nothing has asked for it for some milliseconds.
export function later(milliseconds, f) {
  let timer;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(f, milliseconds, ...args);
  };
}

// once calls a function at the first need, and again only if it has failed.
export function once(f) {
  let answer;
  return () => (answer ??= f().catch((error) => {
    answer = undefined;
    throw error;
  }));
}

// neighbour is what comes after something in a list, or before it if step is -1; the list is a ring.
export const neighbour = (list, value, step = 1) => list[(list.indexOf(value) + step + list.length) % list.length];
