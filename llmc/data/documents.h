// documents.h - where one document of a text ends and the next begins
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llmc {

// Every byte of a text belongs to exactly one of its documents, in order. Patterns are POSIX extended regular
// expressions, matched against bytes, a line at a time without its newline; '^' and '$' are the line's ends.
class DocumentRule {
public:
    static DocumentRule whole_text();
    // A line that matches begins a document.
    static DocumentRule starting_at(const std::string& pattern);
    // Lines for which the first (...) of `pattern` catches the same text, one after the other, are one document; a line
    // that does not match belongs to the document of the line before. With '^([^:]+):' the verses "Ge1:1 ...", "Ge1:2
    // ..." make one document, and "Ge2:1 ..." begins the next.
    static DocumentRule keyed_by(const std::string& pattern);

    // Views into `text`. An empty text has no document.
    std::vector<std::string_view> split(std::string_view text) const;
    // Whether documents end only where the text does.
    bool is_whole_text() const { return kind_ == Kind::whole_text; }

private:
    friend class DocumentStream;
    struct Regex;
    enum class Kind { whole_text, starting_at, keyed_by };
    DocumentRule(Kind kind, const std::string& pattern);

    Kind kind_;
    std::shared_ptr<const Regex> regex_;
};

// The documents of a text that comes stretch by stretch. White space that may begin a document or end the one before is
// held back until it is known which, and so is a line of which the end has not come.
class DocumentStream {
public:
    // `take(text, begins)`: more of a document, its first part where `begins`; never empty. `rule` must outlive it.
    using Take = std::function<void(std::string_view text, bool begins)>;
    DocumentStream(const DocumentRule& rule, Take take);
    void append(std::string_view text);
    void end();

private:
    void line(std::string_view line);  // with its newline

    const DocumentRule& rule_;
    Take take_;
    std::string unfinished_;  // line
    std::string blank_;       // what begins a document, so far only white space
    std::optional<std::string> key_;
    bool within_ = false;     // a document that has begun, and is not blank
    bool any_ = false;        // documents
};

}  // namespace llmc
