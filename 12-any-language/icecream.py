#!/usr/bin/env python3
"""Gives each Icecream a Deployment, and says in its status how that goes.

icecream.py --namespace NAMESPACE; it reaches the cluster through KUBECONFIG.
"""
import argparse
import datetime
import logging
import queue
import signal
import sys
import threading
import time

from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException

GROUP, VERSION, PLURAL = "controller.nicoleh.io", "v1alpha1", "icecreams"
UID_LABEL = f"{GROUP}/uid"

work = queue.Queue()  # names of Icecreams
deployment_of = {}  # what each Icecream calls its Deployment, as far as is known


def follow(names_of, list_function, *args):
    """Queues the Icecreams that an event is about, for ever."""
    while True:
        for name in list(deployment_of):
            work.put(name)  # something may have happened to it while nobody watched
        try:
            # Without a resource version, the API server begins with an event for each object.
            for event in watch.Watch().stream(list_function, *args):
                for name in names_of(event["type"], event["raw_object"]):
                    work.put(name)
        except Exception as err:  # a watch that cannot go on begins anew
            logging.warning("watching: %s", err)
            time.sleep(1)


def of_icecream(event, ice):
    name = ice["metadata"]["name"]
    deployment_of[name] = ice["spec"]["deploymentName"]
    if event == "DELETED":
        del deployment_of[name]
    return [name]


def of_deployment(_, deployment):
    return [name for name, d in list(deployment_of.items()) if d == deployment["metadata"]["name"]]


def deployment_for(ice):
    labels = {UID_LABEL: ice["metadata"]["uid"]}
    return {
        "metadata": {
            "name": ice["spec"]["deploymentName"],
            "ownerReferences": [{
                "apiVersion": ice["apiVersion"], "kind": ice["kind"], "name": ice["metadata"]["name"],
                "uid": ice["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True,
            }],
        },
        "spec": {
            "replicas": ice["spec"]["replicas"],
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "icecream", "image": "workshop/pause:1"}]},
            },
        },
    }


class Controller:
    def __init__(self, namespace):
        self.namespace = namespace
        self.apps, self.custom = client.AppsV1Api(), client.CustomObjectsApi()

    def reconcile(self, name):
        """Brings one Icecream's Deployment and status to what they should be."""
        try:
            ice = self.custom.get_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL, name)
        except ApiException as err:
            if err.status == 404:
                return
            raise
        if ice["metadata"].get("deletionTimestamp"):
            return  # the garbage collector deletes the Deployment
        try:
            deployment = self.deployment(ice)
        except ApiException as err:
            if 400 <= err.status < 500 and err.status not in (401, 404, 409, 429):  # this may stay so
                self.report(ice, {}, "Refused", str(err.body))
            raise
        if deployment is None:
            self.report(ice, {}, "ErrResourceExists", "the Deployment belongs to somebody else")
            return
        replicas, available = deployment.status.replicas or 0, deployment.status.available_replicas or 0
        reason = "Available" if available >= ice["spec"]["replicas"] else "Progressing"
        self.report(ice, {"replicas": replicas, "availableReplicas": available}, reason, "")

    def deployment(self, ice):
        """Returns the Icecream's Deployment as it should be, or None if its name is taken."""
        name = ice["spec"]["deploymentName"]
        try:
            deployment = self.apps.read_namespaced_deployment(name, self.namespace)
        except ApiException as err:
            if err.status != 404:
                raise
            return self.apps.create_namespaced_deployment(self.namespace, deployment_for(ice))
        owners = deployment.metadata.owner_references or []
        if not any(owner.uid == ice["metadata"]["uid"] and owner.controller for owner in owners):
            return None
        if deployment.metadata.deletion_timestamp or deployment.spec.replicas == ice["spec"]["replicas"]:
            return deployment
        deployment.spec.replicas = ice["spec"]["replicas"]
        return self.apps.replace_namespaced_deployment(name, self.namespace, deployment)

    def report(self, ice, numbers, reason, message):
        """Writes the status, if it differs."""
        before = ice.get("status", {})
        generation = ice["metadata"]["generation"]
        old = next((c for c in before.get("conditions", []) if c["type"] == "Available"), {})
        # A refusal keeps its first words: with others each time, each report would bring an event, and that the next try.
        if reason == "Refused" == old.get("reason") and old.get("observedGeneration") == generation:
            message = old["message"]
        condition = {
            "type": "Available", "status": "True" if reason == "Available" else "False",
            "reason": reason, "message": message, "observedGeneration": generation,
        }
        if old.get("status") == condition["status"]:
            condition["lastTransitionTime"] = old["lastTransitionTime"]
        else:
            condition["lastTransitionTime"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        others = [c for c in before.get("conditions", []) if c["type"] != "Available"]
        status = {"observedGeneration": generation, "conditions": [*others, condition], **numbers}
        if status != before:
            ice["status"] = status
            self.custom.replace_namespaced_custom_object_status(
                GROUP, VERSION, self.namespace, PLURAL, ice["metadata"]["name"], ice)

    def run(self):
        failures = {}
        while True:
            name = work.get()
            try:
                self.reconcile(name)
                failures.pop(name, None)
            except Exception as err:
                failures[name] = failures.get(name, 0) + 1
                delay = min(0.005 * 2 ** min(failures[name], 11), 10)
                if isinstance(err, ApiException) and err.headers and err.headers.get("Retry-After", "").isdigit():
                    delay = max(delay, float(err.headers["Retry-After"]))
                logging.warning("%s: trying again in %.1f s: %s", name, delay, err)
                again = threading.Timer(delay, work.put, [name])
                again.daemon = True
                again.start()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--namespace", default="default")
    namespace = parser.parse_args().namespace
    try:
        config.load_kube_config()
    except config.ConfigException:  # in a pod
        config.load_incluster_config()
    controller = Controller(namespace)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for target, args in [
        (follow, (of_icecream, controller.custom.list_namespaced_custom_object, GROUP, VERSION, namespace, PLURAL)),
        (follow, (of_deployment, controller.apps.list_namespaced_deployment, namespace)),
        (controller.run, ()),
    ]:
        threading.Thread(target=target, args=args, daemon=True).start()
    signal.pause()


main()
