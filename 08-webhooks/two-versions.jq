# two-versions.jq: makes the CRD of step 05 into one that serves v1 as well, and stores it.
#   $url    where the conversion webhook listens
#   $secret namespace/name of the Secret with the CA, which cert-keeper fills in
(.spec.versions[] | select(.name == "v1alpha1")) as $old
| .spec.versions = [
    ($old | .storage = false),
    ($old | .name = "v1" | .storage = true | del(.subresources.scale) # v1 does not count pods
      | .additionalPrinterColumns = [
          {name: "Deployment", type: "string", jsonPath: ".spec.deployment.name"},
          {name: "Portions", type: "integer", jsonPath: ".spec.deployment.portions"}]
      | .schema.openAPIV3Schema.properties.spec = {
          description: "What the author of an Icecream wants.", type: "object", required: ["deployment"],
          properties: {
            deployment: {
              description: "The Deployment that belongs to this Icecream.", type: "object", required: ["name"],
              properties: {
                name: $old.schema.openAPIV3Schema.properties.spec.properties.deploymentName,
                portions: {description: "How many it has to serve; one pod serves 100.", type: "integer", format: "int64", minimum: 0, maximum: 214748364700, default: 100}}},
            toppings: {description: "What v1alpha1 has no field for.", type: "array", items: {type: "string", maxLength: 63}, maxItems: 10, "x-kubernetes-list-type": "set"}}})]
| .spec.conversion = {strategy: "Webhook", webhook: {conversionReviewVersions: ["v1"], clientConfig: {url: ($url + "/convert-icecream")}}}
| .metadata.annotations["cert-keeper.k8s-go.openshift.org/inject-ca"] = $secret
