# Makes a typed client of one API group, in Python, of what the API server says of it:
#
#   kubectl get --raw /openapi/v3/apis/GROUP/VERSION | jq -r -f client.jq >client.py
#
# Its functions take a send(method, path, query, body), which returns the answer's JSON.

def pascal: (.[:1] | ascii_upcase) + .[1:];
def short: split(".") | last;
def snake: [scan("[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")] | map(ascii_downcase) | join("_");

# The Python type of a schema; $name is what its class is called if it is an object with fields.
def type_of($name):
  if .["$ref"] then .["$ref"] | short
  elif .allOf then .allOf[0] | type_of($name)
  elif .["x-kubernetes-int-or-string"] then "int | str"
  elif .oneOf then [.oneOf[] | type_of($name)] | unique | join(" | ")
  elif .type == "array" then "list[\(.items | type_of($name))]"
  elif .properties then $name
  elif .additionalProperties | type == "object" then "dict[str, \(.additionalProperties | type_of($name))]"
  else {string: "str", integer: "int", number: "float", boolean: "bool", object: "dict"}[.type // ""] // "object"
  end;

# The classes of a schema and of the objects in it, innermost first.
def classes($name):
  if .type == "array" then .items | classes($name)
  elif .properties then
    (.properties | to_entries[] | .key as $key | .value | classes($name + ($key | pascal))),
    "\($name) = TypedDict(\($name | tojson), {\(
      [.properties | to_entries[] | .key as $key | "\($key | tojson): \(.value | type_of($name + ($key | pascal)) | tojson)"] | join(", ")
    )}, total=False)"
  else empty
  end;

# The functions of a path, one for each method.
def functions:
  .key as $path
  | [$path | scan("{([a-z]+)}")[0]] as $in_path
  | .value | to_entries[] | select(.value | type == "object" and has("operationId"))
  | .key as $method | .value
  | ([.responses[]? | .content["application/json"].schema // empty | type_of("object")][0] // "object") as $answer
  | [.requestBody.content[]?.schema | type_of("object")][:1] as $body
  | "def \(.operationId | snake)(\(["send"] + ($in_path | map("\(.): str")) + ($body | map("body: \"\(.)\"")) + ["**query"] | join(", "))) -> \"\($answer)\":",
    "    return send(\($method | ascii_upcase | tojson), f\($path | tojson), query, \(if $body == [] then "None" else "body" end))\n";

"\"\"\"\(.info.title) \(.info.version): made by client.jq, so edit that instead.\"\"\"",
"from typing import TypedDict\n",
(.components.schemas | to_entries[] | (.key | short) as $name | .value
  | if .properties then classes($name) else "\($name) = \(type_of($name))" end), # Time is a string
"",
(.paths | to_entries[] | functions)
