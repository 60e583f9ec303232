#!/usr/bin/env bash
# gpu_check.sh - tests the parts of dev/gpu_check.sh that need no GPU: refused arguments, the chosen steps and their
# limits, the table of kernels and its times, equal steps of two runs; what steps do: gpu_machine.sh
# shellcheck disable=SC2015
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=test/support/check.sh
. test/support/check.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

one_line 'error: there is no part' dev/gpu_check.sh
for word in 4 none training=0 training=x data=5=6 ''; do
    one_line "error: \"$word\" is no part or step" dev/gpu_check.sh 1 "$word"
done
one_line 'error: unknown option "--fast"' dev/gpu_check.sh 1 --fast
one_line 'error: -o has no value' dev/gpu_check.sh 1 -o --list
nvidia-smi -L 2>/dev/null | grep -q GPU || one_line "finds no GPU" dev/gpu_check.sh 1 -o "$scratch/a"
[ ! -e "$scratch/a" ] || fail "a refused check wrote into its folder"

# lists EXPECTED WORDS...: the chosen steps and limits, and their sum
lists() {
    local said
    said=$(dev/gpu_check.sh "${@:2}" --list | cut -d ' ' -f 1,2 | xargs)
    # shellcheck disable=SC2053
    [[ $said == $1 ]] || fail "gpu_check.sh ${*:2} chooses $said"
}
lists "machine 10 numbers 105 data 5 * peer 75 all 300" 1
lists "data 5 tests_kernels 115 *racecheck 100 all 240" 2
lists "data 5 batch 10 tuned_3 *same_losses *tests_runs 100 all 5[0-4]?" 3
lists "data 5 batch 10 tuned_3 40 kernel_times_build 10 kernel_times 60 bench 7 all 132" bench=7 kernel_times=60
lists "data 9 ranks_mpi 15 ranks_nccl_2 20 same_losses 2 all 46" same_losses data=9
lists "data 5 memcheck 50 memcheck_layer 100 all 105" memcheck=50 memcheck_layer
names=$(sed -n '/^declare -A parts/,/)$/{/declare/!p}' dev/gpu_check/plan.sh | grep -oE '[a-z0-9_]+=' | sort -u | wc -l)
[ "$(dev/gpu_check.sh 1 2 3 --list | grep -vc '^all ')" -eq "$names" ] || fail "a step of a part is not in the script"
[ $failed = 0 ] || exit 1

# The table: from ncu's output, and from kernel_times.cpp's; of values that ncu could not measure and truncated rows.
{
    echo "==PROF== Connected to process 1"
    stall=smsp__average_warps_issue_stalled active=avg.pct_of_peak_sustained_active
    echo '"ID","Kernel Name","Grid Size","dram__bytes.sum","gpu__time_duration.sum","lts__t_sector_hit_rate.pct",'"\
\"sm__warps_active.$active\",\"smsp__issue_active.$active\",\"${stall}_barrier_per_issue_active.ratio\",\
\"${stall}_long_scoreboard_per_issue_active.ratio\""
    echo '"","","","byte","ns","%","%","%","inst","inst"'
    gelu='"void kernels::(anonymous namespace)::gelu_kernel<float, 4>(kernels::Gelu<float>)"'
    echo "\"0\",$gelu,\"(12, 1, 1)\",\"4,000,000\",\"1,000\",\"50\",\"80\",\"20\",\"0.5\",\"4\""
    echo "\"1\",$gelu,\"(12, 1, 1)\",\"2,000,000\",\"1,000\",\"70\",\"90\",\"30\",\"0.5\",\"6\""
    echo "\"2\",$gelu,\"(48, 1, 1)\",\"1,000,000\",\"8,000\",\"n/a\",\"90\",\"30\",\"3.5\",\"1\""
    echo '"3","none","(1, 1, 1)","n/a","n/a"'
} >"$scratch/ncu"
printf '%s\t%s\t%s\t%s\t%s\n' 2500.0 4 8,1,1 32,1,1 _ZN7kernels4geluEv 100 2 2,1,1 32,1,1 _ZN7kernels4geluEv \
    500 1 - - 'memory copy' 9 0 2,1,1 32,1,1 never 5000 1 - - step 2000 1 - - idle >"$scratch/cupti"
for file in ncu cupti; do
    dev/gpu_check/kernel_table.py "$scratch/$file" || wrong "kernel_table.py fails with $file"
done >"$scratch/table"
# shellcheck disable=SC2016
for line in \
    '| kernel | grid | launches | us each | ms | share | GB/s | L2 hit | warps active | issue active | main stall |' \
    '`gelu_kernel<float, 4>` | 12,1,1 | 2 | 1.0 | 0.002 | 20.0 % | 3000 | 60 % | 85 % | 25 % | long_scoreboard 5.0 |' \
    '`gelu_kernel<float, 4>` | 48,1,1 | 1 | 8.0 | 0.008 | 80.0 % | 125 | 0 % | 90 % | 30 % | barrier 3.5 |' \
    '| `gelu` | 8,1,1 | 4 | 0.6 | 0.003 | 80.6 % |' '| `gelu` | 2,1,1 | 2 | 0.1 | 0.000 | 3.2 % |' \
    'a whole step: 0.005 ms, of which nothing ran for 0.002 ms (40.0 %)'; do
    grep -qF -- "$line" "$scratch/table" || { cat "$scratch/table"; wrong "the table lacks: $line"; }
done
grep -qE 'none|never' "$scratch/table" && wrong "the table has what was not measured"
for missing in README.md "$scratch/none" /dev/null; do
    said=$(dev/gpu_check/kernel_table.py "$missing" 2>&1) && wrong "a table of nothing"
    [[ $said == "error: "* ]] || wrong "of a file without kernels kernel_table.py prints: $said"
done

# kernel_times.cpp with CUPTI's records of five steps of 20 ns; the next step's tokens are copied between two AdamW
# kernels.
cat >"$scratch/cupti.h" <<'CPP'
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>
using CUcontext = void*;
enum CUpti_ActivityKind {
    CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL
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
using CUpti_ActivityKernel9 = CUpti_Activity;
using CUpti_ActivityMemcpy5 = CUpti_Activity;
using CUpti_ActivityMemset3 = CUpti_Activity;
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

# Losses of two runs, a separate host name, and a machine without a network, whose loopback interface is down.
row() { echo "step $1/4 |  $2 6.00e-04  $3   101.2 1.00k   0:01"; }
{ row 1 5.5 1.25; row 2 5.25 1.5; } >"$scratch/one"
{ echo "ranks over NCCL"; cat "$scratch/one"; } >"$scratch/same"
{ row 1 5.5 1.25; row 2 5.25 1.51; } >"$scratch/other"
same() { dev/gpu_check/same_steps.py "$@" >"$scratch/out" 2>&1; }
same --exact "$scratch/one" "$scratch/same" && same "$scratch/one" "$scratch/other" || wrong "equal losses differ"
same --exact "$scratch/one" "$scratch/other" && wrong "other norms are equal"
same --exact /dev/null /dev/null && wrong "no losses are equal"
for step in 1 2 3 4; do row $step 5.5 1.25; done >"$scratch/even"
sed 's/^step 4.* 101.2 /step 4\/4 |  5.5 6.00e-04  1.25    58.1 /' "$scratch/even" >"$scratch/uneven"
same --times "$scratch/even" || wrong "equal times differ"
same --times "$scratch/uneven" && wrong "a step of half the time passes"
if unshare --uts true 2>/dev/null; then
    said=$(OMPI_COMM_WORLD_RANK=3 dev/gpu_check/own_host.sh uname -n)
    [ "$said" = host3 ] || wrong "a rank's own host is $said"
fi
if unshare --net true 2>/dev/null; then
    unshare --net bash -c 'dev/gpu_check/loopback.py && python3 -c "import socket
server = socket.create_server((\"127.0.0.1\", 0))
socket.create_connection(server.getsockname(), timeout=5)"' || wrong "loopback.py does not bring up the interface"
fi
echo "all checks passed"
