// Gives each Icecream a Deployment, and says in its status how that goes.
//
//   node icecream.mjs --namespace NAMESPACE; it reaches the cluster through KUBECONFIG.
import { isDeepStrictEqual, parseArgs } from 'node:util';
import * as k8s from '@kubernetes/client-node';

const { values: { namespace } } = parseArgs({ options: { namespace: { type: 'string', default: 'default' } } });
const group = 'controller.nicoleh.io', version = 'v1alpha1', plural = 'icecreams';

const config = new k8s.KubeConfig();
config.loadFromDefault();
const apps = config.makeApiClient(k8s.AppsV1Api);
const custom = config.makeApiClient(k8s.CustomObjectsApi);

// An informer keeps a copy of each object, and follows its changes.
const icecreams = k8s.makeInformer(config, `/apis/${group}/${version}/namespaces/${namespace}/${plural}`,
  () => custom.listNamespacedCustomObject({ group, version, namespace, plural }));
const deployments = k8s.makeInformer(config, `/apis/apps/v1/namespaces/${namespace}/deployments`,
  () => apps.listNamespacedDeployment({ namespace }));

for (const event of ['add', 'update', 'delete']) {
  icecreams.on(event, (ice) => enqueue(ice.metadata.name));
  deployments.on(event, (d) => {
    for (const ice of icecreams.list(namespace)) {
      if (ice.spec.deploymentName === d.metadata.name) enqueue(ice.metadata.name);
    }
  });
}
for (const informer of [icecreams, deployments]) {
  // An error ends an informer until it is started again.
  informer.on('error', (err) => {
    console.error('watching:', err.message);
    setTimeout(() => informer.start(), 1000);
  });
}

const waiting = new Set(); // names of Icecreams
const failures = new Map();
let working = false;

function enqueue(name) {
  waiting.add(name);
  work();
}

// work reconciles one Icecream after the other until none is waiting.
async function work() {
  if (working) return;
  working = true;
  for (const name of waiting) {
    waiting.delete(name);
    try {
      await reconcile(name);
      failures.delete(name);
    } catch (err) {
      failures.set(name, (failures.get(name) ?? 0) + 1);
      const delay = Math.max(Math.min(5 * 2 ** failures.get(name), 10_000), 1000 * (Number(err.headers?.['retry-after']) || 0));
      console.error(`${name}: trying again in ${delay} ms:`, err.message);
      setTimeout(enqueue, delay, name);
    }
  }
  working = false;
}

// reconcile brings one Icecream's Deployment and status to what they should be.
async function reconcile(name) {
  const ice = icecreams.get(name, namespace);
  if (!ice || ice.metadata.deletionTimestamp) return; // the garbage collector deletes the Deployment
  let d;
  try {
    d = await deploymentOf(ice);
  } catch (err) {
    const stays = err.code >= 400 && err.code < 500 && ![401, 404, 409, 429].includes(err.code);
    if (stays) await report(ice, {}, 'Refused', String(err.body));
    throw err;
  }
  if (!d) return report(ice, {}, 'ErrResourceExists', 'the Deployment belongs to somebody else');
  const { replicas = 0, availableReplicas = 0 } = d.status ?? {};
  await report(ice, { replicas, availableReplicas }, availableReplicas >= ice.spec.replicas ? 'Available' : 'Progressing', '');
}

// deploymentOf returns the Icecream's Deployment as it should be, or nothing if its name is taken.
async function deploymentOf(ice) {
  const name = ice.spec.deploymentName;
  let d = deployments.get(name, namespace);
  if (!d) {
    try {
      return await apps.createNamespacedDeployment({ namespace, body: deploymentFor(ice) });
    } catch (err) {
      if (err.code !== 409) throw err;
      d = await apps.readNamespacedDeployment({ namespace, name }); // the copy was behind
    }
  }
  if (!d.metadata.ownerReferences?.some((owner) => owner.controller && owner.uid === ice.metadata.uid)) return undefined;
  if (d.metadata.deletionTimestamp || d.spec.replicas === ice.spec.replicas) return d;
  return apps.replaceNamespacedDeployment({ namespace, name, body: { ...d, spec: { ...d.spec, replicas: ice.spec.replicas } } });
}

function deploymentFor({ apiVersion, kind, metadata: { name, uid }, spec }) {
  const labels = { [`${group}/uid`]: uid };
  return {
    metadata: {
      name: spec.deploymentName,
      ownerReferences: [{ apiVersion, kind, name, uid, controller: true, blockOwnerDeletion: true }],
    },
    spec: {
      replicas: spec.replicas,
      selector: { matchLabels: labels },
      template: {
        metadata: { labels },
        spec: { containers: [{ name: 'icecream', image: 'workshop/pause:1' }] },
      },
    },
  };
}

// report writes the status, if it differs.
async function report(ice, numbers, reason, message) {
  const observedGeneration = ice.metadata.generation;
  const status = reason === 'Available' ? 'True' : 'False';
  const old = ice.status?.conditions?.find((c) => c.type === 'Available');
  // A refusal keeps its first words: with others each time, each report would bring an event, and that the next try.
  if (reason === 'Refused' && old?.reason === reason && old.observedGeneration === observedGeneration) message = old.message;
  const lastTransitionTime = old?.status === status ? old.lastTransitionTime : new Date().toISOString().replace(/\.\d+/, '');
  const others = ice.status?.conditions?.filter((c) => c.type !== 'Available') ?? [];
  const after = { observedGeneration, conditions: [...others, { type: 'Available', status, reason, message, observedGeneration, lastTransitionTime }], ...numbers };
  if (isDeepStrictEqual(after, ice.status)) return;
  await custom.replaceNamespacedCustomObjectStatus({ group, version, namespace, plural, name: ice.metadata.name, body: { ...ice, status: after } });
}

process.on('SIGTERM', () => process.exit(0));
await Promise.all([icecreams.start(), deployments.start()]);
