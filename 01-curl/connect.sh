# shellcheck shell=bash
# Source this file, in bash or zsh. It takes the server's address, its CA and your
# credentials out of the kubeconfig and defines
#
#   api PATH [curl option...]        one HTTP request to the API server
#   recreate COLLECTION NAME JSON    create an object; one of that name is deleted first
#   at_exit COMMAND                  run it when this shell ends
#
# and NAMESPACE, where this step works: WORKSHOP_NAMESPACE if that is set. On a
# shared cluster, WORKSHOP_PREFIX keeps people apart.

# shellcheck disable=SC2034 # for the scripts that source this file
NAMESPACE=${WORKSHOP_NAMESPACE:-${WORKSHOP_PREFIX:-}workshop-01}

# What this shell was to run at its end already, it runs after COMMAND.
at_exit() {
  if [[ -n ${ZSH_VERSION:-} ]]; then
    # zsh runs an EXIT trap that a function sets when that function ends.
    AT_EXIT=$((${AT_EXIT:-0} + 1))
    eval "at_exit_$AT_EXIT() { $1; }"
    # shellcheck disable=SC2206 # zsh does not split it
    zshexit_functions=("at_exit_$AT_EXIT" ${zshexit_functions[@]})
  else
    local before
    eval "before=($(trap -p EXIT))" # trap -- 'COMMANDS' EXIT
    # shellcheck disable=SC2064 # the commands of now, not those of the end
    trap "$1${before[2]:+; ${before[2]}}" EXIT
  fi
}

# One line for each: client certificate, its key, token, CA, server.
if ! kubeconfig=$(kubectl config view --raw --minify --flatten --output json | jq -r '
    (.users[0].user | .["client-certificate-data"] // "", .["client-key-data"] // "", .token // ""),
    (.clusters[0].cluster | .["certificate-authority-data"] // "", .server // "")') ||
  ! { read -r cert && read -r key && read -r token && read -r ca && read -r SERVER; } <<<"$kubeconfig" ||
  [[ -z $SERVER ]]; then
  echo "connect.sh: found no cluster: run make shell first, or set KUBECONFIG" >&2
  return 1
fi
unset kubeconfig

# Keys go into a folder that only you can enter, and curl is told in a file too:
# everybody can see in the list of processes what is on a command line.
PKI=$(mktemp -d "${TMPDIR:-/tmp}/tmp.XXXXXXXXXX") # without that, macOS takes another folder
at_exit "rm -rf $(printf %q "$PKI")"
{
  echo silent
  echo show-error
  # Like kubectl, and unlike curl, use no proxy to reach this machine itself.
  case $SERVER in *://127.* | *://localhost* | *"://[::1]"*) echo 'noproxy = "*"' ;; esac
  if [[ -n $ca ]]; then
    base64 --decode <<<"$ca" >"$PKI/ca.crt"
    echo "cacert = \"$PKI/ca.crt\""
  fi
} >"$PKI/curl-without-credentials"
cp "$PKI/curl-without-credentials" "$PKI/curl"

if [[ -n $cert ]]; then
  base64 --decode <<<"$cert" >"$PKI/client.crt"
  base64 --decode <<<"$key" >"$PKI/client.key"
  printf 'cert = "%s"\nkey = "%s"\n' "$PKI/client.crt" "$PKI/client.key" >>"$PKI/curl"
elif [[ -n $token ]]; then
  printf 'header = "Authorization: Bearer %s"\n' "$token" >>"$PKI/curl"
else
  echo "connect.sh: the kubeconfig holds neither a client certificate nor a token: use kubectl proxy instead" >&2
  return 1
fi
unset ca cert key token

api() {
  local url=$SERVER$1 args=()
  shift
  while [[ $# -gt 0 ]]; do
    case $1 in
    # curl has --json since 7.82. The long form works with older versions, too.
    --json) args+=(--header "Content-Type: application/json" --data-binary "$2") && shift ;;
    *) args+=("$1") ;;
    esac
    shift
  done
  # -q: without your ~/.curlrc.
  curl -q --config "$PKI/curl" "${args[@]}" "$url"
}

recreate() {
  api "$1/$2" --request DELETE --output /dev/null
  api "$1" --fail-with-body --output /dev/null --json "$3"
}
