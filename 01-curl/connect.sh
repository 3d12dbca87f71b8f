# shellcheck shell=bash
# Source this file. It takes the server's address, its CA and your credentials
# out of the kubeconfig and defines
#
#   api PATH [curl option...]   one HTTP request to the API server
#
# and NAMESPACE, where this step works (workshop-01 unless it is set already).

NAMESPACE=${NAMESPACE:-workshop-01}

if ! kubeconfig=$(kubectl config view --raw --minify --flatten --output json) ||
  ! SERVER=$(jq -er '.clusters[0].cluster.server' <<<"$kubeconfig"); then
  echo "connect.sh: found no cluster: run make shell first, or set KUBECONFIG" >&2
  return 1
fi

# Keys go into files that only you can read, and curl is told in a file too:
# what stands on a command line, everybody can see in the list of processes.
PKI=$(umask 077 && mktemp -d)
trap 'rm -rf "$PKI"' EXIT

# part FIELD writes one base64 field of the kubeconfig, decoded.
part() { jq -er "$1 // empty | @base64d" <<<"$kubeconfig"; }

part '.clusters[0].cluster["certificate-authority-data"]' >"$PKI/ca.crt"
{
  echo silent
  echo show-error
  echo "cacert = $PKI/ca.crt"
} >"$PKI/curl"
cp "$PKI/curl" "$PKI/curl-without-credentials"

if part '.users[0].user["client-certificate-data"]' >"$PKI/client.crt"; then
  part '.users[0].user["client-key-data"]' >"$PKI/client.key"
  printf 'cert = %s\nkey = %s\n' "$PKI/client.crt" "$PKI/client.key" >>"$PKI/curl"
elif token=$(jq -er '.users[0].user.token' <<<"$kubeconfig"); then
  printf 'header = "Authorization: Bearer %s"\n' "$token" >>"$PKI/curl"
else
  echo "connect.sh: the kubeconfig holds neither a client certificate nor a token: use kubectl proxy instead" >&2
  return 1
fi

api() {
  local path=$1
  shift
  curl --config "$PKI/curl" "$@" "$SERVER$path"
}
