# What an Icecream should have: a Deployment, and a status that says how that goes.
.parent as $ice | (.children | map(select(.metadata.name == $ice.spec.deploymentName))[0].status) as $d | ($ice.spec.replicas) as $wanted
| {"controller.nicoleh.io/uid": $ice.metadata.uid} as $labels
| (if .refused != "" then ["Refused", .refused] elif .taken != "" then ["ErrResourceExists", .taken]
  elif ($d.availableReplicas // 0) >= $wanted then ["Available", ""] else ["Progressing", ""] end) as [$reason, $message]
| (.refused + .taken) as $problem
| {
    status: (
      {
        observedGeneration: $ice.metadata.generation,
        conditions: [{
          type: "Available", status: (if $reason == "Available" then "True" else "False" end), $reason, $message,
          observedGeneration: $ice.metadata.generation
        }]
      } + if $problem != "" then {} else {replicas: ($d.replicas // 0), availableReplicas: ($d.availableReplicas // 0)} end
    ),
    children: [{
      apiVersion: "apps/v1", kind: "Deployment", metadata: {name: $ice.spec.deploymentName},
      spec: {
        replicas: $wanted,
        selector: {matchLabels: $labels},
        template: {metadata: {$labels}, spec: {containers: [{name: "icecream", image: "workshop/pause:1"}]}}
      }
    }]
  } # the answer
