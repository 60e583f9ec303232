// bpe_tokenizer.h - byte-level BPE: splits into GPT-2's pieces (bpe_split.h) and merges each (bpe_encoder.h)
//
// Every sequence of bytes can be encoded, and decode(encode(text)) == text, also for invalid UTF-8: OpenAI's program
// first replaces such bytes by U+FFFD, other programs refuse them. An end of text decodes to "\n<|endoftext|>\n", like
// that of the byte tokenizer.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "llmc/text/bpe_merges.h"
#include "llmc/text/tokenizer.h"

namespace llmc {

class BpeTokenizer final : public Tokenizer {
public:
    explicit BpeTokenizer(BpeMerges merges);
    ~BpeTokenizer() override;

    const BpeMerges& merges() const { return merges_; }
    Vocabulary vocabulary() const override { return vocabulary_; }
    // Thread-safe: each concurrent call takes separate working memory, which includes the cache of pieces, and returns
    // it for the next call.
    void append(std::string_view text, std::vector<std::uint16_t>& ids) const override;
    std::size_t certain_prefix(std::string_view text) const override;

private:
    std::string text_of(int id) const override { return tokens_[std::size_t(id)]; }

    class Worker;
    struct Workers;
    BpeMerges merges_;
    Vocabulary vocabulary_;
    std::vector<std::string> tokens_;
    std::unique_ptr<Workers> workers_;
};

}  // namespace llmc
