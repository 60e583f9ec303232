#!/usr/bin/env bash
# test_aarch64.sh [root] - cross-compiles train_gpt2 for aarch64 and tests it on this x86-64 machine in QEMU's user-mode
# emulation: kernels and host code of the CPU build, kernels and models on fibers, the refusal of an older processor,
# and a short training, whose losses must equal those of this machine's build within rounding
#
#   root                          only makes FOLDER
#   FOLDER=build/aarch64/root     Debian's libraries for arm64, 700 MB; made by debootstrap if they are not there
#   SUITE=CODENAME                release of Debian, not older than this machine's aarch64-linux-gnu-g++ (default:
#                                 trixie if that compiler is 13 or later, otherwise bookworm)
#   MARCH=armv8.2-a+dotprod       instruction set that is compiled for
#
# Needs g++-aarch64-linux-gnu, qemu-user-static, jq and, to make FOLDER, debootstrap and root. Tests that start other
# programs (whole runs, mpirun) are left out: the kernel would have to start programs for aarch64 itself. Memory has
# this machine's order: a missing fence is not found. Exit status 1: a step failed; its last lines are printed.
set -uo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/help.sh"
most_words 1 "$@"
cd "$(dirname "$0")/.." || exit
case ${1:-} in '' | root) ;; *) refuse "unknown argument \"$1\"; expected root, or none" ;; esac
for tool in aarch64-linux-gnu-g++ qemu-aarch64-static jq; do
    command -v $tool >/dev/null ||
        refuse "$tool is missing; run: apt-get install g++-aarch64-linux-gnu qemu-user-static jq"
done
make_folder FOLDER "${FOLDER:=build/aarch64/root}"
system=$(realpath "$FOLDER")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
export OMP_WAIT_POLICY=passive

passed=0 failed=0
# step NAME COMMAND...: prints its last line, or as many as `shown` says, and more if it fails
step() {
    local name=$1 began=$SECONDS
    shift
    if "$@" >"$work/log" 2>&1; then
        grep . "$work/log" | tail -n "${shown:-1}" | cut -c 1-120
        echo "ok: $name ($((SECONDS - began)) s)"
        passed=$((passed + 1))
    else
        tail -n 60 "$work/log"
        echo "FAILED: $name ($((SECONDS - began)) s)"
        failed=$((failed + 1))
    fi
}

default_suite() {
    [ "$(aarch64-linux-gnu-g++ -dumpversion | cut -d . -f 1)" -ge 13 ] && echo trixie || echo bookworm
}
# Packages of another architecture cannot be configured here; headers and libraries need only be unpacked.
make_system() {
    local packages=libc6-dev,libgomp1,libdnnl-dev,libopenmpi-dev,catch2,libcxxopts-dev,nlohmann-json3-dev package
    local new=$system.partial
    [ "$(id -u)" = 0 ] || { echo "debootstrap needs root"; return 1; }
    command -v debootstrap || { echo "debootstrap is missing; run: apt-get install debootstrap"; return 1; }
    rm -rf --one-file-system "$new"
    debootstrap --foreign --arch=arm64 --variant=minbase \
        --include=$packages,libpcre2-dev,zlib1g-dev,libzstd-dev,libxxhash-dev "${SUITE:-$(default_suite)}" "$new" ||
        return
    for package in "$new"/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" "$new" || return; done
    if [ ! -L "$new/lib" ]; then  # dpkg-deb -x replaces the link by a folder
        cp -a "$new/lib/." "$new/usr/lib/" && rm -r "${new:?}/lib" && ln -s usr/lib "$new/lib" || return
    fi
    rm -r "${new:?}/dev"  # QEMU would look for terminals there
    rmdir "$system" && mv "$new" "$system"
}
[ -e "$system/usr/include" ] || step "Debian's libraries for arm64" make_system
[ $failed = 0 ] || exit 1
[ "${1:-}" != root ] || exit 0

cross() {
    nice make -j"$(nproc)" CXX="aarch64-linux-gnu-g++ --sysroot=$system" MARCH="${MARCH:-armv8.2-a+dotprod}" \
        SUFFIX=-aarch64 UNITE="kernels llmc test" MPI_ROOT="$system/usr/lib/aarch64-linux-gnu/openmpi" "$@"
}
cpu=build/cpu-aarch64 fibers=build/fibers-aarch64 native=build/cpu
step "cross-compilation, CPU" cross DEVICE=cpu $cpu/{train_gpt2,random_shard,tests}
step "cross-compilation, fibers" cross DEVICE=fibers $fibers/tests
step "compilation for x86-64" nice make -j"$(nproc)" DEVICE=cpu UNITE="kernels llmc test" \
    $native/{train_gpt2,random_shard}

# emulate [-cpu NAME] PROGRAM ARGUMENTS...
emulate() { timeout 1200 qemu-aarch64-static -L "$system" "$@"; }
# Left out, besides what starts other programs: what takes minutes in emulation, or measures time.
without='~[.]~[large]~[statistics]~[mpi]~[local]~[run]~[ranks]~[host_time]'
without+='~[layout]~"the environment selects*"~"a cached plan*"'
step "kernels on the CPU" emulate $cpu/tests "[kernels]$without"
step "host code and models" emulate $cpu/tests "~[kernels]$without"
step "GPU geometry on fibers" emulate $fibers/tests "[kernels]~[matmul]$without"
step "models at the GPU's geometry" emulate $fibers/tests "[model]$without"

names_instructions() { emulate $cpu/train_gpt2 --version | grep -E ', instructions (NEON|SVE)'; }
step "--version names the instruction set" names_instructions
# QEMU's Cortex-A53 has Armv8.0-A only.
refuses_old_processor() {
    local status=0
    emulate -cpu cortex-a53 $cpu/train_gpt2 --version >"$work/said" 2>&1 || status=$?
    cat "$work/said"
    [ $status = 2 ] && [ "$(wc -l <"$work/said")" = 1 ] &&
        grep -q '^error: this processor lacks instructions .* built with: LSE .*MARCH=armv8-a$' "$work/said"
}
step "a processor that lacks instructions is refused in one line" refuses_old_processor

same_shard() {
    emulate $cpu/random_shard --vocabulary 257 "$work/aarch64.bin" 5000 &&
        $native/random_shard --vocabulary 257 "$work/shard.bin" 5000 && cmp "$work/aarch64.bin" "$work/shard.bin"
}
step "random_shard writes the same bytes" same_shard
# trains DTYPE MOST: 10 losses, of which none differs by more than MOST
trains() {
    local flags=(-i "$work/shard.bin" -e "custom:l=2,h=2,c=64,t=64" -b 4 -t 64 -x 10 -l 1e-3 -v 0 --seed 1 --threads 2
        --dtype "$1" --bf16-arithmetic widen --tune=off)
    $native/train_gpt2 "${flags[@]}" -o "$work/x86-64-$1" || return
    emulate $cpu/train_gpt2 "${flags[@]}" -o "$work/aarch64-$1" || return
    losses() { jq -r 'select(.event == "step") | .loss' "$work/$1/log.jsonl"; }
    paste <(losses "x86-64-$1") <(losses "aarch64-$1") | awk -v dtype="$1" -v most="$2" '
        { printf "%s step %2d: %.9f %.9f\n", dtype, NR, $1, $2 }
        { d = $1 - $2; if (d < 0) d = -d; if (d > worst) worst = d; n += $1 > 0 && $2 > 0 }
        END { printf "largest difference: %.1e, of %s allowed\n", worst, most; exit n != 10 || worst > most }'
}
# Rounding errors of the sums, whose order differs: 3.0e-8 and 1.0e-4 measured.
shown=11 step "training in fp32: losses on x86-64, on aarch64" trains fp32 1e-6
shown=11 step "training in bf16: losses on x86-64, on aarch64" trains bf16 1e-3
echo "$passed passed, $failed failed"
[ $failed = 0 ]
