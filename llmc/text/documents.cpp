// documents.cpp - splits a text into documents with POSIX regular expressions, line by line
#include "llmc/text/documents.h"

#include <regex.h>

#include "kernels/base/error.h"

namespace llmc {
namespace {

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n\v\f") == text.npos; }

}  // namespace

// POSIX regular expressions, because std::regex recurses once per character and overflows the stack on lines of a few
// hundred kilobytes.
struct DocumentRule::Regex {
    regex_t compiled;

    explicit Regex(const std::string& pattern) {
        const int status = ::regcomp(&compiled, pattern.c_str(), REG_EXTENDED);
        if (status == 0) return;
        char reason[256];
        ::regerror(status, &compiled, reason, sizeof reason);
        fail("pattern \"" + pattern + "\"", std::string("malformed (") + reason + ")",
             "a POSIX extended regular expression");
    }
    ~Regex() { ::regfree(&compiled); }
    Regex(const Regex&) = delete;
    Regex& operator=(const Regex&) = delete;

    // The text that group `group` captures in `line` (group 0: the whole match); nullopt if there is no match or the
    // group does not participate in it.
    std::optional<std::string_view> match(std::string_view line, int group) const {
        regmatch_t caught[2];
        caught[0].rm_so = 0;
        caught[0].rm_eo = regoff_t(line.size());
        if (::regexec(&compiled, line.data(), 2, caught, REG_STARTEND) != 0 || caught[group].rm_so < 0)
            return std::nullopt;
        return line.substr(std::size_t(caught[group].rm_so), std::size_t(caught[group].rm_eo - caught[group].rm_so));
    }
};

DocumentRule::DocumentRule(Kind kind, const std::string& pattern)
    : kind_(kind), regex_(kind == Kind::whole_text ? nullptr : std::make_shared<const Regex>(pattern)) {}

DocumentRule DocumentRule::whole_text() { return {Kind::whole_text, {}}; }
DocumentRule DocumentRule::starting_at(const std::string& pattern) { return {Kind::starting_at, pattern}; }
DocumentRule DocumentRule::keyed_by(const std::string& pattern) {
    DocumentRule rule(Kind::keyed_by, pattern);
    require(rule.regex_->compiled.re_nsub >= 1, "pattern \"" + pattern + "\"", "without a group",
            "one with (...) around the document's key, as in '^([^:]+):'");
    return rule;
}

std::vector<std::string_view> DocumentRule::split(std::string_view text) const {
    // Documents are contiguous: their lengths determine their positions.
    std::vector<std::size_t> lengths;
    DocumentStream stream(*this, [&](std::string_view part, bool begins) {
        if (begins) lengths.push_back(0);
        lengths.back() += part.size();
    });
    stream.append(text);
    stream.end();
    std::vector<std::string_view> documents;
    for (const std::size_t length : lengths) {
        documents.push_back(text.substr(0, length));
        text.remove_prefix(length);
    }
    return documents;
}

DocumentStream::DocumentStream(const DocumentRule& rule, Take take) : rule_(rule), take_(std::move(take)) {}

void DocumentStream::append(std::string_view text) {
    if (text.empty()) return;
    if (rule_.is_whole_text()) {
        take_(text, !any_);
        any_ = true;
        return;
    }
    while (!text.empty()) {
        const std::size_t newline = text.find('\n');
        const std::string_view part = text.substr(0, newline == text.npos ? newline : newline + 1);
        text.remove_prefix(part.size());
        if (unfinished_.empty() && newline != part.npos) {
            line(part);
        } else {
            unfinished_ += part;
            if (newline == part.npos) return;
            line(unfinished_);
            unfinished_.clear();
        }
    }
}

void DocumentStream::end() {
    if (!unfinished_.empty()) line(unfinished_);
    unfinished_.clear();
    if (!blank_.empty()) take_(blank_, !any_);  // the end of the last document, or the whole text
    blank_.clear();
}

void DocumentStream::line(std::string_view line) {
    const std::string_view words = line.substr(0, line.size() - line.ends_with('\n'));
    const bool keyed = rule_.kind_ == DocumentRule::Kind::keyed_by;
    const auto caught = rule_.regex_->match(words, keyed ? 1 : 0);
    const bool begins = caught && (!keyed || !key_ || *caught != *key_);
    if (caught && keyed) key_ = *caught;
    if (begins) within_ = false;  // a document that is blank so far continues
    if (within_) return take_(line, false);
    if (is_blank(words)) {
        blank_ += line;
        return;
    }
    take_(blank_.empty() ? line : std::string_view(blank_ += line), true);
    blank_.clear();
    within_ = any_ = true;
}

}  // namespace llmc
