// value_text_test.cpp - numbers of the command line: exponents and factors of whole ones, the range of fp32 of others
#include "llmc/base/value_text.h"

#include <cstdint>

#include "test/support/scratch_folder.h"

using namespace llmc;

TEST_CASE("whole numbers may have an exponent or a factor, if they are exact", "[options]") {
    const auto whole = [](std::string_view text) { return parse_number("-d", text, std::int64_t(0), INT64_MAX); };
    CHECK(whole("9223372036854775807") == INT64_MAX);
    CHECK((whole("7e9") == 7'000'000'000 && whole("7E+9") == 7'000'000'000 && whole("7000000000.0") == 7'000'000'000));
    CHECK((whole("64k") == 64'000 && whole("0.5M") == 500'000 && whole("1B") == whole("1g") && whole("1g") == 1e9));
    CHECK((whole("0.29m") == 290'000 && whole("100e-2") == 1 && whole("8.005k") == 8'005 && whole("1e15") == 1e15));
    for (const char* text : {"", "k", "1.5", "0.0001k", "1e3k", "1kk", "64Ki", "7e9 ", "1,000", "inf", "-1k",
                             "2e15", "1e99", "0.9999999999999999k", "12345678901234.5k", "0x10", "1e", "e3", "+1k"}) {
        CAPTURE(text);
        CHECK_THROWS_WITH(whole(text), test::Contains("; expected a whole number from 0 to ") &&
                                           test::EndsWith("; 64k (64000), 0.5M, 7e9 and 1B are whole numbers, too"));
    }
    CHECK(test::error_of([] { parse_number("-z", "x", std::int64_t(0), std::int64_t(2)); }) ==
          "-z is \"x\"; expected a whole number from 0 to 2");
    CHECK_THROWS(parse_number("-t", "3G", 0, INT32_MAX));
}

TEST_CASE("a number that is 0 or has fewer digits in fp32 is refused, unless it is 0", "[options]") {
    const auto real = [](std::string_view text, double least = 0) { return parse_number("-l", text, least, 1e30); };
    CHECK((real("0") == 0 && real("-0.0") == 0 && real("0e-99") == 0 && real("1.1754944e-38") == 1.1754944e-38));
    for (const char* text : {"1e-46", "1e-45", "1.17e-38", "1e-300"})
        CHECK(test::error_of([&] { real(text); }) ==
              "-l is \"" + std::string(text) + "\"; expected 0, or a number from 1.1754944e-38 to 1e+30");
    CHECK_THROWS_WITH(real("1e-46", 1e-30), test::EndsWith("expected a number from 1e-30 to 1e+30"));
    for (const char* text : {"1e-400", "1e39", "nan", "-1e-46"}) CHECK_THROWS(real(text));
}
