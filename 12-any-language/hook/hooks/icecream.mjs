// What an Icecream should have: a Deployment, and a status that says how that goes.
import { readFileSync } from 'node:fs';

const { parent: { metadata: { uid, generation: observedGeneration }, spec }, children, refused, taken } = JSON.parse(readFileSync(0));
const message = refused || taken;
const { replicas = 0, availableReplicas = 0 } = children.find(({ metadata: { name } }) => name === spec.deploymentName)?.status ?? {};
let reason = availableReplicas >= spec.replicas ? 'Available' : 'Progressing';
if (message) reason = refused ? 'Refused' : 'ErrResourceExists';
const labels = { 'controller.nicoleh.io/uid': uid };

console.log(JSON.stringify({
  status: {
    observedGeneration,
    ...(message ? {} : { replicas, availableReplicas }),
    conditions: [{ type: 'Available', status: reason === 'Available' ? 'True' : 'False', reason, message, observedGeneration }],
  },
  children: [{
    apiVersion: 'apps/v1', kind: 'Deployment', metadata: { name: spec.deploymentName },
    spec: {
      replicas: spec.replicas,
      selector: { matchLabels: labels },
      template: {
        metadata: { labels },
        spec: { containers: [{ name: 'icecream', image: 'workshop/pause:1' }] },
      },
    },
  }],
}));
