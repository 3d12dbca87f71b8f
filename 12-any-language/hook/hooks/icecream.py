"""What an Icecream should have: a Deployment, and a status that says how that goes."""
import json
import sys

asked = json.load(sys.stdin)
ice, problem = asked["parent"], asked["refused"] or asked["taken"]
wanted, generation = ice["spec"]["replicas"], ice["metadata"]["generation"]
seen = next((d.get("status", {}) for d in asked["children"] if d["metadata"]["name"] == ice["spec"]["deploymentName"]), {})
numbers = {name: seen.get(name, 0) for name in ("replicas", "availableReplicas")}

if problem:
    reason, numbers = "Refused" if asked["refused"] else "ErrResourceExists", {}
else:
    reason = "Available" if numbers["availableReplicas"] >= wanted else "Progressing"

labels = {"controller.nicoleh.io/uid": ice["metadata"]["uid"]}
json.dump({
    "status": {
        "observedGeneration": generation, **numbers,
        "conditions": [{
            "type": "Available", "status": "True" if reason == "Available" else "False",
            "reason": reason, "message": problem, "observedGeneration": generation,
        }],
    },
    "children": [{
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": ice["spec"]["deploymentName"]},
        "spec": {
            "replicas": wanted,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "icecream", "image": "workshop/pause:1"}]},
            },
        },
    }],
}, sys.stdout)
