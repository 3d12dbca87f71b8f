// The page of a learner who follows the trainer, until the learner goes somewhere else.
import { $, setText } from './dom.js';
import { showLesson } from './lesson.js';
import { state } from './state.js';

export function startFollow() {
  const box = $('#follow');
  const [goThere, toggle] = box.querySelectorAll('button');
  let isFollowing = false;
  const visit = () => showLesson(state.get('trainer-follow').step, `#${state.get('trainer-follow').id}`);
  const set = (follow) => {
    isFollowing = follow;
    toggle.ariaPressed = follow;
    if (follow) visit();
  };
  const show = (place) => {
    box.hidden = !place;
    goThere.hidden = toggle.hidden = Boolean(place?.trouble);
    setText($('span', box), place?.trouble ?? `The trainer is at step ${place?.step}, ${place?.title}.`);
    if (isFollowing && place?.step) visit();
  };
  goThere.addEventListener('click', visit);
  toggle.addEventListener('click', () => set(!isFollowing));
  state.on('trainer-follow', show);
  show(state.get('trainer-follow'));
  const leave = ({ target, key, ctrlKey, metaKey }) => {
    const isKept = ['F6', 'Tab', 'Shift', 'Control', 'Alt', 'Meta'].includes(key) || ((ctrlKey || metaKey) && ['a', 'c', 'f'].includes(key)); // to copy or to search moves nothing
    if (isFollowing && !isKept && target.closest?.('#lesson-pane') && !target.closest('#follow, .run-button')) set(false);
  };
  for (const type of ['pointerdown', 'wheel', 'touchmove', 'keydown']) addEventListener(type, leave, { passive: true, capture: true });
}
