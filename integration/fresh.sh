#!/bin/sh
# Shows that a fresh machine with Go and nothing else of ours is enough: in a
# minimal Debian with make and git, which is made for this, it clones what is
# committed, runs make run, and then make test, whose real brokers have to come up
# by themselves. Go and the cache of its modules are this machine's, read-only.
#
#	integration/fresh.sh [COMMAND]		SUITE=trixie for another release
#
# Takes Linux, root, debootstrap, and the ports of the brokers: make down first.
set -eu

if [ "${FRESH_ROOT:-}" = "" ]; then
	FRESH_ROOT=$(mktemp -d) && export FRESH_ROOT
	trap 'rm -rf --one-file-system "$FRESH_ROOT"' EXIT
	trap 'exit 130' INT TERM
	# With its namespaces go all processes and mounts, whatever its end.
	unshare --mount --pid --fork --kill-child --mount-proc sh "$0" "$@"
	exit
fi

cd "$(dirname "$0")/.."
root=$FRESH_ROOT
command=${1:-make test}

chmod 755 "$root" # brokers and Postgres do not run as root

echo "fresh: making a minimal Debian ${SUITE:-bookworm}"
debootstrap --variant=minbase --include=make,git "${SUITE:-bookworm}" "$root" >"$root.log" 2>&1 || { tail "$root.log"; exit 1; }
rm "$root.log"
mount --bind "$root" "$root" # a root that is a mount, as that of a machine
mount -t proc proc "$root/proc"

# How the machine reaches the network.
cp /etc/resolv.conf "$root/etc/"
mkdir -p "$root/usr/local/share"
cp -r /usr/local/share/ca-certificates "$root/usr/local/share/" 2>/dev/null || true

readonly_bind() {
	mkdir -p "$2"
	mount --bind "$1" "$2"
	mount -o remount,bind,ro "$2"
}
readonly_bind "$(go env GOROOT)" "$root/usr/local/go"
readonly_bind "$(go env GOMODCACHE)" "$root/root/go/pkg/mod"
git clone --quiet . "$root/root/redrive"

# CI=true: a test without its broker fails, and so does a run that lacks one.
exec chroot "$root" env -i HOME=/root CI=true GOPROXY=off GOTOOLCHAIN=local \
	PATH=/usr/local/go/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -exc "cd /root/redrive && make run && $command"
