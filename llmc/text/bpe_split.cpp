// bpe_split.cpp - GPT-2's pattern with PCRE2's just-in-time compiler, several pieces per call
#include "llmc/text/bpe_split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>
#include <string>

#include "kernels/base/error.h"

namespace llmc {
namespace {

// Pieces per call of the matcher: the overhead of a call equals that of two or three pieces.
constexpr int kPiecesPerCall = 16;

// PCRE2's \s differs from Unicode's White_Space in some versions. Only the second last alternative backtracks; the
// others are possessive (++), so that the matcher needs no memory for backtracking.
const std::string kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

std::string pattern_of_pieces() {
    const std::string piece = "'(?:[stmd]|re|ve|ll)| ?\\p{L}++| ?\\p{N}++| ?[^" + kSpace + "\\p{L}\\p{N}]++|[" +
                              kSpace + "]+(?![^" + kSpace + "])|[" + kSpace + "]++";
    std::string pattern = "(" + piece + ")";
    for (int i = 1; i < kPiecesPerCall; ++i) pattern += "(" + piece + ")?+";
    return pattern;
}

struct PiecePattern {
    pcre2_code* code = nullptr;
    bool jit = false;

    PiecePattern() {
        const std::string pattern = pattern_of_pieces();
        int error = 0;
        PCRE2_SIZE place = 0;
        code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, &error, &place, nullptr);
        if (!code)
            fail("PCRE2's error code for GPT-2's pattern", error, "a version with Unicode support",
                 "install another libpcre2", Blame::runtime);
        jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;  // otherwise interpreted
    }
    ~PiecePattern() { pcre2_code_free(code); }
};

const PiecePattern& piece_pattern() {
    static const PiecePattern pattern;
    return pattern;
}

}  // namespace

struct BpeMatcher::Data {
    pcre2_match_data* match = nullptr;
    pcre2_match_context* context = nullptr;
    pcre2_jit_stack* stack = nullptr;
    ~Data() {
        pcre2_match_data_free(match);
        pcre2_match_context_free(context);
        pcre2_jit_stack_free(stack);
    }
};

BpeMatcher::BpeMatcher() : data_(std::make_unique<Data>()) {
    data_->match = pcre2_match_data_create_from_pattern(piece_pattern().code, nullptr);
    data_->context = pcre2_match_context_create(nullptr);
    data_->stack = pcre2_jit_stack_create(32 << 10, 1 << 20, nullptr);
    if (!data_->match || !data_->context || !data_->stack)
        fail("memory for PCRE2", "not available", "one megabyte", "end other programs", Blame::runtime);
    pcre2_jit_stack_assign(data_->context, nullptr, data_->stack);
    pcre2_set_match_limit(data_->context, ~std::uint32_t(0));
    ends_.reserve(kPiecesPerCall);
}
BpeMatcher::~BpeMatcher() = default;
BpeMatcher::BpeMatcher(BpeMatcher&& other) noexcept = default;

const std::vector<std::size_t>& BpeMatcher::match(std::string_view characters, std::size_t at) {
    const auto subject = reinterpret_cast<PCRE2_SPTR>(characters.data());
    const PiecePattern& pattern = piece_pattern();
    const int found = pattern.jit ? pcre2_jit_match(pattern.code, subject, characters.size(), at, PCRE2_NO_UTF_CHECK,
                                                    data_->match, data_->context)
                                  : pcre2_match(pattern.code, subject, characters.size(), at, PCRE2_NO_UTF_CHECK,
                                                data_->match, data_->context);
    if (found < 2)
        fail("PCRE2's result for a text", found, "a match, as every character is part of a piece",
             "report it with the text", Blame::runtime);
    const PCRE2_SIZE* const bounds = pcre2_get_ovector_pointer(data_->match);
    ends_.clear();
    for (int i = 1; i < found; ++i) ends_.push_back(bounds[2 * i + 1]);
    return ends_;
}

std::size_t certain_pieces(std::string_view text) {
    // Every piece except white space ends before white space, and a white space piece depends only on what follows it.
    for (std::size_t at = text.size(); at-- > 1;) {
        const bool space = text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r';
        if (space && !ends_with_white_space(text.substr(0, at))) return at;
    }
    // A piece depends on at most two characters after it.
    constexpr std::size_t kLookahead = 12;
    std::size_t end = 0, certain = 0;
    BpeMatcher().split(text, [&](std::string_view piece) {
        end += piece.size();
        if (end + kLookahead <= text.size()) certain = end;
    });
    return certain;
}

}  // namespace llmc
