// bpe_split.cpp - GPT-2's pattern by PCRE2's just-in-time compiler, several pieces a call
#include "llmc/data/bpe_split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>
#include <string>

#include "kernels/device/error.h"
#include "llmc/data/utf8.h"

namespace llmc {
namespace {

// Pieces found by one call of the matcher: a call costs as much as two or three pieces.
constexpr int kPiecesACall = 16;

// \s of PCRE2 differs from Unicode's White_Space by version. No alternative gives characters back but the last but one,
// and the others say so (++): a matcher that remembers none needs no memory for them.
const std::string kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

std::string pattern_of_pieces() {
    const std::string piece = "'(?:[stmd]|re|ve|ll)| ?\\p{L}++| ?\\p{N}++| ?[^" + kSpace + "\\p{L}\\p{N}]++|[" +
                              kSpace + "]+(?![^" + kSpace + "])|[" + kSpace + "]++";
    std::string pattern = "(" + piece + ")";
    for (int i = 1; i < kPiecesACall; ++i) pattern += "(" + piece + ")?+";
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
            fail("PCRE2's answer to GPT-2's pattern", error, "a version with Unicode support",
                 "install another libpcre2", Blame::runtime);
        jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;  // else it is interpreted
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
        fail("memory for PCRE2", "refused", "a megabyte", "end other programs", Blame::runtime);
    pcre2_jit_stack_assign(data_->context, nullptr, data_->stack);
    pcre2_set_match_limit(data_->context, ~std::uint32_t(0));
    ends_.reserve(kPiecesACall);
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
        fail("PCRE2's answer to a text", found, "a match, as every character is part of a piece",
             "report it, with the text", Blame::runtime);
    const PCRE2_SIZE* const bounds = pcre2_get_ovector_pointer(data_->match);
    ends_.clear();
    for (int i = 1; i < found; ++i) ends_.push_back(bounds[2 * i + 1]);
    return ends_;
}

std::size_t certain_pieces(std::string_view text) {
    // Every piece but white space ends before white space, and white space looks only at what follows it.
    for (std::size_t at = text.size(); at-- > 1;) {
        const bool space = text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r';
        if (space && !ends_with_white_space(text.substr(0, at))) return at;
    }
    // What decides on a piece lies within the two characters after it.
    constexpr std::size_t kDeciding = 12;
    std::size_t end = 0, certain = 0;
    BpeMatcher().split(text, [&](std::string_view piece) {
        end += piece.size();
        if (end + kDeciding <= text.size()) certain = end;
    });
    return certain;
}

}  // namespace llmc
