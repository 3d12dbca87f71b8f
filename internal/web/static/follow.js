// The page of a learner who follows the trainer, until the learner goes somewhere else.
import { $, h, setText, tellError } from './dom.js';
import { showLesson } from './lesson.js';
import { state } from './state.js';

export function startFollow() {
  let isFollowing = false;
  const where = h('span');
  const goThere = h('button', { type: 'button', onclick: () => visit() }, 'Go there');
  const toggle = h('button', { type: 'button', 'aria-pressed': false, onclick: () => set(!isFollowing) }, 'Follow');
  const box = h('p', { id: 'follow', hidden: true }, where, goThere, toggle);
  $('#lesson-pane').prepend(box);
  const visit = () => showLesson(state.get('trainer-follow').step, `#${state.get('trainer-follow').id}`).catch(tellError);
  const set = (follow) => {
    isFollowing = follow;
    toggle.setAttribute('aria-pressed', follow);
    if (follow) visit();
  };
  const show = (place) => {
    box.hidden = !place;
    goThere.hidden = toggle.hidden = Boolean(place?.trouble);
    setText(where, place?.trouble ?? `The trainer is at step ${place?.step}, ${place?.title}.`);
    if (isFollowing && place?.step) visit();
  };
  state.on('trainer-follow', show);
  show(state.get('trainer-follow', null));
  const leave = ({ target, key }) => {
    if (isFollowing && !['F6', 'Tab'].includes(key) && target.closest?.('#lesson-pane') && !target.closest('#follow, .run-button')) set(false);
  };
  for (const type of ['pointerdown', 'wheel', 'touchmove', 'keydown']) addEventListener(type, leave, { passive: true, capture: true });
}
