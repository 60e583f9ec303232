// catch.h - Catch2, version 2 or 3, by one set of names: its macros, GENERATE, Approx, the matchers of namespace test,
// and test cases that no macro registers
//
// CATCH_CONFIG_RUNNER, as version 2 has it: what main() needs, too.
#pragma once
#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#if __has_include(<catch2/catch_test_macros.hpp>)
#define TEST_CATCH2_3
#include <catch2/catch_approx.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <catch2/matchers/catch_matchers_vector.hpp>
#ifdef CATCH_CONFIG_RUNNER
#include <catch2/catch_session.hpp>
#include <catch2/catch_test_case_info.hpp>
#include <catch2/interfaces/catch_interfaces_registry_hub.hpp>
#include <catch2/interfaces/catch_interfaces_testcase.hpp>
#endif
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif

namespace test {

#ifdef TEST_CATCH2_3
inline auto Contains(const std::string& text) { return Catch::Matchers::ContainsSubstring(text); }
using OwnedInvoker = Catch::Detail::unique_ptr<Catch::ITestInvoker>;
#else
using Catch::Matchers::Contains;
using OwnedInvoker = Catch::ITestInvoker*;
#endif
using Catch::Matchers::EndsWith, Catch::Matchers::Matches, Catch::Matchers::StartsWith, Catch::Matchers::VectorContains;

// A test case; to be added before the session runs. `tags` is "[one][another]".
inline void add_case(const std::string& name, const std::string& tags, const Catch::SourceLineInfo& place,
                     std::function<void()> body) {
    struct Invoker : Catch::ITestInvoker {
        explicit Invoker(std::function<void()> body) : body(std::move(body)) {}
        void invoke() const override { body(); }
        std::function<void()> body;
    };
    Catch::AutoReg(OwnedInvoker(new Invoker(std::move(body))), place, Catch::StringRef(), {name, tags});
}

#ifdef CATCH_CONFIG_RUNNER
// Adds the tag to the test cases of the files whose paths contain `path`. Hidden ones, which are processes that tests
// start, have none.
inline void tag_cases(const std::string& path, const char* tag) {
    const auto is_meant = [&](const Catch::TestCaseInfo& test) {
        return !test.isHidden() && std::string(test.lineInfo.file).find(path) != std::string::npos;
    };
    const auto& registry = Catch::getRegistryHub().getTestCaseRegistry();
#ifdef TEST_CATCH2_3
    const Catch::Tag added{Catch::StringRef(tag)};
    for (Catch::TestCaseInfo* test : registry.getAllInfos())
        if (is_meant(*test)) test->tags.insert(std::upper_bound(test->tags.begin(), test->tags.end(), added), added);
#else
    for (const Catch::TestCase& test : registry.getAllTests()) {
        if (!is_meant(test)) continue;
        auto tags = test.tags;
        tags.push_back(tag);
        Catch::setTags(const_cast<Catch::TestCase&>(test), tags);  // as Catch2 itself does for --filenames-as-tags
    }
#endif
}
#endif

}  // namespace test
