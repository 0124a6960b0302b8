#!/usr/bin/env bash
# Checks that this machine can run the dev cluster, prints what will be downloaded and its size, and installs what is missing. A second run
# takes no time. HOLDFAST_PREPARE=check only checks and prints; =install installs without printing it again.
set -euo pipefail
cd "$(dirname "$0")/.."

problems=()
problem() { problems+=("$1"); }
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -1)" = "$1" ]; } # at_least WANTED HAVE

[ "$(uname -s)" = Linux ] || { echo "prepare: the dev cluster needs Linux, this is $(uname -s)" >&2; exit 1; }
[ "$(uname -m)" = x86_64 ] || problem "the dev cluster is built for x86_64, this is $(uname -m)"
[ "$(id -u)" = 0 ] || problem "root is needed for network links, mounts and cgroups: run it with sudo -E"
command -v apt-get >/dev/null || problem "packages are installed with apt-get: use Debian 12 or a relative of it"
[ "$(nproc)" -ge 2 ] || problem "2 cores are needed, this machine offers $(nproc)"

mem_mib=$(awk '/^MemTotal:/ {print int($2/1024)}' /proc/meminfo)
[ "$mem_mib" -ge 11400 ] || problem "12 GiB of memory are needed, this machine has $mem_mib MiB"

if ! command -v go >/dev/null; then
	problem "Go 1.26 is needed: install it from https://go.dev/dl and put it on PATH"
else
	have=$(go env GOVERSION | sed 's/^go//; s/[^0-9.].*//')
	at_least 1.26 "$have" || problem "Go 1.26 is needed, this is Go $have: install a newer one from https://go.dev/dl"
fi
command -v make >/dev/null || problem "make is needed: apt-get install make"
command -v python3 >/dev/null || problem "python3 is needed: apt-get install python3"
[ ${#problems[@]} -eq 0 ] || { printf 'prepare: %s\n' "${problems[@]}" >&2; exit 1; }

# Disk: 30 GiB in all; caches and Python may exist already.
there_kib=0
for d in "$(go env GOCACHE)" "$(go env GOMODCACHE)" /opt/holdfast-python; do
	[ -d "$d" ] || continue
	k=$(du -sk "$d" 2>/dev/null | cut -f1) || true
	there_kib=$((there_kib + ${k:-0}))
done
free_kib=$(df -Pk /var/lib | awk 'NR==2 {print $4}')
need_kib=$((30 * 1024 * 1024 - there_kib))
if [ "$need_kib" -gt "$free_kib" ]; then
	echo "prepare: $((need_kib / 1024 / 1024)) GiB more disk are needed under /var/lib, $((free_kib / 1024 / 1024)) GiB are free: make room" >&2
	exit 1
fi

# A program or file that exists if a package is installed, and the package.
packages=()
want() { command -v "$1" >/dev/null || [ -e "$1" ] || packages+=("$2"); }
want containerd containerd
want runc runc
want /usr/lib/cni/ptp containernetworking-plugins
want iptables iptables
want nft nftables
want conntrack conntrack
want ipset ipset
want socat socat
want ip iproute2
want nsenter util-linux
want mount mount
want modprobe kmod
want protoc protobuf-compiler
want gcc gcc
want /usr/include/stdio.h libc6-dev
[ -n "${HOLDFAST_PYTHON:-}" ] || want /usr/bin/python3 python3
[ -n "${HOLDFAST_PYTHON:-}" ] || python3_minor=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo 3)
[ -n "${HOLDFAST_PYTHON:-}" ] || /usr/bin/python3 -c 'import ensurepip' 2>/dev/null || packages+=("python${python3_minor}-venv")

downloads=()
[ ${#packages[@]} -eq 0 ] || downloads+=("Debian packages, about 60 MB: ${packages[*]}")
kube=$(sed -n 's|^\tk8s.io/kubernetes \(v[0-9.]*\)$|\1|p' go.mod)
[ -d "$(go env GOMODCACHE)/k8s.io/kubernetes@$kube" ] || downloads+=("Go modules, about 300 MB (1.5 GB on disk)")
python_plan=$(hack/python.sh --plan)
[ -z "$python_plan" ] || downloads+=("$python_plan")
if [ ${#downloads[@]} -gt 0 ] && [ "${HOLDFAST_PREPARE:-}" != install ]; then
	echo "prepare: this will download"
	printf '  - %s\n' "${downloads[@]}"
fi
[ "${HOLDFAST_PREPARE:-}" != check ] || exit 0

if [ ${#packages[@]} -gt 0 ]; then
	echo "prepare: installing ${packages[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -q
	apt-get install -q -y --no-install-recommends "${packages[@]}"
fi
for module in overlay br_netfilter nf_tables veth fuse; do
	modprobe -q "$module" 2>/dev/null || true # built in, or the cluster reports what is missing
done
# A cluster of three nodes takes about 64 inotify instances; Debian allows 128 in all.
instances=/proc/sys/fs/inotify/max_user_instances
if [ "$(cat $instances)" -lt 512 ]; then
	if echo 512 2>/dev/null >$instances; then
		echo "prepare: fs.inotify.max_user_instances is 512 until the next boot, so that several clusters fit"
	else
		echo "prepare: fs.inotify.max_user_instances is $(cat $instances) and cannot be raised here: one cluster at a time" >&2
	fi
fi
# Each node has its own kernel log, served by a file system in user space. Containers often lack /dev/fuse.
[ -e /dev/fuse ] || mknod -m 600 /dev/fuse c 10 229 || true
(: <>/dev/fuse) 2>/dev/null || {
	echo "prepare: /dev/fuse cannot be opened: load the kernel module fuse, or, in a container, let it have the device (docker run --device /dev/fuse)" >&2
	exit 1
}
hack/python.sh
echo "prepare: this machine is ready"
