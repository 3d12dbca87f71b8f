#!/usr/bin/env bash
# build.sh: assemble a kind node image. `make node-image` builds the binaries
# and calls it with
#
#   IMAGE            the image's name and tag
#   STAMP            what it is made of; becomes a label of the image
#   VERSION          the Kubernetes version, "v1.36.3"
#   BIN, NODE_BIN    folders with the control plane's and the node's binaries
#   KIND, KUBERNETES source folders of those modules
#   WORK             a folder for what is in between
set -euo pipefail
# Whoever builds it and wherever: a node in which everybody may read what they run.
umask 022
unset CDPATH
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)

SUITE=bookworm
PACKAGES=systemd,conntrack,iptables,nftables,iproute2,ethtool,util-linux,mount,kmod,libseccomp2,bash,ca-certificates,curl,jq,procps,e2fsprogs,runc,socat

started=$SECONDS
step() { echo "  [$1] $2 (after $((SECONDS - started))s)"; }

# quietly COMMAND...: its output is shown only if it fails.
quietly() {
  "$@" >"$WORK/build.log" 2>&1 || {
    cat "$WORK/build.log" >&2
    return 1
  }
}
container="" built=() theirs=()

cleanup() {
  if [[ -n $container ]]; then docker rm --force --volumes "$container" >/dev/null 2>&1 || true; fi
  if [[ ${#built[@]} -gt 0 ]]; then docker rmi --force "${built[@]}" >/dev/null 2>&1 || true; fi
  local kept
  for kept in "${theirs[@]}"; do docker tag "${kept% *}" "${kept#* }" || true; done
  # Layers of a build that was interrupted or replaced.
  docker image prune --force --filter label=dev.k8s-go.workshop.node-image-part >/dev/null 2>&1 || true
  rm -rf "$context"
}
mkdir -p "$WORK"
context=$(mktemp -d "$WORK/context-XXXXXX")
trap cleanup EXIT
trap 'exit 130' INT TERM

step 1/4 "Debian packages"
root=$WORK/root-$SUITE-$(cksum <<<"$PACKAGES" | cut -d' ' -f1).tar
if [[ ! -f $root ]]; then
  drop=(--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*'
    --dpkgopt='path-exclude=/usr/share/info/*' --dpkgopt='path-exclude=/usr/share/locale/*')
  if ! mmdebstrap --quiet --format=tar --variant=minbase --include="$PACKAGES" "${drop[@]}" "$SUITE" "$root.new" \
    ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} 2>"$WORK/mmdebstrap.log"; then
    cat "$WORK/mmdebstrap.log" >&2
    rm -f "$root.new"
    echo "build.sh: Debian's packages could not be had; behind a mirror set DEBIAN_MIRROR to its address" >&2
    exit 1
  fi
  mv "$root.new" "$root"
fi

step 2/4 "container images of the control plane"
mapfile -t names < <("$BIN/kubeadm" config images list --kubernetes-version "$VERSION" 2>/dev/null)

# put FILE IMAGE_ROOT PATH: copy a file into the root of an image to be.
put() { mkdir -p "$(dirname "$2$3")" && cp -L "$1" "$2$3"; }

# kube-proxy calls iptables, so its image holds that, its loadable extensions,
# the libraries that both are linked with, and nothing else.
iptables_root() { # iptables_root DIR
  local dir=$1 all=$context/debian lib path
  lib=/usr/lib/$(uname -m)-linux-gnu
  mkdir -p "$all" "$dir$lib" "$dir/run" "$dir/etc" && tar -xf "$root" -C "$all" --exclude='./dev/*'
  cp -r "$all$lib/xtables" "$dir$lib/"
  while read -r path; do
    put "$all$path" "$dir" "$path"
  done < <(
    echo /usr/sbin/xtables-nft-multi
    find "$all$lib/xtables" -name '*.so' -printf "$lib/xtables/%f\n" | xargs chroot "$all" ldd /usr/sbin/xtables-nft-multi |
      sed -nE 's,^\t(.* => )?(/[^ ]+) \(.*,\2,p' | sort -u
  )
  for path in iptables ip6tables; do
    ln -s xtables-nft-multi "$dir/usr/sbin/$path"
    ln -s xtables-nft-multi "$dir/usr/sbin/$path-save"
    ln -s xtables-nft-multi "$dir/usr/sbin/$path-restore"
  done
  rm -rf "$all"
}

pause=""
for name in "${names[@]}"; do
  program=${name##*/}
  program=${program%%:*}
  dir=$context/image-$program
  mkdir -p "$dir"
  entrypoint=""
  case $program in
  pause)
    pause=$name entrypoint='ENTRYPOINT ["/pause"]'
    gcc -Os -Wall -static "-DVERSION=${name##*:}" -o "$dir/pause" "$KUBERNETES/build/pause/linux/pause.c"
    ;;
  coredns)
    entrypoint='ENTRYPOINT ["/coredns"]'
    put "$NODE_BIN/coredns" "$dir" /coredns
    put /etc/ssl/certs/ca-certificates.crt "$dir" /etc/ssl/certs/ca-certificates.crt
    ;;
  kube-proxy)
    put "$BIN/kube-proxy" "$dir" /usr/local/bin/kube-proxy
    iptables_root "$dir"
    ;;
  *) put "$BIN/$program" "$dir" "/usr/local/bin/$program" ;;
  esac
  chmod -R go+rX "$dir" # the binaries may have been built under another umask
  # The engine may hold the published image of that name, which gets its name back.
  if old=$(docker image inspect --format '{{.Id}}' "$name" 2>/dev/null); then theirs+=("$old $name"); fi
  printf 'FROM scratch\nCOPY . /\n%s\n' "$entrypoint" |
    quietly docker build --tag "$name" --file - "$dir"
  built+=("$name")
done
docker save --output "$context/images.tar" "${names[@]}"
rm -rf "$context"/image-*

step 3/4 "the node's root"
mkdir "$context/bin" "$context/cni"
cp "$BIN"/{kubeadm,kubelet,kubectl} "$NODE_BIN"/{containerd,ctr,containerd-shim-runc-v2} "$context/bin/"
cp "$NODE_BIN"/{host-local,loopback,ptp,portmap} "$context/cni/"
cp -r "$KIND/images/base/files" "$context/kind"
cp -r "$here/files" "$context/files"
chmod -R u+w,go+rX "$context"/{bin,cni,kind,files}
cp "$root" "$context/root.tar"
printf 'images.tar\n' >"$context/.dockerignore"
# What containers may ask for is what the host can give; see scripts/docker/engine.sh.
bounding=$(awk '/^CapBnd:/ {print $2}' /proc/self/status)
restrict=$([[ $((16#$bounding >> 24 & 1)) -eq 0 ]] && echo true || echo false)
quietly docker build --label dev.k8s-go.workshop.node-image-part=true --tag "$IMAGE-base" --file "$here/Dockerfile" \
  --build-arg "KUBERNETES_VERSION=$VERSION" --build-arg "PAUSE_IMAGE=$pause" \
  --build-arg "RESTRICT_OOM_SCORE_ADJ=$restrict" "$context"
built+=("$IMAGE-base")

step 4/4 "images into the node's containerd"
container=$(docker run --detach --privileged --entrypoint /bin/sleep "$IMAGE-base" infinity)
docker cp "$context/images.tar" "$container:/images.tar" >/dev/null
quietly docker exec --interactive "$container" bash -s <<'IN_NODE'
set -euo pipefail
mount -t tmpfs tmpfs /run
containerd >/run/containerd.log 2>&1 &
pid=$!
for _ in {1..100}; do ctr version >/dev/null 2>&1 && break; sleep 0.1; done
# Unpacked they are all that containers need; packed they would lie there twice.
ctr --namespace k8s.io images import --all-platforms --local --discard-unpacked-layers /images.tar
ctr --namespace k8s.io content prune references
kill $pid
wait $pid || true
rm /images.tar
IN_NODE
docker commit --change "LABEL dev.k8s-go.workshop.stamp=$STAMP dev.k8s-go.workshop.node-image-part=" \
  --change 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]' "$container" "$IMAGE" >/dev/null
size=$(docker image inspect --format '{{.Size}}' "$IMAGE" | awk '{printf "%.2f GB", $1 / 1e9}')
echo "  $IMAGE, $size, in $((SECONDS - started))s"
