// catch.h - Catch2, version 2 or 3, by one set of names: its macros, GENERATE, Approx, the matchers of namespace test,
// skipped test cases, and test cases that no macro registers
//
// CATCH_CONFIG_RUNNER, as version 2 has it: what main() needs, too.
#pragma once
#include <algorithm>
#include <functional>
#include <iostream>
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
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
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

// Ends the test case, or its section or value of GENERATE, because this build or machine lacks what it needs. Unless it
// fails elsewhere, the case counts as skipped, even if other sections pass. Only on the thread of the case.
inline void skip(const std::string& reason) {
#ifdef TEST_CATCH2_3
    SKIP(reason);
#else
    WARN(reason);                         // tests have no other warnings
    throw Catch::TestFailureException();  // ends the case as a REQUIRE does, but no assertion has failed
#endif
}

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
#ifdef TEST_CATCH2_3
using Listener = Catch::EventListenerBase;
using AssertionEnded = void;
inline constexpr auto kSkip = Catch::ResultWas::ExplicitSkip;
#else
using Listener = Catch::TestEventListenerBase;
using AssertionEnded = bool;
inline constexpr auto kSkip = Catch::ResultWas::Warning;
#endif

// Prints `skipped: "CASE": REASON` for each case that counts as skipped. The summary of version 2 counts it as passed.
class SkippedCases : public Listener {
public:
    using Listener::Listener;
    void testCaseStarting(const Catch::TestCaseInfo& test) override {
        name_ = test.name;
        reason_.clear();
    }
    AssertionEnded assertionEnded(const Catch::AssertionStats& stats) override {
        const Catch::AssertionResult& result = stats.assertionResult;
        if (result.getResultType() == kSkip) reason_ = std::string(result.getMessage());
        return AssertionEnded();
    }
    void testCaseEnded(const Catch::TestCaseStats& stats) override {
        if (!reason_.empty() && stats.totals.assertions.failed == 0)
            std::cout << "skipped: \"" << name_ << "\": " << reason_ << std::endl;
    }

private:
    std::string name_, reason_;
};
CATCH_REGISTER_LISTENER(SkippedCases)

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
