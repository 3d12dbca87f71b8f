"""Uses a client that client.jq has made: shop.py CLIENT NAMESPACE creates, lists and deletes an Icecream.

Its send is kubectl, as the API's simplest HTTP client: a language without a client library has that.
"""
import importlib.util
import json
import subprocess
import sys
from urllib.parse import urlencode


def send(method, path, query, body):
    verb = {"GET": "get", "POST": "create", "PUT": "replace", "DELETE": "delete"}[method]
    command = ["kubectl", verb, "--raw", path + ("?" + urlencode(query) if query else "")]
    if body is not None:
        command += ["-f", "-"]
    return json.loads(subprocess.run(command, input=json.dumps(body), capture_output=True, check=True, text=True).stdout)


file, namespace = sys.argv[1:]
spec = importlib.util.spec_from_file_location("client", file)
client = importlib.util.module_from_spec(spec)
spec.loader.exec_module(client)

ice: client.Icecream = {
    "apiVersion": "controller.nicoleh.io/v1alpha1", "kind": "Icecream",
    "metadata": {"name": "typed"}, "spec": {"deploymentName": "typed", "replicas": 0},
}
made = client.create_controller_nicoleh_io_v1alpha1_namespaced_icecream(send, namespace, ice)
print("created", made["metadata"]["name"], "with", made["spec"]["replicas"], "replicas")
all_of_them = client.list_controller_nicoleh_io_v1alpha1_namespaced_icecream(send, namespace, limit=10)
print("listed", ", ".join(sorted(i["metadata"]["name"] for i in all_of_them["items"])))
client.delete_controller_nicoleh_io_v1alpha1_namespaced_icecream(send, namespace, "typed", None)
print("deleted")
