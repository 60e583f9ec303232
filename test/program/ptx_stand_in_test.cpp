// ptx_stand_in_test.cpp - the PTX interpreter for machines without a GPU (test/stand_in/ptx): small handwritten kernels
// whose results the PTX ISA defines
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iostream>
#include <limits>

#include "kernels/device/memory.h"
#include "test/stand_in/ptx/warp.h"
#include "test/support/catch.h"

using namespace stand_in::ptx;
using test::Contains;

namespace {

using Words = std::vector<std::uint32_t>;
using Order = Launch::Order;

constexpr std::size_t kWords = 1024;
constexpr Order kOrders[] = {Order::forward, Order::backward, Order::random};

std::uint32_t word(float x) { return std::bit_cast<std::uint32_t>(x); }

// Registers of every kernel: %r0 is the thread index, %rd0 the address of the thread's word of the result.
std::string kernel(const std::string& body, const std::string& before = "") {
    return "\n.version 9.0\n.target sm_90a\n.address_size 64\n" + before + R"(
.entry k(.param .u64 k_out, .param .u32 k_number)
{
.reg .pred %p<8>;
.reg .b16 %rs<8>;
.reg .b32 %r<32>;
.reg .f32 %f<8>;
.reg .b64 %rd<16>;
.reg .f64 %fd<8>;
ld.param.u64 %rd0, [k_out];
mov.u32 %r0, %tid.x;
mul.wide.u32 %rd1, %r0, 4;
add.s64 %rd0, %rd0, %rd1;
)" + body + "\nret;\n}\n";
}

// Page-locked memory, which both the host and a kernel may access.
struct Result {
    device::PinnedMemory memory{kWords * sizeof(std::uint32_t)};
    std::uint32_t* words() { return reinterpret_cast<std::uint32_t*>(memory.data()); }
};

void run_into(Result& result, const std::string& text, unsigned threads, Order order = Order::forward,
              unsigned number = 0) {
    std::uint32_t* const words = result.words();
    std::fill_n(words, kWords, 0xdeadbeef);
    const Function function = decode(text, "k");
    std::byte parameters[16]{};
    std::memcpy(parameters, &words, 8);
    std::memcpy(parameters + 8, &number, 4);
    stand_in::ptx::run({.function = &function, .grid = {}, .block = {threads}, .parameters = parameters,
                        .parameter_bytes = 12, .order = order, .seed = 3});
}

// The first word of each thread.
Words run(const std::string& text, unsigned threads = 32, Order order = Order::forward, unsigned number = 0) {
    Result result;
    run_into(result, text, threads, order, number);
    return {result.words(), result.words() + threads};
}

// The final value of lane 0's `result`, a register of 32 bits.
std::uint32_t value(const std::string& body, const std::string& result) {
    return run(kernel(body + "\nst.global.u32 [%rd0], " + result + ";"), 1)[0];
}

// Runs it in a process. Returns the error with which that ends.
std::string fault(const std::string& text, unsigned threads = 32) {
    Result result;
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    std::cout.flush();
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        run_into(result, text, threads);
        _exit(0);
    }
    close(ends[1]);
    std::string said(4096, ' ');
    const ssize_t got = read(ends[0], said.data(), said.size());
    said.resize(std::size_t(std::max<ssize_t>(got, 0)));
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "no fault";
    return said;
}

}  // namespace

TEST_CASE("PTX instructions compute their documented results", "[stand_in][ptx]") {
    const float infinity = std::numeric_limits<float>::infinity();
    struct Case {
        const char *body, *result;
        std::uint32_t want;
    };
    const Case cases[] = {
        {"mov.u32 %r1, 7; add.s32 %r2, %r1, -9;", "%r2", 0xfffffffe},
        {"mov.u32 %r1, 5; shl.b32 %r2, %r1, 32;", "%r2", 0},
        {"mov.u32 %r1, -5; shr.s32 %r2, %r1, 40;", "%r2", 0xffffffff},
        {"mov.u32 %r1, -5; shr.u32 %r2, %r1, 40;", "%r2", 0},
        {"mov.u32 %r1, -7; div.s32 %r2, %r1, 2;", "%r2", std::uint32_t(-3)},
        {"mov.u32 %r1, -7; rem.s32 %r2, %r1, 2;", "%r2", std::uint32_t(-1)},
        {"mov.u32 %r1, 0x10000; mul.lo.s32 %r2, %r1, %r1;", "%r2", 0},
        {"mov.u32 %r1, 0x10000; mul.hi.s32 %r2, %r1, %r1;", "%r2", 1},
        {"mov.u32 %r1, -2; mul.wide.s32 %rd2, %r1, 3; shr.u64 %rd3, %rd2, 32; cvt.u32.u64 %r2, %rd3;", "%r2",
         0xffffffff},
        {"mov.u32 %r1, -2; mul.wide.u32 %rd2, %r1, 3; shr.u64 %rd3, %rd2, 32; cvt.u32.u64 %r2, %rd3;", "%r2", 2},
        {"mov.u32 %r1, 0xff; mov.u32 %r2, 0; bfi.b32 %r3, %r1, %r2, 4, 6;", "%r3", 0x3f0},
        {"mov.u32 %r1, 0xffff; mov.b32 {%rs1, %rs2}, %r1; mov.b32 %r2, {%rs2, %rs1};", "%r2", 0xffff0000},
        {"mov.u16 %rs1, 0x80; cvt.s16.s8 %rs2, %rs1; cvt.u32.u16 %r1, %rs2;", "%r1", 0xff80},
        {"mov.u32 %r1, 3; setp.gt.s32 %p1, %r1, 4; selp.b32 %r2, 1, 2, %p1;", "%r2", 2},
        // NaN: never less, equal or greater, always unordered
        {"mov.f32 %f1, 0f7FC00000; setp.lt.f32 %p1, %f1, 0f00000000; selp.b32 %r2, 1, 2, %p1;", "%r2", 2},
        {"mov.f32 %f1, 0f7FC00000; setp.ltu.f32 %p1, %f1, 0f00000000; selp.b32 %r2, 1, 2, %p1;", "%r2", 1},
        {"mov.f32 %f1, 0f7FC00000; setp.neu.f32 %p1, %f1, %f1; selp.b32 %r2, 1, 2, %p1;", "%r2", 1},
        {"mov.f32 %f1, 0f7FC00000; max.f32 %f2, %f1, 0f3F800000;", "%f2", word(1)},
        // rounded once
        {"mov.f32 %f1, 0f3F800001; fma.rn.f32 %f2, %f1, %f1, 0fBF800002;", "%f2", word(0x1p-46f)},
        {"mov.f32 %f1, 0f3F818000; { cvt.rn.bf16.f32 %rs1, %f1;} cvt.u32.u16 %r1, %rs1;", "%r1", 0x3f82},
        {"mov.f32 %f1, 0f3F808000; cvt.rn.bf16.f32 %rs1, %f1; cvt.u32.u16 %r1, %rs1;", "%r1", 0x3f80},
        {"mov.f32 %f1, 0fFFC00000; mov.f32 %f2, 0f3F800000; cvt.rn.bf16x2.f32 %r1, %f1, %f2;", "%r1", 0x7fff3f80},
        {"mov.f32 %f1, 0fC2FE0000; ex2.approx.ftz.f32 %f2, %f1;", "%f2", 0},
        {"mov.f32 %f1, 0fC2FE0000; ex2.approx.f32 %f2, %f1;", "%f2", word(0x1p-127f)},
        {"mov.f32 %f1, 0fFF800000; ex2.approx.f32 %f2, %f1;", "%f2", 0},
        {"mov.f32 %f1, 0f00000000; rsqrt.approx.f32 %f2, %f1;", "%f2", word(infinity)},
        {"mov.f64 %fd1, 0d4008000000000000; rcp.approx.ftz.f64 %fd2, %fd1; mov.b64 {%r1, %r2}, %fd2;", "%r1", 0},
        {"mov.f64 %fd1, 0dC005555555555555; cvt.rzi.s64.f64 %rd2, %fd1; cvt.u32.u64 %r1, %rd2;", "%r1",
         std::uint32_t(-2)},
        {"mov.f64 %fd1, 0d7FF8000000000000; cvt.rzi.s64.f64 %rd2, %fd1; shr.u64 %rd2, %rd2, 32; cvt.u32.u64 %r1, %rd2;",
         "%r1", 0x80000000},
        {"mov.f32 %f1, 0f7FC00000; cvt.rzi.s32.f32 %r1, %f1;", "%r1", 0},
    };
    for (const Case& one : cases) {
        CAPTURE(one.body);
        CHECK(value(one.body, one.result) == one.want);
    }
}

TEST_CASE("warps wait for each other at a barrier, except for exited ones", "[stand_in][ptx]") {
    // Thread t of the first three warps writes t to shared memory, and reads the value of thread 95 - t.
    const std::string text = kernel(R"(
setp.ge.u32 %p1, %r0, 96;
@%p1 ret;
mov.u32 %r1, words;
shl.b32 %r2, %r0, 2;
add.s32 %r3, %r1, %r2;
st.shared.u32 [%r3], %r0;
bar.sync 0;
sub.s32 %r4, %r1, %r2;
ld.shared.u32 %r5, [%r4+380];
st.global.u32 [%rd0], %r5;)", ".shared .align 4 .b8 words[384];");
    for (const Order order : kOrders) {
        const Words got = run(text, 128, order);
        for (unsigned thread = 0; thread < 128; ++thread)
            CHECK(got[thread] == (thread < 96 ? 95 - thread : 0xdeadbeef));
    }
}

TEST_CASE("a cp.async copy is not visible before the wait", "[stand_in][ptx]") {
    const auto copied = [](const std::string& between) {
        return run(kernel(R"(
shl.b32 %r1, %r0, 4;
mov.u32 %r2, words;
add.s32 %r2, %r2, %r1;
st.global.u32 [%rd0], %r0;
ld.param.u64 %rd2, [k_out];
mov.u32 %r6, 12;
cp.async.cg.shared.global [%r2], [%rd2], 16, %r6;
)" + between + R"(
ld.shared.v4.u32 {%r7, %r8, %r9, %r10}, [%r2];
add.s32 %r7, %r8, %r10;
st.global.u32 [%rd0], %r7;)", ".shared .align 16 .b8 words[512];"))[31];
    };
    CHECK(copied("") == 0xfffffffe);                           // two words of NaN
    CHECK(copied("cp.async.wait_all;") == 1);                  // word 1, and zeros after the 12 bytes
}

TEST_CASE("functions can be called, and parameters read at computed addresses", "[stand_in][ptx]") {
    const std::string called = R"(
.func (.param .b32 twice_result) twice(.param .b32 twice_x)
{
.reg .b32 %r<4>;
ld.param.u32 %r1, [twice_x];
add.s32 %r2, %r1, %r1;
st.param.u32 [twice_result], %r2;
ret;
}
)";
    CHECK(run(kernel(R"(
mov.b64 %rd2, k_out;
add.s64 %rd3, %rd2, 16;
ld.param.u32 %r1, [%rd3+-8];
{
.param .b32 param0;
st.param.u32 [param0], %r1;
.param .b32 retval0;
call.uni (retval0), twice, (param0);
ld.param.u32 %r2, [retval0];
}
st.global.u32 [%rd0], %r2;)", called), 1, Order::forward, 21)[0] == 42);
}

TEST_CASE("errors of a kernel are reported with their location", "[stand_in][ptx]") {
    const std::string words = ".shared .align 16 .b8 words[256];";
    CHECK(fault(kernel("st.global.u32 [%rd0], %r0;")) == "no fault");
    CHECK_THAT(fault(kernel("ld.global.v2.u32 {%r1, %r2}, [%rd0+4];")),
               Contains("kernels.ptx:") && Contains("lane 0 loads 8 bytes at") && Contains("not aligned"));
    CHECK_THAT(fault(kernel("mov.u64 %rd2, 4096; st.global.u32 [%rd2], %r0;")),
               Contains("host memory or unmapped memory"));
    CHECK_THAT(fault(kernel("mov.u32 %r1, words; st.shared.u32 [%r1+256], %r0;", words)),
               Contains("touches 4 bytes at 256 of shared memory of 256"));
    CHECK_THAT(fault(kernel("ld.param.u64 %rd2, [k_out+8];")), Contains("touches byte 8 of 12 of parameters"));
    const std::string stack = ".local .align 8 .b8 depot[16];\nmov.u64 %rd2, depot;\n";
    CHECK(fault(kernel(stack + "st.local.u32 [%rd2+12], %r0;")) == "no fault");
    for (const char* const outside : {"-4", "-8", "16"})
        CHECK_THAT(fault(kernel(stack + "st.local.u32 [%rd2+" + outside + "], %r0;")), Contains("of 16 on its stack"));
    // half of the lanes diverge
    const std::string halves = "setp.lt.u32 %p1, %r0, 16;\n";
    CHECK_THAT(fault(kernel(halves + "@%p1 bra $L_a;\nshfl.sync.bfly.b32 %r1|%p2, %r0, 1, 31, -1;\nbra.uni $L_b;\n"
                                     "$L_a:\nshfl.sync.bfly.b32 %r1|%p2, %r0, 1, 31, -1;\n$L_b:")),
               Contains("lanes wait for others that wait elsewhere: lanes 0x"));
    CHECK_THAT(fault(kernel(halves + "@%p1 bra $L_a;\nshfl.sync.bfly.b32 %r1|%p2, %r0, 1, 31, 65535;\n$L_a:")),
               Contains("a lane is not in its own mask"));
    CHECK_THAT(fault(kernel(halves + "@%p1 bra $L_a;\nshfl.sync.bfly.b32 %r1|%p2, %r0, 16, 31, 0xffff0000;\n$L_a:")),
               Contains("reads the value of lane") && Contains("which does not take part"));
    CHECK_THAT(fault(kernel(halves + "@%p1 bra $L_a;\nbar.sync 0;\nbra.uni $L_b;\n$L_a:\nbar.sync 0;\n$L_b:")),
               Contains("lanes wait for others"));
    const std::string load = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, ";
    CHECK_THAT(fault(kernel(load + "[%r0];"), 16),
               Contains("an instruction of whole warps"));
    CHECK_THAT(fault(kernel("mov.u32 %r2, words;\n" + load + "[%r2+4];", words)),
               Contains("not aligned"));
    CHECK_THAT(fault(kernel("shfl.sync.down.b32 %r1|%p1, %r0, 1, 31, -1;")),
               Contains("an unknown instruction: \"shfl.sync.down"));
    CHECK_THAT(fault(kernel("vote.sync.any.pred %p1, %p1, -1;")),
               Contains("an unknown instruction: \"vote.sync.any.pred"));
    CHECK_THAT(fault(kernel("cvt.sat.u32.s32 %r1, %r0;")), Contains("an unknown instruction: \"cvt.sat.u32.s32"));
    CHECK_THAT(fault(kernel("setp.eq.u32 %p1, %r0, 0;\n@%p1 call.uni nothing;")),
               Contains("an unknown instruction: \"@%p1 call"));
    CHECK_THAT(fault(kernel("add.s64 %rd2, %r0, 1;")), Contains("%r0 is of another size"));
}
