#!/usr/bin/env bash
# gpu_check.sh - what of dev/gpu_check.sh can be seen in seconds and without a GPU: what it refuses, that its limits are
# 9 minutes, that steps that fail, hang or are stopped hide nothing, the table of kernels and the times that it is made
# of, which builds are taken for done
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
wrong() {
    echo "wrong: $1"
    exit 1
}

# refused MESSAGE ARGUMENTS...: exit code 2, one line, nothing written
refused() {
    local message=$1 said
    shift
    said=$(dev/gpu_check.sh "$@" 2>&1)
    [ "$?, $(wc -l <<<"$said") line" = "2, 1 line" ] && [[ $said == "error: "*"$message"* ]] ||
        wrong "gpu_check.sh $* says: $said"
}
refused 'the part is ""'
refused 'the part is "3"' 3
refused '"--fast" is no option' 1 --fast
refused '"b" is one argument too many' 1 "$scratch/a" b
nvidia-smi -L 2>/dev/null | grep -q GPU || refused "finds no GPU" 1 "$scratch/a"
[ ! -e "$scratch/a" ] || wrong "a refused check wrote into its folder"

for part in 1 2; do
    total=$(dev/gpu_check.sh $part --list | awk '$1 == "build" { build = 1 } { s += $2 } END { print build ? s : 0 }')
    [ "$total" -gt 400 ] && [ "$total" -le 540 ] || wrong "the limits of part $part add up to $total"
done

# Steps of every kind. `steps FOLDER` runs them as gpu_check.sh would.
steps() {
    list=false folder=$1 work=$1/work
    note() { tail -n 1 "$work/logs/$1.log"; }
    details() { sed -n 2p "$work/logs/$1.log"; }
    . dev/gpu_check/steps.sh
    begin "test"
    step passes 5 "" echo "as it should"
    step fails 1 "" sh -c 'echo what is wrong; exit 3'
    step lacks 1 "no such tool" false
    deadline=$SECONDS  # nothing left over: the least that a step gets is 5 s
    "$2"
    conclude
}
short() {
    start one 1 "" sleep 0.3
    start other 0 "" sleep 0.2
    join
}
(steps "$scratch/short" short) >"$scratch/out"
[ $? -eq 1 ] || wrong "a failed step does not fail the check"
for line in "**passes** begun" "**passes** pass" "as it should" "**fails** **fail** (3)" "      what is wrong" \
    "**lacks** skipped: no such tool" "**one** pass" "**other** pass" "4 steps, 1 failed"; do
    grep -qF -- "$line" "$scratch/short/summary.md" || wrong "the summary lacks: $line"
done
[ "$(tar -tzf "$scratch/short/logs.tar.gz" | grep -c '\.log$')" -eq 4 ] || wrong "the archive lacks logs"

hang() { step hangs 1 "" sh -c 'echo before; sleep 60'; }
(steps "$scratch/killed" hang) >"$scratch/out" &
check=$!
for ((i = 0; i < 100; ++i)); do
    grep -q "hangs.* begun" "$scratch/killed/summary.md" 2>/dev/null && break
    sleep 0.05
done
kill -TERM $check
wait $check
[ $? -eq 143 ] || wrong "a stopped check does not end with 143"
grep -q "hangs.* stopped by signal 15" "$scratch/killed/summary.md" || wrong "the summary hides what was stopped"
tar -xzOf "$scratch/killed/logs.tar.gz" logs/hangs.log | grep -q before || wrong "the archive lacks what was stopped"

# The table: what ncu writes, and what kernel_times.cpp writes.
cat >"$scratch/ncu" <<'CSV'
==PROF== Connected to process 1
"ID","Kernel Name","Grid Size","dram__bytes.sum","gpu__time_duration.sum"
"","","","byte","ns"
"0","void kernels::(anonymous namespace)::gelu_kernel<float, 4>(kernels::Gelu<float>)","(1, 1, 1)","4,000,000","1,000"
"1","nvjet_hsh_128x256","(1, 1, 1)","1,000,000","8,000"
"2","void kernels::(anonymous namespace)::gelu_kernel<float, 4>(kernels::Gelu<float>)","(1, 1, 1)","2,000,000","1,000"
CSV
printf '2500.0\t4\t_ZN7kernels4geluEv\n500\t1\tmemory copy\n5000\t1\tstep\n2000\t1\tidle\n' >"$scratch/cupti"
dev/gpu_check/kernel_table.sh "$scratch/ncu" >"$scratch/table" && dev/gpu_check/kernel_table.sh "$scratch/cupti" \
    >>"$scratch/table" || wrong "kernel_table.sh failed"
for line in '| `nvjet_hsh_128x256` | 1 | 8.0 | 0.008 | 80.0 % | 125 |' \
    '| `gelu_kernel<float, 4>` | 2 | 1.0 | 0.002 | 20.0 % | 3000 |' '| `gelu` | 4 | 0.6 | 0.003 | 83.3 % | - |' \
    'a whole step: 0.005 ms, of which nothing ran for 0.002 ms (40.0 %)'; do
    grep -qF -- "$line" "$scratch/table" || { cat "$scratch/table"; wrong "the table lacks: $line"; }
done
dev/gpu_check/kernel_table.sh "$scratch/none" 2>/dev/null && wrong "a table of nothing"

# What kernel_times.cpp makes of records as CUPTI gives them: five steps of 20 ns, of which the next one's tokens are
# copied between two AdamW kernels.
cat >"$scratch/cupti.h" <<'CPP'
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>
using CUcontext = void*;
enum CUpti_ActivityKind {
    CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL
};
struct CUpti_Activity {
    CUpti_ActivityKind kind;
    std::uint64_t start, end;
    const char* name;
};
struct CUpti_ActivityKernel9 : CUpti_Activity {};
struct CUpti_ActivityMemcpy5 : CUpti_Activity {};
struct CUpti_ActivityMemset3 : CUpti_Activity {};
enum CUptiResult { CUPTI_SUCCESS, CUPTI_ERROR_MAX_LIMIT_REACHED };
constexpr int CUPTI_ACTIVITY_FLAG_FLUSH_FORCED = 1;
inline std::vector<CUpti_Activity> records;
inline void (*give)(CUcontext, std::uint32_t, std::uint8_t*, std::size_t, std::size_t);
inline CUptiResult cuptiActivityGetNextRecord(std::uint8_t*, std::size_t, CUpti_Activity** record) {
    *record = *record ? *record + 1 : records.data();
    return *record < records.data() + records.size() ? CUPTI_SUCCESS : CUPTI_ERROR_MAX_LIMIT_REACHED;
}
template <class Take, class Give> void cuptiActivityRegisterCallbacks(Take, Give taker) { give = taker; }
inline CUptiResult cuptiActivityEnable(CUpti_ActivityKind) { return CUPTI_SUCCESS; }
inline void cuptiGetResultString(CUptiResult, const char**) {}
inline void cuptiActivityFlushAll(int) { give(nullptr, 0, static_cast<std::uint8_t*>(std::malloc(1)), 1, 1); }
CPP
cat >"$scratch/records.cpp" <<'CPP'
#include "dev/gpu_check/kernel_times.cpp"
int main() {
    const auto kernel = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    for (std::uint64_t at = 0; at < 100; at += 20) {
        records.push_back({kernel, at, at + 10, "product"});
        records.push_back({kernel, at + 10, at + 12, "adamw"});
        records.push_back({CUPTI_ACTIVITY_KIND_MEMCPY, at + 11, at + 13, nullptr});
        records.push_back({kernel, at + 13, at + 15, "adamw"});
    }
    InitializeInjection();
}
CPP
"${CXX:-g++}" -std=c++20 -I"$scratch" -I. -o "$scratch/records" "$scratch/records.cpp" ||
    wrong "kernel_times.cpp does not compile"
KERNEL_TIMES=$scratch/times "$scratch/records"
[ "$(sort "$scratch/times" | xargs)" = "10 1 product 2 1 memory copy 20 1 step 4 2 adamw 5 1 idle" ] ||
    { cat "$scratch/times"; wrong "kernel_times.cpp sees other steps"; }

# What another machine built is taken where it is of these sources and starts; its libraries are looked for.
tree=$scratch/tree
mkdir -p "$tree/build/cuda" "$tree/dev/gpu_check" "$tree/toolkit/lib64"
printf '#!/bin/sh\necho of these sources\n' >"$tree/dev/gpu_check/sources.sh"
printf '#!/bin/sh\n[ "$LD_LIBRARY_PATH" = "%s" ]\n' "$tree/toolkit/lib64" >"$tree/build/cuda/train_gpt2"
printf '#!/bin/sh\nexit 0\n' >"$tree/build/cuda/tests"
chmod +x "$tree"/build/cuda/* "$tree/dev/gpu_check/sources.sh"
steps_file=$PWD/dev/gpu_check/steps.sh build_file=$PWD/dev/gpu_check/build.sh
# builds: the steps of a build that were begun
builds() {
    (
        cd "$tree" || exit 1
        list=false folder=$tree/out work=$tree/work rehearse=false bin=build/cuda build_limit=5 nvcc=none python=''
        toolkit=$tree/toolkit no_nvcc=''
        first() { local reason; for reason in "$@"; do [ -z "$reason" ] || { echo "$reason"; return; }; done; }
        note() { :; }
        details() { :; }
        make() { :; }
        unset LD_LIBRARY_PATH
        . "$steps_file"
        . "$build_file"
        begin "test" >"$scratch/out"
        build | grep -o '[a-z_]*\*\* begun' | xargs
    )
}
[ "$(builds)" = "build** begun build_tests** begun" ] || wrong "a build of other sources was taken"
echo "of these sources" >"$tree/build/cuda/gpu_check.sources"
[ "$(builds)" = "" ] || wrong "a build of these sources was not taken"
printf '#!/bin/sh\nexit 127\n' >"$tree/build/cuda/tests"
[ "$(builds)" = "build** begun build_tests** begun" ] || wrong "a build that does not start was taken"

# Losses of two runs, and a host of its own.
row() { echo "step $1/4 |   $2 | 6.00e-04 |   $3 |     101.2 |   1.0 k |  25.0 % |     0:01"; }
{ row 1 5.5 1.25; row 2 5.25 1.5; } >"$scratch/one"
{ echo "ranks over NCCL"; row 1 5.5 1.25; row 2 5.25 1.5; } >"$scratch/same"
{ row 1 5.5 1.25; row 2 5.25 1.75; } >"$scratch/other"
: >"$scratch/empty"
dev/gpu_check/same_losses.sh "$scratch/one" "$scratch/same" >"$scratch/out" || wrong "equal losses differ"
grep -qx "step 2/4: loss 5.25, norm 1.5" "$scratch/out" || wrong "same_losses.sh does not show them"
dev/gpu_check/same_losses.sh "$scratch/one" "$scratch/other" >"$scratch/out" && wrong "other norms are equal"
dev/gpu_check/same_losses.sh "$scratch/empty" "$scratch/empty" >"$scratch/out" 2>&1 && wrong "no losses are equal"
if unshare --uts true 2>/dev/null; then
    said=$(OMPI_COMM_WORLD_RANK=3 dev/gpu_check/own_host.sh uname -n)
    [ "$said" = host3 ] || wrong "a rank's own host is $said"
fi

# A machine without a network, whose loopback interface is down.
listens='import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname(), timeout=5)'
if unshare --net true 2>/dev/null; then
    unshare --net bash -c 'dev/gpu_check/loopback.py && python3 -c "$1"' - "$listens" ||
        wrong "loopback.py does not bring up the loopback interface"
fi
echo "as it should be"
