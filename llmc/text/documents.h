// documents.h - splits a text into documents
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llmc {

// Every byte of a text belongs to exactly one document, in order. Patterns are POSIX extended regular expressions that
// are matched against the bytes of each line without its newline; '^' and '$' match the ends of the line.
class DocumentRule {
public:
    static DocumentRule whole_text();
    // A line that matches starts a document.
    static DocumentRule starting_at(const std::string& pattern);
    // Consecutive lines for which the first (...) of `pattern` captures the same text are one document; a line that
    // does not match belongs to the document of the previous line. With '^([^:]+):' the verses "Ge1:1 ...", "Ge1:2 ..."
    // are one document, and "Ge2:1 ..." starts the next.
    static DocumentRule keyed_by(const std::string& pattern);

    // Views into `text`. An empty text has no document.
    std::vector<std::string_view> split(std::string_view text) const;
    // Whether the whole text is one document.
    bool is_whole_text() const { return kind_ == Kind::whole_text; }

private:
    friend class DocumentStream;
    struct Regex;
    enum class Kind { whole_text, starting_at, keyed_by };
    DocumentRule(Kind kind, const std::string& pattern);

    Kind kind_;
    std::shared_ptr<const Regex> regex_;
};

// Splits a text that arrives in chunks. White space that may start a document or end the previous one is buffered until
// that is known, and so is an incomplete line.
class DocumentStream {
public:
    // `take(text, begins)` receives the next part of a document, never empty; `begins`: its first part. `rule` must
    // outlive the stream.
    using Take = std::function<void(std::string_view text, bool begins)>;
    DocumentStream(const DocumentRule& rule, Take take);
    void append(std::string_view text);
    void end();

private:
    void line(std::string_view line);  // with its newline

    const DocumentRule& rule_;
    Take take_;
    std::string unfinished_;  // an incomplete line
    std::string blank_;       // the start of a document, so far only white space
    std::optional<std::string> key_;
    bool within_ = false;     // inside a document that has started and is not blank
    bool any_ = false;        // whether there was a document
};

}  // namespace llmc
