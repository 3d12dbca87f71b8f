// What every part of the page uses: elements, and requests to the server.

export const $ = (selector, root = document) => root.querySelector(selector);

// h makes an element. What begins with on is a listener, class and data-* are attributes, and
// the rest are properties or attributes.
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== 'list') element[name] = value;
    else element.setAttribute(name === 'className' ? 'class' : name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// keyed makes a container's children those of a list, and keeps the element of each key, so
// that focus and animations survive an update.
export function keyed(container, list, key, make, update = () => {}) {
  const old = container.keyedElements ?? new Map();
  const now = new Map();
  let previous = null;
  for (const value of list) {
    const k = key(value);
    const element = old.get(k) ?? make(value);
    update(element, value);
    now.set(k, element);
    const place = previous ? previous.nextSibling : container.firstChild;
    if (place !== element) container.insertBefore(element, place);
    previous = element;
  }
  for (const [k, element] of old) if (!now.has(k)) element.remove();
  container.keyedElements = now;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// The token comes in the fragment of the address, which browsers send to nobody, and stays in
// this tab. A new tab of the same page asks the others.
const token = await findToken();

async function findToken() {
  const tabs = new BroadcastChannel('workshop-token');
  let found = /^#token=(\w+)$/.exec(location.hash)?.[1];
  if (found) history.replaceState(null, '', location.pathname + location.search);
  try {
    found ??= sessionStorage.getItem('workshop.token');
  } catch { /* then each load needs the address */ }
  found ??= await new Promise((done) => {
    tabs.onmessage = ({ data }) => data && done(data);
    tabs.postMessage('');
    setTimeout(done, 300, '');
  });
  try {
    sessionStorage.setItem('workshop.token', found);
  } catch { /* as above */ }
  tabs.onmessage = ({ data }) => data || tabs.postMessage(found);
  return found;
}

addEventListener('hashchange', () => {
  if (location.hash.startsWith('#token=')) location.reload();
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
  if (!response.ok) throw Object.assign(new Error(text.trim() || `The server answers ${response.status} to ${path}.`), { code: response.status });
  return text ? JSON.parse(text) : null;
}

export const post = (path, body) => api(path, {
  method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body ?? {}),
});

export const openSocket = (path) => new WebSocket(`${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}${path}`, ['workshop', token || 'none']);

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

// copyButton copies a text for the learner to paste.
export const copyButton = (text) => h('button', {
  type: 'button', className: 'copy', title: 'Copy', 'aria-label': `Copy ${text.trim().split('\n')[0]}`,
  // Over http, and not from this machine, there is no clipboard.
  onclick: () => (navigator.clipboard?.writeText(text.trim()) ?? Promise.reject()).then(() => tell('Copied.'), () => tell('The browser does not let this page copy. Select the text instead.', true)),
}, 'Copy');

// later calls a function once nothing has asked for it for some milliseconds.
export function later(milliseconds, f) {
  let timer;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(f, milliseconds, ...args);
  };
}
