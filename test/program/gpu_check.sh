#!/usr/bin/env bash
# gpu_check.sh - tests the parts of dev/gpu_check.sh that need no GPU: refused arguments, limits of 9 minutes per part,
# steps that fail, hang or are stopped, the files to keep, the table of kernels and its times, which builds are reused
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=test/support/check.sh
. test/support/check.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

one_line 'error: the part is ""' dev/gpu_check.sh
one_line 'error: the part is "4"' dev/gpu_check.sh 4
one_line 'error: unknown option "--fast"' dev/gpu_check.sh 1 --fast
one_line 'error: unexpected argument "b"' dev/gpu_check.sh 1 "$scratch/a" b
nvidia-smi -L 2>/dev/null | grep -q GPU || one_line "finds no GPU" dev/gpu_check.sh 1 "$scratch/a"
[ $failed = 0 ] || exit 1
[ ! -e "$scratch/a" ] || wrong "a refused check wrote into its folder"

for part in 1 2 3; do
    total=$(dev/gpu_check.sh $part --list | awk '$1 == "data" { data = 1 } { s += $2 } END { print data ? s : 0 }')
    [ "$total" -gt 300 ] && [ "$total" -le 540 ] || wrong "the limits of part $part add up to $total"
done

# Steps of every kind. `steps FOLDER` runs them as gpu_check.sh does.
steps() {
    list=false folder=$1 work=$1/work
    note() { tail -n 1 "$work/logs/$1.log"; }
    details() { sed -n 2p "$work/logs/$1.log"; }
    . dev/gpu_check/steps.sh
    begin "test"
    step passes 5 "" echo "as it should"
    step fails 1 "" sh -c 'echo what is wrong; exit 3'
    step lacks 1 "no such tool" false
    step leaves 1 "" sh -c "mkdir -p $work/runs/a/step_1; echo '{}' >$work/runs/a/log.jsonl
        head -c 3000 /dev/zero >$work/results/trace.tsv; echo weights >$work/runs/a/step_1/model"
    deadline=$SECONDS  # no unused time: a step gets at least 5 s
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
for line in "**passes** started" "**passes** pass" "as it should" "**fails** **fail** (3)" "      what is wrong" \
    "**lacks** skipped: no such tool" "**one** pass" "**other** pass" "results/trace.tsv: 3 KiB" \
    "runs/a/log.jsonl: 1 KiB" "short/results.tar.gz: 1 KiB" "5 steps, 1 failed"; do
    grep -qF -- "$line" "$scratch/short/summary.md" || wrong "the summary lacks: $line"
done
[ "$(tar -tzf "$scratch/short/logs.tar.gz" | grep -c '\.log$')" -eq 5 ] || wrong "the archive lacks logs"
results=$(tar -tzf "$scratch/short/results.tar.gz" | grep -v '/$' | sort | xargs)
[ "$results" = "results/trace.tsv runs/a/log.jsonl" ] || wrong "the results are $results"
[ "$(ls "$scratch/short")" = "logs.tar.gz
results.tar.gz
summary.md
work" ] || wrong "other files are left: $(ls "$scratch/short")"
too_large() { step large 1 "" sh -c "head -c $((17 << 20)) /dev/urandom >$work/results/large"; }
(steps "$scratch/large" too_large) >"$scratch/out"
grep -q "too large" "$scratch/large/summary.md" || wrong "an archive that cannot be fetched is not reported"

hang() { step hangs 1 "" sh -c 'echo before; sleep 60'; }
(steps "$scratch/killed" hang) >"$scratch/out" &
check=$!
for ((i = 0; i < 100; ++i)); do
    grep -q "^before" "$scratch/killed/work/logs/hangs.log" 2>/dev/null && break
    sleep 0.05
done
kill -TERM $check
wait $check
[ $? -eq 143 ] || wrong "a stopped check does not end with 143"
grep -q "hangs.* stopped by signal 15" "$scratch/killed/summary.md" || wrong "the summary hides what was stopped"
tar -xzOf "$scratch/killed/logs.tar.gz" logs/hangs.log | grep -q before || wrong "the archive lacks what was stopped"

# The table: from ncu's output, and from kernel_times.cpp's.
{
    echo "==PROF== Connected to process 1"
    stall=smsp__average_warps_issue_stalled
    active=avg.pct_of_peak_sustained_active
    echo '"ID","Kernel Name","Grid Size","dram__bytes.sum","gpu__time_duration.sum","lts__t_sector_hit_rate.pct",'"\
\"sm__warps_active.$active\",\"smsp__issue_active.$active\",\"${stall}_barrier_per_issue_active.ratio\",\
\"${stall}_long_scoreboard_per_issue_active.ratio\""
    echo '"","","","byte","ns","%","%","%","inst","inst"'
    gelu='"void kernels::(anonymous namespace)::gelu_kernel<float, 4>(kernels::Gelu<float>)"'
    echo "\"0\",$gelu,\"(12, 1, 1)\",\"4,000,000\",\"1,000\",\"50\",\"80\",\"20\",\"0.5\",\"4\""
    echo "\"1\",$gelu,\"(12, 1, 1)\",\"2,000,000\",\"1,000\",\"70\",\"90\",\"30\",\"0.5\",\"6\""
    echo "\"2\",$gelu,\"(48, 1, 1)\",\"1,000,000\",\"8,000\",\"n/a\",\"90\",\"30\",\"3.5\",\"1\""
} >"$scratch/ncu"
printf '%s\t%s\t%s\t%s\t%s\n' 2500.0 4 8,1,1 32,1,1 _ZN7kernels4geluEv 100 2 2,1,1 32,1,1 _ZN7kernels4geluEv \
    500 1 - - 'memory copy' 5000 1 - - step 2000 1 - - idle >"$scratch/cupti"
dev/gpu_check/kernel_table.py "$scratch/ncu" >"$scratch/table" && dev/gpu_check/kernel_table.py "$scratch/cupti" \
    >>"$scratch/table" || wrong "kernel_table.py failed"
# shellcheck disable=SC2016
for line in \
    '| kernel | grid | launches | us each | ms | share | GB/s | L2 hit | warps active | issue active | main stall |' \
    '`gelu_kernel<float, 4>` | 12,1,1 | 2 | 1.0 | 0.002 | 20.0 % | 3000 | 60 % | 85 % | 25 % | long_scoreboard 5.0 |' \
    '`gelu_kernel<float, 4>` | 48,1,1 | 1 | 8.0 | 0.008 | 80.0 % | 125 | 0 % | 90 % | 30 % | barrier 3.5 |' \
    '| `gelu` | 8,1,1 | 4 | 0.6 | 0.003 | 80.6 % |' '| `gelu` | 2,1,1 | 2 | 0.1 | 0.000 | 3.2 % |' \
    'a whole step: 0.005 ms, of which nothing ran for 0.002 ms (40.0 %)'; do
    grep -qF -- "$line" "$scratch/table" || { cat "$scratch/table"; wrong "the table lacks: $line"; }
done
# The idle time of a step is in the step's line of the summary.
mkdir -p "$scratch/logs"
dev/gpu_check/kernel_table.py "$scratch/cupti" >"$scratch/logs/kernel_times.log"
said=$(. dev/gpu_check/report.sh; work=$scratch note kernel_times)
[ "$said" = "a whole step: 0.005 ms, of which nothing ran for 0.002 ms (40.0 %)" ] || wrong "kernel_times notes: $said"
# Times that ncu could not measure, truncated rows and other files.
{ head -n 3 "$scratch/ncu"; grep '^"0"' "$scratch/ncu"; echo '"3","none","(1, 1, 1)","n/a","n/a"'; } >"$scratch/odd"
[ "$(dev/gpu_check/kernel_table.py "$scratch/odd" | grep -c '^| `')" -eq 1 ] || wrong "kernel_table.py reads other rows"
printf '%s\t%s\t%s\t%s\t%s\n' 2500 4 8,1,1 32,1,1 a 100 0 2,1,1 32,1,1 b 5000 1 - - step >"$scratch/odd"
[ "$(dev/gpu_check/kernel_table.py "$scratch/odd" | tail -n 1)" = "| all | - | 4 | 0.6 | 0.003 | 100 % |" ] ||
    wrong "kernel_table.py reads a truncated file otherwise"
printf '\xff\xfe' >"$scratch/bytes"
: >"$scratch/empty"
for missing in "$scratch/bytes" README.md "$scratch/none" "$scratch/empty"; do
    said=$(dev/gpu_check/kernel_table.py "$missing" 2>&1) && wrong "a table of nothing"
    [[ $said == "error: "* ]] || wrong "of a file without kernels kernel_table.py prints: $said"
done

# kernel_times.cpp with CUPTI's records of five steps of 20 ns; the next step's tokens are copied between two AdamW
# kernels.
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
    std::uint32_t streamId;
    std::int32_t gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory;
    std::uint16_t registersPerThread;
    std::uint64_t bytes;
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
        records.push_back({kernel, at, at + 6, "product", 7, 8, 4, 1, 128, 1, 1, 1024, 2048, 96});
        records.push_back({kernel, at + 6, at + 10, "product", 7, 2, 4, 1, 128, 1, 1, 1024, 2048, 96});
        records.push_back({kernel, at + 10, at + 12, "adamw", 7, 16, 1, 1, 256, 1, 1, 0, 0, 40});
        records.push_back({CUPTI_ACTIVITY_KIND_MEMCPY, at + 11, at + 13, nullptr, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 512});
        records.push_back({kernel, at + 13, at + 15, "adamw", 7, 16, 1, 1, 256, 1, 1, 0, 0, 40});
    }
    InitializeInjection();
}
CPP
"${CXX:-g++}" -std=c++20 -I"$scratch" -I. -o "$scratch/records" "$scratch/records.cpp" ||
    wrong "kernel_times.cpp does not compile"
KERNEL_TIMES=$scratch/times KERNEL_TRACE=$scratch/trace "$scratch/records"
[ "$(sort "$scratch/times" | xargs)" = "2 1.00 - - memory copy 20 1 - - step 4 1.00 2,4,1 128,1,1 product \
4 2.00 16,1,1 256,1,1 adamw 5 1 - - idle 6 1.00 8,4,1 128,1,1 product" ] ||
    { cat "$scratch/times"; wrong "kernel_times.cpp sees other steps"; }
[ "$(tail -n +2 "$scratch/trace" | xargs)" = "5 11 7 8,4,1 128,1,1 3072 96 0 product \
11 15 7 2,4,1 128,1,1 3072 96 0 product 15 17 7 16,1,1 256,1,1 0 40 0 adamw 16 18 9 - - 0 0 512 memory copy \
18 20 7 16,1,1 256,1,1 0 40 0 adamw" ] || { cat "$scratch/trace"; wrong "the trace is of something else"; }
[ "$(head -n 1 "$scratch/trace" | wc -w)" -eq 9 ] || wrong "the trace's columns are: $(head -n 1 "$scratch/trace")"

# A build of another machine is used if it was built from these sources and starts; its libraries are searched. Only
# BUILD=1 replaces it, by one for this machine's GPU.
tree=$scratch/tree
mkdir -p "$tree/build/cuda" "$tree/dev/gpu_check" "$tree/toolkit/lib64"
printf '#!/bin/sh\necho of these sources\n' >"$tree/dev/gpu_check/sources.sh"
printf '#!/bin/sh\n[ "$LD_LIBRARY_PATH" = "%s" ]\n' "$tree/toolkit/lib64" >"$tree/build/cuda/train_gpt2"
printf '#!/bin/sh\nexit 0\n' >"$tree/build/cuda/tests"
chmod +x "$tree"/build/cuda/* "$tree/dev/gpu_check/sources.sh"
steps_file=$PWD/dev/gpu_check/steps.sh build_file=$PWD/dev/gpu_check/build.sh
mkdir "$scratch/fakes"
printf '#!/bin/sh\necho "$*" >%s\n' "$scratch/make" >"$scratch/fakes/make"
chmod +x "$scratch/fakes/make"
# builds [BUILD]: the steps that build() started
builds() {
    (
        cd "$tree" || exit 1
        list=false folder=$tree/out work=$tree/work rehearse=false bin=build/cuda nvcc=none packages=()
        toolkit=$tree/toolkit no_nvcc='' BUILD=${1-1}
        first() { local reason; for reason in "$@"; do [ -z "$reason" ] || { echo "$reason"; return; }; done; }
        note() { :; }
        details() { :; }
        unset LD_LIBRARY_PATH
        . "$steps_file"
        . "$build_file"
        begin "test" >"$scratch/out"
        PATH=$scratch/fakes:$PATH
        build | tee "$scratch/out" | grep -o '[a-z_]*\*\* started' | xargs
    )
}
[ "$(builds 0)" = "" ] || wrong "programs were built without BUILD=1"
grep -q "error: build/cuda has no packed programs; expected .*BUILD=1" "$scratch/out" ||
    wrong "without programs the check prints: $(cat "$scratch/out")"
[ "$(builds)" = "build** started" ] || wrong "a build of other sources was taken: $(builds)"
grep -q CUDA_ARCHS "$scratch/make" && wrong "a build for this machine is for other GPUs: $(cat "$scratch/make")"
echo "of these sources" >"$tree/build/cuda/gpu_check.sources"
[ "$(builds)" = "" ] || wrong "a build of these sources was not taken"
mkdir "$tree/build/packed"
tar -C "$tree" -cJf "$tree/build/packed/gpu_check.tar.xz" build/cuda
[ "$(builds)" = "" ] || wrong "an archive was unpacked over the build that it was made of"
echo "of other sources" >"$tree/build/cuda/gpu_check.sources"
mv "$tree/build/packed/gpu_check.tar.xz" "$tree/build/"
builds 0 >"$scratch/steps"
grep -q "built from other sources (of other sources, not of these sources)" "$scratch/out" ||
    wrong "of programs of other sources the check prints: $(cat "$scratch/out")"
mv "$tree/build/gpu_check.tar.xz" "$tree/build/packed/"
[ "$(builds)" = "unpack** started" ] || wrong "a packed build of these sources was not taken: $(builds)"
printf '#!/bin/sh\nexit 127\n' >"$tree/build/cuda/tests"
[ "$(builds)" = "build** started" ] || wrong "a build that does not start was taken"

# pack.sh: no text, no archive; and programs that do not ask for a minor version of CUDA.
cp dev/gpu_check/pack.sh dev/gpu_check/text.sh "$tree/dev/gpu_check/"
mkdir -p "$tree/scripts" "$tree/build/deps"
cp scripts/help.sh "$tree/scripts/"
touch "$tree/build/deps/env.sh"
printf '#!/bin/sh\n' | tee "$tree/scripts/bundle_deps.sh" >"$tree/scripts/get_gpt2_tokenizer.sh"
chmod +x "$tree"/scripts/*
printf '#!/bin/sh\necho "Genesis 1:1: In the beginning"\n' >"$scratch/fakes/bible"
printf '#!/bin/sh\nexit 1\n' >"$tree/build/cuda/tokenize"
chmod +x "$scratch/fakes/bible" "$tree/build/cuda/tokenize"
pack() { PATH=$scratch/fakes:$PATH "$tree/dev/gpu_check/pack.sh" "$scratch/packed.tar.xz" >"$scratch/out" 2>&1; }
pack && wrong "pack.sh packs nothing to train on"
grep -q "error: the text .* cannot be packed" "$scratch/out" || wrong "pack.sh prints: $(cat "$scratch/out")"
grep -q " BUILTINS= " "$scratch/make" || wrong "packed programs are linked to a minor version: $(cat "$scratch/make")"
touch "$tree/build/gpu_check_text/bible.bin"
pack || { cat "$scratch/out"; wrong "pack.sh fails"; }
mkdir "$scratch/unpacked"
python3 -m tarfile -e "$scratch/packed.tar.xz" "$scratch/unpacked" && [ -x "$scratch/unpacked/build/cuda/tests" ] &&
    [ -e "$scratch/unpacked/build/gpu_check_text/bible.bin" ] || wrong "the archive lacks programs or text"
printf '#!/bin/sh\nexit 77\n' >"$tree/dev/gpu_check/text.sh"
pack && wrong "pack.sh packs no text"

# Losses of two runs, and a separate host name.
row() { echo "step $1/4 |  $2 6.00e-04  $3   101.2 1.00k   0:01"; }
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
echo "all checks passed"
