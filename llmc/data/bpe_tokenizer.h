// bpe_tokenizer.h - byte-level BPE: GPT-2's pieces (bpe_split.h), each merged (bpe_encoder.h)
//
// Every sequence of bytes has ids, and decode(encode(text)) == text, also where it is no UTF-8: OpenAI's own program
// would put U+FFFD in place of such bytes before, other programs refuse them. An end of text decodes to
// "\n<|endoftext|>\n", as that of bytes does.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "llmc/data/bpe_merges.h"
#include "llmc/data/tokenizer.h"

namespace llmc {

class BpeTokenizer final : public Tokenizer {
public:
    explicit BpeTokenizer(BpeMerges merges);
    ~BpeTokenizer() override;

    const BpeMerges& merges() const { return merges_; }
    Vocabulary vocabulary() const override { return merges_.vocabulary(); }
    // Several threads may call it at once: each takes memory of its own, with the ids of pieces that were met before,
    // and leaves it for the next call.
    void append(std::string_view text, std::vector<std::uint16_t>& ids) const override;
    std::size_t certain_prefix(std::string_view text) const override;
    std::vector<std::uint16_t> token_bytes() const override;
    std::string decode(std::span<const int> ids) const override;

private:
    class Worker;
    struct Workers;
    BpeMerges merges_;
    std::vector<std::string> tokens_;
    std::unique_ptr<Workers> workers_;
};

}  // namespace llmc
