#!/usr/bin/env bash
# test_distribution.sh [DISTRIBUTION] [cuda] - runs the README's two commands, scripts/quickstart.sh and
# scripts/test.sh, on a fresh clone in another distribution: a minimal system made with debootstrap, entered with chroot
#
#   DISTRIBUTION     debian-12 or debian-13 (default), from the Debian mirror of this machine's apt
#   cuda             also builds for CUDA, with this machine's toolkit, mounted read-only
#
#   FOLDER=/var/tmp/train_gpt2-distributions     systems and logs; 2 GB for each, deleted at the end unless KEEP=1
#   TIERS=default                                arguments of scripts/test.sh: "kernels host", all; empty: none
#   QUICKSTART_MINUTES=0.3
#
# Needs root and debootstrap. Tests the last commit. Mounts and processes are in separate namespaces, which end with
# this script in all cases. The system gets this machine's PIP_* variables and the certificates in
# /usr/local/share/ca-certificates, so that pip works there. Exit status 1: a command failed; the last lines of its
# output are printed.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/help.sh"
distribution=debian-13 cuda=''
for word; do
    case $word in
        debian-12 | debian-13) distribution=$word ;;
        cuda) cuda=yes ;;
        *) refuse "unexpected argument \"$word\"; see $(basename "$0") --help" ;;
    esac
done
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || refuse "test_distribution.sh needs root, for chroot and mounts"
command -v debootstrap >/dev/null || refuse "debootstrap is missing; run: apt-get install debootstrap"
suite=$([ "$distribution" = debian-12 ] && echo bookworm || echo trixie)
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 2>/dev/null |
    awk '$1 == "Debian" && $2 == "Debian" { print $3; exit }')
[ -n "$mirror" ] || refuse "this machine's apt has no Debian mirror; expected one in its sources"
folder=${FOLDER:-/var/tmp/train_gpt2-distributions}
export system=$folder/$distribution log=$folder/$distribution.log cuda
export TIERS=${TIERS-default} QUICKSTART_MINUTES=${QUICKSTART_MINUTES:-0.3}

make_folder FOLDER "$folder"
rm -rf --one-file-system "$system"
[ -n "${KEEP:-}" ] || trap 'rm -rf --one-file-system "$system"' EXIT
trap 'exit 130' INT TERM
echo "creating $distribution in $system"
debootstrap --variant=minbase --include=ca-certificates $suite "$system" "$mirror" \
    >"$log" 2>&1 ||
    { tail -n 20 "$log" >&2; give_up "debootstrap failed; its output is in $log"; }
git clone -q --no-hardlinks . "$system/root/train_gpt2"

run_inside() {
    set -euo pipefail
    local path failed=0 nvidia
    mount --bind "$system" "$system"  # "ip netns exec" needs a mount point as /
    mount -t proc proc "$system/proc"
    for path in /sys /dev; do mount --rbind "$path" "$system$path"; done
    cp --remove-destination -L /etc/resolv.conf "$system/etc/resolv.conf"
    if [ -d /usr/local/share/ca-certificates ]; then
        cp -RL /usr/local/share/ca-certificates/. "$system/usr/local/share/ca-certificates/"
        chroot "$system" update-ca-certificates >>"$log" 2>&1
    fi
    local variable pip=()
    for variable in $(compgen -e PIP_); do pip+=("$variable=${!variable}"); done
    # read_only FOLDER TARGET
    read_only() {
        mkdir -p "$system$2"
        mount --bind "$1" "$system$2"
        mount -o remount,bind,ro "$system$2"
    }
    if [ -n "$cuda" ]; then
        for path in /usr/local/cuda*; do
            if [ -L "$path" ]; then cp -P "$path" "$system$path"; else read_only "$path" "$path"; fi
        done
        for nvidia in $(python3 -c 'import nvidia; print(*nvidia.__path__)' 2>/dev/null); do
            read_only "$nvidia" /opt/python/nvidia
        done
    fi
    # step NAME COMMAND...
    step() {
        local name=$1 began=$SECONDS
        shift
        echo "== $name" | tee -a "$log"
        if env -i HOME=/root LANG=C.UTF-8 TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            PYTHONPATH=/opt/python QUICKSTART_MINUTES="$QUICKSTART_MINUTES" "${pip[@]}" nice -n 15 chroot "$system" \
            bash -c 'cd /root/train_gpt2 && "$@"' step "$@" >>"$log" 2>&1; then
            tail -n 4 "$log" | cut -c 1-200
            echo "ok: $name ($((SECONDS - began)) s)"
        else
            tail -n 40 "$log"
            echo "FAILED: $name ($((SECONDS - began)) s)"
            failed=1
        fi
    }
    step "scripts/quickstart.sh" scripts/quickstart.sh
    if [ -n "$cuda" ]; then
        step "the CUDA build" make -j"$(nproc)" DEVICE=cuda build/cuda/train_gpt2
        step "a CUDA build reports a missing GPU" test/program/no_gpu.sh build/cuda/train_gpt2
    fi
    local tier
    for tier in $TIERS; do step "scripts/test.sh $tier" scripts/test.sh "$tier"; done
    step "every file compiles separately" make -j"$(nproc)" UNITE= DEVICE=cpu all
    return $failed
}
export -f run_inside
unshare --mount --pid --fork --kill-child bash -c run_inside ||
    give_up "$distribution: a command failed; the output is in $log"
echo "$distribution: all commands passed; their output is in $log"
