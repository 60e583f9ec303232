// bench_onebit_test.cpp - the benchmark of the 1-bit mean: bytes sent, output and errors

#include "test/support/run_support.h"

using namespace test;

namespace {

Result time_means(const ScratchFolder& folder, int ranks, const Texts& arguments) {
    return Process((ranks > 1 ? launcher(ranks) : Texts()) + Texts{program("bench_onebit")} + arguments,
                   folder / "output").result();
}

}  // namespace

TEST_CASE("the 1-bit mean is timed together with sums that send 16 and 32 times as much", "[run][onebit][mpi][tools]") {
    skip_without_mpi();
    const ScratchFolder folder;
    const int ranks = GENERATE(2, 3);
    CAPTURE(ranks);
    const std::string output = time_means(folder, ranks, {"--elements", "3000000", "--rounds", "2", "--threads", "1",
                                                          "--json"}).exits(0);
    const auto json = nlohmann::json::parse(output.substr(output.find('{')));
    const double elements = json["elements"], sent = 2.0 * (ranks - 1) / ranks * elements;
    CHECK(elements == Approx(3e6).epsilon(0.01));
    CHECK(json["ranks"] == ranks);
    // With 3 ranks the shard of rank 0 is rounded up, and messages are a multiple of 128 bytes.
    CHECK(double(json["fp32"]["bytes_sent"]) == Approx(4 * sent).epsilon(1e-3));
    CHECK(double(json["bf16"]["bytes_sent"]) == Approx(2 * sent).epsilon(1e-3));
    CHECK(double(json["1-bit"]["bytes_sent"]) == Approx(sent / 8).epsilon(0.01));
    CHECK(json["compression"]["bytes_sent"] == 0);
    for (const char* const what : {"1-bit", "bf16", "fp32", "compression"}) {
        CAPTURE(what);
        const auto seconds = json[what]["seconds"].get<std::vector<double>>();
        REQUIRE(seconds.size() == 2);
        CHECK((seconds[0] > 0 && seconds[1] > 0));
        CHECK(double(json[what]["median"]) == Approx((seconds[0] + seconds[1]) / 2));
    }

    const std::string table = time_means(folder, ranks, {"--model", "custom:l=1,h=1,c=64,t=64", "--rounds", "1",
                                                         "--onebit-scale", "block", "--onebit-space",
                                                         "momentum"}).exits(0);
    for (const char* const text : {" elements, ", " ranks over MPI", "\n1-bit ", "\nbf16 ", "\nfp32 ",
                                   "\ncompression "})
        CHECK_THAT(table, Contains(text));
}

TEST_CASE("the benchmark of the 1-bit mean refuses invalid arguments", "[run][onebit][tools]") {
    const ScratchFolder folder;
        for (const auto& [arguments, said] :
         {std::pair(Texts{}, "the number of ranks is 1; expected 2 or more; start it with mpirun"),
          {{"--elements", "10"}, "--elements is 10; expected "},
          {{"--elements", "-1"}, "--elements is -1"},
          {{"--elements", "1000000", "--model", "d12"}, "--elements is set together with --model"},
          {{"--model", "d13"}, "d13"},
          {{"--rounds", "0"}, "--rounds is 0; expected 1 or more"},
          {{"--rounds", "many"}, "see bench_onebit --help"},
          {{"--threads", "-1"}, "--threads is -1"},
          {{"--onebit-scale", "element"}, "--onebit-scale is \"element\"; expected "},
          {{"--onebit-space", "gradient"}, "--onebit-space is \"gradient\"; expected "},
          {{"again"}, "\"again\" is not understood"}}) {
        CAPTURE(arguments);
        const Result result = time_means(folder, 1, arguments);
        CHECK(result.exit_code == 2);
        CHECK(result.lines() == 1);
        CHECK_THAT(result.output, Contains(said));
    }
    const std::string help = time_means(folder, 1, {"--help"}).exits(0);
    CHECK_THAT(help, Contains("--onebit-scale"));
}
