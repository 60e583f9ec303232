// corpus_test.cpp - every parser, without libFuzzer, on its corpus: the inputs of earlier findings and their likes
#include <filesystem>
#include <stdexcept>

#include "kernels/base/error.h"
#include "test/fuzz/target.h"
#include "test/support/scratch_folder.h"

TEST_CASE("every parser keeps its contract on each file of its corpus", "[fuzz]") {
    const std::filesystem::path corpus = "test/fuzz/corpus";
    for (const fuzz::NamedTarget& target : fuzz::targets()) {
        int files = 0;
        for (const auto& entry : std::filesystem::directory_iterator(corpus / target.name)) {
            CAPTURE(entry.path().string());
            try {
                fuzz::check(target.parse, test::read_bytes(entry.path()));
            } catch (const fuzz::Finding& finding) {
                FAIL("not " << finding.what);
            }
            ++files;
        }
        CAPTURE(target.name);
        CHECK(files > 0);
    }
    CHECK(!fuzz::targets().empty());
}

TEST_CASE("the contract of parsers is checked: each way to break it is a finding", "[fuzz]") {
    const fuzz::Parse of_other_bytes = [](std::string_view) { base::fail("a value", "\xff", "UTF-8", ""); };
    const fuzz::Parse of_another_type = [](std::string_view) { throw std::out_of_range("at()"); };
    const fuzz::Parse property = [](std::string_view) { fuzz::must(false, "true"); };
    CHECK_THROWS_AS(fuzz::check(of_another_type, ""), fuzz::Finding);
    CHECK_THROWS_AS(fuzz::check(property, ""), fuzz::Finding);
    CHECK_THROWS_AS(fuzz::check(of_other_bytes, ""), fuzz::Finding);
    fuzz::check([](std::string_view) { base::fail("a value", 3, "4", "use 4"); }, "");
}
